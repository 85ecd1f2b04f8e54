//! Processes that train, and wait for their turn.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};
use regatta_benchmarks::flock::free_port;
use regatta_device::precision::Precision;
use regatta_wire::secret::Secret;

use crate::WORKER;
use crate::answer::Answer;
use crate::preset::{Preset, Split};
use crate::worker::Job;

/// A process that answers lines.
struct Process {
    child: Child,
    /// `None` when there is nothing more to ask.
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Process {
    fn start(command: &mut Command) -> Result<Self> {
        let name = command.get_program().display().to_string();
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context(name)?;
        let to = child.stdin.take();
        let from = BufReader::new(child.stdout.take().context("no output")?);
        Ok(Self { child, to, from })
    }

    fn tell(&mut self, line: &str) -> Result<()> {
        let to = self.to.as_mut().context("it was sent home")?;
        Ok(writeln!(to, "{line}")?)
    }

    fn answer(&mut self) -> Result<String> {
        let mut line = String::new();
        self.from.read_line(&mut line)?;
        if line.is_empty() {
            bail!("it ended: {}", self.child.wait()?);
        }
        Ok(line.trim().to_owned())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Without lines to read it ends. One that does not is of no use any more.
        self.to = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Who trains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    Ours(Precision),
    /// PyTorch in single precision, by itself or through `torch.compile`.
    Torch {
        compiled: bool,
    },
}

/// One or more processes that take a turn together.
pub struct Crew {
    pub who: Who,
    pub threads: usize,
    pub ranks: usize,
    /// Sequences of a step, of all ranks.
    pub batch: usize,
    /// Of the first step, of each process.
    pub losses: Vec<f64>,
    processes: Vec<Process>,
}

impl Crew {
    /// Ours in one process, with a thread on each of the processors.
    pub fn ours(preset: Preset, precision: Precision, cpus: &[usize]) -> Result<Self> {
        let (batch, threads) = (preset.batch, cpus.len());
        let (split, cpus) = (Split::Data, cpus.to_vec());
        let process = ours(&Job { preset, precision, split, batch, cpus, ranks: 1, rank: 0 })?;
        Self { threads, ..Self::of(Who::Ours(precision), batch) }.ready(vec![process])
    }

    /// Ours, a process on each of the processors, with so many sequences each: the same work as ranks
    /// have, but nobody knows of the others.
    pub fn apart(preset: Preset, cpus: &[usize], batch: usize) -> Result<Self> {
        let (precision, split) = (Precision::F32, Split::Data);
        let one = |cpu: &usize| {
            ours(&Job { preset, precision, split, batch, cpus: vec![*cpu], ranks: 1, rank: 0 })
        };
        let processes = cpus.iter().map(one).collect::<Result<_>>()?;
        Self::of(Who::Ours(precision), batch).ready(processes)
    }

    /// Ours, a rank on each of the processors, with so many sequences each.
    pub fn ranks(
        preset: Preset,
        precision: Precision,
        split: Split,
        cpus: &[usize],
        batch: usize,
    ) -> Result<Self> {
        let ranks = cpus.len();
        let meeting = format!("{} {}", free_port()?, Secret::generate()?.to_hex());
        let mut processes = Vec::new();
        for (rank, cpu) in cpus.iter().enumerate() {
            let cpus = vec![*cpu];
            let mut process = ours(&Job { preset, precision, split, batch, cpus, ranks, rank })?;
            process.tell(&meeting)?;
            processes.push(process);
        }
        Self { ranks, ..Self::of(Who::Ours(precision), batch * ranks) }.ready(processes)
    }

    /// PyTorch, if it can do this.
    pub fn torch(python: &Path, preset: Preset, compiled: bool, cpus: &[usize]) -> Result<Self> {
        let (threads, batch) = (cpus.len(), preset.batch);
        let process = Process::start(&mut torch(python, preset, compiled, cpus, batch))?;
        Self { threads, ..Self::of(Who::Torch { compiled }, batch) }.ready(vec![process])
    }

    /// PyTorch, a rank on each of the processors, with so many sequences each.
    pub fn torch_ranks(
        python: &Path,
        preset: Preset,
        compiled: bool,
        split: Split,
        cpus: &[usize],
        batch: usize,
    ) -> Result<Self> {
        let (port, ranks) = (free_port()?.to_string(), cpus.len());
        let one = |(rank, cpu): (usize, &usize)| {
            let mut command = torch(python, preset, compiled, &[*cpu], batch);
            command.arg(split.word());
            command.env("RANK", rank.to_string()).env("WORLD_SIZE", ranks.to_string());
            command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", &port);
            Process::start(command.env("GLOO_SOCKET_IFNAME", "lo"))
        };
        let processes = cpus.iter().enumerate().map(one).collect::<Result<_>>()?;
        Self { ranks, ..Self::of(Who::Torch { compiled }, batch * ranks) }.ready(processes)
    }

    /// Nobody yet.
    fn of(who: Who, batch: usize) -> Self {
        Self { who, threads: 1, ranks: 1, batch, losses: Vec::new(), processes: Vec::new() }
    }

    /// As soon as all these have done their first steps.
    fn ready(mut self, processes: Vec<Process>) -> Result<Self> {
        self.processes = processes;
        for process in &mut self.processes {
            let said = process.answer()?;
            let loss = said.strip_prefix("ready ").and_then(|loss| loss.parse().ok());
            self.losses.push(loss.with_context(|| said)?);
        }
        Ok(self)
    }

    /// Has all processes take so many steps, and gives what each says.
    pub fn turn(&mut self, steps: usize) -> Result<Vec<Answer>> {
        for process in &mut self.processes {
            process.tell(&steps.to_string())?;
        }
        self.processes.iter_mut().map(|process| Answer::read(&process.answer()?)).collect()
    }
}

fn ours(job: &Job) -> Result<Process> {
    let own = std::env::current_exe()?;
    Process::start(Command::new(own).arg(WORKER).args(job.arguments()))
}

fn torch(python: &Path, preset: Preset, compiled: bool, cpus: &[usize], batch: usize) -> Command {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/train.py");
    let named = cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    let mut command = Command::new(python);
    command.arg(script).arg(if compiled { "compiled" } else { "eager" }).arg(named);
    command.args(preset.numbers(batch).map(|n| n.to_string())).env("PYTHONWARNINGS", "ignore");
    command
}

/// A Python that has PyTorch.
pub fn python() -> Option<PathBuf> {
    let named = std::env::var_os("REGATTA_BENCH_PYTHON").map(PathBuf::from);
    let python = named.unwrap_or_else(|| "python3".into());
    let asked = Command::new(&python).args(["-c", "import torch"]).stderr(Stdio::null()).status();
    asked.is_ok_and(|s| s.success()).then_some(python)
}
