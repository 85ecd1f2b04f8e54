//! Runs `regatta train` on the GPU, or on CPUs to test the tests.

use std::ffi::OsString;
use std::process::Command;
use std::time::{Duration, Instant};

use regatta_comm::nccl::Vendor;
use regatta_kernels_cuda::device_count;

use crate::rank_slots::RankSlots;
use crate::support::metrics::{RunMetrics, last_step_in, read_metrics};
use crate::support::process::Process;
use crate::support::{CommandOutput, TempDir, command};

/// A run that takes longer hangs. The first run on a machine compiles kernels and times GEMMs.
const TIME_LIMIT: Duration = Duration::from_secs(240);

/// Lets ranks share a GPU, which NCCL refuses within a host.
const SHARE_GPU: &str = "--launch \"--wrap 'env NCCL_HOSTID={rank}'\"";

/// Where the runs of these tests train.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    Gpu,
    Cpu,
}

impl Target {
    /// The device of these tests; `None`, with a message, if they are skipped.
    fn or_skip() -> Option<Self> {
        if std::env::var_os("REGATTA_ACCEPTANCE").is_some_and(|value| value == "cpu") {
            return Some(Self::Cpu);
        }
        if device_count(Vendor::Nvidia) > 0 {
            return Some(Self::Gpu);
        }
        assert!(std::env::var_os("REGATTA_REQUIRE_GPU").is_none(), "no NVIDIA GPU");
        eprintln!("skipped: no NVIDIA GPU; REGATTA_ACCEPTANCE=cpu trains on CPUs");
        None
    }

    /// Ranks that may run at a time.
    fn rank_limit(self) -> usize {
        let set = std::env::var("REGATTA_ACCEPTANCE_RANKS").ok();
        let limit = set.and_then(|text| text.parse().ok());
        limit.unwrap_or(if self == Self::Gpu { 8 } else { 2 })
    }

    fn name(self) -> &'static str {
        if self == Self::Gpu { "gpu" } else { "cpu" }
    }
}

/// Runs in a temporary folder.
pub struct Harness {
    pub folder: TempDir,
    pub target: Target,
}

impl Harness {
    /// `None`, with a message, without a GPU.
    pub fn or_skip() -> Option<Self> {
        Some(Self::on(Target::or_skip()?))
    }

    /// For cases that mean nothing on CPUs.
    pub fn gpu_or_skip() -> Option<Self> {
        let harness = Self::or_skip()?;
        if harness.target == Target::Cpu {
            eprintln!("skipped: needs a GPU");
            return None;
        }
        Some(harness)
    }

    pub fn on(target: Target) -> Self {
        Self { folder: TempDir::new(), target }
    }

    /// `regatta` in the folder, with the variables that vendor libraries are found by.
    pub fn regatta(&self, words: &str) -> Command {
        let mut command = command();
        command.envs(std::env::vars_os().filter(|(name, _)| is_passed(name)));
        command.env("TMPDIR", self.folder.path()).env("HOME", self.folder.path());
        // Compiled kernels and GEMM choices are shared by all runs, also of later calls.
        if std::env::var_os("REGATTA_CACHE_DIR").is_none() {
            let cache = std::env::temp_dir().join("regatta-acceptance-cache");
            command.env("REGATTA_CACHE_DIR", cache);
        }
        if self.target == Target::Cpu {
            command.env("CUDA_VISIBLE_DEVICES", "");
        }
        command.args(shlex::split(words).unwrap()).current_dir(self.folder.path());
        command
    }

    /// `regatta train` on a number of ranks, which share the GPU. A device in `words` overrides that
    /// of the tests.
    pub fn train(&self, ranks: usize, words: &str) -> Command {
        let device = self.target.name();
        let share = if self.target == Target::Gpu && ranks > 1 { SHARE_GPU } else { "" };
        self.regatta(&format!("train train.device={device} {words} -n {ranks} {share}"))
    }

    /// Waits until this many ranks may run.
    pub fn slots(&self, ranks: usize) -> RankSlots {
        RankSlots::acquire(ranks, self.target.rank_limit())
    }

    /// Waits until no other test runs ranks.
    pub fn all_slots(&self) -> RankSlots {
        self.slots(usize::MAX)
    }

    /// Trains to the end, once this many ranks may run.
    pub fn run(&self, ranks: usize, words: &str) -> CommandOutput {
        let _slots = self.slots(ranks);
        self.finish(self.spawn(ranks, words))
    }

    /// Trains to the end in a run folder; the metrics.
    pub fn run_in(&self, run: &str, ranks: usize, words: &str) -> RunMetrics {
        self.run(ranks, &format!("{words} --run-dir {run}")).ok();
        self.metrics(run)
    }

    /// Starts a training; the caller holds the slots of its ranks.
    pub fn spawn(&self, ranks: usize, words: &str) -> Process {
        Process::spawn(&self.folder, &mut self.train(ranks, words))
    }

    /// Waits for the end of a command.
    ///
    /// # Panics
    /// If it takes longer than the time limit.
    pub fn finish(&self, mut process: Process) -> CommandOutput {
        let deadline = Instant::now() + TIME_LIMIT;
        while !process.has_exited() {
            let (out, err) = (process.stdout(), process.stderr());
            assert!(Instant::now() < deadline, "no exit after {TIME_LIMIT:?}: {out}{err}");
            std::thread::sleep(Duration::from_millis(20));
        }
        process.wait()
    }

    pub fn metrics(&self, run: &str) -> RunMetrics {
        read_metrics(&self.folder.join(run).join("metrics.jsonl"))
    }

    /// Waits until a run has recorded a step.
    pub fn wait_for_step(&self, process: &mut Process, run: &str, step: u64) {
        let deadline = Instant::now() + TIME_LIMIT;
        let metrics = self.folder.join(run).join("metrics.jsonl");
        while last_step_in(&metrics) < step {
            let is_late = Instant::now() > deadline || process.has_exited();
            let (out, err) = (process.stdout(), process.stderr());
            assert!(!is_late, "step {step} not reached: {out}{err}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// The errors of a failed command. The launcher quotes those of ranks.
pub fn errors(output: &CommandOutput) -> Vec<&str> {
    let lines = output.err.lines().map(|line| line.trim_start_matches([' ', '|']));
    lines.filter(|line| line.starts_with("error: ")).collect()
}

/// Variables by which CUDA, its libraries and NCCL are found and configured.
fn is_passed(name: &OsString) -> bool {
    let name = name.to_string_lossy();
    let prefixes = ["REGATTA_", "CUDA_", "NCCL_", "NVIDIA_"];
    let names = ["LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX"];
    prefixes.iter().any(|prefix| name.starts_with(prefix)) || names.contains(&&*name)
}
