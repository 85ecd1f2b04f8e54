//! The result of a run.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Document;

/// How a rank's process terminated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RankExit {
    /// Exited with this code.
    Exit(i32),
    /// Killed by this signal.
    Signal(i32),
    /// Killed by the kernel's OOM killer.
    OutOfMemory,
    /// Lost together with its node.
    #[serde(alias = "lost")]
    NodeLost,
}

const SIGKILL: u8 = 9;

/// Exit code of a rank that was stopped by a signal before its work was complete, and has saved what
/// it needs to resume: `EX_TEMPFAIL`.
pub const STOPPED_EARLY: u8 = 75;

impl RankExit {
    /// Whether it exited with code 0.
    pub fn is_success(self) -> bool {
        self == RankExit::Exit(0)
    }

    /// Whether it exited with the code [`STOPPED_EARLY`].
    pub fn is_stopped_early(self) -> bool {
        self == RankExit::Exit(STOPPED_EARLY.into())
    }

    /// The exit code a shell would report.
    pub fn exit_code(self) -> u8 {
        match self {
            RankExit::Exit(code) => u8::try_from(code).unwrap_or(1),
            RankExit::Signal(signal) => 128u8.saturating_add(u8::try_from(signal).unwrap_or(0)),
            // The agent of a lost node kills its ranks.
            RankExit::OutOfMemory | RankExit::NodeLost => 128 + SIGKILL,
        }
    }
}

impl fmt::Display for RankExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RankExit::Exit(code) => write!(f, "exit code {code}"),
            RankExit::Signal(signal) => write!(f, "signal {signal} ({})", signal_name(*signal)),
            RankExit::OutOfMemory => f.write_str("killed: out of memory"),
            RankExit::NodeLost => f.write_str("its node was lost"),
        }
    }
}

/// Whether a signal terminates the job: HUP, INT, QUIT or TERM. All others are only forwarded to the ranks.
pub fn is_termination_signal(signal: i32) -> bool {
    matches!(signal, 1 | 2 | 3 | 15)
}

fn signal_name(signal: i32) -> &'static str {
    match signal {
        1 => "HUP",
        2 => "INT",
        3 => "QUIT",
        4 => "ILL: illegal instruction, often built for a newer processor",
        6 => "ABRT: abort",
        7 => "BUS: bus error, often a full /dev/shm",
        8 => "FPE",
        9 => "KILL",
        10 => "USR1",
        11 => "SEGV: segmentation fault",
        12 => "USR2",
        13 => "PIPE",
        15 => "TERM",
        _ => "see kill -l",
    }
}

/// The first failure of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankFailure {
    /// The rank that failed first.
    pub rank: u32,
    /// Its node.
    pub host: String,
    /// How it terminated.
    #[serde(alias = "ending")]
    pub exit: RankExit,
    /// The last lines of its output.
    pub last_lines: Vec<String>,
    /// What the other ranks were doing at that time.
    #[serde(alias = "others")]
    pub other_ranks: BTreeMap<u32, String>,
}

/// A collective or message that did not complete.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StalledOperation {
    /// Which ranks it waited for, one sentence.
    pub message: String,
    /// These ranks; empty if that is not known.
    pub ranks: Vec<u32>,
    /// For how long it had been in flight.
    pub seconds: f64,
    /// Whether these ranks waited for ranks of another operation.
    pub is_consequence: bool,
}

/// The result of a run: `result.json` in the run folder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    /// The command line of the job.
    pub command: Vec<String>,
    /// World size.
    pub ranks: u32,
    /// Exit code of the run.
    #[serde(alias = "code")]
    pub exit_code: u8,
    /// Restarts of all ranks after a failure.
    pub restarts: u32,
    /// Why the run ended, one sentence.
    pub reason: String,
    /// The first failure, if any.
    pub failure: Option<RankFailure>,
    /// What each rank was waiting for, if the run was aborted because of a hang.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hang: Option<BTreeMap<u32, String>>,
    /// Collectives and messages that did not complete when the run was aborted, the causes first, if
    /// they were recorded (`--profile`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub collectives: Vec<StalledOperation>,
    /// Notes for the user: replaced nodes, truncated logs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// How each rank terminated.
    #[serde(alias = "endings")]
    pub rank_exits: BTreeMap<u32, RankExit>,
    /// Wall-clock time.
    pub seconds: f64,
}

impl RunResult {
    /// Whether a signal stopped the run before its end, without a failure; it can be resumed.
    pub fn is_stopped_early(&self) -> bool {
        self.exit_code == STOPPED_EARLY && self.failure.is_none()
    }
}

impl Document for RunResult {
    const KIND: &'static str = "result";
    const VERSION: u32 = 1;
}
