//! Rendezvous of the ranks: an address on the fabric, and a port derived from the job.

use std::net::IpAddr;

use regatta_model::Machine;
use regatta_model::hash::fnv1a;

use crate::nic::socket_interfaces;

/// A host name of rank 0's node and its addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The name looked up.
    pub name: String,
    /// Its resolved addresses.
    pub addresses: Vec<IpAddr>,
}

/// Why there is no rendezvous address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum RendezvousError {
    /// No candidate resolves.
    #[error("no address found for rank 0's node (tried {tried}); pass --master-addr")]
    NoAddress { tried: String },
}

/// The address of rank 0's node on the fabric, with the reason. On that node it is the address of
/// the fabric interface; else that of the first candidate in a subnet of this node's fabric
/// interfaces; else that of the first candidate, and the reason says so. If the fabric has no IP
/// addresses, other interfaces are used.
pub fn master_address(
    machine: &Machine,
    on_this_node: bool,
    candidates: &[Candidate],
) -> Result<(String, String), RendezvousError> {
    let fabric = socket_interfaces(machine);
    if on_this_node {
        let own = fabric.iter().find_map(|nic| {
            let v4 = nic.addresses.iter().find(|a| a.address.is_ipv4());
            Some((nic, v4.or(nic.addresses.first())?.address))
        });
        if let Some((nic, address)) = own {
            let why = format!("rank 0 is on this node; address of {}", nic.name);
            return Ok((address.to_string(), why));
        }
    }
    for Candidate { name, addresses } in candidates {
        for address in addresses {
            let nic = fabric.iter().find(|n| n.addresses.iter().any(|a| a.same_subnet(*address)));
            if let Some(nic) = nic {
                let why = format!("{name} on rank 0's node, in the subnet of {}", nic.name);
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
        "{} on rank 0's node, outside the subnets of this node's fabric interfaces",
        candidate.name
    );
    Ok((address.to_string(), why))
}

/// Below the kernel's ephemeral range, above well-known services.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// A port derived from the job's name, because every rank must compute the same one without
/// communication, and two jobs on a node should differ.
pub fn job_port(job: &str) -> u16 {
    PORTS.start + (fnv1a(job.bytes()) % u64::from(PORTS.end - PORTS.start)) as u16
}

/// The alternatives if `first` is in use: the ports after it, then those before it.
pub fn fallback_ports(first: u16) -> impl Iterator<Item = u16> {
    (first.max(PORTS.start)..PORTS.end).chain(PORTS.start..first.min(PORTS.end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use regatta_model::machine::NicAddress;
    use regatta_model::{Nic, NicKind};

    fn nic(name: &str, kind: NicKind, address: &str, prefix: u8) -> Nic {
        let address = NicAddress { address: address.parse().unwrap(), prefix };
        Nic { addresses: vec![address], ..Nic::new(name, kind) }
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
    fn fabric_address_precedes_the_management_network() {
        let names = [candidate("nid1", &["10.120.1.1"]), candidate("nid1-hsn0", &["10.253.1.1"])];
        let (address, why) = master_address(&lumi(), false, &names).unwrap();
        assert_eq!((address.as_str(), why.contains("hsn0")), ("10.253.1.1", true));
        let (address, why) = master_address(&lumi(), false, &names[..1]).unwrap();
        assert_eq!(address, "10.120.1.1");
        assert!(why.contains("outside the subnets"), "{why}");
        let (address, _) = master_address(&lumi(), true, &names).unwrap();
        assert_eq!(address, "10.253.6.67");
    }

    #[test]
    fn bond_address_is_used_for_its_ports() {
        let mut eno1 = nic("eno1", NicKind::Ethernet, "10.0.0.1", 24);
        let bond = Nic { name: "bond0".to_owned(), kind: NicKind::Virtual, ..eno1.clone() };
        eno1.addresses.clear();
        let machine = Machine { nics: vec![eno1, bond], ..Machine::default() };
        // Debian maps the host name to 127.0.1.1, which other nodes cannot use.
        let (address, why) = master_address(&machine, true, &[candidate("n1", &[])]).unwrap();
        assert_eq!((address.as_str(), why.contains("bond0")), ("10.0.0.1", true));
        let (_, why) = master_address(&machine, false, &[candidate("n1", &["10.0.0.7"])]).unwrap();
        assert!(why.contains("in the subnet of bond0"), "{why}");
    }

    #[test]
    fn missing_address_is_an_error() {
        let error = master_address(&Machine::default(), false, &[candidate("a", &[])]).unwrap_err();
        assert!(error.to_string().contains("--master-addr"));
    }

    #[test]
    fn job_ports_are_stable_and_distinct() {
        assert_eq!(job_port("lumi/1234.0"), job_port("lumi/1234.0"));
        let ports: std::collections::HashSet<u16> =
            (0..100).map(|i| job_port(&format!("job/{i}"))).collect();
        assert!(ports.len() > 95, "{}", ports.len());
        assert!(ports.iter().all(|p| PORTS.contains(p)));
    }
}
