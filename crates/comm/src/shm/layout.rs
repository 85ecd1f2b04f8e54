//! Layout of a communicator's shared memory. Pure arithmetic.
//!
//! Every rank has a block of cache lines that only it writes: its posts, its wait and its state. Payload
//! slots follow. The file is sparse, so unused parts cost nothing.

/// Cache line size. Lines written by different ranks are disjoint.
pub const LINE_BYTES: usize = 64;

/// Posts per rank in the ring, with a CPU per rank. A rank may be this many posts, minus [`READ_LAG`],
/// ahead of the slowest.
pub const POST_RING: u64 = 16;

/// Posts per rank in the ring if there are more ranks than CPUs. A rank that no one makes wait, such as
/// the root of small broadcasts, then gives its CPU away less often. With 4 and 8 ranks on two CPUs,
/// longer rings were not clearly faster.
pub const POST_RING_OVERSUBSCRIBED: u64 = 128;
const _: () = assert!(POST_RING.is_power_of_two() && POST_RING_OVERSUBSCRIBED.is_power_of_two());

/// Payload slots per rank.
pub const PAYLOAD_SLOTS: u64 = 4;

/// Chunk slots per ordered pair of ranks: many, so that the pair alternates less often and small
/// sends do not block.
pub const P2P_SLOTS: u64 = 16;

/// A rank that has posted `n` has read all posts before `n + 1 - READ_LAG`.
pub const READ_LAG: u64 = 2;

/// Size of a post: small payloads follow its sequence number, so that they are fetched with it.
const POST_BYTES: usize = 8 * LINE_BYTES;

/// Inline payload of a post, after its sequence number and digest.
pub const INLINE_BYTES: usize = POST_BYTES - INLINE;

/// Chunk size of messages.
pub const P2P_CHUNK_BYTES: usize = 32 << 10;

/// Inline payload of a chunk's header line.
pub const P2P_INLINE_BYTES: usize = 32;

/// The first part of each payload slot has pages before the first call, so that no call of a small
/// size pays for page faults.
pub const PREFAULTED_BYTES: usize = 32 << 10;

/// Words of a CPU affinity mask.
pub const CPU_WORDS: usize = 16;

pub const PAGE_BYTES: usize = 4096;

/// Size of the header, which shows whether a rank has failed.
const HEADER_BYTES: usize = PAGE_BYTES;

/// Offset of the inline payload in a post.
pub const INLINE: usize = 16;

// Offsets in a rank's block.
const POSTS: usize = 0;
const WAIT: usize = POSTS + POST_RING_OVERSUBSCRIBED as usize * POST_BYTES;
const STATE: usize = WAIT + LINE_BYTES;
const DOORBELL: usize = STATE + LINE_BYTES;
const CPUS: usize = DOORBELL + LINE_BYTES;
const PROBE: usize = CPUS + CPU_WORDS * 8;
const RANK_BYTES: usize = (PROBE + LINE_BYTES).next_multiple_of(PAGE_BYTES);

// Offsets in a point-to-point channel.
const CONSUMED: usize = P2P_SLOTS as usize * LINE_BYTES;
const CHANNEL_BYTES: usize = 2048;
const _: () = assert!(CONSUMED + LINE_BYTES <= CHANNEL_BYTES);

/// Layout for a number of ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionLayout {
    pub ranks: usize,
    /// Bytes of a buffer per slot.
    pub chunk_bytes: usize,
    /// Posts in use of each rank's ring: [`POST_RING`] or [`POST_RING_OVERSUBSCRIBED`].
    pub post_ring: u64,
}

impl RegionLayout {
    /// Whether a rank has failed.
    pub fn failed(&self) -> usize {
        0
    }

    /// A rank's post.
    pub fn post(&self, rank: usize, seq: u64) -> usize {
        self.block(rank) + POSTS + (seq & (self.post_ring - 1)) as usize * POST_BYTES
    }

    /// Bytes of a rank's posts.
    pub fn posts_bytes(&self) -> usize {
        self.post_ring as usize * POST_BYTES
    }

    /// The call in which a rank waits.
    pub fn wait(&self, rank: usize) -> usize {
        self.block(rank) + WAIT
    }

