//! Where the ranks meet: an address on the fabric, and a port of the job's own.

use std::net::IpAddr;

use regatta_model::Machine;

use crate::nic::sockets;

/// A name for rank 0's node and what it resolves to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The name that was looked up.
    pub name: String,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
}

/// Why there is no address to meet at.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RendezvousError {
    /// No candidate has an address.
    #[error("no address of rank 0's node: tried {tried}; pass --master-addr")]
    NoAddress {
        /// The names tried.
        tried: String,
    },
}

/// The address of rank 0's node on the fabric, and why. If this process runs there, it is the
/// fabric interface's own address; else the first candidate that is on a network of one of this
/// node's fabric interfaces; else the first candidate at all, which is said. A fabric without IP
/// is stood in for by the interfaces that have it.
pub fn master_address(
    machine: &Machine,
    on_this_node: bool,
    candidates: &[Candidate],
) -> Result<(String, String), RendezvousError> {
    let fabric = sockets(machine);
    if on_this_node {
        let own = fabric.iter().find_map(|nic| {
            let v4 = nic.addresses.iter().find(|a| a.address.is_ipv4());
            Some((nic, v4.or(nic.addresses.first())?.address))
        });
        if let Some((nic, address)) = own {
            return Ok((
                address.to_string(),
                format!("rank 0 is on this node; its address on {}", nic.name),
            ));
        }
    }
    for candidate in candidates {
        for address in &candidate.addresses {
            let nic = fabric.iter().find(|n| n.addresses.iter().any(|a| a.reaches(*address)));
            if let Some(nic) = nic {
                let why =
                    format!("{} of rank 0's node, on the network of {}", candidate.name, nic.name);
                return Ok((address.to_string(), why));
            }
        }
    }
    let usable = candidates.iter().find_map(|c| Some((c, c.addresses.first()?)));
    let Some((candidate, address)) = usable else {
        let tried: Vec<&str> = candidates.iter().map(|c| c.name.as_str()).collect();
        return Err(RendezvousError::NoAddress { tried: tried.join(", ") });
    };
    let why = format!(
        "{} of rank 0's node; NOT on the network of any fabric interface of this node",
        candidate.name
    );
    Ok((address.to_string(), why))
}

/// Ports below those the kernel hands out by itself, above those of services.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// A port that every rank of a job finds by itself, and that two jobs on one node are unlikely to
/// share: a hash of the job's name.
pub fn port(job: &str) -> u16 {
    // FNV-1a: the same on every machine and in every version of this program.
    let hash = job
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    PORTS.start + (hash % u64::from(PORTS.end - PORTS.start)) as u16
}

/// The ports to try when `first` is taken: those after it, round to those before it.
pub fn ports_from(first: u16) -> impl Iterator<Item = u16> {
    (first.max(PORTS.start)..PORTS.end).chain(PORTS.start..first.min(PORTS.end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use regatta_model::machine::NicAddress;
    use regatta_model::{Nic, NicKind};

    fn nic(name: &str, kind: NicKind, address: &str, prefix: u8) -> Nic {
        Nic {
            addresses: vec![NicAddress { address: address.parse().unwrap(), prefix }],
            ..Nic::new(name, kind)
        }
    }

    fn lumi() -> Machine {
        let nics = vec![
            nic("nmn0", NicKind::Ethernet, "10.120.116.65", 16),
            nic("hsn0", NicKind::Slingshot, "10.253.6.67", 16),
        ];
        Machine { nics, ..Machine::default() }
    }

    fn candidate(name: &str, addresses: &[&str]) -> Candidate {
        let addresses = addresses.iter().map(|a| a.parse().unwrap()).collect();
        Candidate { name: name.to_owned(), addresses }
    }

    #[test]
    fn the_fabric_wins_over_the_management_network() {
        let names = [candidate("nid1", &["10.120.1.1"]), candidate("nid1-hsn0", &["10.253.1.1"])];
        let (address, why) = master_address(&lumi(), false, &names).unwrap();
        assert_eq!((address.as_str(), why.contains("hsn0")), ("10.253.1.1", true));
        let (address, why) = master_address(&lumi(), false, &names[..1]).unwrap();
        assert_eq!(address, "10.120.1.1");
        assert!(why.contains("NOT on the network"), "{why}");
        let (address, _) = master_address(&lumi(), true, &names).unwrap();
        assert_eq!(address, "10.253.6.67");
    }

    #[test]
    fn a_bond_has_the_address_of_its_ports() {
        let mut eno1 = nic("eno1", NicKind::Ethernet, "10.0.0.1", 24);
        let bond = Nic { name: "bond0".to_owned(), kind: NicKind::Virtual, ..eno1.clone() };
        eno1.addresses.clear();
        let machine = Machine { nics: vec![eno1, bond], ..Machine::default() };
        // The name of a Debian host is one of its own, which others must not be told.
        let (address, why) = master_address(&machine, true, &[candidate("n1", &[])]).unwrap();
        assert_eq!((address.as_str(), why.contains("bond0")), ("10.0.0.1", true));
        let (_, why) = master_address(&machine, false, &[candidate("n1", &["10.0.0.7"])]).unwrap();
        assert!(why.contains("on the network of bond0"), "{why}");
    }

    #[test]
    fn no_address_is_an_error_not_localhost() {
        let error = master_address(&Machine::default(), false, &[candidate("a", &[])]).unwrap_err();
        assert!(error.to_string().contains("--master-addr"));
    }

    #[test]
    fn ports_are_stable_and_differ_between_jobs() {
        assert_eq!(port("lumi/1234.0"), port("lumi/1234.0"));
        let ports: std::collections::HashSet<u16> =
            (0..100).map(|i| port(&format!("job/{i}"))).collect();
        assert!(ports.len() > 95, "{}", ports.len());
        assert!(ports.iter().all(|p| PORTS.contains(p)));
    }
}
