//! The nodes of the test and their addresses.

use regatta_model::machine::NicAddress;
use serde::{Deserialize, Serialize};

/// All nodes of the test, known to each of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PeerTable {
    /// Secret by which nodes recognise each other, 64 hexadecimal digits.
    pub token: String,
    /// The ports that a node tries to listen on.
    pub ports: Vec<u16>,
    /// The nodes, in rank order.
    pub nodes: Vec<PeerNode>,
}

/// A node of the test.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PeerNode {
    /// Host name.
    pub host: String,
    /// The tested networks: NICs with an address.
    pub networks: Vec<(String, NicAddress)>,
}

impl PeerTable {
    /// Pairs of own and other address for each network that both nodes are in: NICs of the same name
    /// if they are in the same subnet, else any two that are.
    pub(super) fn routes(&self, own: usize, other: usize) -> Vec<(&str, NicAddress, NicAddress)> {
        let (Some(own), Some(other)) = (self.nodes.get(own), self.nodes.get(other)) else {
            return Vec::new();
        };
        let route = |(nic, address): &'_ (String, NicAddress)| {
            let reachable = |(_, to): &&(String, NicAddress)| address.same_subnet(to.address);
            let named = other.networks.iter().filter(reachable).find(|(name, _)| name == nic);
            let any = || other.networks.iter().find(reachable);
            named.or_else(any).map(|(_, to)| (*address, *to))
        };
        let routes = own.networks.iter();
        routes
            .filter_map(|network| route(network).map(|(a, b)| (network.0.as_str(), a, b)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(host: &str, networks: &[(&str, &str)]) -> PeerNode {
        let address = |text: &str| NicAddress { address: text.parse().unwrap(), prefix: 24 };
        let networks = networks.iter().map(|(nic, a)| ((*nic).to_owned(), address(a))).collect();
        PeerNode { host: host.to_owned(), networks }
    }

    #[test]
    fn routes_join_nics_of_the_same_network() {
        let nodes = vec![
            node("n1", &[("hsn0", "10.0.0.1"), ("hsn1", "10.0.0.2"), ("eth0", "10.9.0.1")]),
            node("n2", &[("hsn0", "10.0.0.3"), ("hsn1", "10.0.0.4")]),
            node("n3", &[("ib0", "10.0.0.5")]),
        ];
        let table = PeerTable { token: String::new(), ports: Vec::new(), nodes };
        let routes = |other| {
            let routes = table.routes(0, other).into_iter();
            routes.map(|(nic, _, to)| format!("{nic} {}", to.address)).collect::<Vec<_>>()
        };
        assert_eq!(routes(1), ["hsn0 10.0.0.3", "hsn1 10.0.0.4"]);
        assert_eq!(routes(2), ["hsn0 10.0.0.5", "hsn1 10.0.0.5"], "another name");
        assert!(routes(7).is_empty());
    }
}
