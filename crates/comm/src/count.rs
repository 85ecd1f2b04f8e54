//! A communicator that counts what goes through it: calls, and the bytes that they make this rank
//! send.
//!
//! What is counted is what a rank must send by the rules of the collectives, if each number goes
//! straight to who needs it, not what an algorithm makes of it: rings, trees and shared memory move
//! different amounts, and all of them do the same thing. [`must_send`] has the rules.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::buffer::Buffer;
use crate::error::Peer;
use crate::{Call, Comm, CommError, Counts, Kind, OwnedCall, Pending};

/// Elements that a rank must send in a collective of so many ranks. The root is that of [`Call`].
///
/// | kind | elements, of S in all and a rank's part P |
/// |---|---|
/// | reduce-scatter | S - P: to each other rank its part |
/// | all-gather | (n-1)·P: its own part to each other rank |
/// | all-reduce | both, one after the other: 2(n-1)/n·S, where S divides |
/// | broadcast | (n-1)·S at the root |
/// | reduce | S at all but the root |
/// | gather | P at all but the root |
/// | scatter | S - P at the root |
/// | all-to-all | what is for other ranks |
/// | send | S |
/// | barrier, receive | nothing |
///
/// The parts of an all-reduce are those of [`part`]. Over all ranks the sum is exact whether or not
/// they are equal.
pub fn must_send(kind: Kind, counts: &Counts<'_>, root: u32, rank: u32, ranks: u32) -> u64 {
    let (own, n) = (rank as usize, ranks as usize);
    let (mine, all) = (counts.of(own) as u64, counts.total(n) as u64);
    let (others, is_root) = (u64::from(ranks) - 1, rank == root);
    match kind {
        Kind::AllReduce => {
            let part = part(mine, rank, ranks);
            mine - part + others * part
        }
        Kind::ReduceScatter => all - mine,
        Kind::AllGather => others * mine,
        Kind::Broadcast if is_root => others * mine,
        Kind::Reduce | Kind::Gather if !is_root => mine,
        Kind::Scatter if is_root => all - mine,
        Kind::AllToAll => {
            (0..n).filter(|to| *to != own).map(|to| counts.sent_to(to).1 as u64).sum()
        }
        Kind::Send if !is_root => mine,
        _ => 0,
    }
}

/// A rank's part of so many elements: as many as the others', or one more, which the first have.
pub fn part(elements: u64, rank: u32, ranks: u32) -> u64 {
    let (each, more) = (elements / u64::from(ranks), elements % u64::from(ranks));
    each + u64::from(u64::from(rank) < more)
}

/// What went through a communicator, as it is now.
#[derive(Debug, Default)]
pub struct Counters {
    calls: [AtomicU64; KINDS],
    bytes: [AtomicU64; KINDS],
    /// Those of communicators that were split off.
    parts: Mutex<Vec<Arc<Counters>>>,
}

/// How many kinds of calls there are.
const KINDS: usize = Kind::Receive as usize + 1;

impl Counters {
    /// Counts calls of a kind, each with so many bytes. Nobody waits for a number, so no order is
    /// asked for.
    fn add(&self, kind: Kind, calls: u64, bytes: u64) {
        self.calls[kind as usize].fetch_add(calls, Ordering::Relaxed);
        self.bytes[kind as usize].fetch_add(calls * bytes, Ordering::Relaxed);
    }

    /// What was counted so far. A call counts from its beginning on.
    pub fn sent(&self) -> Sent {
        let read = |all: &[AtomicU64; KINDS]| all.each_ref().map(|n| n.load(Ordering::Relaxed));
        Sent { calls: read(&self.calls), bytes: read(&self.bytes) }
    }

    /// The same, with what went through communicators that were split off, and off those.
    pub fn sent_in_all(&self) -> Sent {
        let parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        parts.iter().fold(self.sent(), |sum, part| sum.and(&part.sent_in_all()))
    }
}

/// What was counted until some moment, or between two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sent {
    calls: [u64; KINDS],
    bytes: [u64; KINDS],
}

impl Sent {
    /// Calls of a kind.
    pub fn calls(&self, kind: Kind) -> u64 {
        self.calls[kind as usize]
    }

    /// Bytes that calls of a kind made this rank send.
    pub fn bytes(&self, kind: Kind) -> u64 {
        self.bytes[kind as usize]
    }

    /// Calls of all kinds.
    pub fn all_calls(&self) -> u64 {
        self.calls.iter().sum()
    }

    /// Bytes of all kinds.
    pub fn all_bytes(&self) -> u64 {
        self.bytes.iter().sum()
    }

    /// What came since an earlier moment.
    pub fn since(&self, before: &Self) -> Self {
        let mut now = *self;
        let less = |now: &mut [u64], before: &[u64]| {
            now.iter_mut().zip(before).for_each(|(now, before)| *now = now.wrapping_sub(*before));
        };
        less(&mut now.calls, &before.calls);
        less(&mut now.bytes, &before.bytes);
        now
    }

