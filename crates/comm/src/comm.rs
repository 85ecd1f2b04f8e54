//! The communicator trait.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::buffer::Buffer;
use crate::control::CommMonitor;
use crate::error::Peer;
use crate::event::CompleteOnDrop;
use crate::{Call, CommError, Event, OwnedCall, Result};

/// A communicator.
///
/// All ranks issue the same calls in the same order. Every call returns on every rank within bounded
/// time, with success or an error. After an error the communicator can only be dropped.
pub trait Comm: Send + Sync {
    /// This rank.
    fn rank(&self) -> u32;

    /// The number of ranks.
    fn size(&self) -> u32;

    /// A rank and its host.
    fn peer(&self, rank: u32) -> Peer;

    /// Runs a call and returns when this rank's part of it is complete.
    fn run(&self, call: Call<'_>) -> Result;

    /// Runs a group of calls: first all messages concurrently, so ranks may send to each other in any
    /// order, then the collectives in order.
    fn run_group(&self, calls: Vec<Call<'_>>) -> Result {
        calls.into_iter().try_for_each(|call| self.run(call))
    }

    /// Runs a group of calls whose buffers may be in device memory `times` times, back to back. On a
    /// device all repetitions are enqueued and waited for once.
    fn run_owned(&self, calls: &mut [OwnedCall], times: u32) -> Result;

    /// Enqueues a group of calls that runs once the events of `after` have completed. All calls of a
    /// communicator, including those of [`Comm::run`], run in the order they were issued; those of
    /// other communicators are independent of them.
    ///
    /// On device memory the group runs as one launch on the communicator's stream, which waits for
    /// `after` and records the returned event; the host waits for neither. On host memory it runs on
    /// a worker thread. The calls of a group must not depend on each other's results. An empty group
    /// only waits for `after`.
    fn enqueue(&self, calls: Vec<OwnedCall>, after: &[Event]) -> Pending;

    /// Starts an asynchronous call.
    fn start(&self, call: OwnedCall) -> Pending {
        self.enqueue(vec![call], &[])
    }

    /// Creates a sub-communicator of the ranks with the same colour, ordered by key, then by rank
    /// (`MPI_Comm_split`). All ranks must call it; a rank with `None` gets no communicator.
    fn split(&self, colour: Option<u32>, key: i64) -> Result<Option<Box<dyn Comm>>>;

    /// Names the communicator, for recorded events.
    fn set_name(&self, _name: &str) {}

    /// Allocates host memory from which collectives may need one copy less.
    fn buffer(&self, bytes: usize) -> Buffer {
        Buffer::zeroed(bytes)
    }

    /// Allocates memory on this rank's device, to be filled by [`Buffer::copy_from_host`]. Calls on
    /// it and on its ranges ([`Comm::enqueue`]) do not copy to the host.
    fn device_buffer(&self, _bytes: usize) -> Result<Buffer> {
        Err(no_device())
    }

    /// Aborts the communicator on all ranks.
    fn abort(&self, why: &str);

    /// Whether the communicator is known to have failed, without blocking. The next call returns the
    /// error.
    fn has_failed(&self) -> bool;

    /// The control plane's view of it, if it has a control plane.
    fn monitor(&self) -> Option<Arc<CommMonitor>> {
        None
    }
}

/// Delegates the methods of [`Comm`] that run no calls to `self.inner`.
macro_rules! delegate_queries {
    () => {
        fn rank(&self) -> u32 {
            self.inner.rank()
        }

        fn size(&self) -> u32 {
            self.inner.size()
        }

        fn peer(&self, rank: u32) -> $crate::error::Peer {
            self.inner.peer(rank)
        }

        fn set_name(&self, name: &str) {
            self.inner.set_name(name);
        }

        fn buffer(&self, bytes: usize) -> $crate::Buffer {
            self.inner.buffer(bytes)
        }

        fn device_buffer(&self, bytes: usize) -> $crate::Result<$crate::Buffer> {
            self.inner.device_buffer(bytes)
        }

        fn abort(&self, why: &str) {
            self.inner.abort(why);
        }

        fn has_failed(&self) -> bool {
            self.inner.has_failed()
        }

        fn monitor(&self) -> Option<std::sync::Arc<$crate::control::CommMonitor>> {
            self.inner.monitor()
        }
    };
}
pub(crate) use delegate_queries;

/// Calls in progress. The memory of their buffers lives until they have completed, even if this is
/// dropped.
#[must_use = "wait() returns the result and the buffers; event() the completion"]
#[derive(Debug)]
pub struct Pending {
    event: Event,
    calls: SharedCalls,
}

/// Completes a [`Pending`].
pub type CompleteFn = Box<dyn FnOnce(Result<Vec<OwnedCall>>) + Send>;

impl Pending {
    /// Pending calls and the function that completes them.
    pub fn new() -> (Self, CompleteFn) {
        let (event, completion) = CompleteOnDrop::new();
        let calls = SharedCalls::default();
        let pending = Self { event, calls: calls.clone() };
        let complete = move |result: Result<Vec<OwnedCall>>| {
            completion.complete(result.map(|done| *calls.lock() = done));
        };
        (pending, Box::new(complete))
    }

