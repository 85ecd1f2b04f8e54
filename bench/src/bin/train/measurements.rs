//! Step times of ranks that train together.

use std::time::Duration;

use regatta_benchmarks::RunTimes;

use crate::round_line::{PhaseTimes, RoundReport, StepTime};

/// All steps of a group of workers.
#[derive(Debug, Default)]
pub struct Measurements {
    /// Steps of each process; all have the same number.
    processes: Vec<Vec<StepTime>>,
    /// Step times of each round.
    rounds: Vec<RunTimes>,
    /// Loss of the last step, averaged over processes.
    pub loss: f64,
}

impl Measurements {
    /// Adds a round.
    pub fn add_round(&mut self, reports: Vec<RoundReport>) {
        self.loss = mean(reports.iter().map(|report| report.loss));
        let steps: Vec<&[StepTime]> = reports.iter().map(|report| &report.steps[..]).collect();
        self.rounds.push(step_times(&steps));
        self.processes.resize_with(reports.len(), Vec::new);
        for (steps, report) in self.processes.iter_mut().zip(reports) {
            steps.extend(report.steps);
        }
    }

    /// Step times over all rounds.
    pub fn step_times(&self) -> RunTimes {
        step_times(&self.processes.iter().map(Vec::as_slice).collect::<Vec<_>>())
    }

    /// Minimum and maximum over rounds of the ratio of median step times. Within a round, a change of the
    /// machine's speed affects both.
    pub fn ratio_range(&self, baseline: &Self) -> [f64; 2] {
        let seconds = |times: &RunTimes| times.median.as_secs_f64();
        let rounds = self.rounds.iter().zip(&baseline.rounds);
        let ratios = rounds.map(|(times, baseline)| seconds(times) / seconds(baseline));
        ratios.fold([f64::INFINITY, 0.0], |[min, max], ratio| [min.min(ratio), max.max(ratio)])
    }

    /// Exposed communication as a fraction of the step: the median of the rank with the largest one.
    pub fn exposed_communication(&self) -> Option<f64> {
        let fraction = |step: &StepTime| Some(step.phases?.communication / step.seconds);
        let of_rank = |steps: &Vec<StepTime>| median(steps.iter().filter_map(fraction).collect());
        self.processes.iter().filter_map(of_rank).max_by(f64::total_cmp)
    }

    /// Median over all steps of all processes of the seconds of a phase.
    pub fn median_phase(&self, phase: fn(&StepTime, &PhaseTimes) -> f64) -> Option<f64> {
        let steps = self.processes.iter().flatten();
        median(steps.filter_map(|step| Some(phase(step, step.phases.as_ref()?))).collect())
    }
}

/// Step times of several processes: a step takes as long as on the slowest one.
fn step_times(processes: &[&[StepTime]]) -> RunTimes {
    let steps = processes.iter().map(|steps| steps.len()).min().unwrap_or(0);
    let slowest = |step: usize| {
        let seconds = processes.iter().map(|steps| steps[step].seconds);
        Duration::from_secs_f64(seconds.fold(0.0, f64::max))
    };
    RunTimes::of((0..steps).map(slowest).collect())
}

pub fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len() as f64;
    values.sum::<f64>() / count
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(steps: &[(f64, f64)], loss: f64) -> RoundReport {
        let step = |&(seconds, communication): &(f64, f64)| {
            let (forward, backward, optimizer) = (0.25, 0.5, 0.125);
            let phases = Some(PhaseTimes { forward, backward, communication, optimizer });
            StepTime { seconds, phases }
        };
        RoundReport { steps: steps.iter().map(step).collect(), loss }
    }

    #[test]
    fn a_step_takes_as_long_as_the_slowest_rank() {
        let mut measurements = Measurements::default();
        measurements.add_round(vec![report(&[(1.0, 0.1)], 9.0), report(&[(2.0, 0.1)], 9.0)]);
        let steps = [(5.0, 0.5), (3.0, 0.9)];
        measurements.add_round(vec![report(&steps, 4.0), report(&[(4.0, 2.0), (1.0, 0.5)], 2.0)]);
        assert_eq!(measurements.step_times().median, Duration::from_secs(3));
        assert_eq!(measurements.loss, 3.0);
        // On the second rank: 0.05, 0.5 and 0.5.
        assert_eq!(measurements.exposed_communication(), Some(0.5));
        assert_eq!(measurements.median_phase(|_, phases| phases.communication), Some(0.5));
    }

    #[test]
    fn ratios_are_computed_per_round() {
        let round = |seconds: f64| vec![report(&[(seconds, 0.0)], 1.0)];
        let [mut regatta, mut torch] = [Measurements::default(), Measurements::default()];
        // The machine is half as fast in the second round.
        for (regatta_seconds, torch_seconds) in [(1.0, 1.5), (2.0, 4.0)] {
            regatta.add_round(round(regatta_seconds));
            torch.add_round(round(torch_seconds));
        }
        assert_eq!(torch.ratio_range(&regatta), [1.5, 2.0]);
    }

    #[test]
    fn phases_are_unknown_for_torch() {
        let mut measurements = Measurements::default();
        let steps = vec![StepTime { seconds: 1.0, phases: None }];
        measurements.add_round(vec![RoundReport { steps, loss: 1.0 }]);
        assert!(measurements.exposed_communication().is_none());
        assert!(measurements.median_phase(|step, _| step.seconds).is_none());
    }
}
