//! The interface between a job and what runs its ranks: this node, or agents on many nodes.

use std::collections::BTreeMap;
use std::time::Duration;

use regatta_model::result::RankExit;
use serde::{Deserialize, Serialize};

use crate::lines::MergedLine;

/// An event of one attempt of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the variants explain the fields")]
pub enum JobEvent {
    /// A rank's process was started.
    Started { rank: u32, pid: u32 },
    /// A line of output.
    Line(MergedLine),
    /// Raw output of a rank whose node does not write the log itself.
    Output { rank: u32, stderr: bool, bytes: Vec<u8> },
    /// The payload of a frame of a rank's channel.
    Frame { rank: u32, bytes: Vec<u8> },
    /// A rank exited.
    Exited(u32, RankExit),
    /// A rank failed because it lost another rank.
    LostPeer { rank: u32, peer: u32 },
    /// Last lines of a failed rank.
    OutputTail(u32, Vec<String>),
    /// What each rank is doing, in response to [`RankControl::QueryState`].
    RankStates(BTreeMap<u32, String>),
    /// A rank wrote output or used CPU time.
    Progress,
    /// The scheduler sent a signal to an agent.
    Signal(i32),
    /// The connection to a node with this first rank failed: its ranks are lost, or the node
    /// terminates them itself.
    ConnectionLost { rank: u32, why: String },
    /// A node is lost together with its ranks.
    NodeLost { node: u32, ranks: Vec<u32> },
    /// A rank could not be started; the cause includes host and fix.
    StartFailed { rank: u32, why: String },
    /// A check of the running job failed: its ranks are terminated, and the job is not restarted.
    CheckFailed { why: String },
    /// An operation of a communicator has made no progress for the hang timeout.
    Stalled,
    /// A text for the user, shown at once.
    Notice(String),
    /// A warning for the user.
    Warning(String),
    /// A node does not see the run folder: what its ranks do without, as a warning for the user.
    RunFolderUnseen(String),
    /// The attempt is finished; no further event follows.
    Finished,
}

/// A command to all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RankControl {
    /// Send this signal.
    Signal(i32),
    /// Send this termination signal. Agents kill the ranks after the grace period, even if they lose
    /// the coordinator.
    Terminate(i32),
    /// Kill the ranks and all their descendants.
    Kill,
    /// Report what each rank is doing.
    QueryState,
}

/// Runs the ranks of one attempt of a job.
pub trait WorkerGroup {
    /// Waits up to `timeout` for the next event. While `output_paused`, neither output nor
    /// frames nor [`JobEvent::Finished`] are delivered; full buffers eventually block the ranks' writes.
    fn next(&mut self, timeout: Duration, output_paused: bool) -> Option<JobEvent>;

    /// Applies a command to all ranks.
    fn control(&mut self, control: RankControl);
}
