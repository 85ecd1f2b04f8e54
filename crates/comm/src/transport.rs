//! Messages from one rank to another: what a way to connect ranks must do, so that
//! [`crate::execute`] can run programs on it.
//!
//! Nothing here waits but [`Transport::progress`]. Operations are posted with the memory that they
//! read or write, and the memory is lent until they are done or cancelled. That cannot be said with
//! lifetimes, as it ends at a call and not at the end of a scope; so it is raw memory, posting is
//! `unsafe`, and the one who posts keeps the promise: see [`Transport::post_send`].

use std::time::Duration;

use crate::background::Abort;
use crate::error::Peer;
use crate::{CommError, DType, ReduceOp, Signature};

/// Which messages belong together. Those of a rank to another in one lane come as they were sent;
/// those of different lanes may overtake each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lane {
    /// Of the collective that goes on, in which all take part.
    Call,
    /// Between two ranks, with this tag.
    Tag(u32),
}

/// What becomes of the bytes that come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Landing {
    /// They replace what is there.
    Replace,
    /// They are reduced with what is there, as they come.
    Reduce(DType, ReduceOp),
}

/// One posted operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// A rank's way to the others of its communicator.
pub trait Transport: Send {
    /// This rank.
    fn rank(&self) -> u32;

    /// How many there are.
    fn ranks(&self) -> u32;

    /// All ranks, in their order.
    fn peers(&self) -> Vec<Peer>;

    /// A collective begins. Its messages tell what it is, so that ranks which call something else
    /// are found out.
    fn begin(&mut self, signature: Signature) -> Result<(), CommError>;

    /// The collective is over, and all that was posted is done.
    fn end(&mut self);

    /// Sends bytes. It is done when the memory is no longer read, not when they have arrived.
    ///
    /// # Safety
    /// The bytes must be valid, and written by nobody, until [`Self::progress`] has given the
    /// ticket back or [`Self::cancel`] has returned.
    unsafe fn post_send(
        &mut self,
        to: u32,
        lane: Lane,
        bytes: *const [u8],
    ) -> Result<Ticket, CommError>;

    /// Receives bytes: exactly as many as there is room for.
    ///
    /// # Safety
    /// The bytes must be valid and initialised, and read or written by nobody else, until
    /// [`Self::progress`] has given the ticket back or [`Self::cancel`] has returned.
    unsafe fn post_receive(
        &mut self,
        from: u32,
        lane: Lane,
        into: *mut [u8],
        landing: Landing,
    ) -> Result<Ticket, CommError>;

    /// Receives bytes and reduces them with others: `into` becomes `with ∘` what comes. Both are of
    /// one length, and do not overlap. A transport that can do without the copy should.
    ///
    /// # Safety
    /// As of [`Self::post_receive`], and `with` must be valid, and written by nobody, as long.
    unsafe fn post_reduce(
        &mut self,
        from: u32,
        lane: Lane,
        into: *mut [u8],
        with: *const [u8],
        dtype: DType,
        op: ReduceOp,
    ) -> Result<Ticket, CommError> {
        let length = into.len().min(with.len());
        // SAFETY: both are valid, as promised, and this rank's alone until they are posted.
        unsafe {
            std::ptr::copy(with.cast::<u8>(), into.cast::<u8>(), length);
            self.post_receive(from, lane, into, Landing::Reduce(dtype, op))
        }
    }

    /// Moves bytes, and waits at most so long until an operation is done. Adds those that are to
    /// `done`. An error is final: what is posted is to be cancelled, and all other ranks learn of
    /// it.
    fn progress(&mut self, timeout: Duration, done: &mut Vec<Ticket>) -> Result<(), CommError>;

    /// Forgets all that is posted: its memory is not touched any more.
    fn cancel(&mut self);

    /// How to make it give up, and the others with it.
    fn abort(&self) -> Abort;
}
