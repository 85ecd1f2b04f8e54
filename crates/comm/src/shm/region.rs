//! Accessors for the shared memory of a communicator.
//!
//! A post starts with an increasing sequence number, written with release semantics: a rank that
//! sees the number sees everything written before it. Posting makes a system call only if a rank
//! sleeps.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, compiler_fence, fence};
use std::time::Duration;

use rustix::mm::{Advice, madvise};
use rustix::thread::futex;

use super::cross_memory::{CrossMemory, ProbeLocation};
use super::l3;
use super::layout::{
    CPU_WORDS, INLINE, INLINE_BYTES, LINE_BYTES, P2P_CHUNK_BYTES, P2P_SLOTS, PAYLOAD_SLOTS,
    PREFAULTED_BYTES, RegionLayout,
};
use super::membarrier;
use super::segment::Mapping;
use crate::control::signature_codec;
use crate::{Signature, prefetch};

/// The shared memory, from one rank's perspective.
#[derive(Debug)]
pub struct Region {
    map: Mapping,
    pub layout: RegionLayout,
    pub rank: usize,
    /// Whether sleeping ranks issue the fence (membarrier), so that posting needs none.
    pub asymmetric_fence: bool,
}

impl Region {
    pub fn new(map: Mapping, layout: RegionLayout, rank: usize) -> Self {
        Self { map, layout, rank, asymmetric_fence: false }
    }

