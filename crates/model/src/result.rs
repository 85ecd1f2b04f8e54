//! How a run ended.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Document;

/// How a rank ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ending {
    /// By itself, with this code.
    Exit(i32),
    /// By this signal.
    Signal(i32),
    /// Killed because its memory ran out.
    OutOfMemory,
    /// Its node was lost, and the rank with it.
    Lost,
}

/// The signal that kills.
const SIGKILL: u8 = 9;

impl Ending {
    /// Whether it did what it should.
    pub fn is_good(self) -> bool {
        self == Ending::Exit(0)
    }

    /// The exit code a shell would give.
    pub fn code(self) -> u8 {
        match self {
            Ending::Exit(code) => u8::try_from(code).unwrap_or(1),
            Ending::Signal(signal) => 128u8.saturating_add(u8::try_from(signal).unwrap_or(0)),
            // A lost node's ranks are killed, by its agent if by nobody else.
            Ending::OutOfMemory | Ending::Lost => 128 + SIGKILL,
        }
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ending::Exit(code) => write!(f, "exit code {code}"),
            Ending::Signal(signal) => write!(f, "signal {signal} ({})", signal_name(*signal)),
            Ending::OutOfMemory => f.write_str("killed for running out of memory"),
            Ending::Lost => f.write_str("its node was lost"),
        }
    }
}

fn signal_name(signal: i32) -> &'static str {
    match signal {
        1 => "HUP",
        2 => "INT",
        3 => "QUIT",
        4 => "ILL: an instruction this processor lacks",
        6 => "ABRT: the program gave up",
        7 => "BUS: often a full /dev/shm",
        8 => "FPE",
        9 => "KILL",
        10 => "USR1",
        11 => "SEGV: a bad memory access",
        12 => "USR2",
        13 => "PIPE",
        15 => "TERM",
        _ => "see kill -l",
    }
}

/// The failure that ended a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The rank that failed first.
    pub rank: u32,
    /// Its node.
    pub host: String,
    /// How it ended.
    pub ending: Ending,
    /// The last lines it wrote.
    pub last_lines: Vec<String>,
    /// What the other ranks were doing then.
    pub others: BTreeMap<u32, String>,
}

/// How a run ended: `result.json` of its folder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    /// The command as it was given.
    pub command: Vec<String>,
    /// Ranks of the job.
    pub ranks: u32,
    /// The exit code of the whole.
    pub code: u8,
    /// How often all ranks were started anew after a failure.
    pub restarts: u32,
    /// Why it ended, in a sentence.
    pub reason: String,
    /// The first failure, if there was one.
    pub failure: Option<Failure>,
    /// Where each rank waited, if the job was ended because nothing happened any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hang: Option<BTreeMap<u32, String>>,
    /// What else the user should know: nodes that were replaced, logs that are cut.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// How each rank ended.
    pub endings: BTreeMap<u32, Ending>,
    /// How long it took.
    pub seconds: f64,
}

impl Document for RunResult {
    const KIND: &'static str = "result";
    const VERSION: u32 = 1;
}
