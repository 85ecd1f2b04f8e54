//! Which sample is where in the tokens, and which rank takes it: arithmetic on the seed and the
//! number of the step, so that a run goes on exactly where it stopped, on any number of ranks. No
//! I/O, no memory.
//!
//! A sample is `context + 1` tokens: the last one is only a target, and the first input of the next
//! window. An epoch goes through all windows once, in an order of its own, and they begin at a place
//! of its own, so that no boundary stays where it is.

use std::ops::Range;

use super::error::{DataError, Result};
use regatta_device::random::{key, mix};

/// Rounds of the permutation: four are enough to be a good one, two more are cheap.
const ROUNDS: u64 = 6;

/// What keys are for.
const PHASE: u64 = 1;
const SHUFFLE: u64 = 2;

/// The order of the samples of some tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    /// None: one after the other, for validation.
    seed: Option<u64>,
    tokens: u64,
    context: u64,
    windows: u64,
}

impl Order {
    /// For training: shuffled anew each epoch.
    pub fn shuffled(seed: u64, tokens: u64, context: u64) -> Result<Self> {
        enough(tokens, context)?;
        // A window less, if there are several, leaves room for the first to begin anywhere.
        let windows = ((tokens - context) / context).max(1);
        Ok(Self { seed: Some(seed), tokens, context, windows })
    }

    /// For validation: one after the other from the start, the same each epoch.
    pub fn straight(tokens: u64, context: u64) -> Result<Self> {
        enough(tokens, context)?;
        Ok(Self { seed: None, tokens, context, windows: (tokens - 1) / context })
    }

    /// Inputs of a sample.
    pub fn context(&self) -> u64 {
        self.context
    }

    /// Samples of an epoch.
    pub fn windows(&self) -> u64 {
        self.windows
    }

    /// The epoch a sample is of, from 0.
    pub fn epoch(&self, index: u64) -> u64 {
        index / self.windows
    }

    /// Where the sample begins, counted over all epochs.
    pub fn sample(&self, index: u64) -> u64 {
        let (epoch, place) = (index / self.windows, index % self.windows);
        match self.seed {
            None => place * self.context,
            Some(seed) => {
                let window = permuted(place, self.windows, key(seed, &[SHUFFLE, epoch]));
                self.phase(seed, epoch) + window * self.context
            }
        }
    }

    /// The tokens of a sample: inputs and, one later, targets.
    pub fn range(&self, index: u64) -> Range<u64> {
        let start = self.sample(index);
        start..start + self.context + 1
    }

    /// Where an epoch's first window begins: anywhere, as long as the last still fits.
    fn phase(&self, seed: u64, epoch: u64) -> u64 {
        let spare = self.tokens - 1 - self.windows * self.context;
        let places = spare.min(self.context - 1) + 1;
        key(seed, &[PHASE, epoch]) % places
    }
}

fn enough(tokens: u64, context: u64) -> Result<()> {
    match context {
        0 => Err(DataError::NoContext),
        _ if tokens <= context => Err(DataError::TooShort { tokens, context }),
        _ => Ok(()),
    }
}

/// A permutation of the numbers below `size`, by a key: a Feistel network permutes the numbers of
/// an even count of bits; what falls outside goes through it again until it is inside.
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

