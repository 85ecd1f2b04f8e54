//! Findings of the pairwise diagnosis.

pub use super::slow_links::SlowDirection;

/// A node, or a rank of a node with several measured ranks.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FaultLocation {
    /// A node with its measured ranks.
    Node {
        /// Host name.
        host: String,
        /// Its ranks.
        ranks: Vec<u32>,
    },
    /// One of several measured ranks of a node.
    Rank {
        /// The rank.
        rank: u32,
        /// Its host.
        host: String,
    },
}

impl FaultLocation {
    /// Host name.
    pub fn host(&self) -> &str {
        match self {
            Self::Node { host, .. } | Self::Rank { host, .. } => host,
        }
    }
}

/// The slow component.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FaultSubject {
    /// All traffic of a node or rank.
    Endpoint(FaultLocation),
    /// A link.
    Link {
        /// Sender; of the slower direction if both are slow.
        from: FaultLocation,
        /// Receiver.
        to: FaultLocation,
    },
    /// More slow links than single faults explain: they reflect the topology.
    Network {
        /// Slow links.
        slow: usize,
        /// All links.
        of: usize,
        /// Sender of the slowest link.
        from: FaultLocation,
        /// Receiver of the slowest link.
        to: FaultLocation,
    },
}

/// Which links were compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LinkScope {
    /// Between nodes.
    InterNode,
    /// Between ranks of one node.
    IntraNode,
}

/// A measured value with its expectation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Observed {
    /// Measured.
    pub value: f64,
    /// Expected from the other links.
    pub expected: f64,
}

impl Observed {
    /// Measured / expected.
    pub fn ratio(self) -> f64 {
        self.value / self.expected
    }
}

/// A fault. `Display` is its sentence.
#[derive(Debug, Clone, PartialEq)]
pub struct PairFinding {
    /// The slow component.
    pub subject: FaultSubject,
    /// The slow direction.
    pub direction: SlowDirection,
    /// Which links were compared.
    pub scope: LinkScope,
    /// Bandwidth in GB/s, if too low.
    pub bandwidth: Option<Observed>,
    /// Latency in µs, if too high.
    pub latency_us: Option<Observed>,
    /// Number of affected directed links.
    pub directed_links: usize,
    /// Whether the fault can be attributed: with two nodes it is unknown which one is slow.
    pub conclusive: bool,
}

impl PairFinding {
    /// Lost performance in units of directed links.
    pub fn severity(&self) -> f64 {
        let bandwidth = self.bandwidth.map_or(0.0, |value| 1.0 - value.ratio());
        let latency = self.latency_us.map_or(0.0, |value| 1.0 - 1.0 / value.ratio());
        bandwidth.max(latency) * self.directed_links as f64
    }
}
