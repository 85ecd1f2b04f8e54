//! The state of a run, accumulated from its events. No I/O; times are arguments, in seconds since
//! the start.

use std::collections::VecDeque;

use regatta_model::run_folder::{Record, RunEvent, StepMetrics, StepSeconds};
use regatta_model::train_event::{Event, RunInfo, Summary};

/// Steps over which throughput and times are averaged.
const WINDOW: usize = 50;
/// Phases of a step.
pub const PHASES: usize = 7;
/// Fraction of a step from which a phase is in the legend.
const VISIBLE_FRACTION: f64 = 0.005;
/// Upper bound on points of a loss history; no terminal has as many dots.
const MAX_POINTS: usize = 4096;

/// Losses over steps, downsampled so that memory is bounded.
#[derive(Debug, Clone, Default)]
pub struct LossHistory {
    points: Vec<(f64, f64)>,
    /// Number of losses averaged per point.
    bucket_size: usize,
    /// Sum of steps, sum of losses and count of the incomplete last point.
    bucket: (f64, f64, usize),
}

impl LossHistory {
    /// Adds the loss of a step.
    pub fn add(&mut self, step: u64, loss: f64) {
        self.bucket_size = self.bucket_size.max(1);
        let (steps, losses, count) = self.bucket;
        self.bucket = (steps + step as f64, losses + loss, count + 1);
        if self.bucket.2 >= self.bucket_size {
            let (steps, losses, count) = std::mem::take(&mut self.bucket);
            self.points.push((steps / count as f64, losses / count as f64));
        }
        if self.points.len() >= MAX_POINTS {
            let mean = |pair: &[(f64, f64); 2]| {
                let [(a, b), (c, d)] = pair;
                ((a + c) / 2.0, (b + d) / 2.0)
            };
            self.points = self.points.as_chunks().0.iter().map(mean).collect();
            self.bucket_size *= 2;
        }
    }

    /// Steps and losses.
    pub fn points(&self) -> &[(f64, f64)] {
        &self.points
    }
}

/// The state of a run.
#[derive(Debug, Clone, Default)]
pub struct RunHistory {
    /// Description of the run.
    pub about: RunInfo,
    /// Metrics of the last step.
    pub last_step: Option<StepMetrics>,
    /// The last validation loss.
    pub val_loss: Option<f64>,
    /// Training losses.
    pub train_losses: LossHistory,
    /// Validation losses.
    pub val_losses: LossHistory,
    /// Micro-batches finished of the current step, and their number, if the step takes long.
    pub micro_batch: Option<(usize, usize)>,
    /// Step of the last checkpoint.
    pub checkpoint: Option<u64>,
    /// Summary at the end.
    pub summary: Option<Summary>,
    /// Phases of a step shown in the legend, in the order of [`StepSeconds::phases`]. A phase that
    /// was visible once stays, so that the layout is stable.
    pub visible_phases: [bool; PHASES],
    /// What a termination signal does, while it does.
    pub signal_note: Option<String>,
    /// When the current step started.
    step_start: f64,
    recent: VecDeque<StepMetrics>,
}

impl RunHistory {
    /// Applies an event.
    pub fn on_event(&mut self, event: &Event, now: f64) {
        if matches!(event, Event::Start(_) | Event::Step(_) | Event::Validation { .. }) {
            self.step_start = now;
        }
        match event {
            Event::Start(about) => {
                self.about = (**about).clone();
                // The times of a restarted run are those of another process.
                self.recent.clear();
            }
            Event::MicroBatch { done, micro_batches, .. } => {
                self.micro_batch = Some((*done, *micro_batches));
            }
            Event::Step(step) => self.add_step(step),
            Event::Validation { step, loss } => self.add_validation(*step, *loss),
            Event::Checkpoint { step, .. } => self.checkpoint = Some(*step),
            Event::End(summary) => self.summary = Some((**summary).clone()),
            Event::Note(_) | Event::Sample(_) => {}
        }
    }

    /// Replaces the losses by those recorded up to the last step before a resume. Steps after it are
    /// repeated, so their losses are dropped; throughput does not include earlier steps.
    pub fn restore(&mut self, recorded: &[Record], last_step: u64) {
        (self.train_losses, self.val_losses) = Default::default();
        for record in recorded {
            match &record.event {
                RunEvent::Step(s) if s.step <= last_step => self.train_losses.add(s.step, s.loss),
                RunEvent::Validation { step, val_loss } if *step <= last_step => {
                    self.add_validation(*step, *val_loss);
                }
                _ => {}
            }
        }
    }

    fn add_step(&mut self, step: &StepMetrics) {
        self.micro_batch = None;
        self.train_losses.add(step.step, step.loss);
        if let Some(loss) = step.val_loss {
            self.add_validation(step.step, loss);
        }
        if self.recent.len() >= WINDOW {
            self.recent.pop_front();
        }
        self.recent.push_back(step.clone());
        self.last_step = Some(step.clone());
        let phases = self.step_times().phases();
        let sum: f64 = phases.iter().map(|(_, seconds)| seconds).sum();
        for (visible, (_, seconds)) in self.visible_phases.iter_mut().zip(phases) {
            *visible |= seconds > VISIBLE_FRACTION * sum;
        }
    }

    fn add_validation(&mut self, step: u64, loss: f64) {
        self.val_losses.add(step, loss);
        self.val_loss = Some(loss);
    }

    /// Completed steps.
    pub fn done(&self) -> u64 {
        self.last_step.as_ref().map_or(self.about.start_step, |step| step.step)
    }

    /// Total steps of the run.
    pub fn steps(&self) -> u64 {
        self.last_step.as_ref().map_or(self.about.steps, |step| step.steps).max(1)
    }

