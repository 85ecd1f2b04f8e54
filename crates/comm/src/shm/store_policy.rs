//! Chooses between cached and streaming (non-temporal) stores for data that other ranks read next.
//!
//! Between ranks that share a cache, cached stores are twice as fast. Otherwise readers fetch the
//! lines from another core's cache, which is several times slower than from memory. Neither CPU
//! model nor topology tells reliably (in a virtual machine it can change at run time), so the costs
//! are measured on regular traffic: occasionally a rank writes one part of a post each mode, and the
//! readers publish how long each part took them.

use std::cell::Cell;
use std::ops::Range;
use std::time::Instant;

use super::layout::LINE_BYTES;
use crate::reduce_kernel::stream;

/// Smaller payloads are always written with cached stores.
pub const MIN_STREAM_BYTES: usize = 2 << 10;

/// Upper bounds of the size classes; the last class is unbounded.
const SIZE_CLASS_BYTES: [usize; SIZE_CLASSES - 1] = [16 << 10, 128 << 10];
pub const SIZE_CLASSES: usize = 3;

/// Every such post is a trial. Prime, so that no periodic call pattern misses all trials.
const TRIAL_INTERVAL: u64 = 61;
/// The first posts are all trials.
const INITIAL_TRIALS: u64 = 16;
/// Maximum bytes per mode in a trial.
const TRIAL_BYTES: usize = 8 << 10;

/// Nanoseconds per KiB for each store mode; 0 if unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct StoreCosts {
    cached: f32,
    streaming: f32,
}

impl StoreCosts {
    /// Packs the costs into one word.
    pub fn to_word(self) -> u64 {
        u64::from(self.cached.to_bits()) << 32 | u64::from(self.streaming.to_bits())
    }

    /// Unpacks a word; invalid values are unknown.
    pub fn from_word(word: u64) -> Self {
        let cost = |bits: u64| Some(f32::from_bits(bits as u32)).filter(|c| c.is_finite());
        let cost = |bits| cost(bits).map_or(0.0, |cost| cost.max(0.0));
        Self { cached: cost(word >> 32), streaming: cost(word) }
    }

    /// The maximum of each cost, for concurrent readers.
    pub fn slower(self, other: Self) -> Self {
        Self {
            cached: self.cached.max(other.cached),
            streaming: self.streaming.max(other.streaming),
        }
    }

    fn known(self) -> bool {
        self.cached > 0.0 && self.streaming > 0.0
    }

