//! The training loop: data, steps, validation, checkpoints, metrics.
//!
//! Runs on every rank. Nothing here prints; progress is reported as events.

mod checkpointing;
mod error;
pub mod evaluate;
mod finish;
pub mod gemm_peak;
mod gpu_memory;
pub mod gpu_micro_batch;
mod report;
mod reservation;
mod resume;
mod sample;
pub mod smoke;
mod start;
mod step_stats;
mod usage;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use regatta_comm::{Collectives, Comm, ReduceOp};

use checkpointing::CheckpointManager;
pub use error::{Result, TrainError};
use gpu_memory::GpuMemoryPeak;
use report::Throughput;
pub use start::{check_agreement, resume_own_run};
use step_stats::StepStats;
use usage::{Counters, Usage};

use crate::checkpoint::StateTensor;
use crate::config::{self, Config, OptimizerKind};
use crate::data::{Batch, DataLoader, Dataset, Prefetcher, Sampler, sampler};
use crate::lr_schedule::LrSchedule;
use crate::metrics::{EndReason, Event, StepMetrics, StepSeconds};
use crate::run_clock;
use crate::step::{self, Engine, MicroBatch, OptimizerStep, StepError};
use regatta_device::ops::{Device, SCALAR_DTYPE};
use regatta_device::optimizer::{AdamW, Sgd};
use regatta_device::tensor::View;
use regatta_predict::layout::ParallelLayout;

/// The tokenizer file, next to the checkpoints.
pub const TOKENIZER: &str = "tokenizer.json";

/// Interval of reports during a long step.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// Micro-batches to prefetch.
const PREFETCH_DEPTH: usize = 8;

/// A training run.
pub struct TrainingSetup {
    /// The configuration.
    pub config: Config,
    /// Its name.
    pub name: String,
    /// The ranks.
    pub comm: Arc<dyn Comm>,
    /// The same ranks with a communicator for device memory; `None` if tensors are in host memory.
    pub device_comm: Option<Arc<dyn Comm>>,
    /// The compute device.
    pub device: Box<dyn Device>,
    /// Compute threads of this rank.
    pub threads: usize,
    /// Description of the kernels in use.
    pub kernels: String,
    /// Measured GEMM peak of the cores of all ranks in FLOP/s; 0 if unknown.
    pub gemm_flops_per_second: f64,
    /// The data.
    pub dataset: Dataset,
    /// The run folder.
    pub folder: PathBuf,
    /// Identifies the run, if known; the same after a restart.
    pub run: String,
    /// Whether a missing checkpoint is an error, as with `--resume`, instead of the start of a new run.
    pub require_checkpoint: bool,
}

/// Trains. `stop` is polled after every step; if it returns true on any rank, all ranks save and end.
pub fn run(
    setup: TrainingSetup,
    stop: &dyn Fn() -> bool,
    emit: &mut dyn FnMut(Event),
) -> Result<EndReason> {
    let comm = setup.comm.clone();
    // Aborting tells ranks that wait for this one why it ended.
    let result = TrainingLoop::start(setup, emit).and_then(|mut training| {
        let ended = training.train_to_end(stop, emit);
        ended.inspect_err(|error| training.engine.groups.abort(&error.to_string()))
    });
    result.inspect_err(|error| comm.abort(&error.to_string()))
}

/// The state of a rank's training loop.
struct TrainingLoop {
    config: Config,
    plan: ParallelLayout,
    schedule: LrSchedule,
    comm: Arc<dyn Comm>,
    engine: Engine,
    dataset: Dataset,
    validation: Option<DataLoader>,
    manager: Option<CheckpointManager>,
    folder: PathBuf,
    /// Steps finished.
    done: u64,
    /// Tokens trained on.
    tokens: u64,
    /// Step of the last checkpoint started.
    last_checkpoint: Option<u64>,
    /// Step of the last complete checkpoint that this rank knows of; only rank 0 knows of new ones.
    complete_checkpoint: Option<u64>,
    /// Additional metadata for checkpoints.
    extra: BTreeMap<String, String>,
    throughput: Throughput,
    gpu_memory: GpuMemoryPeak,
    usage: Usage,
}

impl TrainingLoop {
    /// Trains to the last step, or until interrupted, and finishes the run.
    fn train_to_end(
        &mut self,
        stop: &dyn Fn() -> bool,
        emit: &mut dyn FnMut(Event),
    ) -> Result<EndReason> {
        let steps = self.config.train.steps;
        if self.done >= steps {
            emit(Event::Note(format!(
                "the checkpoint is at step {}, train.steps is {steps}: nothing to train; increase train.steps \
                 to continue",
                self.done
            )));
        }
        let reason = self.train_steps(stop, emit)?;
        self.finish(reason, emit)?;
        Ok(reason)
    }