    /// Calls that complete with an event.
    pub(crate) fn with_event(event: Event, calls: SharedCalls) -> Self {
        Self { event, calls }
    }

    /// Translates the ranks of an error.
    pub(crate) fn translate_ranks(self, ranks: Arc<[u32]>) -> Self {
        Self { event: self.event.translate_ranks(ranks), ..self }
    }

    /// The completion of the calls.
    pub fn event(&self) -> Event {
        self.event.clone()
    }

    /// Waits for the completion of a single call and returns its buffers.
    pub fn wait(self) -> Result<OwnedCall> {
        let missing = || CommError::invalid_call("wait", "the group has no call");
        self.wait_group()?.pop().ok_or_else(missing)
    }

    /// The buffers of a single call, without waiting: for a caller that orders all later work on them
    /// behind [`Pending::event`] on a device stream.
    pub fn into_call_in_flight(self) -> Result<OwnedCall> {
        let missing = || CommError::invalid_call("wait", "the group has no call");
        let call = self.calls.lock().pop();
        call.ok_or_else(missing)
    }

    /// Waits for the completion of a group and returns its buffers.
    pub fn wait_group(self) -> Result<Vec<OwnedCall>> {
        self.event.wait()?;
        Ok(std::mem::take(&mut *self.calls.lock()))
    }
}

/// Calls in progress, shared by the engine that runs them and the caller that waits for them.
#[derive(Debug, Clone, Default)]
pub struct SharedCalls(Arc<Mutex<Vec<OwnedCall>>>);

impl SharedCalls {
    pub(crate) fn new(calls: Vec<OwnedCall>) -> Self {
        Self(Arc::new(Mutex::new(calls)))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Vec<OwnedCall>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn no_device() -> CommError {
    let why = "this communicator has no device; create it with nccl::init";
    CommError::system("cannot allocate device memory", why)
}

/// The parent ranks of a colour's sub-communicator, in order, from the colours and keys of all ranks.
pub fn split_order(all: &[(Option<u32>, i64)], colour: u32) -> Vec<u32> {
    let same = all.iter().enumerate().filter(|(_, (c, _))| *c == Some(colour));
    let mut ranks: Vec<(i64, u32)> = same.map(|(rank, (_, key))| (*key, rank as u32)).collect();
    ranks.sort_unstable();
    ranks.into_iter().map(|(_, rank)| rank).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_orders_by_key_then_rank() {
        let all = [(Some(1), 5), (Some(0), 0), (Some(1), -2), (None, 0), (Some(1), 5)];
        assert_eq!(split_order(&all, 1), [2, 0, 4]);
        assert_eq!(split_order(&all, 0), [1]);
    }
}
