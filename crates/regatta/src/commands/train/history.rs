//! What is known of a run so far, from what rank 0 told. No I/O; times are given, in seconds since
//! the watch began.

use std::collections::VecDeque;

use regatta_train::metrics::{About, Event, StepMetrics, StepSeconds, Summary};

/// Steps that figures of speed are taken over.
const RECENT: usize = 50;
/// Parts of a step.
pub const PARTS: usize = 7;
/// The least share of a step that is worth a word.
const NOTABLE: f64 = 0.005;
/// Points of a curve that are kept: more than a screen has dots.
const MOST_POINTS: usize = 4096;

/// Losses over steps. When there are too many, neighbours become one: no run fills the memory.
#[derive(Debug, Clone, Default)]
pub struct History {
    points: Vec<(f64, f64)>,
    /// How many losses a point is the mean of.
    each: usize,
    /// The next point's steps, losses, and how many.
    next: (f64, f64, usize),
}

impl History {
    /// Adds the loss of a step.
    pub fn add(&mut self, step: u64, loss: f64) {
        self.each = self.each.max(1);
        let (steps, losses, count) = self.next;
        self.next = (steps + step as f64, losses + loss, count + 1);
        if self.next.2 >= self.each {
            let (steps, losses, count) = std::mem::take(&mut self.next);
            self.points.push((steps / count as f64, losses / count as f64));
        }
        if self.points.len() >= MOST_POINTS {
            let mean = |pair: &[(f64, f64)]| {
                let n = pair.len() as f64;
                (
                    pair.iter().map(|p| p.0).sum::<f64>() / n,
                    pair.iter().map(|p| p.1).sum::<f64>() / n,
                )
            };
            self.points = self.points.chunks(2).map(mean).collect();
            self.each *= 2;
        }
    }

    /// Steps and losses.
    pub fn points(&self) -> &[(f64, f64)] {
        &self.points
    }
}

/// What is known of a run so far.
#[derive(Debug, Clone, Default)]
pub struct Watch {
    /// What is trained.
    pub about: About,
    /// The last step.
    pub latest: Option<StepMetrics>,
    /// The last loss on what is not trained on.
    pub validation: Option<f64>,
    /// Losses over steps.
    pub training: History,
    /// Validation losses over steps.
    pub validations: History,
    /// The step of the last checkpoint.
    pub checkpoint: Option<u64>,
    /// How it ended.
    pub ended: Option<Summary>,
    /// Which parts of a step have taken time that is worth a word, in the order of
    /// [`StepSeconds::parts`]. One that has stays, so that nothing comes and goes.
    pub notable: [bool; PARTS],
    recent: VecDeque<(f64, StepMetrics)>,
}

impl Watch {
    /// Takes what happened.
    pub fn hear(&mut self, event: &Event, now: f64) {
        match event {
            Event::Begin(about) => self.about = (**about).clone(),
            Event::Step(step) => self.step(step, now),
            Event::Validation { step, loss } => self.validated(*step, *loss),
            Event::Checkpoint { step, .. } => self.checkpoint = Some(*step),
            Event::End(summary) => self.ended = Some((**summary).clone()),
            Event::Note(_) | Event::Sample(_) => {}
        }
    }

    /// Takes what happened before a restart: it belongs to the curve, not to the pace. Of steps that
    /// are done again, what was seen of them does not count.
    pub fn recall(&mut self, before: &[Event]) {
        (self.training, self.validations) = Default::default();
        for event in before {
            match event {
                Event::Step(step) => self.training.add(step.step, step.loss),
                Event::Validation { step, loss } => self.validated(*step, *loss),
                _ => {}
            }
        }
    }

    fn step(&mut self, step: &StepMetrics, now: f64) {
        self.training.add(step.step, step.loss);
        if let Some(loss) = step.validation_loss {
            self.validated(step.step, loss);
        }
        if self.recent.len() >= RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back((now, step.clone()));
        self.latest = Some(step.clone());
        let parts = self.seconds().parts();
        let sum: f64 = parts.iter().map(|(_, seconds)| seconds).sum();
        for (notable, (_, seconds)) in self.notable.iter_mut().zip(parts) {
            *notable |= seconds > NOTABLE * sum;
        }
    }