    /// A rank's state line.
    pub fn state(&self, rank: usize) -> usize {
        self.block(rank) + STATE
    }

    /// A rank's doorbell, on which waiting ranks sleep.
    pub fn doorbell(&self, rank: usize) -> usize {
        self.block(rank) + DOORBELL
    }

    /// A rank's CPU affinity.
    pub fn cpus(&self, rank: usize) -> usize {
        self.block(rank) + CPUS
    }

    /// The location of a rank's probe, and the result of its reading those of others.
    pub fn probe(&self, rank: usize) -> usize {
        self.block(rank) + PROBE
    }

    /// Header line of a message chunk.
    pub fn p2p_header(&self, from: usize, to: usize, seq: u64) -> usize {
        self.channel(from, to) + (seq % P2P_SLOTS) as usize * LINE_BYTES
    }

    /// Number of consumed chunks.
    pub fn consumed(&self, from: usize, to: usize) -> usize {
        self.channel(from, to) + CONSUMED
    }

    /// Payload slot of a post: a chunk, followed by a reduced shard of another chunk.
    pub fn slot(&self, rank: usize, seq: u64) -> usize {
        let slot = rank * PAYLOAD_SLOTS as usize + (seq % PAYLOAD_SLOTS) as usize;
        self.slots() + slot * self.slot_bytes()
    }

    /// Bytes per payload slot.
    pub fn slot_bytes(&self) -> usize {
        2 * self.chunk_bytes
    }

    /// Slot of a message chunk.
    pub fn p2p_slot(&self, from: usize, to: usize, seq: u64) -> usize {
        let first = (from * self.ranks + to) * P2P_SLOTS as usize;
        let slot = first + (seq % P2P_SLOTS) as usize;
        self.p2p_slots() + slot * P2P_CHUNK_BYTES
    }

    /// Total size.
    pub fn bytes(&self) -> usize {
        self.p2p_slots() + self.ranks * self.ranks * P2P_SLOTS as usize * P2P_CHUNK_BYTES
    }

    fn block(&self, rank: usize) -> usize {
        HEADER_BYTES + rank * RANK_BYTES
    }

    fn channel(&self, from: usize, to: usize) -> usize {
        self.block(self.ranks) + (from * self.ranks + to) * CHANNEL_BYTES
    }

    fn slots(&self) -> usize {
        self.channel(self.ranks, 0).next_multiple_of(PAGE_BYTES)
    }

    fn p2p_slots(&self) -> usize {
        self.slots() + self.ranks * PAYLOAD_SLOTS as usize * self.slot_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_do_not_overlap() {
        let layout =
            RegionLayout { ranks: 3, chunk_bytes: 4096, post_ring: POST_RING_OVERSUBSCRIBED };
        let mut areas = vec![(layout.failed(), HEADER_BYTES)];
        for rank in 0..3 {
            areas.extend((0..layout.post_ring).map(|n| (layout.post(rank, n), POST_BYTES)));
            areas.extend((0..PAYLOAD_SLOTS).map(|n| (layout.slot(rank, n), layout.slot_bytes())));
            areas.push((layout.wait(rank), LINE_BYTES));
            areas.push((layout.state(rank), LINE_BYTES));
            areas.push((layout.doorbell(rank), LINE_BYTES));
            areas.push((layout.cpus(rank), CPU_WORDS * 8));
            areas.push((layout.probe(rank), LINE_BYTES));
            for to in 0..3 {
                areas.extend((0..P2P_SLOTS).map(|n| (layout.p2p_header(rank, to, n), LINE_BYTES)));
                areas.extend(
                    (0..P2P_SLOTS).map(|n| (layout.p2p_slot(rank, to, n), P2P_CHUNK_BYTES)),
                );
                areas.push((layout.consumed(rank, to), LINE_BYTES));
            }
        }
        areas.sort_unstable();
        for pair in areas.windows(2) {
            assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:?}");
            assert_eq!(pair[1].0 % LINE_BYTES, 0);
        }
        let (last, bytes) = areas[areas.len() - 1];
        assert_eq!(last + bytes, layout.bytes());
    }
}
