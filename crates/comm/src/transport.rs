//! Point-to-point transport between the ranks of a communicator, on which [`crate::execute`] runs
//! collective schedules.
//!
//! Only [`Transport::progress`] blocks. A posted operation borrows the memory it reads or writes
//! until it completes or is cancelled. Lifetimes cannot express that, because the borrow ends at a
//! call rather than at the end of a scope. Posting therefore takes raw memory and is `unsafe`; see
//! [`Transport::post_send`].

use std::time::Duration;

use crate::engine::AbortFn;
use crate::error::Peer;
use crate::{DType, ReduceOp, Result, Signature};

/// Matches sends with receives. Messages between two ranks with the same key arrive in order;
/// messages with different keys may overtake each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MatchKey {
    /// Part of the current collective.
    Collective,
    /// A point-to-point message with this tag.
    Tag(u32),
}

/// What to do with received bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecvAction {
    /// Copy them to the destination.
    Copy,
    /// Reduce them with the destination as they arrive.
    Reduce(DType, ReduceOp),
    /// Store `operand ∘ received`. The operand is as long as the destination, and they do not overlap.
    ReduceInto(DType, ReduceOp, *const [u8]),
}

/// A posted operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// A rank's transport to the other ranks of its communicator.
pub trait Transport: Send {
    /// This rank.
    fn rank(&self) -> u32;

    /// The number of ranks.
    fn ranks(&self) -> u32;

    /// All ranks, in order.
    fn peers(&self) -> Vec<Peer>;

    /// Starts a collective. Its messages carry the signature, so mismatching calls are detected.
    fn begin(&mut self, signature: Signature) -> Result;

    /// Completes the collective. All posted operations must be complete.
    fn end(&mut self);

    /// Posts a send. It completes when the memory is no longer read, not when the data has arrived.
    ///
    /// # Safety
    /// The bytes must stay valid and must not be written until [`Self::progress`] has returned the
    /// request or [`Self::cancel`] has returned.
    unsafe fn post_send(&mut self, to: u32, key: MatchKey, bytes: *const [u8])
    -> Result<RequestId>;

    /// Posts a receive of exactly `into.len()` bytes.
    ///
    /// # Safety
    /// The bytes must stay valid and initialised, and must not be accessed by others, until
    /// [`Self::progress`] has returned the request or [`Self::cancel`] has returned. An operand must stay
    /// valid and must not be written as long.
    unsafe fn post_receive(
        &mut self,
        from: u32,
        key: MatchKey,
        into: *mut [u8],
        action: RecvAction,
    ) -> Result<RequestId>;

    /// Makes progress and waits at most `timeout` for an operation to complete. Appends completed
    /// requests to `done`. An error is final: the caller must cancel what is posted, and all other
    /// ranks learn of the error.
    fn progress(&mut self, timeout: Duration, done: &mut Vec<RequestId>) -> Result;

    /// Cancels all posted operations. Their memory is not accessed afterwards.
    fn cancel(&mut self);

    /// A function that aborts the communicator on all ranks.
    fn abort_fn(&self) -> AbortFn;
}
