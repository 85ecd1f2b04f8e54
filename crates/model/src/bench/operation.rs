//! What is measured, by name.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What is measured.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Operation {
    /// The sum of all ranks' data, at every rank.
    AllReduce,
    /// All ranks' data, at every rank.
    AllGather,
    /// The sum of all ranks' data, a part of it at each rank.
    ReduceScatter,
    /// One rank's data, at every rank.
    Broadcast,
    /// The sum of all ranks' data, at one rank.
    Reduce,
    /// A part of each rank's data to each rank.
    AllToAll,
    /// The same with parts of different sizes.
    AllToAllV,
    /// All ranks' data, at one rank.
    Gather,
    /// One rank's data, a part of it to each.
    Scatter,
    /// To the next rank, and from the one before.
    SendRecv,
    /// All ranks' data at every rank, by halves of a cube.
    Hypercube,
    /// A message to another rank and back, half the time of both.
    Latency,
    /// Messages to another rank, many at a time.
    Bandwidth,
    /// The same both ways at once.
    BiBandwidth,
    /// All ranks wait for each other.
    Barrier,
    /// Nobody knows.
    #[default]
    Unknown,
    /// Something else by its name.
    Other(String),
}

impl Operation {
    /// Those that have a name of their own.
    pub const NAMED: [Self; 15] = [
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
        match Self::NAMED.into_iter().find(|named| named.name() == name) {
            Some(named) => named,
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
    fn each_is_found_by_its_name() {
        for operation in Operation::NAMED {
            assert_eq!(Operation::from(operation.name().to_owned()), operation);
        }
        let other: Operation = "osu_put_bw".parse().unwrap();
        assert_eq!(other, Operation::Other("osu_put_bw".to_owned()));
        assert_eq!(Operation::from(Operation::default().name().to_owned()), Operation::Unknown);
    }
}
