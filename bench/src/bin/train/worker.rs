//! A process that trains with our engine, a turn for each line that it reads.

use std::io::{BufRead, Write};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use regatta_comm::{Comm, host, join::Settings};
use regatta_train::cpu::{Cpu, Precision};
use regatta_train::model::Model;
use regatta_train::optimizer::AdamW;
use regatta_train::parallel::pipeline::Stage;
use regatta_train::parallel::{Groups, Mesh};
use regatta_train::random;
use regatta_train::state::Sharing;
use regatta_train::step::{Engine, Micro, Net, Plan, Rule};
use regatta_wire::secret::Secret;

use crate::preset::Preset;

/// Batches that are used again and again.
const BATCHES: usize = 8;

/// What a worker is told in its arguments, after [`crate::WORKER`].
pub struct Job {
    pub preset: Preset,
    pub precision: Precision,
    /// Sequences of a step, of this process.
    pub batch: usize,
    /// The processors to run on, a thread on each.
    pub cpus: Vec<usize>,
    pub ranks: usize,
    pub rank: usize,
}

impl Job {
    pub fn arguments(&self) -> [String; 6] {
        let precision = self.precision.name();
        let cpus: Vec<String> = self.cpus.iter().map(usize::to_string).collect();
        let [batch, ranks, rank] = [self.batch, self.ranks, self.rank].map(|n| n.to_string());
        [self.preset.name.to_owned(), precision.to_owned(), batch, cpus.join(","), ranks, rank]
    }

    fn read(words: &[String]) -> Result<Self> {
        let [preset, precision, batch, cpus, ranks, rank] = words else {
            bail!("a worker takes 6 arguments, not {words:?}");
        };
        let preset = Preset::find(preset).with_context(|| format!("no preset {preset}"))?;
        let precision = match precision.as_str() {
            "f32" => Precision::F32,
            "bf16" => Precision::Bf16,
            other => bail!("no precision {other}"),
        };
        let cpus = cpus.split(',').map(str::parse).collect::<Result<_, _>>()?;
        let (batch, ranks, rank) = (batch.parse()?, ranks.parse()?, rank.parse()?);
        Ok(Self { preset, precision, batch, cpus, ranks, rank })
    }
}

/// Says `ready`; then reads how many steps to take, and answers how many seconds each took.
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
    training.steps(3)?;
    say("ready")?;
    for line in lines {
        let steps: usize = line?.trim().parse()?;
        // What others did meanwhile is still in the caches.
        training.steps(2)?;
        let start = Instant::now();
        training.steps(steps)?;
        say(&(start.elapsed().as_secs_f64() / steps as f64).to_string())?;
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
        Ok(Self {
            engine: Engine::new(net, groups, stage, &Sharing::default(), 1)?,
            batches: (0..BATCHES).map(batch).collect(),
            batch: job.batch,
            first: (job.rank * job.batch) as u64,
            tokens: (count * job.ranks) as u64,
            step: 0,
        })
    }

    fn steps(&mut self, steps: usize) -> Result<()> {
        (0..steps).try_for_each(|_| self.once())
    }

    fn once(&mut self) -> Result<()> {
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
        self.engine.step(&plan, std::iter::once(micro))?;
        self.step += 1;
        Ok(())
    }
}
