//! Run information, step metrics and the summary.

use std::collections::BTreeSet;
use std::time::{Duration, Instant, SystemTime};

use super::TrainingSetup;
use super::step_stats::StepStats;
use crate::metrics::{EndReason, FLOPS_FORMULA, RunInfo, StepMetrics, StepSeconds, Summary};
use crate::run_clock;
use regatta_comm::MemorySpace;
use regatta_model::run_folder::unix_seconds;
use regatta_predict::layout::ParallelLayout;
use regatta_predict::shape::ModelShape;

/// Fraction of the GEMM throughput that training is expected to reach. Attention, norms, the optimizer and
/// small GEMMs are slower than large GEMMs; validations and checkpoints take time, too.
const EXPECTED_GEMM_FRACTION: f64 = 0.5;

/// Model, data and ranks of a run.
pub fn run_info(
    setup: &TrainingSetup,
    plan: &ParallelLayout,
    shape: &ModelShape,
    done: u64,
) -> RunInfo {
    let config = &setup.config;
    let on_gpu = setup.device.memory_space() != MemorySpace::Host;
    let hosts: BTreeSet<String> =
        (0..setup.comm.size()).map(|rank| setup.comm.peer(rank).host).collect();
    let tokens_per_step = (plan.batch * shape.seq_len) as u64;
    let steps = config.train.steps.saturating_sub(done);
    let flops =
        steps as f64 * tokens_per_step as f64 * shape.training_flops_per_token(shape.seq_len);
    let expected = setup.gemm_flops_per_second * EXPECTED_GEMM_FRACTION;
    RunInfo {
        model: setup.name.clone(),
        parameters: shape.num_params() as u64,
        ranks: plan.mesh.ranks(),
        mesh: if plan.mesh.is_model_parallel() { plan.mesh.to_string() } else { String::new() },
        hosts: hosts.len(),
        threads: if on_gpu { 0 } else { setup.threads },
        precision: config.precision().name().to_owned(),
        kernels: setup.kernels.clone(),
        data: config.data.source.clone(),
        data_tokens: setup.dataset.train.len(),
        tokens_per_step,
        micro_batch: plan.micro_batch,
        micro_batch_auto: config.train.micro_batch.is_chosen(),
        steps: config.train.steps,
        start_step: done,
        log_interval: config.train.log_interval,
        checkpoint_interval: config.checkpoint.interval,
        flops_formula: FLOPS_FORMULA.to_owned(),
        gemm_flops_per_second: setup.gemm_flops_per_second,
        estimated_seconds: if expected > 0.0 { flops / expected } else { 0.0 },
        folder: setup.folder.display().to_string(),
    }
}

/// Throughput and losses of a run.
#[derive(Debug)]
pub struct Throughput {
    /// The run.
    pub info: RunInfo,
    flops_per_token: f64,
    start: Instant,
    /// Time in which this process was stopped before the start.
    stopped_before: Duration,
    /// Seconds of all steps since the start, without validation and samples.
    step_seconds: f64,
    loss: f64,
    /// The last validation loss.
    pub val_loss: Option<f64>,
}

impl Throughput {
    /// Of a run that starts now.
    pub fn new(info: &RunInfo, shape: &ModelShape) -> Self {
        Self {
            info: info.clone(),
            flops_per_token: shape.training_flops_per_token(shape.seq_len),
            start: run_clock::now(),
            stopped_before: run_clock::stopped(),
            step_seconds: 0.0,
            loss: f64::NAN,
            val_loss: None,
        }
    }

    /// Completes the metrics of a step that has just finished. The total and the checkpoint time are this
    /// rank's, the others means over all ranks, of which `stats` has the sums.
    pub fn metrics(&mut self, step: StepMetrics, stats: &StepStats) -> StepMetrics {
        self.loss = step.loss;
        let StepSeconds { step: total, checkpoint, .. } = step.seconds;
        let [data, forward, backward, communication, optimizer] =
            stats.seconds.map(|seconds| seconds / self.info.ranks as f64);
        self.step_seconds += total;
        let known = data + forward + backward + communication + optimizer + checkpoint;
        let other = (total - known).max(0.0);
        let tokens_per_second = self.info.tokens_per_step as f64 / total.max(f64::MIN_POSITIVE);
        StepMetrics {
            steps: self.info.steps,
            tokens_per_second,
            flops_per_second: tokens_per_second * self.flops_per_token,
            seconds: StepSeconds {
                data,
                forward,
                backward,
                communication,
                optimizer,
                other,
                ..step.seconds
            },
            time: unix_seconds(SystemTime::now()),
            stopped_seconds: self.stopped_seconds(),
            ..step
        }
    }

    /// Seconds since the start in which this process was stopped.
    fn stopped_seconds(&self) -> f64 {
        run_clock::stopped().saturating_sub(self.stopped_before).as_secs_f64()
    }

    /// Summary of the run after `done` steps.
    pub fn summary(&self, reason: EndReason, done: u64) -> Summary {
        let RunInfo { start_step, tokens_per_step, gemm_flops_per_second, ref folder, .. } =
            self.info;
        let tokens = (done - start_step) * tokens_per_step;
        let tokens_per_second = tokens as f64 / self.step_seconds.max(f64::MIN_POSITIVE);
        Summary {
            reason,
            step: done,
            start_step,
            loss: self.loss,
            val_loss: self.val_loss,
            tokens,
            seconds: run_clock::elapsed(self.start).as_secs_f64(),
            stopped_seconds: self.stopped_seconds(),
            tokens_per_second,
            flops_per_second: tokens_per_second * self.flops_per_token,
            gemm_flops_per_second,
            folder: folder.clone(),
            ..Summary::default()
        }
    }
}
