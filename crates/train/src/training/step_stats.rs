//! Step statistics that are summed over ranks by a single all-reduce. No I/O.

use std::time::Duration;

use crate::step::{StepResult, StepTimings};

/// Number of elements in the all-reduce.
pub const LEN: usize = 9;

/// Statistics of a step, of one rank or summed over ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct StepStats {
    /// Sum of the losses of all tokens.
    pub loss_sum: f64,
    /// Ranks that were interrupted.
    pub interrupted: f64,
    /// Ranks that have written their shards of the checkpoint, and ranks that failed to.
    pub saves: [f64; 2],
    /// Seconds of data, forward, backward, exposed communication, optimizer.
    pub seconds: [f64; 5],
}

impl StepStats {
    /// Of this rank.
    pub fn new(result: &StepResult, data: Duration) -> Self {
        let StepTimings { forward, backward, communication, optimizer } = result.timings;
        let phases = [data, forward, backward, communication, optimizer];
        let seconds = phases.map(|phase| phase.as_secs_f64());
        Self { loss_sum: result.loss_sum, seconds, ..Self::default() }
    }

    /// As the elements of an all-reduce.
    pub fn to_array(self) -> [f64; LEN] {
        let [written, failed] = self.saves;
        let [a, b, c, d, e] = self.seconds;
        [self.loss_sum, self.interrupted, written, failed, a, b, c, d, e]
    }

    /// From the elements of an all-reduce.
    pub fn from_array(elements: [f64; LEN]) -> Self {
        let [loss_sum, interrupted, written, failed, seconds @ ..] = elements;
        Self { loss_sum, interrupted, saves: [written, failed], seconds }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stats_round_trip_through_the_array() {
        let elements = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0];
        let stats = StepStats::from_array(elements);
        assert_eq!(stats.to_array(), elements);
        assert_eq!((stats.loss_sum, stats.saves, stats.seconds[4]), (1.0, [3.0, 4.0], 9.0));
    }
}
