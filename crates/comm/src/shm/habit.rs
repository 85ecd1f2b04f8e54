//! How a rank writes what others read next: through the caches, or past them into memory.
//!
//! Where ranks share a cache, through it is twice as fast. Where they do not, lines have to be
//! fetched out of another processor's cache, and that is several times as slow as from memory. No
//! name or number of a processor says which it is (in a virtual machine it changes while one looks),
//! so it is measured, on what is moved anyway: now and then a rank writes one part of a post this
//! way and one the other way, and those who read it say how long each took them.

use std::cell::Cell;
use std::ops::Range;
use std::time::Instant;

use super::layout::LINE_BYTES;
use crate::kernel::stream;

/// Less than this is always written through the caches.
pub const LEAST_BYTES: usize = 2 << 10;

/// Posts are told apart by size: up to here, up to here, and larger.
const CLASS_BYTES: [usize; CLASSES - 1] = [16 << 10, 128 << 10];
pub const CLASSES: usize = 3;

/// Every so many posts are a trial. It is prime, so that no pattern of calls misses them all.
const TRIAL_EVERY: u64 = 61;
/// And the first ones.
const TRIALS_AT_FIRST: u64 = 16;
/// What is tried at most.
const TRIAL_BYTES: usize = 8 << 10;

/// Nanoseconds for a KiB, through the caches and past them; zero if it is not known.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Costs {
    through: f32,
    past: f32,
}

impl Costs {
    /// As one word, for others to read.
    pub fn to_word(self) -> u64 {
        u64::from(self.through.to_bits()) << 32 | u64::from(self.past.to_bits())
    }

    /// What a word says; nothing, if nobody wrote it so.
    pub fn from_word(word: u64) -> Self {
        let cost = |bits: u64| Some(f32::from_bits(bits as u32)).filter(|c| c.is_finite());
        let cost = |bits| cost(bits).map_or(0.0, |cost| cost.max(0.0));
        Self { through: cost(word >> 32), past: cost(word) }
    }

    /// Of two who read at once, the slower counts.
    pub fn slower(self, other: Self) -> Self {
        Self { through: self.through.max(other.through), past: self.past.max(other.past) }
    }

    fn known(self) -> bool {
        self.through > 0.0 && self.past > 0.0
    }

    fn note(&mut self, way: Way, cost: f32) {
        let old = match way {
            Way::Through => &mut self.through,
            Way::Past => &mut self.past,
        };
        // A rank that was interrupted while it measured says little: half of what it says counts,
        // and no more than twice what was.
        *old = if *old > 0.0 { (*old + cost.min(*old * 2.0)) / 2.0 } else { cost };
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Through,
    Past,
}

/// What a rank knows of its own writing and reading, by class of size.
#[derive(Debug, Default)]
pub struct Habit {
    writing: [Cell<Costs>; CLASSES],
    reading: [Cell<Costs>; CLASSES],
    through: [Cell<bool>; CLASSES],
    /// Whether something went past the caches since it was seen to that it is there.
    unsettled: Cell<bool>,
}

/// Which parts of a post are tried, and the way of the first.
struct Trial {
    part: usize,
    first: Way,
}

impl Trial {
    /// All ranks know by themselves which posts are.
    fn of(number: u64, bytes: usize) -> Option<Self> {
        let tried = number < TRIALS_AT_FIRST || number.is_multiple_of(TRIAL_EVERY);
        let part = ((bytes / 2) & !(LINE_BYTES - 1)).min(TRIAL_BYTES);
        // What comes first is at a disadvantage, so both do by turns.
        let first = if number & 1 == 0 { Way::Through } else { Way::Past };
        (tried && bytes >= LEAST_BYTES).then_some(Self { part, first })
    }

    fn parts(&self) -> [(Way, Range<usize>); 2] {
        let second = if self.first == Way::Through { Way::Past } else { Way::Through };
        [(self.first, 0..self.part), (second, self.part..2 * self.part)]
    }
}

/// The class of posts of this size.
fn class(bytes: usize) -> usize {
    CLASS_BYTES.iter().filter(|limit| bytes > **limit).count()
}

fn timed(costs: &Cell<Costs>, way: Way, bytes: usize, work: impl FnOnce()) {
    let began = Instant::now();
    work();
    let cost = began.elapsed().as_nanos() as f32 * 1024.0 / bytes as f32;
    let mut noted = costs.get();
    noted.note(way, cost.max(f32::MIN_POSITIVE));
    costs.set(noted);
}

impl Habit {
    fn copy(&self, way: Way, out: &mut [u8], data: &[u8]) {
        match way {
            Way::Through => out.copy_from_slice(data),
            Way::Past => {
                self.unsettled.set(true);
                stream::copy(out, data);
            }
        }
    }

