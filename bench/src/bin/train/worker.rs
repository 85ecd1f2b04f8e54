//! A process that trains with our engine, a turn for each line that it reads.

use std::io::{BufRead, Write};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use regatta_comm::{Comm, host, join::Settings};
use regatta_device::optimizer::AdamW;
use regatta_device::precision::Precision;
use regatta_device::random;
use regatta_kernels_cpu::Cpu;
use regatta_predict::mesh::Mesh;
use regatta_predict::pipeline::Stage;
use regatta_train::model::Model;
use regatta_train::parallel::{Groups, Zero};
use regatta_train::state::Sharing;
use regatta_train::step::{Engine, Micro, Net, Plan, Rule};
use regatta_wire::secret::Secret;

use crate::answer::{Answer, Laps, Step};
use crate::preset::{Preset, Split};

/// Batches that are used again and again.
const BATCHES: usize = 8;

/// What a worker is told in its arguments, after [`crate::WORKER`].
pub struct Job {
    pub preset: Preset,
    pub precision: Precision,
    /// What it shares with other ranks, if there are any.
    pub split: Split,
    /// Sequences of a step, of this process.
    pub batch: usize,
    /// The processors to run on, a thread on each.
    pub cpus: Vec<usize>,
    pub ranks: usize,
    pub rank: usize,
}

impl Job {
    pub fn arguments(&self) -> [String; 7] {
        let words = [self.preset.name, self.precision.name(), self.split.word()];
        let [preset, precision, split] = words.map(str::to_owned);
        let cpus: Vec<String> = self.cpus.iter().map(usize::to_string).collect();
        let [batch, ranks, rank] = [self.batch, self.ranks, self.rank].map(|n| n.to_string());
        [preset, precision, split, batch, cpus.join(","), ranks, rank]
    }

    fn read(words: &[String]) -> Result<Self> {
        let [preset, precision, split, batch, cpus, ranks, rank] = words else {
            bail!("a worker takes 7 arguments, not {words:?}");
        };
        let preset = Preset::find(preset).with_context(|| format!("no preset {preset}"))?;
        let precision = match precision.as_str() {
            "f32" => Precision::F32,
            "bf16" => Precision::Bf16,
            other => bail!("no precision {other}"),
        };
        let split = Split::find(split).with_context(|| format!("ranks cannot share {split}"))?;
        let cpus = cpus.split(',').map(str::parse).collect::<Result<_, _>>()?;
        let (batch, ranks, rank) = (batch.parse()?, ranks.parse()?, rank.parse()?);
        Ok(Self { preset, precision, split, batch, cpus, ranks, rank })
    }
}

/// Says `ready` and the loss of the first step; then reads how many steps to take, and answers how
/// many seconds each took.
pub fn be_one(words: &[String]) -> Result<()> {
    let job = Job::read(words)?;
    let mut bound = rustix::thread::CpuSet::new();
    job.cpus.iter().for_each(|cpu| bound.set(*cpu));
    rustix::thread::sched_setaffinity(None, &bound).context("binding to processors")?;
    let mut lines = std::io::stdin().lock().lines();
    let groups = match job.ranks {
        1 => Groups::alone(),
        ranks => {
            let comm = joined(&job, &lines.next().context("no meeting")??)?;
            Groups::new(comm, Mesh::data(ranks))?
        }
    };
    let mut training = Training::new(&job, groups)?;
    let first = training.turn(3)?;
    say(&format!("ready {}", first[0].1))?;
    for line in lines {
        let steps: usize = line?.trim().parse()?;
        // What others did meanwhile is still in the caches.
        training.turn(2)?;
        let steps = training.turn(steps)?;
        let (_, loss) = *steps.last().context("a turn without steps")?;
        say(&Answer { steps: steps.into_iter().map(|(step, _)| step).collect(), loss }.line())?;
    }
    Ok(())
}

fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// Meets the other ranks: the line is the port and the secret.
fn joined(job: &Job, line: &str) -> Result<Arc<dyn Comm>> {
    let (port, secret) = line.split_once(' ').context("no port and secret")?;
    let secret = Secret::from_hex(secret)?;
    let (rank, ranks) = (job.rank as u32, job.ranks as u32);
    let mut settings = Settings::new(rank, ranks, "127.0.0.1", port.parse()?, secret);
    settings.local_rank = rank;
    Ok(Arc::new(host::join(settings)?))
}

/// A model in training.
struct Training {
    engine: Engine,
    /// Inputs and targets.
    batches: Vec<(Vec<u32>, Vec<u32>)>,
    batch: usize,
    first: u64,
    /// Tokens of a step, of all ranks.
    tokens: u64,
    step: u64,
}

impl Training {
    fn new(job: &Job, groups: Groups) -> Result<Self> {
        let device = Cpu::new(job.cpus.len(), job.precision);
        let net = Net::new(Model::new(job.preset.shape()), Box::new(device));
        let count = job.preset.tokens(job.batch);
        let below = job.preset.shape().vocabulary as u64;
        let token = |key: u64, i: u64| (random::mix(random::key(key, &[i])) % below) as u32;
        let batch = |number: usize| {
            let key = random::key(7, &[job.rank as u64, number as u64]);
            let from = |first: u64| (first..first + count as u64).map(|i| token(key, i)).collect();
            (from(0), from(1))
        };
        let stage = Stage::whole(&job.preset.shape());
        let zero = match job.split {
            Split::Data => Zero::Nothing,
            Split::Zero3 => Zero::Parameters,
        };
        Ok(Self {
            engine: Engine::new(net, groups, stage, &Sharing::zero(zero), 1)?,
            batches: (0..BATCHES).map(batch).collect(),
            batch: job.batch,
            first: (job.rank * job.batch) as u64,
            tokens: (count * job.ranks) as u64,
            step: 0,
        })
    }

    /// Some steps, and the mean loss of this rank's tokens in each.
    fn turn(&mut self, steps: usize) -> Result<Vec<(Step, f64)>> {
        (0..steps).map(|_| self.once()).collect()
    }

    fn once(&mut self) -> Result<(Step, f64)> {
        let start = Instant::now();
        let (inputs, targets) = &self.batches[self.step as usize % BATCHES];
        let micro = Micro { inputs, targets, batch: self.batch, first: self.first };
        let rule = Rule::AdamW(AdamW {
            rate: 1e-3,
            beta1: 0.9,
            beta2: 0.99,
            epsilon: 1e-8,
            decay: 0.1,
            step: self.step + 1,
            scale: 1.0,
        });
        let (step, tokens) = (self.step, self.tokens);
        let plan = Plan { step, tokens, rule, clip: 1.0, dropout: 0.0, seed: 1, recompute: false };
        let outcome = self.engine.step(&plan, std::iter::once(micro))?;
        self.step += 1;
        let laps = Laps {
            forward: outcome.laps.forward.as_secs_f64(),
            backward: outcome.laps.backward.as_secs_f64(),
            communication: outcome.laps.communication.as_secs_f64(),
            optimizer: outcome.laps.optimizer.as_secs_f64(),
        };
        let loss = outcome.loss_sum / inputs.len() as f64;
        Ok((Step { seconds: start.elapsed().as_secs_f64(), laps: Some(laps) }, loss))
    }
}
