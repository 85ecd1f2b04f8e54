//! The outcome of all checks.

use std::fmt;

use regatta_model::Document;
use serde::{Deserialize, Serialize};

/// How a check ended, the best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Nothing to check: no GPUs, no fabric.
    Skip,
    /// As expected.
    Pass,
    /// The job runs, perhaps slower or with a risk.
    Warn,
    /// The job fails, or runs far below the machine's speed.
    Fail,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// A check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Check {
    /// All nodes report.
    Nodes,
    /// GPUs present and identical.
    Gpus,
    /// ECC errors, remapped rows, throttling, PCIe links.
    GpuHealth,
    /// Peer-to-peer access between the GPUs of a node.
    PeerToPeer,
    /// NICs present, up and at full speed.
    Nics,
    /// Error counters of the NICs.
    NicErrors,
    /// MTU.
    Mtu,
    /// Connections between all nodes.
    Reachability,
    /// Bandwidth between neighbouring nodes.
    Bandwidth,
    /// Clock skew.
    Clocks,
    /// File systems writable, with free space and inodes.
    FileSystems,
    /// Write bandwidth of the file systems.
    FileSystemSpeed,
    /// `/dev/shm`.
    SharedMemory,
    /// memlock, open files, processes.
    Limits,
    /// Main memory.
    Memory,
    /// Device files and kernel modules.
    DeviceFiles,
    /// Versions of kernel, driver, NCCL or RCCL, libfabric.
    Versions,
    /// The network plug-in.
    NetPlugin,
    /// Processes and shared memory of earlier jobs.
    Leftovers,
    /// Speed of cores, memory and GPUs.
    Speed,
}

/// A defect of one or more nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// [`Verdict::Warn`] or [`Verdict::Fail`].
    pub verdict: Verdict,
    /// The defective nodes, in the order of the job; empty if no single node is at fault.
    pub hosts: Vec<String>,
    /// What is wrong, with the value found and the value expected.
    pub reason: String,
    /// What to do about it.
    pub fix: String,
}

impl Finding {
    /// A defect of one node.
    pub(crate) fn of(verdict: Verdict, host: &str, reason: String, fix: &str) -> Self {
        Self { verdict, hosts: vec![host.to_owned()], reason, fix: fix.to_owned() }
    }
}

/// The result of a check over all nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckResult {
    /// The check.
    pub check: Check,
    /// The worst verdict of its findings; without findings pass or skip.
    pub verdict: Verdict,
    /// What was found on healthy nodes, in one line: `8 GPUs per node: NVIDIA H100 80GB HBM3`.
    pub summary: String,
    /// What is wrong.
    pub findings: Vec<Finding>,
}

impl CheckResult {
    /// A result whose verdict follows from the findings.
    pub fn new(check: Check, summary: impl Into<String>, findings: Vec<Finding>) -> Self {
        let worst = findings.iter().map(|finding| finding.verdict).max();
        Self { check, verdict: worst.unwrap_or(Verdict::Pass), summary: summary.into(), findings }
    }

    /// A check without anything to check.
    pub fn skipped(check: Check, why: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Skip, summary: why.into(), findings: Vec::new() }
    }
}

/// The results of all checks: the output of `regatta doctor --json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Diagnosis {
    /// The worst verdict.
    pub verdict: Verdict,
    /// Number of nodes, with those that did not report.
    pub nodes: usize,
    /// Nodes with a failed check, in the order of the job.
    pub bad_nodes: Vec<String>,
    /// The scheduler's option that excludes the bad nodes; `None` without bad nodes or scheduler.
    pub exclude: Option<String>,
    /// The checks, in the order of [`Check::all`].
    pub checks: Vec<CheckResult>,
    /// Facts that could not be collected, with the host and the reason.
    pub notes: Vec<String>,
}

impl Document for Diagnosis {
    const KIND: &'static str = "doctor";
    const VERSION: u32 = 1;
    const WRITTEN_BY: &'static str = "regatta doctor --json";
}