    /// Has all that was written be there before what is written next.
    #[inline]
    pub fn settle(&self) {
        if self.unsettled.replace(false) {
            stream::settle();
        }
    }

    /// Writes a post, or a part of one that has `of` bytes.
    pub fn write(&self, of: usize, out: &mut [u8], data: &[u8]) {
        let through = of < LEAST_BYTES || self.through[class(of)].get();
        self.copy(if through { Way::Through } else { Way::Past }, out, data);
    }

    /// Writes all of a post. `reading` says what others' reading costs them.
    pub fn write_all(
        &self,
        number: u64,
        out: &mut [u8],
        data: &[u8],
        reading: impl Fn(usize) -> Costs,
    ) {
        let Some(trial) = Trial::of(number, data.len()) else {
            return self.write(data.len(), out, data);
        };
        let class = class(data.len());
        for (way, part) in trial.parts() {
            let (out, data) = (&mut out[part.clone()], &data[part.clone()]);
            timed(&self.writing[class], way, part.len(), || self.copy(way, out, data));
        }
        self.through[class].set(better_through(self.writing[class].get(), reading(class)));
        let rest = 2 * trial.part;
        self.write(data.len(), &mut out[rest..], &data[rest..]);
    }

    /// Reads what somebody has written so, part by part; says what it costs, if that was measured.
    pub fn read(
        &self,
        number: u64,
        bytes: usize,
        mut take: impl FnMut(Range<usize>),
    ) -> Option<(usize, Costs)> {
        let Some(trial) = Trial::of(number, bytes) else {
            take(0..bytes);
            return None;
        };
        let class = class(bytes);
        for (way, part) in trial.parts() {
            timed(&self.reading[class], way, part.len(), || take(part));
        }
        take(2 * trial.part..bytes);
        Some((class, self.reading[class].get()))
    }
}

/// Whether it is better to write through the caches. As long as nobody knows, it is not: it loses
/// more where it is wrong than it gains where it is right.
fn better_through(writing: Costs, reading: Costs) -> bool {
    let both = writing.known() && reading.known();
    both && writing.through + reading.through < writing.past + reading.past
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_a_post_is_written_and_read_once() {
        let habit = Habit::default();
        for bytes in [0, 1, 2047, 2048, 5000, 16 << 10, 100_000] {
            let data: Vec<u8> = (0..bytes).map(|i| i as u8).collect();
            for number in 1..130 {
                let mut out = vec![0xff; bytes];
                habit.write_all(number, &mut out, &data, |_| Costs { through: 1.0, past: 1.0 });
                stream::settle();
                let mut read = Vec::new();
                habit.read(number, bytes, |part| read.extend_from_slice(&out[part]));
                assert_eq!(read, data);
            }
        }
    }

    #[test]
    fn the_cheaper_way_is_taken_when_both_are_known() {
        let costs = |through, past| Costs { through, past };
        assert!(better_through(costs(10.0, 5.0), costs(5.0, 20.0)));
        assert!(!better_through(costs(10.0, 5.0), costs(40.0, 20.0)));
        assert!(!better_through(costs(1.0, 5.0), Costs::default()));
        assert!(!better_through(Costs::default(), costs(1.0, 5.0)));
    }

    #[test]
    fn one_interruption_does_not_change_what_is_known() {
        let mut costs = Costs { through: 10.0, past: 30.0 };
        costs.note(Way::Through, 1e6);
        assert_eq!(costs.through, 15.0);
        (0..10).for_each(|_| costs.note(Way::Through, 100.0));
        assert!(costs.through > 90.0, "{costs:?}");
    }

    #[test]
    fn words_carry_costs() {
        let costs = Costs { through: 12.5, past: 99.0 };
        assert_eq!(Costs::from_word(costs.to_word()), costs);
        assert!(!Costs::from_word(0).known());
        assert!(!Costs::from_word(u64::MAX).known());
    }
}
