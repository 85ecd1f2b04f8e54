//! Which algorithm and which stores a collective uses: a fixed policy over size, ranks and topology,
//! so that the first call of a size is as fast as all later ones.

use super::layout::INLINE_BYTES;
use crate::CallKind;

/// Up to this many bytes from all other ranks, every rank reduces the whole buffer: reading them is
/// cheaper than a second synchronisation.
const MAX_REDUNDANT_BYTES: usize = 8 << 10;
/// The same for a rooted reduction, in which the other ranks do not wait.
const MAX_REDUNDANT_ROOTED_BYTES: usize = 16 << 10;

/// Up to this size, what a rank sends goes into one post.
const MAX_SINGLE_POST_BYTES: usize = 32 << 10;

/// From this size on, ranks exchange the locations of their buffers, which may be in the arena.
const MIN_ZERO_COPY_BYTES: usize = 64 << 10;

/// From this size on, ranks reduce inputs that they read from each other's memory.
const MIN_SINGLE_COPY_REDUCTION_BYTES: usize = 256 << 10;

/// Below this size, ranks read only a part of their blocks of a scatter from the root's memory: the
/// lock of a page table is the limit.
const MAX_SPLIT_SCATTER_BYTES: usize = 2 << 20;

/// Up to this size, ranks read what they only copy: longer copies are faster with streaming stores.
const MAX_SINGLE_COPY_BYTES: usize = 16 << 20;

/// Smaller payloads are always written with cached stores.
const MIN_STREAM_BYTES: usize = 8 << 10;

/// The policy of a communicator.
#[derive(Debug, Clone, Copy)]
pub struct ShmPolicy {
    pub ranks: usize,
    /// Bytes of a buffer per slot.
    pub chunk_bytes: usize,
    /// Whether all ranks are known to run on cores with one L3 cache.
    pub shared_l3: bool,
    /// Whether the ranks read each other's memory.
    pub reads_memory: bool,
}

impl ShmPolicy {
    /// Whether a collective with contributions of at most `bytes` bytes runs in one post per rank.
    /// Equal on all ranks.
    #[inline]
    pub fn uses_single_post(&self, kind: CallKind, bytes: usize) -> bool {
        let others = (self.ranks - 1).max(1);
        let max = match kind {
            CallKind::AllReduce => MAX_REDUNDANT_BYTES / others,
            CallKind::Reduce => MAX_REDUNDANT_ROOTED_BYTES / others,
            // The post includes this rank's own block, which no other rank reads.
            CallKind::ReduceScatter => INLINE_BYTES,
            _ => MAX_SINGLE_POST_BYTES,
        };
        bytes <= max.min(self.chunk_bytes)
    }

    /// Whether the ranks exchange the locations of their buffers in the arena.
    pub fn uses_zero_copy(&self, kind: CallKind, bytes: usize) -> bool {
        // A rooted reduction has no outputs on the other ranks.
        kind == CallKind::AllReduce && bytes >= MIN_ZERO_COPY_BYTES
    }

    /// Whether the ranks read inputs from each other's memory, in a collective whose largest buffer
    /// has `bytes` bytes. Equal on all ranks. Readers of one process contend for its page tables, one
    /// lock per 2 MiB: few ranks read from small buffers.
    pub fn uses_single_copy(&self, kind: CallKind, bytes: usize) -> bool {
        let (min, max) = match kind {
            CallKind::AllToAll => (128 << 10, MAX_SINGLE_COPY_BYTES),
            CallKind::Scatter if self.ranks == 2 => (256 << 10, usize::MAX),
            CallKind::Scatter => (512 << 10, usize::MAX),
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

    /// Whether the sender copies the first part of each block to its slot and the receivers read only
    /// the rest from its memory. Equal on all ranks.
    pub fn splits_blocks(&self, kind: CallKind, bytes: usize) -> bool {
        kind == CallKind::Scatter && self.ranks > 2 && bytes < MAX_SPLIT_SCATTER_BYTES
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

    fn policy(ranks: usize) -> ShmPolicy {
        ShmPolicy { ranks, chunk_bytes: 256 << 10, shared_l3: true, reads_memory: true }
    }

    #[test]
    fn more_ranks_reduce_redundantly_up_to_smaller_sizes() {
        use CallKind::{AllReduce, Reduce};
        let of = |ranks, kind, bytes| policy(ranks).uses_single_post(kind, bytes);
        assert!(of(2, AllReduce, 8 << 10) && !of(3, AllReduce, 8 << 10));
        assert!(of(16, AllReduce, 512) && !of(16, AllReduce, 1024));
        assert!(of(16, Reduce, 1024) && !of(16, Reduce, 2048));
    }

    #[test]
    fn a_single_post_fits_into_a_slot() {
        use CallKind::{AllGather, Barrier, Broadcast, ReduceScatter};
        let small_slots = ShmPolicy { chunk_bytes: 4096, ..policy(2) };
        assert!(small_slots.uses_single_post(Broadcast, 4096));
        assert!(!small_slots.uses_single_post(Broadcast, 4097));
        assert!(policy(2).uses_single_post(AllGather, 32 << 10));
        assert!(!policy(2).uses_single_post(ReduceScatter, 1024));
        assert!(policy(2).uses_single_post(Barrier, 0));
    }

    #[test]
    fn single_copy_is_used_where_readers_do_not_contend() {
        use CallKind::{AllGather, AllToAll, Broadcast, Gather, Scatter};
        let of = |ranks, kind, bytes| policy(ranks).uses_single_copy(kind, bytes);
        let mib = 1 << 20;
        assert!(of(2, Scatter, mib) && of(4, Scatter, mib) && !of(4, Scatter, mib / 4));
        let splits = |ranks, bytes| policy(ranks).splits_blocks(Scatter, bytes);
        assert!(splits(4, mib) && !splits(2, mib) && !splits(4, 2 * mib));
        assert!(of(2, Broadcast, mib) && !of(2, Broadcast, 8 * mib) && !of(3, Broadcast, mib));
        assert!(of(8, AllGather, mib) && !of(16, AllGather, mib) && of(16, AllToAll, mib));
        assert!(!of(2, Gather, mib) && !of(2, AllToAll, 1024));
        assert!(!ShmPolicy { reads_memory: false, ..policy(2) }.uses_single_copy(AllToAll, mib));
    }

    #[test]
    fn payloads_stream_between_l3_caches_only() {
        let of = |shared_l3| ShmPolicy { shared_l3, ..policy(2) };
        assert!(of(false).streams(8 << 10) && !of(true).streams(1 << 30));
        assert!(!of(false).streams((8 << 10) - 1));
    }
}