/// The samples of one micro-batch: number `micro` of rank `rank` of `ranks` in a step. All of a
/// step's together are the samples `step * batch` and on, whatever the number of ranks and however
/// they cut their part.
pub fn share(
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

/// How many micro-batches a rank has in a step.
pub fn micro_batches(batch: u64, rank: u64, ranks: u64, micro_batch: u64) -> u64 {
    let part = part(batch, rank, ranks);
    (part.end - part.start).div_ceil(micro_batch.max(1))
}

/// A rank's part of a batch: equal ones, or one sample more.
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
        fn permutations_miss_nothing(size in 1u64..3000, key: u64) {
            let mut seen = vec![false; size as usize];
            for number in 0..size {
                let at = permuted(number, size, key) as usize;
                prop_assert!(!seen[at]);
                seen[at] = true;
            }
        }

        #[test]
        fn permutations_of_huge_sizes_end(size in 1u64.., number: u64, key: u64) {
            prop_assert!(permuted(number % size, size, key) < size);
        }

        #[test]
        fn each_window_comes_once_an_epoch(
            seed: u64, tokens in 2u64..5000, context in 1u64..200, epoch in 0u64..4,
        ) {
            prop_assume!(tokens > context);
            let order = Order::shuffled(seed, tokens, context).unwrap();
            let first = epoch * order.windows();
            let mut starts: Vec<u64> =
                (first..first + order.windows()).map(|i| order.sample(i)).collect();
            starts.sort_unstable();
            prop_assert!(starts.windows(2).all(|two| two[1] - two[0] == context));
            prop_assert!(starts[0] < context);
            prop_assert!(starts[starts.len() - 1] + context < tokens);
            // Less than two windows are left out.
            prop_assert!(tokens - order.windows() * context <= 2 * context);
        }

        #[test]
        fn a_step_is_the_same_however_it_is_shared(
            step in 0u64..1000, batch in 1u64..100, ranks in 1u64..20, micro_batch in 1u64..20,
        ) {
            let mut all = Vec::new();
            for rank in 0..ranks {
                let micros = micro_batches(batch, rank, ranks, micro_batch);
                for micro in 0..micros {
                    let share = share(step, batch, rank, ranks, micro, micro_batch);
                    prop_assert!(!share.is_empty() && share.end - share.start <= micro_batch);
                    all.extend(share);
                }
                prop_assert!(share(step, batch, rank, ranks, micros, micro_batch).is_empty());
            }
            let whole: Vec<u64> = (step * batch..(step + 1) * batch).collect();
            prop_assert_eq!(all, whole);
        }
    }

    #[test]
    fn epochs_differ_in_order_and_boundaries() {
        let order = Order::shuffled(1, 100_000, 64).unwrap();
        let starts = |epoch: u64| -> Vec<u64> {
            let first = epoch * order.windows();
            (first..first + order.windows()).map(|index| order.sample(index)).collect()
        };
        let phases: Vec<u64> = (0..8).map(|epoch| starts(epoch)[0] % 64).collect();
        assert!(phases.iter().any(|phase| *phase != phases[0]), "{phases:?}");
        assert!(starts(0).windows(2).any(|two| two[0] > two[1]), "not shuffled");
        assert_ne!(starts(0), starts(1));
        assert_ne!(
            starts(0)[..9],
            (0..9).map(|i| Order::shuffled(2, 100_000, 64).unwrap().sample(i)).collect::<Vec<_>>()
                [..]
        );
    }

    #[test]
    fn samples_stay_where_they_are() {
        // Whoever changes these changes what a resumed run reads.
        let order = Order::shuffled(1337, 1_003_854, 64).unwrap();
        let first: Vec<u64> = (0..6).map(|index| order.sample(index)).collect();
        assert_eq!(first, [998_445, 957_933, 919_917, 102_381, 177_581, 99_885]);
    }

    #[test]
    fn straight_is_straight_and_uses_all() {
        let order = Order::straight(21, 5).unwrap();
        let starts: Vec<u64> = (0..5).map(|index| order.sample(index)).collect();
        assert_eq!((order.windows(), starts), (4, vec![0, 5, 10, 15, 0]));
        assert_eq!((order.range(3), order.epoch(4)), (15..21, 1));
    }

    #[test]
    fn too_few_tokens_are_said() {
        let error = Order::shuffled(0, 64, 64).unwrap_err().to_string();
        assert!(error.contains("64 tokens") && error.contains("65"), "{error}");
        assert!(Order::straight(65, 64).is_ok() && Order::straight(9, 0).is_err());
        assert_eq!(Order::shuffled(0, 65, 64).unwrap().windows(), 1);
    }
}
