//! A communicator that counts calls and the bytes that this rank sends.
//!
//! The byte counts are independent of the algorithm: they assume that every element is sent directly
//! to the ranks that need it. Rings, trees and shared memory move different amounts for the same
//! collective. [`elements_sent`] defines the rules.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::comm::delegate_queries;
use crate::schedule::equal_block;
use crate::{Call, CallKind, Comm, Counts, Event, OwnedCall, Pending, Result};

/// The number of elements that a rank sends in a call. The root is that of [`Call`].
///
/// | kind | elements sent; S is the total, P the rank's part, n the number of ranks |
/// |---|---|
/// | reduce-scatter | S - P: the other ranks' parts |
/// | all-gather | (n-1)·P: its own part to every other rank |
/// | all-reduce | reduce-scatter plus all-gather: 2(n-1)/n·S if n divides S |
/// | broadcast | (n-1)·S at the root |
/// | reduce | S except at the root |
/// | gather | P except at the root |
/// | scatter | S - P at the root |
/// | all-to-all | everything for other ranks |
/// | send | S |
/// | barrier, receive | nothing |
///
/// The parts of an all-reduce are those of [`equal_block`]. The sum over all ranks is exact even if
/// the parts differ.
pub fn elements_sent(kind: CallKind, counts: &Counts, root: u32, rank: u32, ranks: u32) -> u64 {
    let (own, n) = (rank as usize, ranks as usize);
    let (mine, all) = (counts.of(own) as u64, counts.total(n) as u64);
    let (others, is_root) = (u64::from(ranks) - 1, rank == root);
    match kind {
        CallKind::AllReduce => {
            let part = equal_block(counts.of(own), ranks, rank).len() as u64;
            mine - part + others * part
        }
        CallKind::ReduceScatter => all - mine,
        CallKind::AllGather => others * mine,
        CallKind::Broadcast if is_root => others * mine,
        CallKind::Reduce | CallKind::Gather if !is_root => mine,
        CallKind::Scatter if is_root => all - mine,
        CallKind::AllToAll => {
            (0..n).filter(|to| *to != own).map(|to| counts.send_block(to).1 as u64).sum()
        }
        CallKind::Send if !is_root => mine,
        _ => 0,
    }
}

/// The live counters of a communicator.
#[derive(Debug, Default)]
pub struct TrafficCounters {
    calls: [AtomicU64; KINDS],
    bytes: [AtomicU64; KINDS],
    /// The counters of sub-communicators.
    splits: Mutex<Vec<Arc<TrafficCounters>>>,
}

const KINDS: usize = CallKind::Receive as usize + 1;

impl TrafficCounters {
    /// Counts calls that each send `bytes` bytes. Relaxed ordering suffices, because no other memory
    /// is published with the counters.
    fn add(&self, kind: CallKind, calls: u64, bytes: u64) {
        self.calls[kind as usize].fetch_add(calls, Ordering::Relaxed);
        self.bytes[kind as usize].fetch_add(calls * bytes, Ordering::Relaxed);
    }

    /// The current counts. A call counts from its start on.
    pub fn snapshot(&self) -> TrafficSnapshot {
        let read = |all: &[AtomicU64; KINDS]| all.each_ref().map(|n| n.load(Ordering::Relaxed));
        TrafficSnapshot { calls: read(&self.calls), bytes: read(&self.bytes) }
    }

    /// The current counts including all sub-communicators, recursively.
    pub fn snapshot_with_splits(&self) -> TrafficSnapshot {
        let splits = self.splits.lock().unwrap_or_else(PoisonError::into_inner);
        splits.iter().fold(self.snapshot(), |sum, split| sum.plus(&split.snapshot_with_splits()))
    }
}

/// Counts at a point in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TrafficSnapshot {
    calls: [u64; KINDS],
    bytes: [u64; KINDS],
}

impl TrafficSnapshot {
    /// The number of calls of a kind.
    pub fn calls(&self, kind: CallKind) -> u64 {
        self.calls[kind as usize]
    }

