//! Processes that train, and wait for their turn.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};
use regatta_benchmarks::flock::free_port;
use regatta_train::cpu::Precision;
use regatta_wire::secret::Secret;

use crate::WORKER;
use crate::preset::Preset;
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
    processes: Vec<Process>,
}

impl Crew {
    /// Ours in one process, with a thread on each of the processors.
    pub fn ours(preset: Preset, precision: Precision, cpus: &[usize]) -> Result<Self> {
        let (batch, threads) = (preset.batch, cpus.len());
        let cpus = cpus.to_vec();
        let job = Job { preset, precision, batch, cpus, ranks: 1, rank: 0 };
        let processes = vec![ours(&job)?];
        ready(Self { who: Who::Ours(precision), threads, ranks: 1, batch, processes })
    }

    /// A rank on each of the processors, with so many sequences each.
    pub fn ranks(
        preset: Preset,
        precision: Precision,
        cpus: &[usize],
        batch: usize,
    ) -> Result<Self> {
        let ranks = cpus.len();
        let meeting = format!("{} {}", free_port()?, Secret::generate()?.to_hex());
        let mut processes = Vec::new();
        for (rank, cpu) in cpus.iter().enumerate() {
            let mut process =
                ours(&Job { preset, precision, batch, cpus: vec![*cpu], ranks, rank })?;
            process.tell(&meeting)?;
            processes.push(process);
        }
        let (who, batch) = (Who::Ours(precision), batch * ranks);
        ready(Self { who, threads: 1, ranks, batch, processes })
    }

    /// PyTorch, if it can do this.
    pub fn torch(python: &Path, preset: Preset, compiled: bool, cpus: &[usize]) -> Result<Self> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/train.py");
        let cpus_named = cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        let mut command = Command::new(python);
        command.arg(script).arg(if compiled { "compiled" } else { "eager" }).arg(cpus_named);
        command.args(preset.numbers().map(|n| n.to_string())).env("PYTHONWARNINGS", "ignore");
        let processes = vec![Process::start(&mut command)?];
        let (threads, batch) = (cpus.len(), preset.batch);
        ready(Self { who: Who::Torch { compiled }, threads, ranks: 1, batch, processes })
    }

    /// The seconds of a step: the slowest process's.
    pub fn turn(&mut self, steps: usize) -> Result<f64> {
        for process in &mut self.processes {
            process.tell(&steps.to_string())?;
        }
        let mut slowest = 0.0f64;
        for process in &mut self.processes {
            let answer = process.answer()?;
            let seconds: f64 = answer.parse().with_context(|| format!("{answer:?} is no time"))?;
            slowest = slowest.max(seconds);
        }
        Ok(slowest)
    }
}

fn ours(job: &Job) -> Result<Process> {
    let own = std::env::current_exe()?;
    Process::start(Command::new(own).arg(WORKER).args(job.arguments()))
}

fn ready(mut crew: Crew) -> Result<Crew> {
    for process in &mut crew.processes {
        let said = process.answer()?;
        if said != "ready" {
            bail!("{said}");
        }
    }
    Ok(crew)
}

/// A Python that has PyTorch.
pub fn python() -> Option<PathBuf> {
    let named = std::env::var_os("REGATTA_BENCH_PYTHON").map(PathBuf::from);
    let python = named.unwrap_or_else(|| "python3".into());
    let asked = Command::new(&python).args(["-c", "import torch"]).stderr(Stdio::null()).status();
    asked.is_ok_and(|s| s.success()).then_some(python)
}
