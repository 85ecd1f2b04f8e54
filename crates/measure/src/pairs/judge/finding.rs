//! What stands out, as data.

pub use super::faults::Way;

/// A node, or one of several ranks of a node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// A node, with those of its ranks that were measured.
    Node {
        /// Its name.
        host: String,
        /// Its ranks.
        ranks: Vec<u32>,
    },
    /// One rank of a node of which several were measured.
    Rank {
        /// The rank.
        rank: u32,
        /// Its node.
        host: String,
    },
}

impl Place {
    /// The node's name.
    pub fn host(&self) -> &str {
        match self {
            Self::Node { host, .. } | Self::Rank { host, .. } => host,
        }
    }
}

/// What is slow.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// All that goes to, or comes from, a node or a rank.
    Place(Place),
    /// What goes from one to another.
    Link {
        /// Who sends; if both ways are slow, the slower one.
        from: Place,
        /// Who receives.
        to: Place,
    },
    /// So many links that it is how the network is built, and not a fault of it.
    Network {
        /// Slow links.
        slow: usize,
        /// All links.
        of: usize,
        /// Who sends on the slowest.
        from: Place,
        /// Who receives.
        to: Place,
    },
}

/// Between which ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// Between nodes.
    Between,
    /// Between ranks of one node.
    Inside,
}

/// A figure beside what was to be expected.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figure {
    /// What was measured.
    pub value: f64,
    /// What was to be expected, by what the others have.
    pub expected: f64,
}

impl Figure {
    /// What was measured as a part of what was expected.
    pub fn ratio(self) -> f64 {
        self.value / self.expected
    }
}

/// One thing that stands out. Its sentence is its `Display`.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    /// What is slow.
    pub subject: Subject,
    /// In which direction.
    pub way: Way,
    /// Between which ranks.
    pub scope: Scope,
    /// Bandwidth in GB/s, if it is too low.
    pub bandwidth: Option<Figure>,
    /// Latency in microseconds, if it is too high.
    pub latency_us: Option<Figure>,
    /// How many ways from one to another are slow by it.
    pub ways: usize,
    /// Whether there are enough others to tell it apart from what else would look the same: of two
    /// nodes, nobody can tell which one is slow.
    pub told_apart: bool,
}

impl Finding {
    /// How much is lost by it, in whole ways.
    pub fn severity(&self) -> f64 {
        let bandwidth = self.bandwidth.map_or(0.0, |figure| 1.0 - figure.ratio());
        let latency = self.latency_us.map_or(0.0, |figure| 1.0 - 1.0 / figure.ratio());
        bandwidth.max(latency) * self.ways as f64
    }
}