    /// The bytes that this rank sent in calls of a kind.
    pub fn bytes(&self, kind: CallKind) -> u64 {
        self.bytes[kind as usize]
    }

    /// The bytes sent in calls of all kinds.
    pub fn total_bytes(&self) -> u64 {
        self.bytes.iter().sum()
    }

    /// The sum of two snapshots.
    pub fn plus(&self, other: &Self) -> Self {
        let sum = |a: &[u64; KINDS], b: &[u64; KINDS]| std::array::from_fn(|i| a[i] + b[i]);
        Self { calls: sum(&self.calls, &other.calls), bytes: sum(&self.bytes, &other.bytes) }
    }
}

/// A communicator that counts its traffic. Communication of `split` itself is not counted.
pub struct CountingComm {
    inner: Arc<dyn Comm>,
    counters: Arc<TrafficCounters>,
}

impl CountingComm {
    /// Counts the traffic of a communicator from now on.
    pub fn new(inner: Arc<dyn Comm>) -> Self {
        Self { inner, counters: Arc::default() }
    }

    /// The counters, which outlive the communicator.
    pub fn counters(&self) -> Arc<TrafficCounters> {
        self.counters.clone()
    }

    fn count(&self, call: &Call, times: u32) {
        let Call { kind, dtype, root, counts, .. } = call;
        let elements = elements_sent(*kind, counts, *root, self.rank(), self.size());
        self.counters.add(*kind, u64::from(times), elements * dtype.size() as u64);
    }
}

impl Comm for CountingComm {
    delegate_queries!();

    fn run(&self, call: Call<'_>) -> Result {
        self.count(&call, 1);
        self.inner.run(call)
    }

    fn run_group(&self, calls: Vec<Call<'_>>) -> Result {
        calls.iter().for_each(|call| self.count(call, 1));
        self.inner.run_group(calls)
    }

    fn run_owned(&self, calls: &mut [OwnedCall], times: u32) -> Result {
        calls.iter().for_each(|call| self.count(&call.without_buffers(), times));
        self.inner.run_owned(calls, times)
    }

    fn enqueue(&self, calls: Vec<OwnedCall>, after: &[Event]) -> Pending {
        calls.iter().for_each(|call| self.count(&call.without_buffers(), 1));
        self.inner.enqueue(calls, after)
    }