    /// Excludes a time in which the job was stopped from that of the current step.
    pub fn skip(&mut self, seconds: f64) {
        self.step_start += seconds;
    }

    /// Seconds since the start of the current step.
    pub fn step_elapsed(&self, now: f64) -> f64 {
        (now - self.step_start).max(0.0)
    }

    /// Estimated seconds to the last step, from the recent steps. It does not fall further once a step
    /// takes longer than these.
    pub fn eta(&self, now: f64) -> Option<f64> {
        let (from, to) = (self.recent.front()?, self.recent.back()?);
        let steps = to.step.saturating_sub(from.step) as f64;
        // The interval between steps includes validations and checkpoints, but no stop.
        let running = |step: &StepMetrics| step.time - step.stopped_seconds;
        let seconds = (running(to) - running(from)).max(0.0);
        let interval = if steps > 0.0 { seconds / steps } else { to.seconds.step };
        let remaining = to.steps.saturating_sub(to.step) as f64;
        Some((remaining * interval - self.step_elapsed(now).min(interval)).max(0.0))
    }

    /// The harmonic mean of a throughput over the recent steps, which have the same number of tokens.
    pub fn throughput(&self, of: fn(&StepMetrics) -> f64) -> Option<f64> {
        let times = self.recent.iter().map(|step| 1.0 / of(step));
        let mean = times.sum::<f64>() / self.recent.len() as f64;
        (mean.is_finite() && mean > 0.0).then(|| 1.0 / mean)
    }

    /// Recent FLOP/s as a percentage of the measured GEMM peak, if known.
    pub fn gemm_percentage(&self) -> Option<f64> {
        let flops = self.throughput(|step| step.flops_per_second)?;
        gemm_percentage(flops, self.about.gemm_flops_per_second)
    }

    /// Mean times of the recent steps by phase.
    pub fn step_times(&self) -> StepSeconds {
        StepSeconds::mean(self.recent.iter())
    }
}

/// FLOP/s as a percentage of the measured GEMM peak, if known. More than the peak means that it was
/// measured too low, under load.
pub fn gemm_percentage(flops_per_second: f64, gemm_flops_per_second: f64) -> Option<f64> {
    let fraction = flops_per_second / gemm_flops_per_second;
    (gemm_flops_per_second > 0.0).then(|| 100.0 * fraction.min(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gemm_percentage_is_at_most_100() {
        assert_eq!(gemm_percentage(103.0, 100.0), Some(100.0));
        assert_eq!(gemm_percentage(40.0, 100.0), Some(40.0));
        assert_eq!(gemm_percentage(40.0, 0.0), None);
    }

    #[test]
    fn loss_history_of_a_long_run_is_downsampled_to_means() {
        let mut history = LossHistory::default();
        (1..=1_000_000).for_each(|step| history.add(step, step as f64));
        let points = history.points();
        assert!((1000..MAX_POINTS).contains(&points.len()), "{}", points.len());
        assert!(points.iter().all(|(step, loss)| step == loss));
        assert!(points.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }

    #[test]
    fn restored_steps_are_in_the_losses_but_not_in_the_throughput() {
        let mut history = RunHistory::default();
        let steps = [1, 2].map(|step| StepMetrics { step, loss: 4.0, ..Default::default() });
        let steps = steps.map(|step| RunEvent::Step(Box::new(step)));
        let validations = [1, 2].map(|step| RunEvent::Validation { step, val_loss: 3.0 });
        let events = steps.into_iter().chain(validations);
        let records: Vec<Record> = events.map(|event| Record::of_metrics(1e9, event)).collect();
        history.restore(&records, 1);
        assert_eq!(history.train_losses.points(), [(1.0, 4.0)]);
        assert_eq!((history.val_loss, history.done(), history.eta(0.0)), (Some(3.0), 0, None));
    }

    #[test]
    fn eta_and_throughput_follow_the_recent_steps() {
        let mut history = RunHistory::default();
        assert_eq!((history.eta(0.0), history.throughput(|s| s.tokens_per_second)), (None, None));
        for step in 1..=100u64 {
            let seconds = StepSeconds { step: 0.1, ..Default::default() };
            let interval = if step <= 40 { 1.0 } else { 0.5 };
            let (steps, tokens_per_second) = (200, 10.0);
            let time = 1000.0 + step as f64 * interval;
            let metrics =
                StepMetrics { step, steps, seconds, tokens_per_second, time, ..Default::default() };
            history.on_event(&Event::Step(Box::new(metrics)), time);
        }
        assert_eq!(history.eta(1050.0), Some(50.0));
        assert_eq!(history.eta(1050.4), Some(50.0 - (1050.4 - 1050.0)));
        assert_eq!(history.eta(9999.0), Some(49.5), "the step takes longer than the others");
        let rate = history.throughput(|s| s.tokens_per_second).unwrap();
        assert!((rate - 10.0).abs() < 1e-9, "{rate}");
    }

    #[test]
    fn eta_excludes_the_time_in_which_the_job_was_stopped() {
        let mut history = RunHistory::default();
        for step in 1..=10u64 {
            let stopped_seconds = if step > 5 { 22.0 } else { 0.0 };
            let time = step as f64 + stopped_seconds;
            let metrics =
                StepMetrics { step, steps: 20, time, stopped_seconds, ..Default::default() };
            history.on_event(&Event::Step(Box::new(metrics)), time);
        }
        assert_eq!(history.eta(32.0), Some(10.0));
        history.skip(30.0);
        assert_eq!((history.eta(62.5), history.step_elapsed(62.5)), (Some(9.5), 0.5));
    }
}
