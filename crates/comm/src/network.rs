//! What TCP and libfabric have in common: the state shared by all communicators of a process, the
//! trait of a network that moves their messages, and the transport and engine of a communicator.

mod comm_table;
mod context;
mod engine;
pub mod negotiation;
mod shared_state;
mod transport;
mod user_buffer;

use std::net::TcpStream;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use regatta_wire::clock;
use rustix::event::PollFlags;

use crate::matching::{Envelope, PostedRecv};
use crate::transport::RequestId;
pub use comm_table::CommTable;
pub use context::NetworkContext;
pub use engine::NetworkEngine;
pub use shared_state::{LinkDirection, NetworkState, Report, SharedState};
pub(crate) use transport::MonitorRole;
pub use transport::NetworkTransport;
pub use user_buffer::UserBuffer;

/// A receive into user memory.
pub type UserRecv = PostedRecv<UserBuffer>;

/// A send of user memory of the length in the envelope.
#[derive(Clone, Copy)]
pub struct UserSend {
    pub envelope: Envelope,
    pub request: RequestId,
    pub start: *const u8,
}

/// Memory for an unexpected message. The length comes from the peer, so allocation may fail.
pub fn alloc_unexpected(length: usize) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(length).ok()?;
    bytes.resize(length, 0);
    Some(bytes)
}

/// Time for a provider or plug-in to release user memory after a cancellation. After it, its connections are
/// closed, which aborts all communicators that use them.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(2);

/// The same if a rank was lost.
const CANCEL_TIMEOUT_RANK_LOST: Duration = Duration::from_millis(100);

/// Until when user memory is waited for.
pub fn cancel_deadline(is_rank_lost: bool) -> Instant {
    clock::now() + if is_rank_lost { CANCEL_TIMEOUT_RANK_LOST } else { CANCEL_TIMEOUT }
}

/// What a waiting thread sleeps on, and for how long at most.
pub struct SleepSet {
    pub sockets: Vec<(Arc<TcpStream>, PollFlags)>,
    /// Another descriptor that becomes readable.
    pub fd: Option<RawFd>,
    pub limit: Duration,
}

/// Moves messages between the processes of a job, for all communicators of this process. Ranks are
/// global. Completed requests, errors and broken links are reported to the [`SharedState`].
///
/// Any thread that waits makes progress for all communicators. No lock that another communicator
/// needs is held while a message is copied or reduced, unless both receive from the same rank.
pub trait Network: Send + Sync {
    /// Opens the connections for a message of this length; `cancelled` interrupts it.
    fn connect(&self, to: u32, length: usize, cancelled: &dyn Fn() -> bool) -> Result<(), String> {
        let _ = (to, length, cancelled);
        Ok(())
    }

    /// Posts a send, under the conditions of [`Transport`](crate::transport::Transport).
    fn send(&self, to: u32, message: UserSend);

    /// Posts a receive, under the same conditions.
    fn receive(&self, from: u32, recv: UserRecv);

    /// Moves as much as possible without blocking.
    fn progress(&self);

    /// What to sleep on after [`Self::progress`] had nothing to do.
    fn sleep_set(&self, limit: Duration) -> SleepSet;

    /// Releases all user memory of a communicator. If a rank was lost, requests to it never complete.
    fn cancel(&self, comm_id: u64, is_rank_lost: bool);

    /// Discards the unexpected messages of a communicator that is cancelled and closed.
    fn close(&self, comm_id: u64);

    /// Why no communicator of this process can continue, if so.
    fn failure(&self) -> Option<String> {
        None
    }

    /// How long the peer's kernel has not acknowledged data, if data is outstanding.
    fn unacked_for(&self, rank: u32) -> Option<Duration> {
        let _ = rank;
        None
    }

    /// Completes the last sends before this process exits.
    fn shutdown(&self) {}
}
