//! Order of training sequences and their assignment to ranks. Stateless arithmetic on seed and step, so that a
//! run resumes exactly, on any number of ranks. No I/O.
//!
//! A sequence is a window of `seq_len + 1` tokens: the last one is only a target, and the first input of the next
//! window. An epoch visits all windows once, in its own order and from its own offset, so that window boundaries
//! differ between epochs.

use std::ops::Range;

use super::error::{DataError, Result};
use regatta_device::random::{key, mix};

/// Feistel rounds: four suffice for a good permutation, two more are cheap.
const ROUNDS: u64 = 6;

/// Domains of the random keys.
const PHASE: u64 = 1;
const SHUFFLE: u64 = 2;

/// The order of the windows of a dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sampler {
    /// None: sequential, for validation.
    seed: Option<u64>,
    tokens: u64,
    seq_len: u64,
    windows: u64,
}

impl Sampler {
    /// For training: shuffled in each epoch.
    pub fn shuffled(seed: u64, tokens: u64, seq_len: u64) -> Result<Self> {
        check_len(tokens, seq_len)?;
        // One window less, if there are several, leaves room for the offset.
        let windows = ((tokens - seq_len) / seq_len).max(1);
        Ok(Self { seed: Some(seed), tokens, seq_len, windows })
    }

    /// For validation: sequential from the start, the same in each epoch.
    pub fn sequential(tokens: u64, seq_len: u64) -> Result<Self> {
        check_len(tokens, seq_len)?;
        Ok(Self { seed: None, tokens, seq_len, windows: (tokens - 1) / seq_len })
    }

    /// Sequence length.
    pub fn seq_len(&self) -> u64 {
        self.seq_len
    }

    /// Windows per epoch.
    pub fn windows(&self) -> u64 {
        self.windows
    }

    /// Start of a sequence, by its index over all epochs.
    pub fn sample(&self, index: u64) -> u64 {
        let (epoch, position) = (index / self.windows, index % self.windows);
        match self.seed {
            None => position * self.seq_len,
            Some(seed) => {
                let window = permuted(position, self.windows, key(seed, &[SHUFFLE, epoch]));
                self.phase(seed, epoch) + window * self.seq_len
            }
        }
    }

    /// Token range of a sequence: inputs and, shifted by one, targets.
    pub fn range(&self, index: u64) -> Range<u64> {
        let start = self.sample(index);
        start..start + self.seq_len + 1
    }

    /// Offset of the first window of an epoch.
    fn phase(&self, seed: u64, epoch: u64) -> u64 {
        let spare = self.tokens - 1 - self.windows * self.seq_len;
        let offsets = spare.min(self.seq_len - 1) + 1;
        key(seed, &[PHASE, epoch]) % offsets
    }
}

fn check_len(tokens: u64, seq_len: u64) -> Result<()> {
    match seq_len {
        0 => Err(DataError::NoContext),
        _ if tokens <= seq_len => Err(DataError::TooShort { tokens, seq_len }),
        _ => Ok(()),
    }
}

/// A keyed permutation of `0..size`: a Feistel network over an even number of bits, with cycle walking.
fn permuted(number: u64, size: u64, key: u64) -> u64 {
    let bits = (u64::BITS - (size - 1).leading_zeros()).max(2).next_multiple_of(2);
    let (half, mask) = (bits / 2, (1u64 << (bits / 2)) - 1);
    let mut number = number;
    loop {
        let (mut left, mut right) = (number >> half, number & mask);
        for round in 0..ROUNDS {
            (left, right) = (right, left ^ (mix(key ^ mix(right ^ (round << 32))) & mask));
        }
        number = left << half | right;
        if number < size {
            return number;
        }
    }
}

/// The sequences of one micro-batch: number `micro` of rank `rank` of `ranks` in a step. Together, a step has the
/// sequences from `step * batch` on, independent of the number of ranks and micro-batches.
pub fn micro_batch_range(
    step: u64,
    batch: u64,
    rank: u64,
    ranks: u64,
    micro: u64,
    micro_batch: u64,
) -> Range<u64> {
    let part = part(batch, rank, ranks);
    let first = step.saturating_mul(batch);
    let start = part.start.saturating_add(micro.saturating_mul(micro_batch)).min(part.end);
    let end = start.saturating_add(micro_batch).min(part.end);
    first.saturating_add(start)..first.saturating_add(end)
}