    /// Both together.
    pub fn and(&self, other: &Self) -> Self {
        let mut sum = *self;
        let more = |sum: &mut [u64], other: &[u64]| {
            sum.iter_mut().zip(other).for_each(|(sum, other)| *sum = sum.wrapping_add(*other));
        };
        more(&mut sum.calls, &other.calls);
        more(&mut sum.bytes, &other.bytes);
        sum
    }
}

/// A communicator that counts. What a split or a join itself says is not counted.
pub struct Counted {
    inner: Arc<dyn Comm>,
    counters: Arc<Counters>,
}

impl Counted {
    /// Counts what goes through a communicator from now on.
    pub fn new(inner: Arc<dyn Comm>) -> Self {
        Self { inner, counters: Arc::default() }
    }

    /// Where the counts are, also after the communicator is gone.
    pub fn counters(&self) -> Arc<Counters> {
        self.counters.clone()
    }

    /// As [`Comm::split`], with the new communicator's counters within reach.
    pub fn split_counted(&self, colour: Option<u32>, key: i64) -> Result<Option<Self>, CommError> {
        let Some(part) = self.inner.split(colour, key)? else { return Ok(None) };
        let part = Self::new(Arc::from(part));
        let mut parts = self.counters.parts.lock().unwrap_or_else(PoisonError::into_inner);
        parts.push(part.counters());
        Ok(Some(part))
    }

    fn count(&self, call: &Call<'_>) {
        let Call { kind, dtype, root, counts, .. } = call;
        self.count_times((*kind, dtype.size(), *root), counts, 1);
    }

    fn count_owned(&self, call: &OwnedCall, times: u32) {
        let OwnedCall { kind, dtype, root, counts, .. } = call;
        self.count_times((*kind, dtype.size(), *root), counts, times);
    }

    fn count_times(&self, (kind, size, root): (Kind, usize, u32), counts: &Counts<'_>, times: u32) {
        let elements = must_send(kind, counts, root, self.rank(), self.size());
        self.counters.add(kind, u64::from(times), elements * size as u64);
    }
}

impl Comm for Counted {
    fn rank(&self) -> u32 {
        self.inner.rank()
    }

    fn size(&self) -> u32 {
        self.inner.size()
    }

    fn peer(&self, rank: u32) -> Peer {
        self.inner.peer(rank)
    }

    fn run(&self, call: Call<'_>) -> Result<(), CommError> {
        self.count(&call);
        self.inner.run(call)
    }

    fn run_group(&self, calls: Vec<Call<'_>>) -> Result<(), CommError> {
        calls.iter().for_each(|call| self.count(call));
        self.inner.run_group(calls)
    }

    fn run_owned(&self, call: &mut OwnedCall, times: u32) -> Result<(), CommError> {
        self.count_owned(call, times);
        self.inner.run_owned(call, times)
    }

    fn run_messages(&self, messages: &mut [OwnedCall], times: u32) -> Result<(), CommError> {
        messages.iter().for_each(|call| self.count_owned(call, times));
        self.inner.run_messages(messages, times)
    }

    fn start(&self, call: OwnedCall) -> Pending {
        self.count_owned(&call, 1);
        self.inner.start(call)
    }

    fn split(&self, colour: Option<u32>, key: i64) -> Result<Option<Box<dyn Comm>>, CommError> {
        let part = self.split_counted(colour, key)?;
        Ok(part.map(|part| Box::new(part) as Box<dyn Comm>))
    }

    fn buffer(&self, bytes: usize) -> Buffer {
        self.inner.buffer(bytes)
    }

    fn device_buffer(&self, bytes: usize) -> Result<Buffer, CommError> {
        self.inner.device_buffer(bytes)
    }

    fn abort(&self, why: &str) {
        self.inner.abort(why);
    }

    fn is_over(&self) -> bool {
        self.inner.is_over()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Collectives, DType, ReduceOp, fake};

