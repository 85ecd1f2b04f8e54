//! What a rank of `regatta doctor` is to do on its node, and what it reports.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::Check;
use crate::facts::NodeFacts;
use crate::peers::PeerTable;

/// What to test on every node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeTests {
    /// Working directory of the job.
    pub work_dir: PathBuf,
    /// Further directories to test.
    pub paths: Vec<PathBuf>,
    /// Whether to test connections between nodes.
    pub network: bool,
    /// Whether to measure cores, memory and GPUs.
    pub speed: bool,
}

impl NodeTests {
    /// All tests but those that only the skipped checks need. Paths are absolute.
    pub fn new(skip: &BTreeSet<Check>, work_dir: PathBuf, paths: Vec<PathBuf>) -> Self {
        let network = [Check::Reachability, Check::Bandwidth, Check::Clocks];
        let network = !network.iter().all(|check| skip.contains(check));
        Self { work_dir, paths, network, speed: !skip.contains(&Check::Speed) }
    }
}

/// The request of a rank.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DoctorRequest {
    /// The tests.
    pub tests: NodeTests,
    /// All nodes, by rank.
    pub table: PeerTable,
}

/// What a rank reports.
#[derive(Debug, Serialize, Deserialize)]
pub enum NodeReport {
    /// Facts without measurements, sent first: a node may fail in a measurement.
    Collected(Box<NodeFacts>),
    /// All facts.
    Complete(Box<NodeFacts>),
}