/// A rank's part of a batch: equal parts, or one sequence more.
fn part(batch: u64, rank: u64, ranks: u64) -> Range<u64> {
    let cut = |rank: u64| (u128::from(rank) * u128::from(batch) / u128::from(ranks.max(1))) as u64;
    cut(rank)..cut(rank + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn permutations_are_bijective(size in 1u64..3000, key: u64) {
            let mut seen = vec![false; size as usize];
            for number in 0..size {
                let at = permuted(number, size, key) as usize;
                prop_assert!(!seen[at]);
                seen[at] = true;
            }
        }

        #[test]
        fn permutations_of_huge_sizes_terminate(size in 1u64.., number: u64, key: u64) {
            prop_assert!(permuted(number % size, size, key) < size);
        }

        #[test]
        fn each_window_occurs_once_per_epoch(
            seed: u64, tokens in 2u64..5000, seq_len in 1u64..200, epoch in 0u64..4,
        ) {
            prop_assume!(tokens > seq_len);
            let order = Sampler::shuffled(seed, tokens, seq_len).unwrap();
            let first = epoch * order.windows();
            let epoch = first..first + order.windows();
            let mut starts: Vec<u64> = epoch.map(|index| order.sample(index)).collect();
            starts.sort_unstable();
            prop_assert!(starts.windows(2).all(|two| two[1] - two[0] == seq_len));
            prop_assert!(starts[0] < seq_len);
            prop_assert!(starts[starts.len() - 1] + seq_len < tokens);
            // Fewer than two windows are left out.
            prop_assert!(tokens - order.windows() * seq_len <= 2 * seq_len);
        }

        #[test]
        fn steps_have_the_same_sequences_on_any_number_of_ranks(
            step in 0u64..1000, batch in 1u64..100, ranks in 1u64..20, micro_batch in 1u64..20,
        ) {
            let mut all = Vec::new();
            for rank in 0..ranks {
                let part = part(batch, rank, ranks);
                let micros = (part.end - part.start).div_ceil(micro_batch);
                for micro in 0..micros {
                    let share = micro_batch_range(step, batch, rank, ranks, micro, micro_batch);
                    prop_assert!(!share.is_empty() && share.end - share.start <= micro_batch);
                    all.extend(share);
                }
                prop_assert!(micro_batch_range(step, batch, rank, ranks, micros, micro_batch).is_empty());
            }
            let expected: Vec<u64> = (step * batch..(step + 1) * batch).collect();
            prop_assert_eq!(all, expected);
        }
    }

    #[test]
    fn epochs_differ_in_order_and_boundaries() {
        let order = Sampler::shuffled(1, 100_000, 64).unwrap();
        let starts = |epoch: u64| -> Vec<u64> {
            let first = epoch * order.windows();
            (first..first + order.windows()).map(|index| order.sample(index)).collect()
        };
        let phases: Vec<u64> = (0..8).map(|epoch| starts(epoch)[0] % 64).collect();
        assert!(phases.iter().any(|phase| *phase != phases[0]), "{phases:?}");
        assert!(starts(0).windows(2).any(|two| two[0] > two[1]), "not shuffled");
        assert_ne!(starts(0), starts(1));
        let other = Sampler::shuffled(2, 100_000, 64).unwrap();
        assert!((0..9).any(|index| order.sample(index) != other.sample(index)));
    }

    #[test]
    fn the_order_is_stable_across_versions() {
        // Changing these values changes what a resumed run reads.
        let order = Sampler::shuffled(1337, 1_003_854, 64).unwrap();
        let first: Vec<u64> = (0..6).map(|index| order.sample(index)).collect();
        assert_eq!(first, [998_445, 957_933, 919_917, 102_381, 177_581, 99_885]);
    }

    #[test]
    fn sequential_order_covers_all_windows() {
        let order = Sampler::sequential(21, 5).unwrap();
        let starts: Vec<u64> = (0..5).map(|index| order.sample(index)).collect();
        assert_eq!((order.windows(), starts), (4, vec![0, 5, 10, 15, 0]));
        assert_eq!((order.range(3), 4 / order.windows()), (15..21, 1));
    }

    #[test]
    fn too_few_tokens_are_refused() {
        let error = Sampler::shuffled(0, 64, 64).unwrap_err().to_string();
        assert!(error.contains("64 tokens") && error.contains("65"), "{error}");
        assert!(Sampler::sequential(65, 64).is_ok() && Sampler::sequential(9, 0).is_err());
        assert_eq!(Sampler::shuffled(0, 65, 64).unwrap().windows(), 1);
    }
}
