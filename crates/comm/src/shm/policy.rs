//! Which algorithm and which stores a collective uses: a fixed policy over size, ranks and topology,
//! so that the first call of a size is as fast as all later ones.

use crate::CallKind;

/// Up to this many bytes from all other ranks, every rank that wants the result reduces the whole
/// buffer: reading them is cheaper than a second synchronisation.
const MAX_REDUNDANT_BYTES: usize = 8 << 10;
/// The same for a rooted reduction, in which the other ranks do not wait.
const MAX_REDUNDANT_ROOTED_BYTES: usize = 16 << 10;

/// From this size on, ranks exchange the locations of their buffers, which may be in the arena.
const MIN_ZERO_COPY_BYTES: usize = 64 << 10;

/// From this size on, ranks reduce inputs that they read from each other's memory.
const MIN_SINGLE_COPY_REDUCTION_BYTES: usize = 256 << 10;

/// Up to this size, ranks read what they only copy: longer copies are faster with streaming stores.
const MAX_SINGLE_COPY_BYTES: usize = 16 << 20;

/// Smaller payloads are always written with cached stores.
const MIN_STREAM_BYTES: usize = 8 << 10;

/// The algorithm of an all-reduce or reduce.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReduceAlgorithm {
    /// Every rank that wants the result reduces all inputs.
    Redundant,
    /// Every rank reduces one shard.
    Sharded,
    /// [`Self::Sharded`], after an exchange of the buffers' locations: in the callers' buffers if they
    /// are in the arena, or with inputs that are read from the memory of other ranks.
    Exchanged,
}

/// The policy of a communicator.
#[derive(Debug, Clone, Copy)]
pub struct ShmPolicy {
    pub ranks: usize,
    /// Whether all ranks are known to run on cores with one L3 cache.
    pub shared_l3: bool,
    /// Whether the ranks read each other's memory.
    pub reads_memory: bool,
}

impl ShmPolicy {
    /// The algorithm for a buffer of `bytes` bytes. Equal on all ranks.
    pub fn reduce_algorithm(&self, kind: CallKind, bytes: usize) -> ReduceAlgorithm {
        let rooted = kind == CallKind::Reduce;
        let max_redundant = if rooted { MAX_REDUNDANT_ROOTED_BYTES } else { MAX_REDUNDANT_BYTES };
        match bytes {
            _ if bytes.saturating_mul(self.ranks - 1) <= max_redundant => {
                ReduceAlgorithm::Redundant
            }
            // A rooted reduction has no outputs on the other ranks.
            MIN_ZERO_COPY_BYTES.. if !rooted => ReduceAlgorithm::Exchanged,
            _ if self.uses_single_copy(kind, bytes) => ReduceAlgorithm::Exchanged,
            _ => ReduceAlgorithm::Sharded,
        }
    }

    /// Whether the ranks read inputs from each other's memory, in a collective whose largest buffer
    /// has `bytes` bytes. Equal on all ranks. Readers of one process contend for its page tables, one
    /// lock per 2 MiB: few ranks read from small buffers.
    pub fn uses_single_copy(&self, kind: CallKind, bytes: usize) -> bool {
        let (min, max) = match kind {
            CallKind::AllToAll => (128 << 10, MAX_SINGLE_COPY_BYTES),
            CallKind::Scatter if self.ranks == 2 => (256 << 10, usize::MAX),
            CallKind::Scatter if self.ranks <= 8 => (2 << 20, usize::MAX),
            CallKind::Scatter => (1 << 20, usize::MAX),
            CallKind::Broadcast if self.ranks == 2 => (256 << 10, 1 << 20),
            CallKind::AllGather if self.ranks <= 4 => (256 << 10, MAX_SINGLE_COPY_BYTES),
            CallKind::AllGather if self.ranks <= 8 => (1 << 20, MAX_SINGLE_COPY_BYTES),
            CallKind::AllReduce | CallKind::Reduce | CallKind::ReduceScatter => {
                (MIN_SINGLE_COPY_REDUCTION_BYTES, usize::MAX)
            }
            _ => return false,
        };
        self.reads_memory && (min..=max).contains(&bytes)
    }

    /// Whether a payload is written with streaming (non-temporal) stores. Between cores with one L3
    /// cache, cached stores are up to 1.7 times as fast. Otherwise readers fetch the lines from
    /// another L3 cache, which takes up to four times as long as from memory.
    #[inline]
    pub fn streams(&self, bytes: usize) -> bool {
        !self.shared_l3 && bytes >= MIN_STREAM_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_ranks_reduce_redundantly_up_to_smaller_sizes() {
        use CallKind::{AllReduce, Reduce};
        use ReduceAlgorithm::{Exchanged, Redundant, Sharded};
        let of = |ranks, kind, bytes| {
            ShmPolicy { ranks, shared_l3: true, reads_memory: true }.reduce_algorithm(kind, bytes)
        };
        assert_eq!([2, 3].map(|ranks| of(ranks, AllReduce, 8 << 10)), [Redundant, Sharded]);
        assert_eq!([512, 1024].map(|bytes| of(16, AllReduce, bytes)), [Redundant, Sharded]);
        assert_eq!([1024, 2048].map(|bytes| of(16, Reduce, bytes)), [Redundant, Sharded]);
        assert_eq!([AllReduce, Reduce].map(|kind| of(2, kind, 64 << 10)), [Exchanged, Sharded]);
        assert_eq!([AllReduce, Reduce].map(|kind| of(2, kind, 1 << 20)), [Exchanged, Exchanged]);
        assert_eq!(of(1, AllReduce, 1 << 40), Redundant);
    }

    #[test]
    fn single_copy_is_used_where_readers_do_not_contend() {
        use CallKind::{AllGather, AllToAll, Broadcast, Gather, Scatter};
        let of = |ranks, kind, bytes| {
            ShmPolicy { ranks, shared_l3: true, reads_memory: true }.uses_single_copy(kind, bytes)
        };
        let mib = 1 << 20;
        assert!(of(2, Scatter, mib) && !of(4, Scatter, mib) && of(4, Scatter, 2 * mib));
        assert!(of(2, Broadcast, mib) && !of(2, Broadcast, 8 * mib) && !of(3, Broadcast, mib));
        assert!(of(8, AllGather, mib) && !of(16, AllGather, mib) && of(16, AllToAll, mib));
        assert!(!of(2, Gather, mib) && !of(2, AllToAll, 1024));
        let policy = ShmPolicy { ranks: 2, shared_l3: true, reads_memory: false };
        assert!(!policy.uses_single_copy(AllToAll, mib));
    }

    #[test]
    fn payloads_stream_between_l3_caches_only() {
        let of = |shared_l3| ShmPolicy { ranks: 2, shared_l3, reads_memory: false };
        assert!(of(false).streams(8 << 10) && !of(true).streams(1 << 30));
        assert!(!of(false).streams((8 << 10) - 1));
    }
}
