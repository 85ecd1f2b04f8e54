//! The communicator trait.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};

use crate::buffer::Buffer;
use crate::error::Peer;
use crate::{Call, CommError, OwnedCall, Result};

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

    /// Runs a call whose buffers may be in device memory `times` times, back to back. On a device all
    /// repetitions are enqueued and synchronised once.
    fn run_owned(&self, call: &mut OwnedCall, times: u32) -> Result;

    /// Runs point-to-point messages concurrently, `times` times, back to back. Their buffers may be
    /// in device memory.
    fn run_p2p(&self, messages: &mut [OwnedCall], times: u32) -> Result;

    /// Starts an asynchronous call. All calls of a communicator, including those of [`Comm::run`],
    /// run in the order they were issued.
    fn start(&self, call: OwnedCall) -> Pending;

    /// Creates a sub-communicator of the ranks with the same colour, ordered by key, then by rank
    /// (`MPI_Comm_split`). All ranks must call it; a rank with `None` gets no communicator.
    fn split(&self, colour: Option<u32>, key: i64) -> Result<Option<Box<dyn Comm>>>;

    /// Allocates host memory from which collectives may need one copy less.
    fn buffer(&self, bytes: usize) -> Buffer {
        Buffer::zeroed(bytes)
    }

    /// Allocates memory on this rank's device, to be filled by [`Buffer::copy_from_host`]. Calls on
    /// it ([`Comm::start`]) do not copy to the host.
    fn device_buffer(&self, _bytes: usize) -> Result<Buffer> {
        Err(no_device())
    }

    /// Aborts the communicator on all ranks.
    fn abort(&self, why: &str);

    /// Whether the communicator is known to have failed, without blocking. The next call returns the
    /// error.
    fn has_failed(&self) -> bool;
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
    };
}
pub(crate) use delegate_queries;

/// An asynchronous call in progress.
#[must_use = "wait() returns the result and the buffers"]
#[derive(Debug)]
pub struct Pending {
    result: Receiver<Result<OwnedCall>>,
    /// The ranks to translate errors to, if any.
    ranks: Option<Arc<[u32]>>,
}

/// Completes a [`Pending`] call.
pub type Completion = Box<dyn FnOnce(Result<OwnedCall>) + Send>;

impl Pending {
    /// A pending call and the function that completes it.
    pub fn new() -> (Self, Completion) {
        let (sender, result) = sync_channel(1);
        // Sending fails if the caller dropped the handle without waiting.
        let complete = move |result| drop(sender.send(result));
        (Self { result, ranks: None }, Box::new(complete))
    }

    /// Translates the ranks of an error.
    pub(crate) fn translate_ranks(self, ranks: Arc<[u32]>) -> Self {
        Self { ranks: Some(ranks), ..self }
    }

    /// Waits for completion and returns the buffers.
    pub fn wait(self) -> Result<OwnedCall> {
        let why = "the worker thread of the communicator panicked";
        let panicked = |_| Err(CommError::system("asynchronous call", why));
        let result = self.result.recv().unwrap_or_else(panicked);
        result.map_err(|error| match &self.ranks {
            Some(ranks) => error.translate_ranks(ranks),
            None => error,
        })
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
