//! What is recorded while a run goes on.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{RunKind, StepMetrics};
use crate::result::RankExit;
use crate::{BenchRow, BenchTable, finite_or_null, train_event};

/// An event of a run. The rank that it is about is that of its [`super::Record`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "event")]
#[allow(missing_docs, reason = "the variants explain the fields")]
pub enum RunEvent {
    /// An attempt starts: the first event of each.
    Launched {
        /// Number of restarts before it. Version 1 does not have it: readers count the attempts.
        #[serde(default)]
        attempt: u32,
        command: Vec<String>,
        /// What it does. Earlier versions do not have it: readers guess by files and the command.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        kind: Option<RunKind>,
    },
    /// The process of a rank was started.
    Started { pid: u32 },
    /// A rank exited.
    Exited { exit: RankExit },
    /// A rank failed because it lost another rank.
    LostPeer { peer: u32 },
    /// The launcher received a signal, or the scheduler sent it to an agent.
    SignalReceived { signal: i32 },
    /// The signal was sent to the ranks.
    SignalSent { signal: i32 },
    /// The ranks are killed.
    Killed,
    /// The connection to a node failed.
    ConnectionLost { why: String },
    /// A node is lost together with its ranks.
    NodeLost { ranks: Vec<u32> },
    /// A check of the running job failed.
    CheckFailed { why: String },
    /// An operation of a communicator made no progress.
    Stalled { why: String },
    /// A warning for the user.
    Warning { text: String },
    /// A training step finished.
    Step(Box<StepMetrics>),
    /// An evaluation on the validation split finished.
    Validation {
        /// Steps finished.
        step: u64,
        /// Mean loss.
        #[serde(with = "finite_or_null")]
        val_loss: f64,
    },
    /// A training starts, also after a resume or a restart, has a checkpoint or ends. Rank 0 reports it to
    /// the launcher.
    Training { training: train_event::Event },
    /// A benchmark starts a table, which is still empty.
    BenchTable { table: BenchTable },
    /// A row of the last table was measured.
    BenchRow { row: Box<BenchRow> },
    /// An event of another version, with all its fields.
    #[serde(untagged)]
    Other(Map<String, Value>),
}
