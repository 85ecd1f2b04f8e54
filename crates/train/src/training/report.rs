//! Run information, step metrics and the summary.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use super::TrainingSetup;
use super::step_stats::StepStats;
use crate::metrics::{
    EndReason, FLOPS_FORMULA, GpuMemory, RunInfo, StepMetrics, StepSeconds, Summary,
};
use crate::run_clock;
use regatta_comm::MemorySpace;
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

/// A step that has just finished.
#[derive(Debug)]
pub struct FinishedStep<'a> {
    /// Steps finished, including this one.
    pub step: u64,
    /// Tokens trained on so far.
    pub tokens: u64,
    /// Mean training loss.
    pub loss: f64,
    /// Learning rate.
    pub lr: f64,
    /// Global gradient norm before clipping.
    pub grad_norm: f64,
    /// Statistics summed over all ranks.
    pub stats: &'a StepStats,
    /// Duration of the step.
    pub total: Duration,
    /// Duration of checkpointing in it.
    pub checkpoint: Duration,
    /// Memory of this rank's GPU.
    pub gpu_memory: Option<GpuMemory>,
}

/// Throughput and losses of a run.
#[derive(Debug)]
pub struct Throughput {
    ranks: f64,
    steps: u64,
    tokens_per_step: u64,
    flops_per_token: f64,
    gemm_flops_per_second: f64,
    start: Instant,
    /// Time in which this process was stopped before the start.
    stopped_before: Duration,
    /// Steps finished before the start.
    pub start_step: u64,
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
            ranks: info.ranks as f64,
            steps: info.steps,
            tokens_per_step: info.tokens_per_step,
            flops_per_token: shape.training_flops_per_token(shape.seq_len),
            gemm_flops_per_second: info.gemm_flops_per_second,
            start: run_clock::now(),
            stopped_before: run_clock::stopped(),
            start_step: info.start_step,
            step_seconds: 0.0,
            loss: f64::NAN,
            val_loss: None,
        }
    }

    /// Metrics of a step. The total and the checkpoint time are this rank's, the others means over all ranks.
    pub fn metrics(&mut self, step: FinishedStep<'_>) -> StepMetrics {
        self.loss = step.loss;
        let [total, checkpoint] = [step.total, step.checkpoint].map(|time| time.as_secs_f64());
        let [data, forward, backward, communication, optimizer] =
            step.stats.seconds.map(|seconds| seconds / self.ranks);
        self.step_seconds += total;
        let known = data + forward + backward + communication + optimizer + checkpoint;
        let other = (total - known).max(0.0);
        let tokens_per_second = self.tokens_per_step as f64 / total.max(f64::MIN_POSITIVE);
        StepMetrics {
            step: step.step,
            steps: self.steps,
            loss: step.loss,
            val_loss: None,
            lr: step.lr,
            grad_norm: step.grad_norm,
            tokens: step.tokens,
            tokens_per_second,
            flops_per_second: tokens_per_second * self.flops_per_token,
            gpu_memory: step.gpu_memory,
            seconds: StepSeconds {
                step: total,
                data,
                forward,
                backward,
                communication,
                optimizer,
                checkpoint,
                other,
            },
            time: unix_time(),
            stopped_seconds: self.stopped_seconds(),
        }
    }

    /// Seconds since the start in which this process was stopped.
    fn stopped_seconds(&self) -> f64 {
        run_clock::stopped().saturating_sub(self.stopped_before).as_secs_f64()
    }

    /// Summary of the run.
    pub fn summary(&self, reason: EndReason, done: u64, folder: &Path) -> Summary {
        let seconds = run_clock::elapsed(self.start).as_secs_f64();
        let tokens = (done - self.start_step) * self.tokens_per_step;
        let tokens_per_second = tokens as f64 / self.step_seconds.max(f64::MIN_POSITIVE);
        Summary {
            reason,
            step: done,
            start_step: self.start_step,
            loss: self.loss,
            val_loss: self.val_loss,
            tokens,
            seconds,
            stopped_seconds: self.stopped_seconds(),
            tokens_per_second,
            flops_per_second: tokens_per_second * self.flops_per_token,
            gemm_flops_per_second: self.gemm_flops_per_second,
            folder: folder.display().to_string(),
            ..Summary::default()
        }
    }
}

/// Seconds since the Unix epoch.
fn unix_time() -> f64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0.0, |now| now.as_secs_f64())
}
