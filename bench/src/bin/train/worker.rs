//! A worker process that trains with Regatta, one round per line of its stdin.

use std::io::{BufRead, Write};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use regatta_comm::{Comm, bootstrap::BootstrapConfig, hierarchical};
use regatta_device::optimizer::AdamW;
use regatta_device::precision::Precision;
use regatta_device::random;
use regatta_kernels_cpu::Cpu;
use regatta_predict::mesh::Mesh;
use regatta_predict::pipeline::Stage;
use regatta_train::model::Model;
use regatta_train::parallel::{ProcessGroups, ZeroStage};
use regatta_train::state::{ParamInit, ShardingConfig};
use regatta_train::step::{DeviceModel, Engine, MicroBatch, OptimizerStep, StepConfig};
use regatta_wire::secret::Secret;
use serde::{Deserialize, Serialize};

use crate::preset::{DataParallelism, Preset};
use crate::round_line::{PhaseTimes, RoundReport, StepTime};

/// Batches that are used in turn.
const BATCHES: usize = 8;

/// The argument of a worker, after [`crate::WORKER`], as JSON.
#[derive(Serialize, Deserialize)]
pub struct WorkerArgs {
    pub preset: Preset,
    pub precision: Precision,
    /// Parallelism of several ranks.
    pub parallelism: DataParallelism,
    /// Sequences of a step on this rank.
    pub batch: usize,
    /// CPUs to bind to, with one thread each.
    pub cpus: Vec<usize>,
    pub ranks: usize,
    pub rank: usize,
}

impl WorkerArgs {
    /// A worker without other ranks.
    pub fn single(preset: Preset, precision: Precision, batch: usize, cpus: &[usize]) -> Self {
        let (parallelism, cpus) = (DataParallelism::Replicated, cpus.to_vec());
        Self { preset, precision, parallelism, batch, cpus, ranks: 1, rank: 0 }
    }
}

/// Prints `ready` and the loss of the first step; then, for each line with a number of steps, runs a round and
/// prints its report.
pub fn run(args: &str) -> Result<()> {
    let args: WorkerArgs = serde_json::from_str(args).context("argument of a worker")?;
    let mut cpu_set = rustix::thread::CpuSet::new();
    args.cpus.iter().for_each(|cpu| cpu_set.set(*cpu));
    rustix::thread::sched_setaffinity(None, &cpu_set).context("sched_setaffinity")?;
    let mut lines = std::io::stdin().lock().lines();
    let groups = match args.ranks {
        1 => ProcessGroups::single_rank(),
        ranks => {
            let rendezvous = lines.next().context("no rendezvous line")??;
            let comm = connect(&args, &rendezvous)?;
            ProcessGroups::new(comm, Mesh::data_parallel(ranks))?
        }
    };
    let mut trainer = BenchTrainer::new(&args, groups)?;
    let first = trainer.run_steps(1 + args.preset.warm_up)?;
    print_line(&format!("ready {}", first[0].1))?;
    for line in lines {
        let steps: usize = line?.trim().parse()?;
        trainer.run_steps(args.preset.warm_up)?;
        let steps = trainer.run_steps(steps)?;
        let (_, loss) = *steps.last().context("a round without steps")?;
        let steps = steps.into_iter().map(|(step, _)| step).collect();
        print_line(&serde_json::to_string(&RoundReport { steps, loss })?)?;
    }
    Ok(())
}

fn print_line(line: &str) -> Result<()> {
    let mut out = std::io::stdout();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// Connects to the other ranks, given the port and the secret.
fn connect(args: &WorkerArgs, rendezvous: &str) -> Result<Arc<dyn Comm>> {
    let (port, secret) = rendezvous.split_once(' ').context("expected port and secret")?;
    let secret = Secret::from_hex(secret)?;
    let (rank, ranks) = (args.rank as u32, args.ranks as u32);
    let mut settings = BootstrapConfig::new(rank, ranks, "127.0.0.1", port.parse()?, secret);
    settings.local_rank = rank;
    Ok(Arc::new(hierarchical::join(settings)?))
}

/// Trains on random tokens.
pub struct BenchTrainer {
    pub engine: Engine,
    /// Inputs and targets.
    batches: Vec<(Vec<u32>, Vec<u32>)>,
    batch: usize,
    /// Index of the first sequence of this rank.
    first_sequence: u64,
    /// Tokens of a step on all ranks.
    tokens: u64,
    step: u64,
}

impl BenchTrainer {
    pub fn new(args: &WorkerArgs, groups: ProcessGroups) -> Result<Self> {
        let device = Cpu::new(args.cpus.len(), args.precision);
        let device_model = DeviceModel::new(Model::new(args.preset.shape()), Box::new(device));
        let tokens = args.preset.tokens(args.batch) as u64;
        let vocab_size = args.preset.shape().vocab_size as u64;
        let token = |key: u64, i: u64| (random::mix(random::key(key, &[i])) % vocab_size) as u32;
        let batch = |index: usize| {
            let key = random::key(7, &[args.rank as u64, index as u64]);
            let stream = |first: u64| (first..first + tokens).map(|i| token(key, i)).collect();
            (stream(0), stream(1))
        };
        let stage = Stage::single(&args.preset.shape());
        let zero = match args.parallelism {
            DataParallelism::Replicated => ZeroStage::Off,
            DataParallelism::Zero1 => ZeroStage::One,
            DataParallelism::Zero3 => ZeroStage::Three,
        };
        let (sharding, init) = (ShardingConfig::zero(zero), ParamInit::Random { seed: 1 });
        Ok(Self {
            engine: Engine::new(device_model, groups, stage, &sharding, init)?,
            batches: (0..BATCHES).map(batch).collect(),
            batch: args.batch,
            first_sequence: (args.rank * args.batch) as u64,
            tokens: tokens * args.ranks as u64,
            step: 0,
        })
    }

    /// Runs steps and returns their times and mean losses on this rank.
    pub fn run_steps(&mut self, steps: usize) -> Result<Vec<(StepTime, f64)>> {
        (0..steps).map(|_| self.run_step()).collect()
    }

    fn run_step(&mut self) -> Result<(StepTime, f64)> {
        let start = Instant::now();
        let Self { batch, first_sequence, step, tokens, .. } = *self;
        let (inputs, targets) = &self.batches[step as usize % BATCHES];
        let micro = MicroBatch { inputs, targets, batch, first_sequence };
        let optimizer = OptimizerStep::AdamW(AdamW {
            lr: 1e-3,
            beta1: 0.9,
            beta2: 0.99,
            eps: 1e-8,
            weight_decay: 0.1,
            step: step + 1,
        });
        let (grad_clip, dropout, seed, recompute) = (1.0, 0.0, 1, false);
        let config = StepConfig { step, tokens, optimizer, grad_clip, dropout, seed, recompute };
        let result = self.engine.step(&config, std::iter::once(micro))?;
        self.step += 1;
        let phases = PhaseTimes {
            forward: result.timings.forward.as_secs_f64(),
            backward: result.timings.backward.as_secs_f64(),
            communication: result.timings.communication.as_secs_f64(),
            optimizer: result.timings.optimizer.as_secs_f64(),
        };
        let loss = result.loss_sum / inputs.len() as f64;
        Ok((StepTime { seconds: start.elapsed().as_secs_f64(), phases: Some(phases) }, loss))
    }
}