    /// What each of some ranks counted while all did the same.
    fn counted(ranks: u32, work: impl Fn(&Counted) + Sync) -> Vec<Sent> {
        std::thread::scope(|scope| {
            let one = |comm| {
                let work = &work;
                scope.spawn(move || {
                    let comm = Counted::new(Arc::new(comm));
                    work(&comm);
                    comm.counters().sent()
                })
            };
            let all: Vec<_> = fake::world(ranks).into_iter().map(one).collect();
            all.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    fn each(all: &[Sent], kind: Kind) -> Vec<u64> {
        all.iter().map(|sent| sent.bytes(kind)).collect()
    }

    #[test]
    fn bytes_are_those_of_the_rules() {
        let all = counted(4, |comm| {
            comm.all_reduce(&mut [0f32; 8], ReduceOp::Sum).unwrap();
            comm.reduce_scatter(&[0f64; 8], &mut [0.0; 2], ReduceOp::Sum).unwrap();
            comm.all_gather(&[0u8; 3], &mut [0; 12]).unwrap();
            comm.broadcast(&mut [0i32; 5], 2).unwrap();
            comm.all_to_all(&[0f32; 12], &mut [0.0; 12]).unwrap();
            comm.reduce(&mut [0f32; 2], ReduceOp::Max, 1).unwrap();
            comm.barrier().unwrap();
        });
        // 2 * 3/4 of 32 bytes; 3/4 of 64; 3/4 of 12; three copies; three of four parts.
        assert_eq!(each(&all, Kind::AllReduce), [48; 4]);
        assert_eq!(each(&all, Kind::ReduceScatter), [48; 4]);
        assert_eq!(each(&all, Kind::AllGather), [9; 4]);
        assert_eq!(each(&all, Kind::Broadcast), [0, 0, 60, 0]);
        assert_eq!(each(&all, Kind::AllToAll), [36; 4]);
        assert_eq!(each(&all, Kind::Reduce), [8, 0, 8, 8]);
        assert!(all.iter().all(|sent| sent.all_calls() == 7 && sent.calls(Kind::Barrier) == 1));
    }

    #[test]
    fn parts_that_are_not_equal_are_counted_exactly() {
        let all = counted(3, |comm| {
            comm.all_reduce(&mut [0f32; 5], ReduceOp::Sum).unwrap();
            let (own, counts) = ([4, 0, 1][comm.rank() as usize], [4, 0, 1]);
            comm.all_gather_v(&vec![0u8; own], &mut [0; 5], &counts).unwrap();
        });
        // Parts of 2, 2 and 1: 5 - P + 2 P elements of 4 bytes.
        assert_eq!(each(&all, Kind::AllReduce), [28, 28, 24]);
        assert_eq!(each(&all, Kind::AllGather), [8, 0, 2]);
    }

    #[test]
    fn messages_owned_calls_and_calls_in_the_background_count() {
        let all = counted(2, |comm| {
            let message = |kind| {
                let (counts, buffer) = (Counts::Equal(3), Buffer::zeroed(12));
                let root = 1 - comm.rank();
                OwnedCall { root, ..OwnedCall::new(kind, DType::F32, counts, buffer) }
            };
            let mut both = [message(Kind::Send), message(Kind::Receive)];
            comm.run_messages(&mut both, 2).unwrap();
            let sum = || OwnedCall::all_reduce(DType::F32, ReduceOp::Sum, Buffer::zeroed(8));
            comm.start(sum()).wait().unwrap();
            comm.run_owned(&mut sum(), 3).unwrap();
        });
        for sent in all {
            assert_eq!((sent.calls(Kind::Send), sent.bytes(Kind::Send)), (2, 24));
            assert_eq!((sent.calls(Kind::Receive), sent.bytes(Kind::Receive)), (2, 0));
            assert_eq!((sent.calls(Kind::AllReduce), sent.bytes(Kind::AllReduce)), (4, 32));
        }
    }

    #[test]
    fn a_split_has_counters_of_its_own() {
        let all = counted(4, |comm| {
            let before = comm.counters().sent();
            let pair = comm.split_counted(Some(comm.rank() % 2), 0).unwrap().unwrap();
            pair.all_reduce(&mut [0f32; 2], ReduceOp::Sum).unwrap();
            assert_eq!(pair.counters().sent().all_bytes(), 8);
            assert_eq!(comm.counters().sent().since(&before), Sent::default());
            assert_eq!(comm.counters().sent_in_all().all_bytes(), 8);
        });
        assert!(all.iter().all(|sent| *sent == Sent::default()));
    }

    proptest! {
        #[test]
        fn all_ranks_together_send_what_the_formulas_say(elements in 0usize..1000, ranks in 1u32..20) {
            let sum = |kind, counts: Counts<'_>| -> u64 {
                (0..ranks).map(|rank| must_send(kind, &counts, 0, rank, ranks)).sum()
            };
            let (s, others) = (elements as u64, u64::from(ranks) - 1);
            prop_assert_eq!(sum(Kind::AllReduce, Counts::Equal(elements)), 2 * others * s);
            let whole = s * u64::from(ranks);
            prop_assert_eq!(sum(Kind::ReduceScatter, Counts::Equal(elements)), others * whole);
            prop_assert_eq!(sum(Kind::AllGather, Counts::Equal(elements)), others * whole);
            prop_assert_eq!(sum(Kind::Broadcast, Counts::Equal(elements)), others * s);
            prop_assert_eq!(sum(Kind::Scatter, Counts::Equal(elements)), others * s);
            prop_assert_eq!(sum(Kind::Gather, Counts::Equal(elements)), others * s);
            prop_assert_eq!(sum(Kind::AllToAll, Counts::Equal(elements)), others * whole);
        }
    }
}
