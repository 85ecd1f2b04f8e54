//! Where everything is in the memory that the ranks of a communicator share. Pure arithmetic.
//!
//! Every rank has a block of cache lines that it alone writes: its posts, what it calls, how it is.
//! The rest are slots for what does not fit into a line. The memory is of a file with holes, so that
//! what is never used costs nothing.

/// A cache line. What two ranks write lies in different ones.
pub const LINE_BYTES: usize = 64;

/// How many posts of a rank there is room for. A rank may be this many ahead, less
/// [`READING`], of the slowest.
pub const RING: u64 = 16;

/// The same of posts with a slot.
pub const SLOTS: u64 = 4;

/// The same of the pieces of messages to a rank. Many, for the two need not take turns as often, and
/// small ones need not be waited for.
pub const MAIL_SLOTS: u64 = 16;

/// Whoever has posted `n` has no more to read of posts before `n + 1 - READING`.
pub const READING: u64 = 2;

/// What fits into the line of a post, beside its number and what it belongs to.
pub const INLINE_BYTES: usize = 48;

/// A message is cut into pieces of this size.
pub const MAIL_BYTES: usize = 32 << 10;

/// What a message's first line holds beside its header.
pub const MAIL_INLINE_BYTES: usize = 32;

/// From here on posts take places of their slots by turns.
const ROTATED_BYTES: usize = 4 << 10;

/// In how many communicators a rank can say whom it waits for.
pub const WAITS: usize = 16;

/// Words with which CPUs are told.
pub const CPU_WORDS: usize = 16;

const PAGE_BYTES: usize = 4096;

/// Of the abort record.
const HEADER_BYTES: usize = PAGE_BYTES;

// In a rank's block.
const POSTS: usize = 0;
const CALLS: usize = POSTS + RING as usize * LINE_BYTES;
const STATE: usize = CALLS + (RING as usize + 1) * LINE_BYTES;
const BELL: usize = STATE + LINE_BYTES;
const CPUS: usize = BELL + LINE_BYTES;
const WAITING: usize = CPUS + CPU_WORDS * 8;
const RANK_BYTES: usize = 4096;
const _: () = assert!(WAITING + WAITS * LINE_BYTES <= RANK_BYTES);

// In a channel.
const TAKEN: usize = MAIL_SLOTS as usize * LINE_BYTES;
const CHANNEL_BYTES: usize = 2048;
const _: () = assert!(TAKEN + LINE_BYTES <= CHANNEL_BYTES);

/// The layout for a number of ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    pub ranks: usize,
    /// How much of a buffer goes through a slot at a time.
    pub chunk_bytes: usize,
}

impl Layout {
    /// The abort record.
    pub fn abort(&self) -> usize {
        0
    }

    /// A rank's post with this number.
    pub fn post(&self, rank: usize, number: u64) -> usize {
        self.block(rank) + POSTS + (number % RING) as usize * LINE_BYTES
    }

    /// What a rank calls, in its call with this number; `None`: which message it is at.
    pub fn call(&self, rank: usize, number: Option<u64>) -> usize {
        let place = number.map_or(RING, |number| number % RING);
        self.block(rank) + CALLS + place as usize * LINE_BYTES
    }

    /// How a rank is.
    pub fn state(&self, rank: usize) -> usize {
        self.block(rank) + STATE
    }

    /// What those who wait for a rank sleep on.
    pub fn bell(&self, rank: usize) -> usize {
        self.block(rank) + BELL
    }

    /// On which CPUs a rank may be.
    pub fn cpus(&self, rank: usize) -> usize {
        self.block(rank) + CPUS
    }

    /// Whom a rank waits for, in one of its communicators.
    pub fn waits(&self, rank: usize, line: usize) -> usize {
        self.block(rank) + WAITING + line * LINE_BYTES
    }

    /// Bytes up to where the ranks' blocks end.
    pub fn bytes_of_ranks(&self) -> usize {
        self.block(self.ranks)
    }

    /// The line of a piece of a message.
    pub fn mail(&self, from: usize, to: usize, number: u64) -> usize {
        self.channel(from, to) + (number % MAIL_SLOTS) as usize * LINE_BYTES
    }

    /// How many pieces were taken.
    pub fn taken(&self, from: usize, to: usize) -> usize {
        self.channel(from, to) + TAKEN
    }

    /// Room for what a rank posts: a chunk, and after it a share of the reduction of another.
    pub fn slot(&self, rank: usize, number: u64) -> usize {
        let slot = rank * SLOTS as usize + (number % SLOTS) as usize;
        self.slots() + slot * self.slot_bytes()
    }

    /// Where in its slot a post begins that takes so many bytes of it. The smaller it is the more
    /// places it takes by turns: what was read long ago is in nobody's nearest cache any more, and is
    /// written faster.
    pub fn start(&self, number: u64, bytes: usize) -> usize {
        if bytes < ROTATED_BYTES {
            return 0;
        }
        let stride = bytes.next_power_of_two();
        let places = (self.slot_bytes() / stride).max(1) as u64;
        (number / SLOTS % places) as usize * stride
    }

    /// Bytes of such a slot.
    pub fn slot_bytes(&self) -> usize {
        2 * self.chunk_bytes
    }

    /// Room for a piece of a message.
    pub fn mail_slot(&self, from: usize, to: usize, number: u64) -> usize {
        let first = (from * self.ranks + to) * MAIL_SLOTS as usize;
        let slot = first + (number % MAIL_SLOTS) as usize;
        self.mail_slots() + slot * MAIL_BYTES
    }

    /// Bytes of all.
    pub fn bytes(&self) -> usize {
        self.mail_slots() + self.ranks * self.ranks * MAIL_SLOTS as usize * MAIL_BYTES
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

    fn mail_slots(&self) -> usize {
        self.slots() + self.ranks * SLOTS as usize * self.slot_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_overlaps() {
        let layout = Layout { ranks: 3, chunk_bytes: 4096 };
        let mut taken = vec![(layout.abort(), HEADER_BYTES)];
        for rank in 0..3 {
            taken.extend((0..RING).map(|n| (layout.post(rank, n), LINE_BYTES)));
            taken.extend((0..RING).map(|n| (layout.call(rank, Some(n)), LINE_BYTES)));
            taken.extend((0..SLOTS).map(|n| (layout.slot(rank, n), layout.slot_bytes())));
            taken.push((layout.call(rank, None), LINE_BYTES));
            taken.push((layout.state(rank), LINE_BYTES));
            taken.push((layout.bell(rank), LINE_BYTES));
            taken.push((layout.cpus(rank), CPU_WORDS * 8));
            taken.extend((0..WAITS).map(|line| (layout.waits(rank, line), LINE_BYTES)));
            for to in 0..3 {
                taken.extend((0..MAIL_SLOTS).map(|n| (layout.mail(rank, to, n), LINE_BYTES)));
                taken.extend((0..MAIL_SLOTS).map(|n| (layout.mail_slot(rank, to, n), MAIL_BYTES)));
                taken.push((layout.taken(rank, to), LINE_BYTES));
            }
        }
        taken.sort_unstable();
        for pair in taken.windows(2) {
            assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:?}");
            assert_eq!(pair[1].0 % LINE_BYTES, 0);
        }
        let (last, bytes) = taken[taken.len() - 1];
        assert_eq!(last + bytes, layout.bytes());
    }
}