    /// Runs the remaining steps, or until interrupted.
    fn train_steps(
        &mut self,
        stop: &dyn Fn() -> bool,
        emit: &mut dyn FnMut(Event),
    ) -> Result<EndReason> {
        let mut data = self.prefetch_data()?;
        let steps = self.config.train.steps;
        let mut reason = EndReason::Completed;
        while self.done < steps && reason == EndReason::Completed {
            // A signal during the last step does not stop the run early.
            if self.step(&mut data, stop, emit)? && self.done < steps {
                reason = EndReason::Interrupted;
            }
        }
        Ok(reason)
    }

    /// Runs one step. Returns whether any rank was interrupted.
    fn step(
        &mut self,
        data: &mut Prefetcher,
        stop: &dyn Fn() -> bool,
        emit: &mut dyn FnMut(Event),
    ) -> Result<bool> {
        let start = run_clock::now();
        let batches = data.take(self.plan.micro_batches).collect::<Result<Vec<Batch>, _>>()?;
        let data_time = run_clock::elapsed(start);
        let first = self.engine.groups.coord.dp * self.plan.batch_per_replica;
        let micros = (first..).step_by(self.plan.micro_batch).zip(&batches);
        let micros = micros.map(|(first, batch)| MicroBatch::of(batch, first as u64));
        let before = Counters::of(&self.engine);
        let (step, micro_batches) = (self.done + 1, self.plan.micro_batches);
        let mut reported = start;
        let mut on_progress = |done: usize| {
            if run_clock::elapsed(reported) >= PROGRESS_INTERVAL {
                reported = run_clock::now();
                emit(Event::MicroBatch { step, done, micro_batches });
            }
        };
        let config = self.step_config();
        let result = self.engine.step_with_progress(&config, micros, &mut on_progress);
        let result = result.map_err(|error| self.failed_step(error))?;
        self.engine.take_notes().into_iter().for_each(|note| emit(Event::Note(note)));
        self.usage.add_step(before, &self.engine);
        let saves = self.manager.as_mut().map_or([0.0; 2], CheckpointManager::save_counts);
        let interrupted = f64::from(stop());
        let stats = StepStats { interrupted, saves, ..StepStats::new(&result, data_time) };
        let mut sums = stats.to_array();
        self.comm.all_reduce(&mut sums, ReduceOp::Sum)?;
        let stats = StepStats::from_array(sums);
        let loss = stats.loss_sum / self.tokens_per_step() as f64;
        self.check_finite(self.done + 1, "loss", loss)?;
        self.check_finite(self.done + 1, "gradient norm", result.grad_norm)?;
        self.done += 1;
        self.tokens += self.tokens_per_step();
        let checkpoint_start = run_clock::now();
        self.handle_save_counts(stats.saves, emit)?;
        let stopping = stats.interrupted > 0.0;
        let is_last = stopping || self.done == self.config.train.steps;
        if !is_last && is_due(self.done, self.config.checkpoint.interval) {
            self.start_checkpoint(emit)?;
        }
        let seconds = StepSeconds {
            step: run_clock::elapsed(start).as_secs_f64(),
            checkpoint: run_clock::elapsed(checkpoint_start).as_secs_f64(),
            ..StepSeconds::default()
        };
        let finished = StepMetrics {
            step: self.done,
            tokens: self.tokens,
            loss,
            lr: self.schedule.at(self.done - 1),
            grad_norm: result.grad_norm,
            seconds,
            gpu_memory: self.gpu_memory.sample(&*self.engine.device_model.device),
            ..StepMetrics::default()
        };
        let metrics = self.throughput.metrics(finished, &stats);
        emit(Event::Step(Box::new(metrics)));
        // The last validation runs after the last checkpoint, because an interrupted run may be killed soon.
        if !is_last && is_due(self.done, self.config.train.eval_interval) {
            self.validate(emit)?;
        }
        Ok(stopping)
    }

