//! IP addresses of network interfaces.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use regatta_model::machine::NicAddress;
use serde::Deserialize;

use crate::Sysroot;

/// Addresses by interface name.
pub(super) type Addresses = BTreeMap<String, Vec<NicAddress>>;

/// On the running node from the kernel, on a recorded one from the optional `ip-addr.json`, the
/// output of `ip -j addr`.
pub(super) fn read(root: &Sysroot) -> Addresses {
    let all = if root.is_live() {
        from_kernel()
    } else {
        from_json(&root.read_text("/ip-addr.json").unwrap_or_default())
    };
    let mut addresses = Addresses::new();
    for (name, address) in all.into_iter().filter(|(_, a)| is_reachable(a.address)) {
        addresses.entry(name).or_default().push(address);
    }
    addresses
}

/// Link-local IPv6 addresses need the interface, which peers do not know.
fn is_reachable(address: IpAddr) -> bool {
    !matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

#[derive(Deserialize)]
struct Interface {
    #[serde(default)]
    ifname: String,
    #[serde(default)]
    addr_info: Vec<AddrInfo>,
}

/// Some entries of `ip -j addr` are empty objects.
#[derive(Deserialize)]
struct AddrInfo {
    local: Option<IpAddr>,
    prefixlen: Option<u8>,
}

fn from_json(text: &str) -> Vec<(String, NicAddress)> {
    let interfaces: Vec<Interface> = serde_json::from_str(text).unwrap_or_default();
    let pairs = |Interface { ifname, addr_info }: Interface| {
        addr_info.into_iter().filter_map(move |info| {
            let (address, prefix) = (info.local?, info.prefixlen?);
            Some((ifname.clone(), NicAddress { address, prefix }))
        })
    };
    interfaces.into_iter().flat_map(pairs).collect()
}

fn from_kernel() -> Vec<(String, NicAddress)> {
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: `list` is a valid out-pointer; it is read only if the call succeeds.
    if unsafe { libc::getifaddrs(&mut list) } != 0 {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut next = list;
    while !next.is_null() {
        // SAFETY: `next` is an entry of the list, which lives until `freeifaddrs` below.
        let entry = unsafe { &*next };
        next = entry.ifa_next;
        if entry.ifa_name.is_null() {
            continue;
        }
        // SAFETY: the name is a C string that lives as long as the list.
        let name = unsafe { std::ffi::CStr::from_ptr(entry.ifa_name) };
        // SAFETY: both are null or socket addresses of the list, complete for their family.
        let (address, mask) = unsafe { (ip(entry.ifa_addr), ip(entry.ifa_netmask)) };
        let (Some(address), Some(mask)) = (address, mask) else { continue };
        let prefix = prefix_len(mask);
        // Aliases (`eth0:1`) belong to the interface before the colon.
        let name = name.to_string_lossy().split(':').next().unwrap_or_default().to_owned();
        found.push((name, NicAddress { address, prefix }));
    }
    // SAFETY: `list` is from `getifaddrs`, is freed once, and nothing points into it any more.
    unsafe { libc::freeifaddrs(list) };
    found
}

/// The IP address of a socket address, if it has one.
///
/// # Safety
/// `address` is null or points to a socket address that is complete for its family.
unsafe fn ip(address: *const libc::sockaddr) -> Option<IpAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: every socket address begins with its family.
    let family = unsafe { (*address).sa_family };
    match i32::from(family) {
        libc::AF_INET => {
            // SAFETY: the family says that it is a `sockaddr_in`; the read needs no alignment.
            let v4 = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the family says that it is a `sockaddr_in6`; the read needs no alignment.
            let v6 = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(v6.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

fn prefix_len(mask: IpAddr) -> u8 {
    let ones = match mask {
        IpAddr::V4(v4) => u32::from(v4).leading_ones(),
        IpAddr::V6(v6) => u128::from(v6).leading_ones(),
    };
    ones as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_reports_the_loopback_address() {
        let all = from_kernel();
        let loopback = all.iter().find(|(name, a)| name == "lo" && a.address.is_ipv4());
        // A namespace can have the loopback interface down.
        if let Some((_, found)) = loopback {
            assert_eq!((found.address, found.prefix), (Ipv4Addr::LOCALHOST.into(), 8));
        }
    }

    #[test]
    fn netmasks_convert_to_prefix_lengths() {
        let length = |mask: &str| prefix_len(mask.parse().unwrap());
        assert_eq!(["255.255.240.0", "0.0.0.0", "ffff:ffff::"].map(length), [20, 0, 32]);
    }

    #[test]
    fn recorded_addresses_are_parsed() {
        let text = r#"[{},{"ifname":"hsn0","flags":["UP"],"addr_info":[
            {"family":"inet","local":"10.253.6.67","prefixlen":16,"scope":"global"},{},
            {"family":"inet6","local":"fe80::1","prefixlen":64,"scope":"link"}]}]"#;
        let tree = crate::fake_sysfs::FakeSysfs::new();
        tree.file("/ip-addr.json", text);
        let addresses = read(&tree.root());
        let hsn = NicAddress { address: "10.253.6.67".parse().unwrap(), prefix: 16 };
        assert_eq!(addresses, Addresses::from([("hsn0".to_owned(), vec![hsn])]));
        assert!(from_json("[{").is_empty());
    }
}
