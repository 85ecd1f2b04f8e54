//! The links to and from one rank. Small messages travel on a control connection per direction; large ones
//! are announced on it and sent in chunks on a data connection, once the receiver has cleared them, so
//! that receives are posted in the order of the sends. The interface has no tags to select by.

use std::ffi::c_int;
use std::sync::Arc;

use super::connection::{Request, RequestMemory};
use super::control_message::{ControlMessage, EAGER_BYTES};
use super::incoming::{Incoming, RecvStep};
use super::outgoing::Outgoing;
use super::setup::Listener;
use super::table::{Handle, Net, NetError};
use crate::network::{LinkDirection, Report, SharedState, UserRecv, UserSend};

/// Receives that are posted on a control connection, and sends in flight on it.
pub const SLOTS: usize = 8;

/// Largest chunk of a large message, as in NCCL.
pub const CHUNK_BYTES: usize = 512 << 10;

/// Chunks have a multiple of this many bytes, so that elements are never split.
pub const CHUNK_ALIGNMENT: usize = 64;

/// Chunks in flight on a data connection, as in NCCL.
pub const MAX_CHUNKS: usize = 8;

/// Messages to a peer that may be unconsumed. Further sends wait for credits.
pub const SEND_WINDOW: u64 = 1024;

/// Why a link is broken.
pub type LinkResult<T = ()> = Result<T, String>;

impl From<NetError> for String {
    fn from(error: NetError) -> Self {
        error.to_string()
    }
}

impl Request {
    /// Whether it accesses user memory of a communicator.
    pub fn is_of(&self, comm: u64) -> bool {
        matches!(self.memory, RequestMemory::User { comm_id, .. } if comm_id == comm)
    }
}

/// What all parts of the links to a peer need.
pub struct LinkContext {
    pub net: Arc<Net>,
    /// The NIC of this rank.
    pub device: c_int,
    /// The key of this job.
    pub job: u64,
    /// The largest chunk that this rank sends.
    pub chunk_bytes: usize,
    pub shared: Arc<SharedState>,
}

/// The links to and from a rank.
pub struct Peer {
    context: Arc<LinkContext>,
    rank: u32,
    pub outgoing: Outgoing,
    pub incoming: Incoming,
}

impl Peer {
    /// The rank that listens at `handle` for this rank, and connects to `listener`.
    pub fn new(context: Arc<LinkContext>, rank: u32, handle: Handle, listener: Listener) -> Self {
        let (outgoing, incoming) = (Outgoing::new(handle), Incoming::new(listener));
        Self { context, rank, outgoing, incoming }
    }

    /// Posts a send.
    pub fn send(&mut self, message: UserSend, report: &mut Report) {
        if message.envelope.length as usize > EAGER_BYTES && self.incoming.is_broken() {
            let why =
                "the connection from the peer, which large messages need, is broken".to_owned();
            return report.broken.push((self.rank, LinkDirection::Send, why));
        }
        self.outgoing.send(message);
        self.progress_outgoing(report);
    }

    /// Posts a receive.
    pub fn receive(&mut self, recv: UserRecv, report: &mut Report) {
        self.recv_step(report, |incoming, step| incoming.receive(step, recv));
        self.progress_outgoing(report);
    }

    /// Makes progress without blocking. Returns whether a request has completed.
    pub fn progress(&mut self, accept: bool, report: &mut Report) -> bool {
        let moved = self.recv_step(report, |incoming, step| incoming.progress(step, accept));
        moved | self.progress_outgoing(report)
    }

    fn progress_outgoing(&mut self, report: &mut Report) -> bool {
        let moved = self.outgoing.progress(&self.context, report);
        let moved = moved.unwrap_or_else(|why| {
            self.fail_send(&why, report);
            true
        });
        if self.incoming.is_broken() && self.outgoing.needs_replies() {
            self.fail_send(
                "the connection from the peer, whose replies are needed, is broken",
                report,
            );
        }
        moved
    }

    /// Runs a step of the receive half, which fails if the step does.
    fn recv_step<T: Default>(
        &mut self,
        report: &mut Report,
        run: impl FnOnce(&mut Incoming, &mut RecvStep<'_>) -> LinkResult<T>,
    ) -> T {
        let Self { context, outgoing, incoming, .. } = self;
        let done = run(incoming, &mut RecvStep { context, outgoing, report });
        done.unwrap_or_else(|why| {
            self.fail_recv(&why, report);
            T::default()
        })
    }

    /// Fetches large unexpected messages, if there are any.
    pub fn fetch_unexpected(&mut self, report: &mut Report) {
        if self.incoming.has_remote() {
            self.recv_step(report, |incoming, step| incoming.fetch_unexpected(step));
            self.progress_outgoing(report);
        }
    }

    /// Begins to release all user memory of a communicator.
    pub fn cancel(&mut self, comm_id: u64, report: &mut Report) {
        if let Err(why) = self.outgoing.cancel(comm_id) {
            self.fail_send(&why, report);
        }
        self.recv_step(report, |incoming, _| incoming.cancel(comm_id));
    }

    /// Whether user memory of a cancelled communicator is released, and no message of it is awaited by the
    /// peer. If the memory is not released in time, closes the connections that use it.
    pub fn is_released(&mut self, comm_id: u64, expired: bool, report: &mut Report) -> bool {
        if expired {
            let why = "the net plug-in did not release user memory in time";
            if self.outgoing.uses_memory_of(comm_id) {
                self.fail_send(why, report);
            }
            if self.incoming.uses_memory_of(comm_id) {
                self.fail_recv(why, report);
            }
            return true;
        }
        !self.outgoing.is_sending(comm_id) && !self.incoming.uses_memory_of(comm_id)
    }

    /// Discards the unexpected messages of a communicator.
    pub fn close(&mut self, comm_id: u64, report: &mut Report) {
        self.recv_step(report, |incoming, step| incoming.close(step, comm_id));
        self.progress_outgoing(report);
    }

    /// Sends an empty message, by which the peer knows that the connection works.
    pub fn greet(&mut self) {
        self.outgoing.reply(ControlMessage::Credit(0), &[]);
    }

    /// The messages that arrived before are still delivered: the peer may have sent them before it exited.
    fn fail_send(&mut self, why: &str, report: &mut Report) {
        let has_lost_request = self.outgoing.fail();
        report.broken.push((self.rank, LinkDirection::Send, why.to_owned()));
        if has_lost_request {
            self.incoming.fail();
            report.broken.push((self.rank, LinkDirection::Recv, why.to_owned()));
        }
    }

    fn fail_recv(&mut self, why: &str, report: &mut Report) {
        self.incoming.fail();
        report.broken.push((self.rank, LinkDirection::Recv, why.to_owned()));
        if self.outgoing.needs_replies() {
            self.outgoing.fail();
            report.broken.push((self.rank, LinkDirection::Send, why.to_owned()));
        }
    }
}
