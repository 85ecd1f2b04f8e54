//! Benchmarked operations.

use std::fmt;

use serde::de::IntoDeserializer;
use serde::de::value::{Error, StringDeserializer};
use serde::{Deserialize, Serialize};

/// A benchmarked operation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
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
    #[serde(untagged)]
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
}

impl From<String> for Operation {
    fn from(name: String) -> Self {
        let name: StringDeserializer<Error> = name.into_deserializer();
        Self::deserialize(name).unwrap_or_default()
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_parse_from_their_names() {
        for operation in Operation::KNOWN {
            assert_eq!(Operation::from(operation.to_string()), operation);
        }
        let other = Operation::from("osu_put_bw".to_owned());
        assert_eq!(other, Operation::Other("osu_put_bw".to_owned()));
        assert_eq!(Operation::from(Operation::default().to_string()), Operation::Unknown);
    }
}
