//! The shared memory of a communicator, by the names of what is in it.
//!
//! A post is the one thing ranks tell each other: a line with a number that grows by one. Whoever
//! sees the number sees all that its rank wrote before. The one who posts makes a system call only
//! if somebody sleeps.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, compiler_fence, fence};
use std::time::Duration;

use rustix::thread::futex;

use super::barrier;
use super::habit::{CLASSES, Costs};
use super::layout::{CPU_WORDS, INLINE_BYTES, LINE_BYTES, Layout, MAIL_BYTES, MAIL_SLOTS};
use super::segment::Mapping;
use super::sign::{self, SIGN_WORDS};
use crate::Signature;

/// What a rank is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doing {
    /// In no call, after so many.
    Nothing(u64),
    /// In the collective with this number.
    Call(u64),
    /// Sending or receiving, after so many collectives.
    Message(u64),
}

impl Doing {
    /// The collective that it is at, or the last one.
    pub fn number(self) -> u64 {
        let (Self::Nothing(number) | Self::Call(number) | Self::Message(number)) = self;
        number
    }
}

/// The shared memory.
#[derive(Debug)]
pub struct Board {
    map: Mapping,
    pub layout: Layout,
    pub rank: usize,
    /// Whether those who go to sleep see to the order of things, so that a post need not.
    pub light: bool,
}

impl Board {
    pub fn new(map: Mapping, layout: Layout, rank: usize) -> Self {
        Self { map, layout, rank, light: false }
    }

