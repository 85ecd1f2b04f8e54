//! Benchmarked operations.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A benchmarked operation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Operation {
    /// All-reduce.
    AllReduce,
    /// All-gather.
    AllGather,
    /// Reduce-scatter.
    ReduceScatter,
    /// Broadcast.
    Broadcast,
    /// Reduce.
    Reduce,
    /// All-to-all.
    AllToAll,
    /// All-to-all with per-pair counts.
    AllToAllV,
    /// Gather.
    Gather,
    /// Scatter.
    Scatter,
    /// Ring exchange: send to the next rank, receive from the previous one.
    SendRecv,
    /// All-gather by hypercube exchange.
    Hypercube,
    /// Ping-pong latency: half the round-trip time.
    Latency,
    /// Unidirectional point-to-point bandwidth with a window of messages.
    Bandwidth,
    /// Bidirectional point-to-point bandwidth.
    BiBandwidth,
    /// Barrier.
    Barrier,
    /// Unknown.
    #[default]
    Unknown,
    /// Another operation, by name.
    Other(String),
}

impl Operation {
    /// All known operations.
    pub const KNOWN: [Self; 15] = [
        Self::AllReduce,
        Self::AllGather,
        Self::ReduceScatter,
        Self::Broadcast,
        Self::Reduce,
        Self::AllToAll,
        Self::AllToAllV,
        Self::Gather,
        Self::Scatter,
        Self::SendRecv,
        Self::Hypercube,
        Self::Latency,
        Self::Bandwidth,
        Self::BiBandwidth,
        Self::Barrier,
    ];

    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            Self::AllReduce => "all-reduce",
            Self::AllGather => "all-gather",
            Self::ReduceScatter => "reduce-scatter",
            Self::Broadcast => "broadcast",
            Self::Reduce => "reduce",
            Self::AllToAll => "all-to-all",
            Self::AllToAllV => "all-to-all-v",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::SendRecv => "send-recv",
            Self::Hypercube => "hypercube",
            Self::Latency => "latency",
            Self::Bandwidth => "bandwidth",
            Self::BiBandwidth => "bi-bandwidth",
            Self::Barrier => "barrier",
            Self::Unknown => "unknown",
            Self::Other(name) => name,
        }
    }
}

impl From<String> for Operation {
    fn from(name: String) -> Self {
        match Self::KNOWN.into_iter().find(|known| known.name() == name) {
            Some(known) => known,
            None if name == Self::Unknown.name() => Self::Unknown,
            None => Self::Other(name),
        }
    }
}

impl FromStr for Operation {
    type Err = std::convert::Infallible;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Ok(Self::from(name.to_owned()))
    }
}

impl From<Operation> for String {
    fn from(operation: Operation) -> Self {
        operation.name().to_owned()
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_parse_from_their_names() {
        for operation in Operation::KNOWN {
            assert_eq!(Operation::from(operation.name().to_owned()), operation);
        }
        let other: Operation = "osu_put_bw".parse().unwrap();
        assert_eq!(other, Operation::Other("osu_put_bw".to_owned()));
        assert_eq!(Operation::from(Operation::default().name().to_owned()), Operation::Unknown);
    }
}