    fn validated(&mut self, step: u64, loss: f64) {
        self.validations.add(step, loss);
        self.validation = Some(loss);
    }

    /// Steps that are done.
    pub fn done(&self) -> u64 {
        self.latest.as_ref().map_or(self.about.done, |step| step.step)
    }

    /// The steps of the run.
    pub fn steps(&self) -> u64 {
        self.latest.as_ref().map_or(self.about.steps, |step| step.steps).max(1)
    }

    /// Seconds until the last step, if the pace stays that of the last ones.
    pub fn left(&self, now: f64) -> Option<f64> {
        let ((first, from), (last, to)) = (self.recent.front()?, self.recent.back()?);
        let steps = to.step.saturating_sub(from.step) as f64;
        // What happens between steps, such as a validation, takes its time too.
        let each = if steps > 0.0 { (last - first) / steps } else { to.seconds.step };
        let behind = to.steps.saturating_sub(to.step) as f64;
        Some((behind * each - (now - last)).max(0.0))
    }

    /// The mean of a figure a second, over the last steps: each has as many tokens.
    pub fn speed(&self, of: fn(&StepMetrics) -> f64) -> Option<f64> {
        let times = self.recent.iter().map(|(_, step)| 1.0 / of(step));
        let mean = times.sum::<f64>() / self.recent.len() as f64;
        (mean.is_finite() && mean > 0.0).then(|| 1.0 / mean)
    }

    /// Where the time of the last steps went, on the mean.
    pub fn seconds(&self) -> StepSeconds {
        let n = self.recent.len().max(1) as f64;
        let mean = |of: fn(&StepSeconds) -> f64| {
            self.recent.iter().map(|(_, step)| of(&step.seconds)).sum::<f64>() / n
        };
        StepSeconds {
            step: mean(|s| s.step),
            data: mean(|s| s.data),
            forward: mean(|s| s.forward),
            backward: mean(|s| s.backward),
            communication: mean(|s| s.communication),
            optimizer: mean(|s| s.optimizer),
            checkpoint: mean(|s| s.checkpoint),
            other: mean(|s| s.other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_run_is_kept_in_little_memory_with_its_means() {
        let mut history = History::default();
        (1..=1_000_000).for_each(|step| history.add(step, step as f64));
        let points = history.points();
        assert!((1000..MOST_POINTS).contains(&points.len()), "{}", points.len());
        assert!(points.iter().all(|(step, loss)| step == loss));
        assert!(points.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }

    #[test]
    fn what_was_before_a_restart_is_in_the_curve_only() {
        let mut watch = Watch::default();
        let step = StepMetrics { step: 1, loss: 4.0, ..Default::default() };
        watch.recall(&[Event::Step(Box::new(step)), Event::Validation { step: 1, loss: 3.0 }]);
        assert_eq!((watch.training.points(), watch.validation), (&[(1.0, 4.0)][..], Some(3.0)));
        assert_eq!((watch.done(), watch.left(0.0)), (0, None));
    }

    #[test]
    fn the_time_left_follows_the_pace_of_the_last_steps() {
        let mut watch = Watch::default();
        assert_eq!((watch.left(0.0), watch.speed(|s| s.tokens_per_second)), (None, None));
        for step in 1..=100u64 {
            let seconds = StepSeconds { step: 0.1, ..Default::default() };
            let pace = if step <= 40 { 1.0 } else { 0.5 };
            let metrics = StepMetrics {
                step,
                steps: 200,
                seconds,
                tokens_per_second: 10.0,
                ..Default::default()
            };
            watch.hear(&Event::Step(Box::new(metrics)), 1000.0 + step as f64 * pace);
        }
        assert_eq!(watch.left(1050.0), Some(50.0));
        assert_eq!(watch.left(1051.0), Some(49.0));
        assert_eq!(watch.left(9999.0), Some(0.0));
        assert!(watch.speed(|s| s.tokens_per_second).is_some_and(|s| (s - 10.0).abs() < 1e-9));
    }
}
