//! Results of a smoke test, check by check. No I/O.

use regatta_model::CpuSet;
use serde::{Deserialize, Serialize};

use crate::metrics::StepSeconds;

/// The checks, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Check {
    /// Until the ranks run; only the launcher measures it.
    #[default]
    Start,
    /// Bootstrap of the communicator.
    Join,
    /// Hosts, cores and kernels of the ranks.
    Ranks,
    /// The data is prepared or found, and opened.
    Data,
    /// All ranks have the same configuration and data.
    Agreement,
    /// All-reduces return the right sums.
    AllReduce,
    /// All ranks receive the initial state.
    Broadcast,
    /// Training steps.
    Steps,
    /// All replicas have the same state after the steps.
    Consistency,
    /// A checkpoint is written and read back.
    Checkpoint,
}

impl Check {
    /// Name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Join => "join",
            Self::Ranks => "ranks",
            Self::Data => "data",
            Self::Agreement => "agreement",
            Self::AllReduce => "all-reduce",
            Self::Broadcast => "broadcast",
            Self::Steps => "steps",
            Self::Consistency => "consistency",
            Self::Checkpoint => "checkpoint",
        }
    }
}

/// Status of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckStatus {
    /// Passed.
    #[default]
    Ok,
    /// Passed, with a note.
    Note,
    /// Failed.
    Failed,
}

/// A finished check.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct CheckResult {
    /// The check.
    pub check: Check,
    /// Its status.
    pub status: CheckStatus,
    /// Duration on rank 0.
    pub seconds: f64,
    /// The slowest rank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slowest: Option<SlowestRank>,
    /// Details, notes and error.
    #[serde(flatten)]
    pub findings: Findings,
}

/// The slowest rank of a check.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct SlowestRank {
    /// The rank.
    pub rank: u32,
    /// Its host.
    pub host: String,
    /// Its duration.
    pub seconds: f64,
}

/// Findings of a check, the same on all ranks.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Findings {
    /// Measurements.
    #[serde(default, skip_serializing_if = "Details::is_none")]
    pub details: Details,
    /// Notes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Findings {
    /// Passed.
    pub fn of(details: Details) -> Self {
        Self { details, ..Self::default() }
    }

    /// Failed if there is an error, else a note or ok.
    pub fn status(&self) -> CheckStatus {
        match (&self.error, self.notes.is_empty()) {
            (Some(_), _) => CheckStatus::Failed,
            (None, false) => CheckStatus::Note,
            (None, true) => CheckStatus::Ok,
        }
    }
}

/// Measurements of a check.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "the other fields are named after what they count")]
pub enum Details {
    /// None.
    #[default]
    None,
    /// Ranks that joined.
    World { ranks: u32, hosts: u32 },
    /// All ranks.
    Ranks(Vec<RankInfo>),
    /// The data.
    Data { source: String, tokens: u64 },
    /// Timings by message size.
    AllReduce(Vec<AllReduceTiming>),
    /// The state that was broadcast, and the bytes of parameters and optimizer state of a rank.
    State { parameters: u64, bytes: u64 },
    /// Training steps.
    Steps {
        /// Name of the configuration.
        model: String,
        /// Number of steps.
        steps: u64,
        /// Mean loss of the first steps.
        first_loss: f64,
        /// Mean loss of the last steps.
        last_loss: f64,
        /// Throughput over all ranks.
        tokens_per_second: f64,
        /// Mean time breakdown of a step.
        step_seconds: StepSeconds,
    },
    /// Digest of parameters and optimizer state.
    Digest(String),
    /// The checkpoint, removed again, and the bytes of state of a rank.
    Checkpoint { bytes: u64, folder: String },
}

impl Details {
    fn is_none(&self) -> bool {
        *self == Self::None
    }
}

/// Host, cores and kernels of a rank.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RankInfo {
    /// The rank.
    pub rank: u32,
    /// Its host.
    pub host: String,
    /// Its CPU affinity.
    pub cpus: CpuSet,
    /// Compute threads.
    pub threads: usize,
    /// Description of the kernels in use.
    pub kernels: String,
}

/// Timing of an all-reduce.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct AllReduceTiming {
    /// Message size.
    pub bytes: u64,
    /// Mean time on the slowest rank.
    pub seconds: f64,
    /// Bus bandwidth in bytes per second: bytes / time x 2(n-1)/n.
    pub bus_bandwidth: f64,
}

/// Events that rank 0 reports.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SmokeEvent {
    /// A check finished.
    Check(Box<CheckResult>),
    /// A check could not be completed; the remaining ones are skipped.
    Aborted {
        /// The check.
        check: Check,
        /// Cause.
        reason: String,
    },
    /// Interrupted during this check.
    Interrupted(Check),
    /// All checks finished.
    Done,
}
