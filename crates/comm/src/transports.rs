//! The transports of a communicator, for users and for benchmarks of one transport.

use std::fmt::{Display, Formatter, Result};

/// The transports of a communicator. Displayed, they are empty if the engine does not name them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Transports {
    /// Within a node, unless that is the network, too.
    pub shared_memory: Option<SharedMemory>,
    /// Between nodes.
    pub network: Option<NetworkName>,
}

/// How ranks of a node exchange large buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SharedMemory {
    /// Through shared memory, as small ones.
    Copied,
    /// By cross memory attach.
    CrossMemoryAttach,
}

/// The network between ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NetworkName {
    /// TCP, and why no other is used, if one could be.
    Tcp(Option<String>),
    /// libfabric with this provider.
    Libfabric(String),
    /// A net plug-in of NCCL, with its version and NICs.
    NetPlugin(String),
}

impl Display for Transports {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match (&self.shared_memory, &self.network) {
            (Some(within), Some(network)) => {
                write!(f, "{within} within a node, between nodes {network}")
            }
            (Some(within), None) => within.fmt(f),
            (None, Some(network)) => network.fmt(f),
            (None, None) => Ok(()),
        }
    }
}

impl Display for SharedMemory {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str(match self {
            Self::Copied => "shared memory",
            Self::CrossMemoryAttach => "shared memory, large buffers by cross memory attach (CMA)",
        })
    }
}

impl Display for NetworkName {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Tcp(None) => f.write_str("TCP"),
            Self::Tcp(Some(why)) => write!(f, "TCP: {why}"),
            Self::Libfabric(provider) => write!(f, "libfabric: {provider}"),
            Self::NetPlugin(plugin) => write!(f, "net plug-in: {plugin}"),
        }
    }
}
