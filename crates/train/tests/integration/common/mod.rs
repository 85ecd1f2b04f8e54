//! Helpers of tests that train on several ranks.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use regatta_comm::communicator::Communicator;
use regatta_comm::{Collectives, Comm, ReduceOp};
use regatta_device::ops::Device;
use regatta_device::optimizer::AdamW;
use regatta_device::random;
use regatta_train::config::{self, Config};
use regatta_train::data::{self, DataDirs, DataError, DataSpec};
use regatta_train::step::{Engine, MicroBatch, OptimizerStep, StepConfig};
use regatta_train::training::TrainingSetup;

/// Vocabulary size of [`tokens`].
pub const VOCAB_SIZE: u64 = 13;

/// Name of the runs of [`training_setup`].
pub const RUN: &str = "a-test";

/// The path of a temporary directory, removed on drop.
pub struct TempDir(pub PathBuf);

impl TempDir {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("regatta-train-{}-{number}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The configuration of some groups of `key=value` arguments.
pub fn config(args: &[&str]) -> Config {
    let args: Vec<&str> = args.iter().flat_map(|args| args.split_whitespace()).collect();
    config::resolve(None, &args).unwrap().config
}

/// A training run.
pub fn training_setup(
    config: &Config,
    data: &DataSpec,
    comm: Arc<dyn Comm>,
    device: Box<dyn Device>,
    folder: PathBuf,
) -> Result<TrainingSetup, DataError> {
    Ok(TrainingSetup {
        config: config.clone(),
        name: "test".to_owned(),
        comm,
        device_comm: None,
        device,
        threads: 1,
        kernels: String::new(),
        gemm_flops_per_second: 0.0,
        dataset: data::open(data, &DataDirs::default())?,
        folder,
        run: RUN.to_owned(),
        require_checkpoint: false,
    })
}

/// A step over a global batch of `tokens` tokens.
pub fn step_config(step: u64, tokens: usize, dropout: f32, recompute: bool) -> StepConfig {
    let optimizer = OptimizerStep::AdamW(AdamW {
        lr: 0.01,
        beta1: 0.9,
        beta2: 0.99,
        eps: 1e-8,
        weight_decay: 0.1,
        step: step + 1,
    });
    let (tokens, grad_clip, seed) = (tokens as u64, 1.0, 3);
    StepConfig { step, tokens, optimizer, grad_clip, dropout, seed, recompute }
}

/// Sequences of a step, each an arithmetic progression from a random token, shifted by `shift`.
pub fn tokens(seq_len: usize, step: u64, sequences: Range<usize>, shift: u64) -> Vec<u32> {
    let sequence = |index: usize| {
        let start = random::mix(step << 32 | index as u64);
        let token = move |i: u64| (start % VOCAB_SIZE + 5 * (i + shift)) % VOCAB_SIZE;
        (0..seq_len as u64).map(move |i| token(i) as u32)
    };
    sequences.flat_map(sequence).collect()
}

/// Runs all ranks of a world concurrently and returns their results in rank order.
pub fn run_ranks<T: Send>(
    world: Vec<Communicator>,
    rank: impl Fn(Arc<dyn Comm>) -> T + Sync,
) -> Vec<T> {
    thread::scope(|scope| {
        let rank = &rank;
        let spawn = |comm| scope.spawn(move || rank(Arc::new(comm)));
        let ranks: Vec<_> = world.into_iter().map(spawn).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// The loss and the gradient norm of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossAndNorm {
    /// Mean loss of the global batch.
    pub loss: f64,
    pub grad_norm: f64,
}

/// A short training run, the same for every parallel layout.
#[derive(Debug, Clone, Copy)]
pub struct ShortRun {
    pub steps: u64,
    /// Sequences of the global batch.
    pub batch: usize,
    pub seq_len: usize,
    /// Micro-batches of each replica.
    pub micro_batches: usize,
    pub dropout: f32,
    /// Whether a step recomputes activations.
    pub recompute: fn(u64) -> bool,
}

impl ShortRun {
    /// Trains replica `replica` of `replicas`. All ranks of `comm` get the same metrics.
    pub fn run(
        self,
        engine: &mut Engine,
        comm: &dyn Comm,
        replica: usize,
        replicas: usize,
    ) -> Vec<LossAndNorm> {
        let share = self.batch / replicas;
        let sequences = replica * share..(replica + 1) * share;
        (0..self.steps).map(|step| self.step(engine, comm, sequences.clone(), step)).collect()
    }

    /// A step over some of its sequences.
    fn step(
        self,
        engine: &mut Engine,
        comm: &dyn Comm,
        sequences: Range<usize>,
        step: u64,
    ) -> LossAndNorm {
        let batch = sequences.len() / self.micro_batches;
        let firsts = sequences.step_by(batch).take(self.micro_batches);
        let tokens = |first, shift| tokens(self.seq_len, step, first..first + batch, shift);
        let data: Vec<_> = firsts.map(|at| (at as u64, tokens(at, 0), tokens(at, 1))).collect();
        let micro_batches = data.iter().map(|(first, inputs, targets)| MicroBatch {
            inputs,
            targets,
            batch,
            first_sequence: *first,
        });
        let all = self.batch * self.seq_len;
        let config = step_config(step, all, self.dropout, (self.recompute)(step));
        let result = engine.step(&config, micro_batches).unwrap();
        let mut sum = [result.loss_sum];
        comm.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
        LossAndNorm { loss: sum[0] / all as f64, grad_norm: result.grad_norm }
    }
}
