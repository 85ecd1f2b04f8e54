//! Network interfaces.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// Network type of an interface, the best for training first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NicKind {
    /// HPE Slingshot (cxi).
    Slingshot,
    /// InfiniBand.
    InfiniBand,
    /// Ethernet with RDMA.
    Roce,
    /// AWS's Elastic Fabric Adapter, for libfabric only: neither verbs nor RoCE.
    Efa,
    /// Ethernet.
    Ethernet,
    /// Without hardware: veth, bridge, tunnel.
    Virtual,
}

impl NicKind {
    /// The name that people know.
    pub fn name(self) -> &'static str {
        match self {
            Self::Slingshot => "Slingshot",
            Self::InfiniBand => "InfiniBand",
            Self::Roce => "RoCE",
            Self::Efa => "EFA",
            Self::Ethernet => "Ethernet",
            Self::Virtual => "virtual",
        }
    }
}

/// Link state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkState {
    /// Up.
    Up,
    /// Down.
    Down,
    /// Not reported by the system.
    Unknown,
}

/// A network interface.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Nic {
    /// Name of the network device (`hsn0`), else of the fabric device.
    pub name: String,
    /// Network type.
    pub kind: NicKind,
    /// Name of the fabric (RDMA) device: `cxi0`, `mlx5_0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric_device: Option<String>,
    /// PCI address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci: Option<String>,
    /// The NUMA node it is local to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa: Option<u32>,
    /// Link speed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed_mbit: Option<u64>,
    /// Link state.
    pub state: LinkState,
    /// IP addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<NicAddress>,
}

impl Nic {
    /// An interface that is up, with everything else unknown.
    pub fn new(name: &str, kind: NicKind) -> Self {
        Self {
            name: name.to_owned(),
            kind,
            fabric_device: None,
            pci: None,
            numa: None,
            speed_mbit: None,
            state: LinkState::Up,
            addresses: Vec::new(),
        }
    }
}

/// An IP address with its network prefix length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicAddress {
    /// The address.
    pub address: IpAddr,
    /// Prefix length in bits.
    pub prefix: u8,
}

impl NicAddress {
    /// Whether `other` is in the same subnet.
    pub fn same_subnet(&self, other: IpAddr) -> bool {
        let network = |bits: u128, width: u8| match width.checked_sub(self.prefix) {
            Some(shift) if u32::from(shift) < 128 => bits >> shift,
            Some(_) => 0,
            None => bits,
        };
        match (self.address, other) {
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                network(u32::from(a).into(), 32) == network(u32::from(b).into(), 32)
            }
            (IpAddr::V6(a), IpAddr::V6(b)) => network(a.into(), 128) == network(b.into(), 128),
            _ => false,
        }
    }
}

/// A link slower than the fastest of its kind by more than this factor serves another purpose, such
/// as an Ethernet management network next to an Ethernet fabric.
const MAX_SPEED_RATIO: u64 = 5;

/// The interfaces of the best kind, without comparatively slow ones.
pub fn best_nics(mut nics: Vec<&Nic>) -> Vec<&Nic> {
    let best = nics.iter().map(|n| n.kind).min();
    nics.retain(|n| Some(n.kind) == best);
    let fastest = nics.iter().filter_map(|n| n.speed_mbit).max().unwrap_or(0);
    nics.retain(|n| n.speed_mbit.is_none_or(|own| own >= fastest / MAX_SPEED_RATIO));
    nics
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_subnet_compares_the_prefix() {
        let hsn = NicAddress { address: "10.253.6.67".parse().unwrap(), prefix: 16 };
        assert!(hsn.same_subnet("10.253.2.12".parse().unwrap()));
        assert!(!hsn.same_subnet("10.120.116.65".parse().unwrap()));
        assert!(!hsn.same_subnet("fe80::1".parse().unwrap()));
        let any = NicAddress { address: "::1".parse().unwrap(), prefix: 0 };
        assert!(any.same_subnet("fe80::1".parse().unwrap()));
    }
}
