//! The sentences about what does not complete. The caller names ranks and operations.

use std::fmt::Display;
use std::time::Duration;

use super::Stage;

/// Why a job hangs without any active process.
pub fn no_activity(limit: Duration) -> String {
    format!("no rank wrote output or used CPU time for {} s", limit.as_secs())
}

/// Why a job hangs in a communicator.
pub fn no_progress(limit: Duration) -> String {
    format!("a collective or message made no progress for {} s", limit.as_secs())
}

/// The error of a call that waited for ranks.
pub fn timed_out(seconds: u64, ranks: impl Display) -> String {
    format!("timed out after {seconds} s waiting for {ranks}")
}

/// Why a link counts as broken on which messages hardly move.
pub fn slow_link(seconds: u64) -> String {
    format!("less than 64 KiB arrived in {seconds} s")
}

/// Ranks with different calls, each with its call. `place` is the number of the call.
pub fn mismatch(place: impl Display, calls: [(&dyn Display, &dyn Display); 2]) -> String {
    let [(one, call), (other, other_call)] = calls;
    format!(
        "collective mismatch in {place}: {one} called {call}, {other} called {other_call}; all ranks \
         must issue the same calls in the same order"
    )
}

/// Added if ranks of several operations wait for each other.
pub const CYCLE: &str =
    "; these ranks wait for each other: they may call the collectives in different orders";

/// A collective, and for how many seconds, in which `count` late ranks have got no further than a stage,
/// but others have.
pub fn behind(late: &str, count: usize, stage: Stage, what: (&str, u64), others: &str) -> String {
    let (have, (what, seconds)) = (if count == 1 { "has" } else { "have" }, what);
    let missing = match stage {
        Stage::NotEntered => {
            return format!(
                "{late} did not arrive at {what}, which {others} entered {seconds} s ago"
            );
        }
        Stage::Enqueued => "started on its GPU",
        Stage::Started | Stage::Completed => "completed",
    };
    format!("{late} {have} enqueued {what} {seconds} s ago, but not {missing}, as {others} did")
}

/// A collective in which all ranks have got to the same stage.
pub fn stuck(stage: Stage, (what, seconds): (&str, u64)) -> String {
    let (verb, state) = match stage {
        Stage::NotEntered | Stage::Enqueued => {
            ("enqueued", "no GPU has started it: earlier work of the GPUs does not complete")
        }
        Stage::Started | Stage::Completed => {
            ("entered", "none has completed it: a GPU, a link or a network transfer is stuck")
        }
    };
    format!("all ranks {verb} {what} {seconds} s ago, and {state}")
}

/// What is known of the peer of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerState {
    /// Nothing.
    NoStatus,
    /// It has posted the message, too.
    Posted,
    /// It waits in this message.
    WaitsIn(String),
    /// Its process has ended.
    Ended,
    /// It has not posted the message.
    NotPosted,
}

/// A rank that waits in a message, which it sends or receives, for a peer.
pub fn message(own: &str, what: (&str, bool), seconds: u64, peer: (&str, &PeerState)) -> String {
    let ((what, is_send), (peer, state)) = (what, peer);
    let done = if is_send { "received" } else { "sent" };
    let state = match state {
        PeerState::NoStatus => "the peer has no status".to_owned(),
        PeerState::Posted => format!("its peer, {peer}, has posted it, too: the transfer is stuck"),
        PeerState::WaitsIn(other) => format!("{peer} itself waits in {other}"),
        PeerState::Ended => format!("{peer} has ended and not {done} it"),
        PeerState::NotPosted => format!("{peer} has not {done} it"),
    };
    format!("{own} waits in {what} since {seconds} s; {state}")
}
