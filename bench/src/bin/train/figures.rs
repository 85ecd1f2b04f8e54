//! What was measured of ranks that take their steps together.

use std::time::Duration;

use regatta_benchmarks::Times;

use crate::answer::{Answer, Laps, Step};

/// All steps of a crew.
#[derive(Debug, Default)]
pub struct Figures {
    /// Of each process; all have as many.
    processes: Vec<Vec<Step>>,
    /// How long the steps of each turn took.
    turns: Vec<Times>,
    /// Of the last step, the mean of all processes.
    pub loss: f64,
}

impl Figures {
    /// A turn more.
    pub fn add(&mut self, answers: Vec<Answer>) {
        self.loss = mean(answers.iter().map(|answer| answer.loss));
        let steps: Vec<&[Step]> = answers.iter().map(|answer| &answer.steps[..]).collect();
        self.turns.push(times(&steps));
        self.processes.resize_with(answers.len(), Vec::new);
        for (steps, answer) in self.processes.iter_mut().zip(answers) {
            steps.extend(answer.steps);
        }
    }

    /// How long steps took.
    pub fn times(&self) -> Times {
        times(&self.processes.iter().map(Vec::as_slice).collect::<Vec<_>>())
    }

    /// How many times as long these took as others, in the turn in which that was least, and most:
    /// a machine that becomes slower meanwhile does so for both.
    pub fn beside(&self, others: &Self) -> [f64; 2] {
        let seconds = |times: &Times| times.median.as_secs_f64();
        let turns = self.turns.iter().zip(&others.turns);
        let ratios = turns.map(|(these, those)| seconds(these) / seconds(those));
        ratios
            .fold([f64::INFINITY, 0.0], |[least, most], ratio| [least.min(ratio), most.max(ratio)])
    }

    /// The share of a step in which a rank waits for others: the median of the rank that waits most.
    pub fn exposed(&self) -> Option<f64> {
        let share = |step: &Step| Some(step.laps?.communication / step.seconds);
        let of_rank = |steps: &Vec<Step>| median(steps.iter().filter_map(share).collect());
        self.processes.iter().filter_map(of_rank).max_by(f64::total_cmp)
    }

    /// How long some part of a step takes: the median of all steps of all processes.
    pub fn part(&self, of: fn(&Step, &Laps) -> f64) -> Option<f64> {
        let all = self.processes.iter().flatten();
        median(all.filter_map(|step| Some(of(step, step.laps.as_ref()?))).collect())
    }
}

/// How long the steps of some processes took: each as long as the slowest one.
fn times(processes: &[&[Step]]) -> Times {
    let steps = processes.iter().map(|steps| steps.len()).min().unwrap_or(0);
    let slowest = |step: usize| {
        let seconds = processes.iter().map(|steps| steps[step].seconds);
        Duration::from_secs_f64(seconds.fold(0.0, f64::max))
    };
    Times::of((0..steps).map(slowest).collect())
}

pub fn mean(numbers: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = numbers.len() as f64;
    numbers.sum::<f64>() / count
}

fn median(mut numbers: Vec<f64>) -> Option<f64> {
    numbers.sort_unstable_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(steps: &[(f64, f64)], loss: f64) -> Answer {
        let step = |&(seconds, communication): &(f64, f64)| {
            let laps = Laps { forward: 0.25, backward: 0.5, communication, optimizer: 0.125 };
            Step { seconds, laps: Some(laps) }
        };
        Answer { steps: steps.iter().map(step).collect(), loss }
    }

    #[test]
    fn a_step_takes_as_long_as_the_slowest_rank() {
        let mut figures = Figures::default();
        figures.add(vec![answer(&[(1.0, 0.1)], 9.0), answer(&[(2.0, 0.1)], 9.0)]);
        let steps = [(5.0, 0.5), (3.0, 0.9)];
        figures.add(vec![answer(&steps, 4.0), answer(&[(4.0, 2.0), (1.0, 0.5)], 2.0)]);
        assert_eq!(figures.times().median, Duration::from_secs(3));
        assert_eq!(figures.loss, 3.0);
        // Of the second rank: 0.05, 0.5 and 0.5.
        assert_eq!(figures.exposed(), Some(0.5));
        assert_eq!(figures.part(|_, laps| laps.communication), Some(0.5));
    }

    #[test]
    fn crews_are_compared_turn_by_turn() {
        let turn = |seconds: f64| vec![answer(&[(seconds, 0.0)], 1.0)];
        let [mut ours, mut theirs] = [Figures::default(), Figures::default()];
        // The machine is half as fast in the second.
        for (our, their) in [(1.0, 1.5), (2.0, 4.0)] {
            ours.add(turn(our));
            theirs.add(turn(their));
        }
        assert_eq!(theirs.beside(&ours), [1.5, 2.0]);
    }

    #[test]
    fn peers_do_not_say_where_time_goes() {
        let mut figures = Figures::default();
        figures.add(vec![Answer { steps: vec![Step { seconds: 1.0, laps: None }], loss: 1.0 }]);
        assert!(figures.exposed().is_none() && figures.part(|step, _| step.seconds).is_none());
    }
}
