//! What the name of a network interface says about its network.

/// Kind of the network that an interface belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InterfaceKind {
    /// A high-speed network: Slingshot, InfiniBand.
    Fabric,
    /// A management network.
    Management,
    /// Reaches no other node: loopback, bridges of containers and virtual machines.
    Virtual,
    /// Ethernet: on many clusters the management network, on others the only one.
    Ethernet,
}

/// The kind of an interface, from its name.
pub fn kind(name: &str) -> InterfaceKind {
    const FABRIC: [&str; 5] = ["hsn", "ib", "opa", "roce", "rdma"];
    const MANAGEMENT: [&str; 9] =
        ["nmn", "hmn", "hmnlan", "mgmt", "mgt", "mgnt", "bmc", "idrac", "ipmi"];
    const VIRTUAL: [&str; 14] = [
        "lo", "docker", "virbr", "veth", "podman", "cni", "flannel", "cali", "br-", "vmnet", "tun",
        "tap", "lxc", "kube",
    ];
    let starts = |names: &[&str]| names.iter().any(|prefix| name.starts_with(prefix));
    match name {
        _ if starts(&FABRIC) => InterfaceKind::Fabric,
        _ if starts(&MANAGEMENT) => InterfaceKind::Management,
        _ if starts(&VIRTUAL) => InterfaceKind::Virtual,
        _ => InterfaceKind::Ethernet,
    }
}

/// The prefix that selects all interfaces like this one in `NCCL_SOCKET_IFNAME`: `hsn` of `hsn0`.
pub fn prefix(name: &str) -> &str {
    let cut = name.trim_end_matches(|c: char| c.is_ascii_digit());
    if cut.is_empty() { name } else { cut }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_the_network() {
        let cases = [
            ("hsn0", InterfaceKind::Fabric),
            ("ib0", InterfaceKind::Fabric),
            ("ibs3", InterfaceKind::Fabric),
            ("nmn0", InterfaceKind::Management),
            ("docker0", InterfaceKind::Virtual),
            ("lo", InterfaceKind::Virtual),
            ("eth0", InterfaceKind::Ethernet),
            ("enp24s0np0", InterfaceKind::Ethernet),
        ];
        for (name, expected) in cases {
            assert_eq!(kind(name), expected, "{name}");
        }
        assert_eq!((prefix("hsn0"), prefix("7")), ("hsn", "7"));
    }
}
