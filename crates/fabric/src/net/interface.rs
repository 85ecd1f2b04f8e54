//! The network interface of the TCP connections. The choice follows NCCL's own, so that the connections use
//! the network that NCCL's bootstrap uses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Interfaces that other nodes usually do not reach.
const VIRTUAL: [&str; 5] = ["docker", "virbr", "veth", "br-", "lo"];

/// An address of an interface that is up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Name.
    pub name: String,
    /// Address.
    pub ip: IpAddr,
}

/// Whether other nodes usually do not reach an interface.
pub fn is_virtual(name: &str) -> bool {
    VIRTUAL.iter().any(|prefix| name.starts_with(prefix))
}

/// Chooses the address. The filter has the syntax of `NCCL_SOCKET_IFNAME`: prefixes of names separated by
/// commas, exact names after `=`, and those to leave out after `^`.
pub fn choose(interfaces: &[Interface], filter: Option<&str>) -> Option<IpAddr> {
    let rank = |interface: &Interface| {
        let virtual_rank = VIRTUAL.iter().position(|prefix| interface.name.starts_with(prefix));
        (virtual_rank.map_or(0, |at| at + 1), interface.ip.is_ipv6())
    };
    let usable = interfaces.iter().filter(|one| matches(&one.name, filter) && is_routable(one.ip));
    usable.min_by_key(|one| rank(one)).map(|one| one.ip)
}

/// Whether a name passes a filter.
pub fn matches(name: &str, filter: Option<&str>) -> bool {
    let Some(filter) = filter.map(str::trim).filter(|filter| !filter.is_empty()) else {
        return true;
    };
    let (excluded, filter) = filter.strip_prefix('^').map_or((false, filter), |rest| (true, rest));
    let (exact, filter) = filter.strip_prefix('=').map_or((false, filter), |rest| (true, rest));
    let is_listed = filter.split(',').map(str::trim).filter(|one| !one.is_empty()).any(|one| {
        // NCCL also accepts a port after a colon.
        let one = one.split(':').next().unwrap_or(one);
        if exact { name == one } else { name.starts_with(one) }
    });
    is_listed != excluded
}

/// Addresses of a link only need a scope, which a handle does not have.
fn is_routable(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(_) => true,
        IpAddr::V6(ip) => !ip.is_unicast_link_local(),
    }
}

/// The interfaces of this machine that are up.
pub fn interfaces() -> std::io::Result<Vec<Interface>> {
    let mut first: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the function writes a list, which is freed below.
    if unsafe { libc::getifaddrs(&mut first) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut next = first;
    // SAFETY: the list ends with NULL, and lives until it is freed.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        // Running: with a link, as NCCL requires.
        let flags = (libc::IFF_UP | libc::IFF_RUNNING) as u32;
        let is_up = entry.ifa_flags & flags == flags;
        // SAFETY: addresses have the type that their family says.
        if let Some(ip) = unsafe { ip_of(entry.ifa_addr) }.filter(|_| is_up) {
            // SAFETY: a C string of the list.
            let name = unsafe { std::ffi::CStr::from_ptr(entry.ifa_name) };
            found.push(Interface { name: name.to_string_lossy().into_owned(), ip });
        }
    }
    // SAFETY: the list of above, to which nothing refers any more.
    unsafe { libc::freeifaddrs(first) };
    Ok(found)
}

/// The IP address of a socket address.
///
/// # Safety
/// NULL, or a valid address of the type that its family says.
unsafe fn ip_of(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: by the caller's contract.
    unsafe {
        match i32::from(address.as_ref()?.sa_family) {
            libc::AF_INET => {
                let ip = (*address.cast::<libc::sockaddr_in>()).sin_addr.s_addr;
                Some(Ipv4Addr::from(u32::from_be(ip)).into())
            }
            libc::AF_INET6 => {
                let ip = (*address.cast::<libc::sockaddr_in6>()).sin6_addr.s6_addr;
                Some(Ipv6Addr::from(ip).into())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(list: &[(&str, &str)]) -> Vec<Interface> {
        let one = |(name, ip): &(&str, &str)| Interface {
            name: (*name).to_owned(),
            ip: ip.parse().unwrap(),
        };
        list.iter().map(one).collect()
    }

    #[test]
    fn the_network_of_other_nodes_is_chosen() {
        let all = all(&[
            ("lo", "127.0.0.1"),
            ("docker0", "172.17.0.1"),
            ("hsn0", "fd00::1"),
            ("hsn0", "10.0.0.1"),
            ("nmn0", "10.1.0.1"),
        ]);
        let chosen = |filter| choose(&all, filter).map(|ip| ip.to_string());
        assert_eq!(chosen(None).as_deref(), Some("10.0.0.1"));
        assert_eq!(chosen(Some("nmn")).as_deref(), Some("10.1.0.1"));
        assert_eq!(chosen(Some("^hsn,nmn")).as_deref(), Some("172.17.0.1"));
        assert_eq!(chosen(Some("=lo")).as_deref(), Some("127.0.0.1"));
        assert_eq!(chosen(Some("=hsn")), None);
        assert_eq!(choose(&all[..1], None).map(|ip| ip.is_loopback()), Some(true));
    }

    #[test]
    fn link_local_addresses_are_left_out() {
        assert_eq!(choose(&all(&[("eth0", "fe80::1")]), None), None);
    }

    #[test]
    fn this_machine_has_a_loopback_interface() {
        assert!(interfaces().unwrap().iter().any(|one| one.ip.is_loopback()));
    }
}
