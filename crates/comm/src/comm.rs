//! The one trait: what every way to connect ranks can do.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};

use crate::buffer::Buffer;
use crate::error::Peer;
use crate::{Call, CommError, OwnedCall};

/// Ranks that are connected.
///
/// All ranks call the same, in the same order. A call ends on every rank, well or with an error, in
/// bounded time; after an error the communicator is only good to be dropped.
pub trait Comm: Send + Sync {
    /// This rank.
    fn rank(&self) -> u32;

    /// How many ranks there are.
    fn size(&self) -> u32;

    /// A rank and where it is.
    fn peer(&self, rank: u32) -> Peer;

    /// Does one collective, and returns when this rank's part in it is over.
    fn run(&self, call: Call<'_>) -> Result<(), CommError>;

    /// Does several as a group: first all messages, at once, so that ranks may send to each other
    /// in any order, then the collectives, in theirs.
    fn run_group(&self, calls: Vec<Call<'_>>) -> Result<(), CommError> {
        calls.into_iter().try_for_each(|call| self.run(call))
    }

    /// Does one whose buffers may lie on a device, so many times in a row. On a device all are
    /// queued, and waited for once.
    fn run_owned(&self, call: &mut OwnedCall, times: u32) -> Result<(), CommError>;

    /// Sends and receives messages whose buffers may lie on a device, all at once, so many times in
    /// a row.
    fn run_messages(&self, messages: &mut [OwnedCall], times: u32) -> Result<(), CommError>;

    /// Begins one that goes on while the caller does something else. They are done in the order of
    /// their beginnings, and so are those that [`Comm::run`] does.
    fn start(&self, call: OwnedCall) -> Pending;

    /// A new communicator for the ranks that give the same colour, ordered by key, then by rank
    /// here. All ranks take part; `None` is in none.
    fn split(&self, colour: Option<u32>, key: i64) -> Result<Option<Box<dyn Comm>>, CommError>;

    /// Memory that this communicator likes best: what lies there may need one copy less.
    fn buffer(&self, bytes: usize) -> Buffer {
        Buffer::zeroed(bytes)
    }

    /// Memory on this rank's device, filled by [`Buffer::put`]. Calls on it are done by
    /// [`Comm::start`], without a copy to the host.
    fn device_buffer(&self, _bytes: usize) -> Result<Buffer, CommError> {
        Err(no_device())
    }

    /// Gives up, so that no other rank waits for this one.
    fn abort(&self, why: &str);

    /// Whether it is known, without waiting for anybody, that every further call fails: a rank is
    /// gone, or has given up. The next call says which.
    fn is_over(&self) -> bool;
}

/// A collective that goes on.
#[must_use = "the result is known, and the buffers are back, when it was waited for"]
#[derive(Debug)]
pub struct Pending {
    result: Receiver<Result<OwnedCall, CommError>>,
    /// By which numbers an error is to name ranks, if not by those of the communicator.
    numbers: Option<Arc<[u32]>>,
}

/// How a [`Pending`] is told of its end.
pub type Finish = Box<dyn FnOnce(Result<OwnedCall, CommError>) + Send>;

impl Pending {
    /// One that ends when the function is called.
    pub fn new() -> (Self, Finish) {
        let (sender, result) = sync_channel(1);
        // Whoever does not wait does not want to know.
        let finish = move |ended| drop(sender.send(ended));
        (Self { result, numbers: None }, Box::new(finish))
    }

    /// The same, with ranks named by other numbers if it fails.
    pub(crate) fn renumbered(self, numbers: Arc<[u32]>) -> Self {
        Self { numbers: Some(numbers), ..self }
    }

    /// Waits for the end, and gives the buffers back.
    pub fn wait(self) -> Result<OwnedCall, CommError> {
        let gone = || CommError::System {
            what: "a collective in the background".to_owned(),
            why: "the communicator is gone".to_owned(),
        };
        let ended = self.result.recv().unwrap_or_else(|_| Err(gone()));
        ended.map_err(|error| match &self.numbers {
            Some(numbers) => error.renumbered(numbers),
            None => error,
        })
    }
}

/// What says that there is no device.
pub(crate) fn no_device() -> CommError {
    CommError::System {
        what: "memory on a device".to_owned(),
        why: "these ranks have none: connect them by nccl::over".to_owned(),
    }
}

/// In which order the ranks of each colour stand after a split: rank, colour and key of all in, the
/// old ranks of `colour` out.
pub fn order(all: &[(Option<u32>, i64)], colour: u32) -> Vec<u32> {
    let same = all.iter().enumerate().filter(|(_, (c, _))| *c == Some(colour));
    let mut ranks: Vec<(i64, u32)> = same.map(|(rank, (_, key))| (*key, rank as u32)).collect();
    ranks.sort_unstable();
    ranks.into_iter().map(|(_, rank)| rank).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_split_orders_by_key_then_rank() {
        let all = [(Some(1), 5), (Some(0), 0), (Some(1), -2), (None, 0), (Some(1), 5)];
        assert_eq!(order(&all, 1), [2, 0, 4]);
        assert_eq!(order(&all, 0), [1]);
    }
}