    #[inline]
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        let word = self.map.at(offset, 8);
        debug_assert!(word.cast::<AtomicU64>().is_aligned());
        // SAFETY: it is inside, aligned, and only ever used as an atomic.
        unsafe { &*word.cast() }
    }

    #[inline]
    fn half_word(&self, offset: usize) -> &AtomicU32 {
        let word = self.map.at(offset, 4);
        debug_assert!(word.cast::<AtomicU32>().is_aligned());
        // SAFETY: it is inside, aligned, and only ever used as an atomic.
        unsafe { &*word.cast() }
    }

    /// Whether a rank has posted so far.
    #[inline]
    pub fn has_posted(&self, rank: usize, number: u64) -> bool {
        self.word(self.layout.post(rank, number)).load(Ordering::Acquire) >= number
    }

    /// What a rank's post belongs to.
    #[inline]
    pub fn digest(&self, rank: usize, number: u64) -> u64 {
        self.word(self.layout.post(rank, number) + 8).load(Ordering::Relaxed)
    }

    /// Posts, and wakes those who sleep.
    #[inline]
    pub fn post(&self, number: u64, digest: u64) {
        let line = self.layout.post(self.rank, number);
        // Not before the number of the post whose place it takes: who sees it knows that that is old.
        self.word(line + 8).store(digest, Ordering::Release);
        self.word(line).store(number, Ordering::Release);
        self.ring();
    }

    /// The room in the line of a post.
    #[inline]
    pub fn inline(&self, rank: usize, number: u64) -> *mut u8 {
        self.map.at(self.layout.post(rank, number) + LINE_BYTES - INLINE_BYTES, INLINE_BYTES)
    }

    /// The slot of a post.
    #[inline]
    pub fn slot(&self, rank: usize, number: u64) -> *mut u8 {
        self.map.at(self.layout.slot(rank, number), self.layout.slot_bytes())
    }

    /// The line of a piece of a message.
    pub fn mail(&self, from: usize, to: usize, number: u64) -> *mut u8 {
        self.map.at(self.layout.mail(from, to, number), LINE_BYTES)
    }

    /// The slot of a piece of a message.
    pub fn mail_slot(&self, from: usize, to: usize, number: u64) -> *mut u8 {
        self.map.at(self.layout.mail_slot(from, to, number), MAIL_BYTES)
    }

    /// How many pieces of messages were sent to a rank that it has not taken.
    pub fn on_its_way(&self, from: usize, to: usize) -> u64 {
        let number = |n: u64| self.word(self.layout.mail(from, to, n)).load(Ordering::Acquire);
        let sent = (0..MAIL_SLOTS).map(number).max().unwrap_or(0);
        sent.saturating_sub(self.word(self.layout.taken(from, to)).load(Ordering::Acquire))
    }

    /// Says what this rank does now. A call's words are still there when the rank is some calls on.
    #[inline]
    pub fn announce(&self, doing: Doing, words: [u64; SIGN_WORDS]) {
        let number = match doing {
            Doing::Call(number) => Some(number),
            _ => None,
        };
        let line = self.layout.call(self.rank, number);
        self.word(line).store(0, Ordering::Release);
        for (i, word) in words.into_iter().enumerate() {
            self.word(line + 8 + i * 8).store(word, Ordering::Release);
        }
        self.word(line).store(number.unwrap_or(0) + 1, Ordering::Release);
        self.now(doing);
    }

    /// Says what this rank is at, without what.
    #[inline]
    pub fn now(&self, doing: Doing) {
        let word = match doing {
            Doing::Nothing(number) => number << 2,
            Doing::Call(number) => number << 2 | 1,
            Doing::Message(number) => number << 2 | 2,
        };
        self.word(self.layout.state(self.rank) + 8).store(word, Ordering::Release);
    }

    /// What a rank is at.
    pub fn doing(&self, rank: usize) -> Doing {
        let word = self.word(self.layout.state(rank) + 8).load(Ordering::Acquire);
        match word & 3 {
            1 => Doing::Call(word >> 2),
            2 => Doing::Message(word >> 2),
            _ => Doing::Nothing(word >> 2),
        }
    }

    /// What a rank called in a call, or which message it is at. `None`: it is not known, or just
    /// being said.
    pub fn announced(&self, rank: usize, doing: Doing) -> Option<Signature> {
        let number = match doing {
            Doing::Call(number) => Some(number),
            Doing::Message(_) => None,
            Doing::Nothing(_) => return None,
        };
        let line = self.layout.call(rank, number);
        let stands = || self.word(line).load(Ordering::Acquire) == number.unwrap_or(0) + 1;
        let before = stands();
        let words = std::array::from_fn(|i| self.word(line + 8 + i * 8).load(Ordering::Acquire));
        if before && stands() { sign::decode(words) } else { None }
    }

    /// Says that this rank is here, in which process, on which CPUs it may be, and whether it
    /// reaches all ranks' buffers.
    pub fn arrive(&self, process: u64, cpus: [u64; CPU_WORDS], reaches: bool) {
        for (i, word) in cpus.into_iter().enumerate() {
            self.word(self.layout.cpus(self.rank) + i * 8).store(word, Ordering::Relaxed);
        }
        let state = self.layout.state(self.rank);
        self.word(state + 24).store(barrier::can().into(), Ordering::Relaxed);
        self.word(state + 32).store(reaches.into(), Ordering::Relaxed);
        self.word(state).store(process, Ordering::Release);
        self.ring();
    }

    /// Whether every rank can order things for all.
    pub fn all_can_be_light(&self) -> bool {
        self.all_say(24)
    }

    /// Whether every rank reaches all ranks' buffers.
    pub fn all_reach(&self) -> bool {
        self.all_say(32)
    }

    fn all_say(&self, what: usize) -> bool {
        let says = |rank| self.word(self.layout.state(rank) + what).load(Ordering::Relaxed) != 0;
        (0..self.layout.ranks).all(says)
    }

    /// The process of a rank; `None`: it is not here yet.
    pub fn process(&self, rank: usize) -> Option<u64> {
        Some(self.word(self.layout.state(rank)).load(Ordering::Acquire)).filter(|p| *p != 0)
    }

    /// How many CPUs all ranks together may use.
    pub fn cpus(&self) -> u32 {
        let all = |i: usize| {
            let word = |rank| self.word(self.layout.cpus(rank) + i * 8).load(Ordering::Relaxed);
            (0..self.layout.ranks).map(word).fold(0, |all, word| all | word)
        };
        (0..CPU_WORDS).map(|i| all(i).count_ones()).sum()
    }

    /// Says what reading costs this rank.
    pub fn say_costs(&self, class: usize, costs: Costs) {
        self.word(self.costs(self.rank, class)).store(costs.to_word(), Ordering::Relaxed);
    }

    /// What reading costs a rank.
    pub fn read_costs(&self, rank: usize, class: usize) -> Costs {
        Costs::from_word(self.word(self.costs(rank, class)).load(Ordering::Relaxed))
    }

    fn costs(&self, rank: usize, class: usize) -> usize {
        const { assert!(40 + CLASSES * 8 <= LINE_BYTES) };
        self.layout.state(rank) + 40 + class * 8
    }

    /// Says that this rank posts nothing any more.
    pub fn leave(&self) {
        self.word(self.layout.state(self.rank) + 16).store(1, Ordering::Release);
        self.ring();
    }

    /// Whether a rank has left.
    pub fn has_left(&self, rank: usize) -> bool {
        self.word(self.layout.state(rank) + 16).load(Ordering::Acquire) != 0
    }

    /// Wakes those who sleep until this rank does something.
    #[inline]
    pub fn ring(&self) {
        self.ring_of(self.rank);
    }

    #[inline]
    pub fn ring_of(&self, rank: usize) {
        // Either the sleeper sees what was written before this, or we see the sleeper. A fence here
        // would wait until the line is ours, longer than all the rest takes.
        match self.light {
            true => compiler_fence(Ordering::SeqCst),
            false => fence(Ordering::SeqCst),
        }
        let bell = self.layout.bell(rank);
        if self.half_word(bell + 4).load(Ordering::Relaxed) != 0 {
            self.half_word(bell).fetch_add(1, Ordering::SeqCst);
            let _ = futex::wake(self.half_word(bell), futex::Flags::empty(), i32::MAX as u32);
        }
    }

    /// Sleeps until a rank does something, or for some time.
    pub fn sleep(&self, rank: usize, limit: Duration, ready: impl Fn() -> bool) {
        let bell = self.layout.bell(rank);
        let (rings, sleepers) = (self.half_word(bell), self.half_word(bell + 4));
        sleepers.fetch_add(1, Ordering::SeqCst);
        match self.light {
            true => barrier::everywhere(),
            false => fence(Ordering::SeqCst),
        }
        let heard = rings.load(Ordering::SeqCst);
        if !ready() {
            let limit = futex::Timespec {
                tv_sec: limit.as_secs() as i64,
                tv_nsec: i64::from(limit.subsec_nanos()),
            };
            // Whatever wakes us, the caller looks again.
            let _ = futex::wait(rings, futex::Flags::empty(), heard, Some(&limit));
        }
        sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// The abort record's bytes.
    pub fn text(&self, bytes: usize) -> *mut u8 {
        self.map.at(self.layout.abort() + super::verdict::TEXT, bytes)
    }
}
