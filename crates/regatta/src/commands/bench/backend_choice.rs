//! The values of `--backend`.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Transport or library under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub enum Backend {
    /// NCCL or RCCL if every rank has a GPU and the library, else host
    Auto,
    /// Host memory: shared memory within a node (REGATTA_CMA=0: without cross memory attach), the
    /// network between nodes
    Host,
    /// Host memory over TCP, also within a node
    Tcp,
    /// Host memory over libfabric, also within a node; REGATTA_FABRIC selects the provider
    Libfabric,
    /// Host memory over the network plug-in of NCCL that --net-plugin names, also within a node
    NetPlugin,
    /// NCCL on NVIDIA GPUs
    Nccl,
    /// RCCL on AMD GPUs
    Rccl,
}

impl Backend {
    /// The value of `--backend`.
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Whether it is NCCL or RCCL.
    pub fn is_nccl(self) -> bool {
        matches!(self, Self::Nccl | Self::Rccl)
    }

    /// Whether its ranks read variables of NCCL, as network plug-ins do.
    pub fn reads_nccl_variables(self) -> bool {
        self.is_nccl() || self == Self::NetPlugin
    }
}
