//! Selection of the NICs to test. No I/O.

use std::collections::BTreeSet;
use std::net::IpAddr;

use regatta_model::Nic;
use regatta_model::machine::NicAddress;

use crate::fabric::fabric;

/// The networks of each node, given its NICs: the NICs that are part of the fabric on any node. A
/// NIC that is down on one node only is therefore tested there as well.
pub fn networks(nodes: &[&[Nic]]) -> Vec<Vec<(String, NicAddress)>> {
    let nics = nodes.iter().flat_map(|nics| fabric(nics));
    let names: BTreeSet<&str> = nics.map(|nic| nic.name.as_str()).collect();
    let network = |nic: &Nic| {
        let address = nic.addresses.iter().find(|a| is_routable(a.address))?;
        Some((nic.name.clone(), *address))
    };
    let of_node = |nics: &&[Nic]| {
        nics.iter().filter(|nic| names.contains(nic.name.as_str())).filter_map(network).collect()
    };
    nodes.iter().map(of_node).collect()
}

/// IPv4 only: IPv6 addresses of fabrics are link-local.
fn is_routable(address: IpAddr) -> bool {
    matches!(address, IpAddr::V4(v4) if !v4.is_loopback() && !v4.is_link_local())
}

#[cfg(test)]
mod tests {
    use regatta_model::{LinkState, NicKind};

    use super::*;

    fn nic(name: &str, kind: NicKind, state: LinkState, address: &str) -> Nic {
        let addresses = vec![NicAddress { address: address.parse().unwrap(), prefix: 16 }];
        Nic { state, addresses, ..Nic::new(name, kind) }
    }

    #[test]
    fn bridges_of_containers_are_not_tested() {
        let node = |last: u8| {
            let docker = nic("docker0", NicKind::Virtual, LinkState::Up, "172.17.0.1");
            vec![nic("eth0", NicKind::Virtual, LinkState::Up, &format!("10.1.0.{last}")), docker]
        };
        let nodes = [node(1), node(2)];
        let found = networks(&nodes.iter().map(Vec::as_slice).collect::<Vec<_>>());
        assert!(found.iter().all(|nics| nics.len() == 1 && nics[0].0 == "eth0"), "{found:?}");
    }

    #[test]
    fn a_fabric_nic_that_is_down_is_tested_and_the_management_network_is_not() {
        use LinkState::{Down, Up};
        use NicKind::{Ethernet, Slingshot};
        let node = |state, last| {
            let hsn = nic("hsn0", Slingshot, state, &format!("10.253.0.{last}"));
            let loose = nic("hsn1", Slingshot, Up, "169.254.0.1");
            vec![hsn, loose, nic("eth0", Ethernet, Up, &format!("10.1.0.{last}"))]
        };
        let nodes = [node(Up, 1), node(Down, 2)];
        let nics: Vec<&[Nic]> = nodes.iter().map(Vec::as_slice).collect();
        let found = networks(&nics);
        let names: Vec<Vec<&str>> =
            found.iter().map(|n| n.iter().map(|(name, _)| name.as_str()).collect()).collect();
        assert_eq!(names, [["hsn0"], ["hsn0"]]);
    }
}