    #[inline]
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        let word = self.map.at(offset, 8);
        debug_assert!(word.cast::<AtomicU64>().is_aligned());
        // SAFETY: it is inside the mapping, aligned, and only accessed atomically.
        unsafe { &*word.cast() }
    }

    #[inline]
    fn word32(&self, offset: usize) -> &AtomicU32 {
        let word = self.map.at(offset, 4);
        debug_assert!(word.cast::<AtomicU32>().is_aligned());
        // SAFETY: it is inside the mapping, aligned, and only accessed atomically.
        unsafe { &*word.cast() }
    }

    /// Whether a rank has posted `seq`.
    #[inline]
    pub fn has_posted(&self, rank: usize, seq: u64) -> bool {
        self.word(self.layout.post(rank, seq)).load(Ordering::Acquire) >= seq
    }

    /// Loads a post into the cache, in case it was made already.
    #[inline]
    pub fn prefetch_post(&self, rank: usize, seq: u64) {
        prefetch::read(self.map.at(self.layout.post(rank, seq), LINE_BYTES));
    }

    /// Loads this rank's next post into the cache for writing: the readers of the post that it replaces
    /// have copies of it.
    #[inline]
    pub fn prefetch_own_post(&self, seq: u64) {
        prefetch::write(self.map.at(self.layout.post(self.rank, seq), LINE_BYTES));
    }

    /// Digest of a rank's post and of all before it; `None` if the post was not made yet or replaced.
    #[inline]
    pub fn digest(&self, rank: usize, seq: u64) -> Option<u64> {
        let line = self.layout.post(rank, seq);
        let stands = || self.word(line).load(Ordering::Acquire) == seq;
        let before = stands();
        let digest = self.word(line + 8).load(Ordering::Acquire);
        (before && stands()).then_some(digest)
    }

    /// Posts and wakes waiting ranks.
    #[inline]
    pub fn post(&self, seq: u64, digest: u64) {
        let line = self.layout.post(self.rank, seq);
        // A reader of the new digest also sees that the previous post was replaced.
        self.word(line).store(0, Ordering::Release);
        self.word(line + 8).store(digest, Ordering::Release);
        self.word(line).store(seq, Ordering::Release);
        self.ring_doorbell();
    }

    /// Populates the page tables for a rank's slots. Pages are allocated on the NUMA node of the rank
    /// that does so first, which is the rank that writes them.
    pub fn prefault(&self, rank: usize) {
        let advice = match rank == self.rank {
            true => Advice::LinuxPopulateWrite,
            false => Advice::LinuxPopulateRead,
        };
        let bytes = PREFAULTED_BYTES.min(self.layout.slot_bytes());
        for slot in 0..PAYLOAD_SLOTS {
            let start = self.map.at(self.layout.slot(rank, slot), bytes);
            // SAFETY: the range is mapped, and its contents do not change. Kernels before 5.14 do
            // not support it.
            let _ = unsafe { madvise(start.cast(), bytes, advice) };
        }
    }

    /// Populates the page tables for this rank's posts.
    pub fn prefault_posts(&self) {
        let bytes = self.layout.posts_bytes();
        let start = self.map.at(self.layout.post(self.rank, 0), bytes);
        // SAFETY: the range is mapped, and its contents do not change.
        let _ = unsafe { madvise(start.cast(), bytes, Advice::LinuxPopulateWrite) };
    }

    /// The inline payload of a post.
    #[inline]
    pub fn inline_payload(&self, rank: usize, seq: u64) -> *mut u8 {
        self.map.at(self.layout.post(rank, seq) + INLINE, INLINE_BYTES)
    }

    /// The payload slot of a post.
    #[inline]
    pub fn slot(&self, rank: usize, seq: u64) -> *mut u8 {
        self.map.at(self.layout.slot(rank, seq), self.layout.slot_bytes())
    }

    /// The header line of a message chunk.
    pub fn p2p_header(&self, from: usize, to: usize, seq: u64) -> *mut u8 {
        self.map.at(self.layout.p2p_header(from, to, seq), LINE_BYTES)
    }

    /// The slot of a message chunk.
    pub fn p2p_slot(&self, from: usize, to: usize, seq: u64) -> *mut u8 {
        self.map.at(self.layout.p2p_slot(from, to, seq), P2P_CHUNK_BYTES)
    }

    /// Number of chunks sent and not yet consumed.
    pub fn chunks_in_flight(&self, from: usize, to: usize) -> u64 {
        let seq = |n: u64| self.word(self.layout.p2p_header(from, to, n)).load(Ordering::Acquire);
        let sent = (0..P2P_SLOTS).map(seq).max().unwrap_or(0);
        sent.saturating_sub(self.word(self.layout.consumed(from, to)).load(Ordering::Acquire))
    }

    /// Publishes the call in which this rank waits, and how many collectives it has begun.
    pub fn publish_wait(&self, calls: u64, signature: &Signature) {
        let line = self.layout.wait(self.rank);
        self.word(line).store(0, Ordering::Release);
        for (i, word) in signature_codec::encode(signature).into_iter().enumerate() {
            self.word(line + 8 + i * 8).store(word, Ordering::Release);
        }
        self.word(line).store(calls + 1, Ordering::Release);
    }

    /// Publishes that this rank does not wait.
    pub fn withdraw_wait(&self) {
        self.word(self.layout.wait(self.rank)).store(0, Ordering::Release);
    }

    /// The call in which a rank has been waiting for a while, and how many collectives it has begun.
    pub fn published_wait(&self, rank: usize) -> Option<(u64, Signature)> {
        let line = self.layout.wait(rank);
        let calls = || self.word(line).load(Ordering::Acquire).checked_sub(1);
        let before = calls()?;
        let words = std::array::from_fn(|i| self.word(line + 8 + i * 8).load(Ordering::Acquire));
        (calls() == Some(before)).then_some((before, signature_codec::decode(words)?))
    }

    /// Publishes that this rank has joined: its probe, CPU affinity, L3 cache and whether it maps the
    /// arena.
    pub fn mark_joined(
        &self,
        probe: ProbeLocation,
        cpus: [u64; CPU_WORDS],
        l3: u64,
        maps_arena: bool,
    ) {
        for (i, word) in cpus.into_iter().enumerate() {
            self.word(self.layout.cpus(self.rank) + i * 8).store(word, Ordering::Relaxed);
        }
        let state = self.layout.state(self.rank);
        self.word(state + 24).store(membarrier::is_supported().into(), Ordering::Relaxed);
        self.word(state + 32).store(maps_arena.into(), Ordering::Relaxed);
        self.word(state + 40).store(l3, Ordering::Relaxed);
        let at = self.layout.probe(self.rank);
        self.word(at).store(probe.address, Ordering::Relaxed);
        self.word(at + 8).store(probe.value, Ordering::Relaxed);
        self.word(state).store(probe.process as u64, Ordering::Release);
        self.ring_doorbell();
    }

    /// Whether every rank supports asymmetric fences.
    pub fn all_support_membarrier(&self) -> bool {
        self.all_flags_set(24)
    }

    /// Whether every rank maps the arena.
    pub fn all_map_arena(&self) -> bool {
        self.all_flags_set(32)
    }

    /// Whether all ranks are known to run on cores with one L3 cache.
    pub fn all_share_l3(&self) -> bool {
        let l3 = |rank| self.word(self.layout.state(rank) + 40).load(Ordering::Relaxed);
        l3(0) != l3::UNKNOWN && (1..self.layout.ranks).all(|rank| l3(rank) == l3(0))
    }

    fn all_flags_set(&self, offset: usize) -> bool {
        let flag = |rank| self.word(self.layout.state(rank) + offset).load(Ordering::Relaxed);
        (0..self.layout.ranks).all(|rank| flag(rank) != 0)
    }

    /// The process of a rank; 0 if it has not joined.
    #[inline]
    pub fn process(&self, rank: usize) -> i32 {
        self.word(self.layout.state(rank)).load(Ordering::Acquire) as i32
    }

    /// The probe of a rank that has joined.
    pub fn probe(&self, rank: usize) -> ProbeLocation {
        let word = |at| self.word(self.layout.probe(rank) + at).load(Ordering::Relaxed);
        ProbeLocation { process: self.process(rank), address: word(0), value: word(8) }
    }

    /// Publishes whether this rank, after its probe, wants to read the memory of others.
    pub fn publish_probed(&self, result: CrossMemory) {
        self.word(self.layout.probe(self.rank) + 16).store(result as u64, Ordering::Release);
        self.ring_doorbell();
    }

    /// Whether a rank has published the result of its probe.
    pub fn has_probed(&self, rank: usize) -> bool {
        self.probed(rank) != 0
    }

    /// Whether the ranks read each other's memory. It is not faster if payloads are written with
    /// streaming stores.
    pub fn reads_memory(&self) -> bool {
        let all = |result| (0..self.layout.ranks).all(|rank| self.probed(rank) >= result as u64);
        all(CrossMemory::Always) || (self.all_share_l3() && all(CrossMemory::IfFaster))
    }

    fn probed(&self, rank: usize) -> u64 {
        self.word(self.layout.probe(rank) + 16).load(Ordering::Acquire)
    }

    /// Number of CPUs in the union of all ranks' affinities.
    pub fn usable_cpus(&self) -> u32 {
        let all = |i: usize| {
            let word = |rank| self.word(self.layout.cpus(rank) + i * 8).load(Ordering::Relaxed);
            (0..self.layout.ranks).map(word).fold(0, |all, word| all | word)
        };
        (0..CPU_WORDS).map(|i| all(i).count_ones()).sum()
    }

    /// Publishes that this rank will not post again.
    pub fn mark_closed(&self) {
        self.word(self.layout.state(self.rank) + 16).store(1, Ordering::Release);
        self.ring_doorbell();
    }

    /// Whether a rank has closed the communicator.
    pub fn has_closed(&self, rank: usize) -> bool {
        self.word(self.layout.state(rank) + 16).load(Ordering::Acquire) != 0
    }

    /// Wakes ranks that sleep on this rank's doorbell.
    #[inline]
    pub fn ring_doorbell(&self) {
        // Either the sleeper sees the preceding stores, or this rank sees the sleeper. A hardware
        // fence would stall until the line is owned, which dominates the cost of a post.
        match self.asymmetric_fence {
            true => compiler_fence(Ordering::SeqCst),
            false => fence(Ordering::SeqCst),
        }
        let doorbell = self.layout.doorbell(self.rank);
        if self.word32(doorbell + 4).load(Ordering::Relaxed) != 0 {
            self.word32(doorbell).fetch_add(1, Ordering::SeqCst);
            let _ = futex::wake(self.word32(doorbell), futex::Flags::empty(), i32::MAX as u32);
        }
    }

    /// Sleeps on a rank's doorbell, at most for `limit`.
    pub fn wait_doorbell(&self, rank: usize, limit: Duration, ready: impl Fn() -> bool) {
        let doorbell = self.layout.doorbell(rank);
        let (rings, sleepers) = (self.word32(doorbell), self.word32(doorbell + 4));
        sleepers.fetch_add(1, Ordering::SeqCst);
        match self.asymmetric_fence {
            true => membarrier::membarrier_global(),
            false => fence(Ordering::SeqCst),
        }
        let seen = rings.load(Ordering::SeqCst);
        if !ready() {
            let limit = futex::Timespec {
                tv_sec: limit.as_secs() as i64,
                tv_nsec: i64::from(limit.subsec_nanos()),
            };
            // The caller re-checks its condition, so the result does not matter.
            let _ = futex::wait(rings, futex::Flags::empty(), seen, Some(&limit));
        }
        sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}
