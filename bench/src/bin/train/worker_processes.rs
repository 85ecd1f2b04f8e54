//! Worker processes that train, one round at a time.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use regatta_benchmarks::peer_source;
use regatta_benchmarks::processes::LineProcess;
use regatta_benchmarks::sim_agents::free_port;
use regatta_device::precision::Precision;
use regatta_wire::secret::Secret;

use crate::WORKER;
use crate::preset::{DataParallelism, Preset};
use crate::round_line::RoundReport;
use crate::worker::WorkerArgs;

/// Training software.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framework {
    Regatta(Precision),
    /// PyTorch, eager or with `torch.compile`; in bf16 by autocast.
    Torch {
        compiled: bool,
        precision: Precision,
    },
}

/// One or more processes that run a round at the same time.
pub struct Workers {
    pub framework: Framework,
    pub threads: usize,
    pub ranks: usize,
    /// Sequences of a step on all ranks.
    pub global_batch: usize,
    /// `None` without communication.
    pub parallelism: Option<DataParallelism>,
    /// Loss of the first step of each process.
    pub first_losses: Vec<f64>,
    processes: Vec<LineProcess>,
}

impl Workers {
    /// One process of Regatta, with a thread on each of the CPUs.
    pub fn regatta(preset: Preset, precision: Precision, cpus: &[usize]) -> Result<Self> {
        let batch = preset.batch;
        let process = spawn_regatta(&WorkerArgs::single(preset, precision, batch, cpus))?;
        let workers = Self::start(Framework::Regatta(precision), batch, vec![process])?;
        Ok(Self { threads: cpus.len(), ..workers })
    }

    /// Processes of Regatta that do not communicate, one on each of the CPUs with `batch` sequences each: the
    /// work of ranks without their communication.
    pub fn regatta_independent(preset: Preset, cpus: &[usize], batch: usize) -> Result<Self> {
        let precision = Precision::F32;
        let args = |cpu: &usize| WorkerArgs::single(preset, precision, batch, &[*cpu]);
        let processes = cpus.iter().map(|cpu| spawn_regatta(&args(cpu))).collect::<Result<_>>()?;
        Self::start(Framework::Regatta(precision), batch, processes)
    }

    /// Ranks of Regatta with `batch` sequences each, on disjoint CPUs with a thread on each.
    pub fn regatta_ranks(
        preset: Preset,
        precision: Precision,
        parallelism: DataParallelism,
        rank_cpus: &[&[usize]],
        batch: usize,
    ) -> Result<Self> {
        let (ranks, threads) = (rank_cpus.len(), rank_cpus.first().map_or(0, |cpus| cpus.len()));
        let rendezvous = format!("{} {}", free_port()?, Secret::generate()?.to_hex());
        let mut processes = Vec::new();
        for (rank, cpus) in rank_cpus.iter().enumerate() {
            let cpus = cpus.to_vec();
            let args = WorkerArgs { preset, precision, parallelism, batch, cpus, ranks, rank };
            let mut process = spawn_regatta(&args)?;
            process.write_line(&rendezvous)?;
            processes.push(process);
        }
        let workers = Self::start(Framework::Regatta(precision), batch * ranks, processes)?;
        Ok(Self { ranks, threads, parallelism: Some(parallelism), ..workers })
    }

    /// One process of PyTorch.
    pub fn torch(
        python: &Path,
        preset: Preset,
        compiled: bool,
        precision: Precision,
        cpus: &[usize],
    ) -> Result<Self> {
        let mut command = torch_command(python, preset, compiled, cpus, preset.batch);
        command.env("TORCH_PRECISION", precision.name());
        let framework = Framework::Torch { compiled, precision };
        let process = LineProcess::spawn(&mut command)?;
        let workers = Self::start(framework, preset.batch, vec![process])?;
        Ok(Self { threads: cpus.len(), ..workers })
    }

    /// Ranks of PyTorch, one on each of the CPUs with `batch` sequences each.
    pub fn torch_ranks(
        python: &Path,
        preset: Preset,
        compiled: bool,
        parallelism: DataParallelism,
        cpus: &[usize],
        batch: usize,
    ) -> Result<Self> {
        let (port, ranks) = (free_port()?.to_string(), cpus.len());
        let framework = Framework::Torch { compiled, precision: Precision::F32 };
        let spawn = |(rank, cpu): (usize, &usize)| {
            let mut command = torch_command(python, preset, compiled, &[*cpu], batch);
            command.arg(parallelism.name());
            command.env("RANK", rank.to_string()).env("WORLD_SIZE", ranks.to_string());
            command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", &port);
            LineProcess::spawn(command.env("GLOO_SOCKET_IFNAME", "lo"))
        };
        let processes = cpus.iter().enumerate().map(spawn).collect::<Result<_>>()?;
        let workers = Self::start(framework, batch * ranks, processes)?;
        Ok(Self { ranks, parallelism: Some(parallelism), ..workers })
    }

    /// Waits until all processes have done their first steps. One rank of one thread by default.
    fn start(
        framework: Framework,
        global_batch: usize,
        mut processes: Vec<LineProcess>,
    ) -> Result<Self> {
        let mut first_losses = Vec::new();
        for process in &mut processes {
            let line = process.read_line()?;
            let loss = line.strip_prefix("ready ").and_then(|loss| loss.parse().ok());
            first_losses.push(loss.with_context(|| line)?);
        }
        let (threads, ranks, parallelism) = (1, 1, None);
        Ok(Self { framework, threads, ranks, global_batch, parallelism, first_losses, processes })
    }

    /// Runs `steps` steps in all processes and returns their reports.
    pub fn run_round(&mut self, steps: usize) -> Result<Vec<RoundReport>> {
        for process in &mut self.processes {
            process.write_line(&steps.to_string())?;
        }
        self.processes.iter_mut().map(|process| RoundReport::parse(&process.read_line()?)).collect()
    }
}

fn spawn_regatta(args: &WorkerArgs) -> Result<LineProcess> {
    let exe = std::env::current_exe()?;
    LineProcess::spawn(Command::new(exe).arg(WORKER).arg(serde_json::to_string(args)?))
}

fn torch_command(
    python: &Path,
    preset: Preset,
    compiled: bool,
    cpus: &[usize],
    batch: usize,
) -> Command {
    let cpu_list = cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    let mut command = Command::new(python);
    command.arg(peer_source("train.py")).arg(if compiled { "compiled" } else { "eager" });
    command.arg(cpu_list).args(preset.torch_args(batch).map(|n| n.to_string()));
    command.env("PYTHONWARNINGS", "ignore").env("TORCH_WARM_UP", preset.warm_up.to_string());
    command
}
