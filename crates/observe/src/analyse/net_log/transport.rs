//! The transport of a channel, as NCCL names it behind `via`: `NET/AWS Libfabric/0/GDRDMA/Shared`,
//! `P2P/CUMEM/read`, `SHM/direct/direct`.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::record::parse_u32;

/// Kind of a transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TransportKind {
    /// Over a network, between nodes.
    Net,
    /// By a collective network (SHARP).
    CollNet,
    /// From GPU to GPU.
    P2p,
    /// Through host memory of one node.
    Shm,
    /// Any other.
    Other,
}

/// End of a channel that a rank logged. Channels inside a node are logged by the sender only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// The sender.
    Send,
    /// The receiver.
    Receive,
}

/// A transport.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Transport {
    /// What it goes over.
    pub kind: TransportKind,
    /// Network (`AWS Libfabric`, `IB`, `Socket`), or variant (`CUMEM/read`, `direct/direct`).
    pub name: String,
    /// Index of the network device in the network's list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<u32>,
    /// Whether the NIC accesses GPU memory directly (GPUDirect RDMA); `None` inside a node, and where
    /// the line is cut off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gdr: Option<bool>,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            TransportKind::Net => write!(f, "NET/{}", self.name),
            TransportKind::CollNet => write!(f, "COLLNET/{}", self.name),
            TransportKind::P2p => write!(f, "P2P/{}", self.name),
            TransportKind::Shm => write!(f, "SHM/{}", self.name),
            TransportKind::Other => f.write_str(&self.name),
        }
    }
}

/// Parses the text behind `via`. A text that is cut off is a transport only if it names a network and
/// its device: `P2P/CU` could be any variant.
pub fn parse(text: &[u8], complete: bool) -> Option<Transport> {
    let (kind, rest) = text.iter().position(|b| *b == b'/').map(|at| text.split_at(at))?;
    let rest = &rest[1..];
    match kind {
        b"NET" => parse_net(TransportKind::Net, rest, complete),
        b"COLLNET" => parse_net(TransportKind::CollNet, rest, complete),
        _ if !complete => None,
        b"P2P" => Some(local(TransportKind::P2p, variant(rest))),
        b"SHM" => Some(local(TransportKind::Shm, variant(rest))),
        _ => Some(local(TransportKind::Other, text)),
    }
}

fn local(kind: TransportKind, name: &[u8]) -> Transport {
    Transport { kind, name: lossy(name), device: None, gdr: None }
}

/// The variant without the intermediate GPU of `indirect/3[c1000]`.
fn variant(name: &[u8]) -> &[u8] {
    if name.starts_with(b"indirect/") { b"indirect" } else { name }
}

/// `NAME/DEVICE(PROXY)/GDRDMA(PCI)/Shared`, where a name may have slashes of its own.
fn parse_net(kind: TransportKind, text: &[u8], complete: bool) -> Option<Transport> {
    let parts: Vec<&[u8]> = text.split(|b| *b == b'/').collect();
    let device_of = |part: &&[u8]| {
        let digits = part.split(|b| *b == b'(').next().unwrap_or_default();
        parse_u32(digits)
    };
    let at = (1..parts.len()).find(|&at| device_of(&parts[at]).is_some())?;
    let length = parts[..at].iter().map(|part| part.len() + 1).sum::<usize>() - 1;
    let is_gdr = parts[at + 1..].iter().any(|part| part.starts_with(b"GDRDMA"));
    // The last digits of a device that is cut off may be missing.
    let is_last = at + 1 == parts.len();
    Some(Transport {
        kind,
        name: lossy(&text[..length]),
        device: device_of(&parts[at]).filter(|_| complete || !is_last),
        gdr: (is_gdr || complete).then_some(is_gdr),
    })
}

fn lossy(text: &[u8]) -> String {
    String::from_utf8_lossy(text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(name: &str, device: Option<u32>, gdr: Option<bool>) -> Option<Transport> {
        Some(Transport { kind: TransportKind::Net, name: name.into(), device, gdr })
    }

    #[test]
    fn networks_have_a_device_and_flags() {
        let cases = [
            ("NET/Socket/4", net("Socket", Some(4), Some(false))),
            ("NET/AWS Libfabric/0/GDRDMA", net("AWS Libfabric", Some(0), Some(true))),
            ("NET/IB/3(12)/GDRDMA/Shared", net("IB", Some(3), Some(true))),
            ("NET/IB/3/GDRDMA(PCI)", net("IB", Some(3), Some(true))),
            ("NET/FasTrak/1/Shared", net("FasTrak", Some(1), Some(false))),
            ("NET/IB", None),
        ];
        for (text, expected) in cases {
            assert_eq!(parse(text.as_bytes(), true), expected, "{text}");
        }
    }

    #[test]
    fn cut_off_transports_prove_only_what_they_name() {
        assert_eq!(parse(b"NET/AWS Libfabric/0", false), net("AWS Libfabric", None, None));
        assert_eq!(parse(b"NET/IB/0/GDRDMA", false), net("IB", Some(0), Some(true)));
        assert_eq!(parse(b"NET/AWS Libf", false), None);
        assert_eq!(parse(b"P2P/CUM", false), None);
    }

    #[test]
    fn transports_inside_a_node_have_a_variant() {
        let names = ["P2P/CUMEM/read", "P2P/direct pointer", "SHM/direct/direct", "P2P/MNNVL"];
        for name in names {
            assert_eq!(parse(name.as_bytes(), true).unwrap().to_string(), name);
        }
        assert_eq!(parse(b"P2P/indirect/3[c1000]", true).unwrap().to_string(), "P2P/indirect");
    }
}
