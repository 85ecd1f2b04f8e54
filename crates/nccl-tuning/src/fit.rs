//! Fits a table to measured times: a choice has to beat NCCL's default by more than the noise.

use std::collections::BTreeMap;

use crate::{Choice, Communicator, Function, Protocol, Row, SizeRange};

/// The smallest gain over NCCL's default, as a fraction of its time.
pub const MIN_GAIN: f64 = 0.05;
/// The smallest number of rounds: one slow round must not decide.
pub const MIN_ROUNDS: usize = 3;
/// A choice also applies to the next size if the best one there is faster by no more than this: tables
/// stay short.
const SAME_CHOICE: f64 = 0.03;

/// A measured time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timing {
    /// The collective.
    pub function: Function,
    /// Bytes of a rank's largest buffer.
    pub bytes: u64,
    /// The choice; `None`: NCCL's default.
    pub choice: Option<Choice>,
    /// The round. Within a round, NCCL's default and all choices are measured one after the other.
    pub round: u32,
    /// Time of a call, in microseconds.
    pub time_us: f64,
}

/// A choice and its time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ChoiceTime {
    /// The choice.
    pub choice: Choice,
    /// The median over the rounds, in microseconds.
    pub time_us: f64,
}

/// The fit of one size.
#[derive(Debug, Clone, PartialEq)]
pub struct SizeFit {
    /// The collective.
    pub function: Function,
    /// Bytes of a rank's largest buffer.
    pub bytes: u64,
    /// NCCL's default: the median over the rounds, in microseconds.
    pub default_us: f64,
    /// The fastest choice, whether it is better than the default or not.
    pub fastest: Option<ChoiceTime>,
    /// The choice, if one is better than the default.
    pub chosen: Option<ChoiceTime>,
    /// The choice where LL128 is not available. NCCL enables it on request also where it would not by
    /// itself, and the plug-in cannot.
    pub without_ll128: Option<ChoiceTime>,
}

/// The times of one collective and size, by choice and round.
#[derive(Debug, Default)]
struct Samples {
    default: BTreeMap<u32, Vec<f64>>,
    choices: BTreeMap<Choice, BTreeMap<u32, f64>>,
}

/// Fits every measured size, in the order of collectives and sizes.
pub fn fit(timings: &[Timing]) -> Vec<SizeFit> {
    let mut samples: BTreeMap<(Function, u64), Samples> = BTreeMap::new();
    for timing in timings.iter().filter(|one| one.time_us.is_finite() && one.time_us > 0.0) {
        let samples = samples.entry((timing.function, timing.bytes)).or_default();
        match timing.choice {
            None => samples.default.entry(timing.round).or_default().push(timing.time_us),
            Some(choice) => {
                samples.choices.entry(choice).or_default().insert(timing.round, timing.time_us);
            }
        }
    }
    let mut fits: Vec<SizeFit> = Vec::new();
    for ((function, bytes), samples) in samples {
        let previous = fits.last().filter(|fit| fit.function == function);
        fits.extend(samples.fit(function, bytes, previous));
    }
    fits
}

impl Samples {
    fn fit(&self, function: Function, bytes: u64, previous: Option<&SizeFit>) -> Option<SizeFit> {
        let all: Vec<f64> = self.default.values().flatten().copied().collect();
        let default_us = median(&all)?;
        let time = |(choice, times): (&Choice, &BTreeMap<u32, f64>)| {
            let times: Vec<f64> = times.values().copied().collect();
            Some(ChoiceTime { choice: *choice, time_us: median(&times)? })
        };
        let fastest = |choices: &mut dyn Iterator<Item = ChoiceTime>| {
            choices.min_by(|a, b| a.time_us.total_cmp(&b.time_us))
        };
        let better: Vec<ChoiceTime> = self
            .choices
            .iter()
            .filter(|(_, times)| self.is_better(times))
            .filter_map(time)
            .collect();
        let select = |allowed: &dyn Fn(Choice) -> bool, previous: Option<ChoiceTime>| {
            let best = fastest(&mut better.iter().copied().filter(|one| allowed(one.choice)))?;
            let is_same = |one: &&ChoiceTime| {
                previous.is_some_and(|previous| previous.choice == one.choice)
                    && one.time_us <= best.time_us * (1.0 + SAME_CHOICE)
            };
            Some(better.iter().find(is_same).copied().unwrap_or(best))
        };
        let chosen = select(&|_| true, previous.and_then(|previous| previous.chosen));
        let is_ll128 = |choice: Choice| choice.protocol == Protocol::Ll128;
        let without_ll128 = chosen.filter(|chosen| is_ll128(chosen.choice)).and_then(|_| {
            select(
                &|choice| !is_ll128(choice),
                previous.and_then(|previous| previous.without_ll128),
            )
        });
        let fastest = fastest(&mut self.choices.iter().filter_map(time));
        Some(SizeFit { function, bytes, default_us, fastest, chosen, without_ll128 })
    }

