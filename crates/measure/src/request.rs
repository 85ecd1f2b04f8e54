//! What the ranks of a benchmark measure. The process that launches them sends it to each.

use std::path::PathBuf;
use std::time::Duration;

use regatta_comm::enum_names;
use regatta_comm::tune::TuneConfig;
use serde::{Deserialize, Serialize};

use crate::collectives::{RunConfig, SizeRange};
use crate::pairs::PairsOptions;

/// A benchmark, the same on all ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BenchRequest {
    /// What is measured.
    pub workload: Workload,
    /// Transport or library under test.
    pub backend: Backend,
    /// Library of the backend net-plugin; `None`: the one that `NCCL_NET_PLUGIN` names.
    pub net_plugin: Option<PathBuf>,
    /// Time limit of a call, unless it is the default.
    pub timeout: Option<Duration>,
    /// Label of the result, unless it is the default.
    pub label: Option<String>,
}

/// What is measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Workload {
    /// Collectives over a size range.
    Collectives {
        /// The tables and their rows.
        config: Box<RunConfig>,
        /// The range of sizes, as requested.
        sizes: SizeRange,
        /// Use registered buffers in host memory.
        register: bool,
    },
    /// All pairs of ranks.
    Pairs(PairsOptions),
    /// All algorithms of all collectives over the network.
    Tune(TuneConfig),
    /// Node roofline.
    Roofline(RooflineTest),
}

/// Roofline benchmarks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum RooflineTest {
    /// GEMM throughput.
    Gemm,
    /// Memory bandwidth.
    Copy,
    /// File-system bandwidth and metadata rate.
    Disk {
        /// Directory on the file system.
        dir: PathBuf,
        /// Size of each rank's large file.
        bytes: u64,
    },
}

/// Transport or library under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Backend {
    /// NCCL or RCCL if every rank has a GPU and the library, else host.
    Auto,
    /// Host memory: shared memory within a node, the network between nodes.
    Host,
    /// Host memory over TCP, also within a node.
    Tcp,
    /// Host memory over libfabric, also within a node.
    Libfabric,
    /// Host memory over a network plug-in of NCCL, also within a node.
    NetPlugin,
    /// NCCL on NVIDIA GPUs.
    Nccl,
    /// RCCL on AMD GPUs.
    Rccl,
}

enum_names!(Backend, "All backends, named as in options and results.",
    Auto "auto", Host "host", Tcp "tcp", Libfabric "libfabric", NetPlugin "net-plugin",
    Nccl "nccl", Rccl "rccl");

impl Backend {
    /// Whether it is NCCL or RCCL.
    pub fn is_nccl(self) -> bool {
        matches!(self, Self::Nccl | Self::Rccl)
    }

    /// Whether its ranks may use GPUs.
    pub fn may_use_gpus(self) -> bool {
        self == Self::Auto || self.is_nccl()
    }

    /// Whether its ranks read variables of NCCL, as network plug-ins do.
    pub fn reads_nccl_variables(self) -> bool {
        self.is_nccl() || self == Self::NetPlugin
    }
}
