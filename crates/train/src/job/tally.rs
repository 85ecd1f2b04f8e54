//! What ranks tell each other about a step: one small sum over all of them. No I/O.

use std::time::Duration;

use crate::step::{Laps, Outcome};

/// How many numbers it is.
pub const LEN: usize = 9;

/// What a rank, or all ranks together, have to say about a step.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Tally {
    /// The sum of the losses of all tokens.
    pub loss_sum: f64,
    /// How many ranks were told to stop.
    pub stops: f64,
    /// How many have written their part of a checkpoint, and how many failed to.
    pub kept: [f64; 2],
    /// Seconds of waiting for data, forward, backward, exposed communication, optimizer.
    pub seconds: [f64; 5],
}

impl Tally {
    /// Of one rank.
    pub fn new(outcome: &Outcome, data: Duration) -> Self {
        let Laps { forward, backward, communication, optimizer } = outcome.laps;
        let laps = [data, forward, backward, communication, optimizer];
        let seconds = laps.map(|lap| lap.as_secs_f64());
        Self { loss_sum: outcome.loss_sum, seconds, ..Self::default() }
    }

    /// As numbers to be summed.
    pub fn numbers(&self) -> [f64; LEN] {
        let [written, failed] = self.kept;
        let [a, b, c, d, e] = self.seconds;
        [self.loss_sum, self.stops, written, failed, a, b, c, d, e]
    }

    /// From their sums.
    pub fn from_numbers(numbers: [f64; LEN]) -> Self {
        let [loss_sum, stops, written, failed, seconds @ ..] = numbers;
        Self { loss_sum, stops, kept: [written, failed], seconds }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back() {
        let numbers = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0];
        let tally = Tally::from_numbers(numbers);
        assert_eq!(tally.numbers(), numbers);
        assert_eq!((tally.loss_sum, tally.kept, tally.seconds[4]), (1.0, [3.0, 4.0], 9.0));
    }
}