    fn note(&mut self, mode: StoreMode, cost: f32) {
        let old = match mode {
            StoreMode::Cached => &mut self.cached,
            StoreMode::Streaming => &mut self.streaming,
        };
        // Damp outliers, for example from a preempted rank: average with the old value and at most
        // double it.
        *old = if *old > 0.0 { (*old + cost.min(*old * 2.0)) / 2.0 } else { cost };
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StoreMode {
    Cached,
    Streaming,
}

/// Measured costs of this rank's reads and writes, by size class.
#[derive(Debug, Default)]
pub struct StorePolicy {
    writing: [Cell<StoreCosts>; SIZE_CLASSES],
    reading: [Cell<StoreCosts>; SIZE_CLASSES],
    use_cached: [Cell<bool>; SIZE_CLASSES],
    /// Whether streaming stores are pending that need a fence.
    fence_pending: Cell<bool>,
}

/// The parts of a post that are written in different modes.
struct StoreTrial {
    part: usize,
    first: StoreMode,
}

impl StoreTrial {
    /// Whether a post is a trial depends only on its sequence number and size, so all ranks agree.
    fn of(seq: u64, bytes: usize) -> Option<Self> {
        let tried = seq < INITIAL_TRIALS || seq.is_multiple_of(TRIAL_INTERVAL);
        let part = ((bytes / 2) & !(LINE_BYTES - 1)).min(TRIAL_BYTES);
        // The first part is at a disadvantage, so the modes alternate.
        let first = if seq & 1 == 0 { StoreMode::Cached } else { StoreMode::Streaming };
        (tried && bytes >= MIN_STREAM_BYTES).then_some(Self { part, first })
    }

    fn parts(&self) -> [(StoreMode, Range<usize>); 2] {
        let cached_first = self.first == StoreMode::Cached;
        let second = if cached_first { StoreMode::Streaming } else { StoreMode::Cached };
        [(self.first, 0..self.part), (second, self.part..2 * self.part)]
    }
}

/// The size class of a payload.
fn size_class(bytes: usize) -> usize {
    SIZE_CLASS_BYTES.iter().filter(|limit| bytes > **limit).count()
}

fn timed(costs: &Cell<StoreCosts>, mode: StoreMode, bytes: usize, work: impl FnOnce()) {
    let began = Instant::now();
    work();
    let cost = began.elapsed().as_nanos() as f32 * 1024.0 / bytes as f32;
    let mut noted = costs.get();
    noted.note(mode, cost.max(f32::MIN_POSITIVE));
    costs.set(noted);
}

impl StorePolicy {
    fn copy(&self, mode: StoreMode, out: &mut [u8], data: &[u8]) {
        match mode {
            StoreMode::Cached => out.copy_from_slice(data),
            StoreMode::Streaming => {
                self.fence_pending.set(true);
                stream::copy(out, data);
            }
        }
    }

    /// Orders pending streaming stores before the next store.
    #[inline]
    pub fn sfence(&self) {
        if self.fence_pending.replace(false) {
            stream::sfence();
        }
    }

    /// Writes a payload, or part of a payload of `of` bytes.
    pub fn write(&self, of: usize, out: &mut [u8], data: &[u8]) {
        let cached = of < MIN_STREAM_BYTES || self.use_cached[size_class(of)].get();
        self.copy(if cached { StoreMode::Cached } else { StoreMode::Streaming }, out, data);
    }

    /// Writes a whole payload. `reading` returns the readers' costs.
    pub fn write_all(
        &self,
        seq: u64,
        out: &mut [u8],
        data: &[u8],
        reading: impl Fn(usize) -> StoreCosts,
    ) {
        let Some(trial) = StoreTrial::of(seq, data.len()) else {
            return self.write(data.len(), out, data);
        };
        let class = size_class(data.len());
        for (mode, part) in trial.parts() {
            let (out, data) = (&mut out[part.clone()], &data[part.clone()]);
            timed(&self.writing[class], mode, part.len(), || self.copy(mode, out, data));
        }
        self.use_cached[class].set(cached_is_cheaper(self.writing[class].get(), reading(class)));
        let rest = 2 * trial.part;
        self.write(data.len(), &mut out[rest..], &data[rest..]);
    }

    /// Reads a payload part by part; returns the read costs if this was a trial.
    pub fn read(
        &self,
        seq: u64,
        bytes: usize,
        mut take: impl FnMut(Range<usize>),
    ) -> Option<(usize, StoreCosts)> {
        let Some(trial) = StoreTrial::of(seq, bytes) else {
            take(0..bytes);
            return None;
        };
        let class = size_class(bytes);
        for (mode, part) in trial.parts() {
            timed(&self.reading[class], mode, part.len(), || take(part));
        }
        take(2 * trial.part..bytes);
        Some((class, self.reading[class].get()))
    }
}

/// Whether cached stores are cheaper. Streaming is the default, because wrong cached stores lose
/// more than right ones gain.
fn cached_is_cheaper(writing: StoreCosts, reading: StoreCosts) -> bool {
    let both = writing.known() && reading.known();
    both && writing.cached + reading.cached < writing.streaming + reading.streaming
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_are_written_and_read_completely() {
        let store_policy = StorePolicy::default();
        for bytes in [0, 1, 2047, 2048, 5000, 16 << 10, 100_000] {
            let data: Vec<u8> = (0..bytes).map(|i| i as u8).collect();
            for seq in 1..130 {
                let mut out = vec![0xff; bytes];
                store_policy.write_all(seq, &mut out, &data, |_| StoreCosts {
                    cached: 1.0,
                    streaming: 1.0,
                });
                stream::sfence();
                let mut read = Vec::new();
                store_policy.read(seq, bytes, |part| read.extend_from_slice(&out[part]));
                assert_eq!(read, data);
            }
        }
    }

    #[test]
    fn cheaper_mode_is_chosen_once_both_are_known() {
        let costs = |cached, streaming| StoreCosts { cached, streaming };
        assert!(cached_is_cheaper(costs(10.0, 5.0), costs(5.0, 20.0)));
        assert!(!cached_is_cheaper(costs(10.0, 5.0), costs(40.0, 20.0)));
        assert!(!cached_is_cheaper(costs(1.0, 5.0), StoreCosts::default()));
        assert!(!cached_is_cheaper(StoreCosts::default(), costs(1.0, 5.0)));
    }

    #[test]
    fn single_outlier_has_limited_influence() {
        let mut costs = StoreCosts { cached: 10.0, streaming: 30.0 };
        costs.note(StoreMode::Cached, 1e6);
        assert_eq!(costs.cached, 15.0);
        (0..10).for_each(|_| costs.note(StoreMode::Cached, 100.0));
        assert!(costs.cached > 90.0, "{costs:?}");
    }

    #[test]
    fn costs_round_trip_through_a_word() {
        let costs = StoreCosts { cached: 12.5, streaming: 99.0 };
        assert_eq!(StoreCosts::from_word(costs.to_word()), costs);
        assert!(!StoreCosts::from_word(0).known());
        assert!(!StoreCosts::from_word(u64::MAX).known());
    }
}