    fn split(&self, colour: Option<u32>, key: i64) -> Result<Option<Box<dyn Comm>>> {
        let Some(split) = self.inner.split(colour, key)? else { return Ok(None) };
        let split = Self::new(Arc::from(split));
        let mut splits = self.counters.splits.lock().unwrap_or_else(PoisonError::into_inner);
        splits.push(split.counters());
        Ok(Some(Box::new(split)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Buffer, Collectives, DType, ReduceOp, in_process};

    /// The traffic of each rank while all run `work`.
    fn counted(ranks: u32, work: impl Fn(&CountingComm) + Sync) -> Vec<TrafficSnapshot> {
        std::thread::scope(|scope| {
            let count = |comm| {
                let comm = CountingComm::new(Arc::new(comm));
                work(&comm);
                comm.counters().snapshot()
            };
            let start = |comm| scope.spawn(move || count(comm));
            let all: Vec<_> = in_process::world(ranks).into_iter().map(start).collect();
            all.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    fn bytes(all: &[TrafficSnapshot], kind: CallKind) -> Vec<u64> {
        all.iter().map(|sent| sent.bytes(kind)).collect()
    }

    #[test]
    fn counts_bytes_by_the_rules() {
        let all = counted(4, |comm| {
            comm.all_reduce(&mut [0f32; 8], ReduceOp::Sum).unwrap();
            comm.reduce_scatter(&[0f64; 8], &mut [0.0; 2], ReduceOp::Sum).unwrap();
            comm.all_gather(&[0u8; 3], &mut [0; 12]).unwrap();
            comm.broadcast(&mut [0i32; 5], 2).unwrap();
            comm.all_to_all(&[0f32; 12], &mut [0.0; 12]).unwrap();
            comm.reduce(&mut [0f32; 2], ReduceOp::Max, 1).unwrap();
            comm.barrier().unwrap();
        });
        let expected = [
            // 2 * 3/4 of 32 bytes; 3/4 of 64; 3/4 of 12; three copies; three of four parts.
            (CallKind::AllReduce, [48; 4]),
            (CallKind::ReduceScatter, [48; 4]),
            (CallKind::AllGather, [9; 4]),
            (CallKind::Broadcast, [0, 0, 60, 0]),
            (CallKind::AllToAll, [36; 4]),
            (CallKind::Reduce, [8, 0, 8, 8]),
            (CallKind::Barrier, [0; 4]),
        ];
        for (kind, sent) in expected {
            assert_eq!(bytes(&all, kind), sent, "{kind}");
            assert!(all.iter().all(|sent| sent.calls(kind) == 1), "{kind}");
        }
    }

    #[test]
    fn counts_uneven_parts_exactly() {
        let all = counted(3, |comm| {
            comm.all_reduce(&mut [0f32; 5], ReduceOp::Sum).unwrap();
            let (own, counts) = ([4, 0, 1][comm.rank() as usize], [4, 0, 1]);
            comm.all_gather_v(&vec![0u8; own], &mut [0; 5], &counts).unwrap();
        });
        // Parts of 2, 2 and 1: 5 - P + 2 P elements of 4 bytes.
        assert_eq!(bytes(&all, CallKind::AllReduce), [28, 28, 24]);
        assert_eq!(bytes(&all, CallKind::AllGather), [8, 0, 2]);
    }

    #[test]
    fn counts_messages_owned_and_asynchronous_calls() {
        let all = counted(2, |comm| {
            let message = |kind| {
                let (counts, buffer) = (Counts::Equal(3), Buffer::zeroed(12));
                let root = 1 - comm.rank();
                OwnedCall { root, ..OwnedCall::new(kind, DType::F32, counts, buffer) }
            };
            let mut both = [message(CallKind::Send), message(CallKind::Receive)];
            comm.run_owned(&mut both, 2).unwrap();
            let sum = || OwnedCall::all_reduce(DType::F32, ReduceOp::Sum, Buffer::zeroed(8));
            comm.start(sum()).wait().unwrap();
            comm.run_owned(&mut [sum()], 3).unwrap();
        });
        for sent in all {
            let counts = |kind| (sent.calls(kind), sent.bytes(kind));
            let kinds = [CallKind::Send, CallKind::Receive, CallKind::AllReduce];
            assert_eq!(kinds.map(counts), [(2, 24), (2, 0), (4, 32)]);
        }
    }

    #[test]
    fn a_sub_communicator_has_its_own_counters() {
        let all = counted(4, |comm| {
            let pair = comm.split(Some(comm.rank() % 2), 0).unwrap().unwrap();
            pair.all_reduce(&mut [0f32; 2], ReduceOp::Sum).unwrap();
            assert_eq!(comm.counters().snapshot_with_splits().total_bytes(), 8);
        });
        assert!(all.iter().all(|sent| *sent == TrafficSnapshot::default()));
    }

    proptest! {
        #[test]
        fn totals_over_all_ranks_match_the_formulas(elements in 0usize..1000, ranks in 1u32..20) {
            let counts = Counts::Equal(elements);
            let (s, others) = (elements as u64, u64::from(ranks) - 1);
            let parts = others * s * u64::from(ranks);
            let expected = [
                (CallKind::AllReduce, 2 * others * s),
                (CallKind::ReduceScatter, parts),
                (CallKind::AllGather, parts),
                (CallKind::Broadcast, others * s),
                (CallKind::Scatter, others * s),
                (CallKind::Gather, others * s),
                (CallKind::AllToAll, parts),
            ];
            for (kind, total) in expected {
                let sent = (0..ranks).map(|rank| elements_sent(kind, &counts, 0, rank, ranks));
                prop_assert_eq!(sent.sum::<u64>(), total, "{}", kind);
            }
        }
    }
}