    /// Whether a choice beats NCCL's default by more than the noise: it was measured in every round, its
    /// median is lower by [`MIN_GAIN`], and without the slowest quarter of its rounds, all of its times are
    /// below all of the default's.
    fn is_better(&self, times: &BTreeMap<u32, f64>) -> bool {
        let rounds = self.default.len();
        if rounds < MIN_ROUNDS || !self.default.keys().all(|round| times.contains_key(round)) {
            return false;
        }
        let default: Vec<f64> = self.default.values().flatten().copied().collect();
        let own = sorted(&times.values().copied().collect::<Vec<_>>());
        let gains = median(&own)
            .zip(median(&default))
            .is_some_and(|(own_us, default_us)| own_us <= default_us * (1.0 - MIN_GAIN));
        let upper_quartile =
            own.get((own.len() * 3).div_ceil(4) - 1).copied().unwrap_or(f64::INFINITY);
        gains && default.iter().all(|default| upper_quartile < *default)
    }
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

fn median(values: &[f64]) -> Option<f64> {
    let sorted = sorted(values);
    let (low, high) =
        (sorted.get(sorted.len().checked_sub(1)? / 2)?, sorted.get(sorted.len() / 2)?);
    Some(f64::midpoint(*low, *high))
}

/// The rows of a table for one communicator. Neighbouring sizes with the same choice share a row, which
/// extends half-way, by ratio, to the next size with another choice. Rows that apply without LL128 are the
/// last: the plug-in takes the first that is available.
pub fn rows(fits: &[SizeFit], communicator: Communicator) -> Vec<Row> {
    let mut rows = Vec::new();
    let levels: [fn(&SizeFit) -> Option<ChoiceTime>; 2] =
        [|fit| fit.chosen, |fit| fit.without_ll128];
    for of in levels {
        for sizes in fits.chunk_by(|a, b| a.function == b.function) {
            let choice = |fit: &SizeFit| of(fit).map(|one| one.choice);
            let mut start = 0;
            for group in sizes.chunk_by(|a, b| choice(a) == choice(b)) {
                let end = start + group.len();
                if let (Some(choice), Some(first)) = (choice(&group[0]), group.first()) {
                    let function = first.function;
                    let sizes = range(sizes, start, end);
                    rows.push(Row { function, communicator, sizes, choice });
                }
                start = end;
            }
        }
    }
    rows
}

/// The range of the sizes from `start` to `end`, of all measured sizes.
fn range(sizes: &[SizeFit], start: usize, end: usize) -> SizeRange {
    let first = match start.checked_sub(1) {
        Some(before) => half_way(sizes[before].bytes, sizes[start].bytes),
        None => sizes[start].bytes,
    };
    let last = match sizes.get(end) {
        Some(next) => half_way(sizes[end - 1].bytes, next.bytes).saturating_sub(1),
        None => sizes[end - 1].bytes,
    };
    SizeRange { first, last }
}

/// The size half-way between two, by ratio: more than the first, at most the second.
fn half_way(low: u64, high: u64) -> u64 {
    let root = (u128::from(low) * u128::from(high)).isqrt();
    u64::try_from(root)
        .unwrap_or(high)
        .saturating_add(1)
        .clamp(low.saturating_add(1).min(high), high)
}

#[cfg(test)]
mod tests;