    /// Parameters of the next step.
    fn step_config(&self) -> step::StepConfig {
        let Config { train, optimizer, model, .. } = &self.config;
        let lr = self.schedule.at(self.done);
        let config::Optimizer { beta1, beta2, eps, weight_decay, momentum, .. } = *optimizer;
        let rule = match optimizer.name {
            OptimizerKind::AdamW => {
                let step = self.done + 1;
                let adamw = AdamW { lr, beta1, beta2, eps, weight_decay, step };
                OptimizerStep::AdamW(adamw)
            }
            OptimizerKind::Sgd => OptimizerStep::Sgd(Sgd { lr, momentum, weight_decay }),
        };
        step::StepConfig {
            step: self.done,
            tokens: self.tokens_per_step(),
            optimizer: rule,
            grad_clip: optimizer.grad_clip,
            dropout: model.dropout as f32,
            seed: train.seed,
            recompute: train.recompute,
        }
    }

    /// Tokens per step, over all ranks.
    fn tokens_per_step(&self) -> u64 {
        (self.plan.batch * self.config.model.seq_len) as u64
    }

    /// Prefetches the data of the remaining steps, micro-batch by micro-batch.
    fn prefetch_data(&self) -> Result<Prefetcher> {
        let context = self.config.model.seq_len as u64;
        let order = Sampler::shuffled(self.config.train.seed, self.dataset.train.len(), context)
            .map_err(|error| TrainError::unusable_data(&self.config.data.source, error))?;
        let loader = DataLoader::new(self.dataset.train.clone(), order);
        // Ranks of the same replica read the same sequences.
        let [replica, replicas] =
            [self.engine.groups.coord.dp, self.plan.mesh.dp].map(|n| n as u64);
        let ParallelLayout { batch, micro_batch, micro_batches, .. } = self.plan;
        let [batch, each, passes] = [batch, micro_batch, micro_batches].map(|n| n as u64);
        // Counters in sequences, because the batch size may have changed on resume.
        let (done, seen) = (self.done, self.tokens / context);
        let lists = (self.done..self.config.train.steps)
            .flat_map(move |step| (0..passes).map(move |pass| (step, pass)))
            .map(move |(step, pass)| {
                let step = step - done;
                let share = sampler::micro_batch_range(step, batch, replica, replicas, pass, each);
                seen + share.start..seen + share.end
            });
        Ok(Prefetcher::new(loader, lists, PREFETCH_DEPTH)?)
    }

    /// An error of the next step. Operations of a device are asynchronous: only the step is known.
    fn failed_step(&self, error: StepError) -> TrainError {
        match error {
            StepError::Device(source) => TrainError::DeviceInStep {
                rank: self.comm.rank(),
                host: self.comm.peer(self.comm.rank()).host,
                step: self.done + 1,
                checkpoint: self.complete_checkpoint,
                source: Box::new(source),
            },
            error => error.into(),
        }
    }

    /// Fails if a value is not finite.
    fn check_finite(&self, step: u64, what: &'static str, number: f64) -> Result<()> {
        let rank = self.comm.rank();
        let (host, checkpoint) = (self.comm.peer(rank).host, self.complete_checkpoint);
        let clipped = self.config.optimizer.grad_clip > 0.0;
        let error = TrainError::NotFinite { rank, host, what, number, step, clipped, checkpoint };
        if number.is_finite() { Ok(()) } else { Err(error) }
    }

    /// Fails if the parameters are not finite. An update can overflow without affecting an earlier loss.
    fn check_parameters(&mut self) -> Result<()> {
        let Engine { device_model, state, .. } = &mut self.engine;
        let device = &*device_model.device;
        let mut squares = device.zeros(1, SCALAR_DTYPE);
        for block in state.local_blocks() {
            let sum = |own: View<'_>| device.sum_of_squares(own, squares.view_mut());
            state.with_shard(block, StateTensor::Parameter, sum)?;
        }
        let sum: f64 = device.read_scalars(squares.view()).map_err(StepError::from)?.iter().sum();
        self.check_finite(self.done, "parameter norm", sum.sqrt())
    }

    /// Evaluates the model on the validation split.
    pub(super) fn validate(&mut self, emit: &mut dyn FnMut(Event)) -> Result<()> {
        let Some(loader) = &self.validation else { return Ok(()) };
        let (engine, comm, micro_batch) = (&mut self.engine, &*self.comm, self.plan.micro_batch);
        let count = (self.config.train.eval_batches * self.plan.batch) as u64;
        // Buffers of both batch sizes at once would need more memory.
        engine.device_model.pool.trim();
        let loss = evaluate::validation_loss(engine, comm, loader, count, micro_batch)?;
        engine.device_model.pool.trim();
        self.throughput.val_loss = Some(loss);
        emit(Event::Validation { step: self.done, loss });
        Ok(())
    }
}

/// Whether an action with this interval is due after `done` steps; 0 means never.
fn is_due(done: u64, interval: u64) -> bool {
    interval != 0 && done.is_multiple_of(interval)
}
