//! Batch jobs: the scheduler's directives that a job and its site require, and the script with them.
//! No I/O.

mod array;
mod body;
mod check;
mod container;
mod directives;
mod mpiexec;
mod settings;
mod time_limit;

use std::fmt;

use regatta_model::GpuVendor;
use regatta_model::shell::quote;
use serde::{Deserialize, Serialize};

use crate::site_profile::{JobContext, Profile, SiteSetting};

pub use array::{JobArray, JobArrayError};
pub use body::{RunDir, RunKind};
pub use settings::{
    BatchDirective, BatchSettings, ContainerRuntime, QueueOption, Requirement, merge,
};
pub use time_limit::{TimeLimit, TimeLimitError};

/// Options of `regatta launch` that read the log of each rank.
pub const CHECK_NET: &str = "--check-net";
/// See [`CHECK_NET`].
pub const REQUIRE_NET: &str = "--require-net";
/// Option of `regatta launch` that loads NCCL's profiler plug-in.
pub const PROFILE: &str = "--profile";
/// Option of `regatta launch` that loads NCCL's tuner plug-in.
pub const TUNER: &str = "--tuner";
/// Option of `regatta launch` that loads a network plug-in of NCCL.
pub const NET_PLUGIN: &str = "--net-plugin";

/// A scheduler with batch scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BatchScheduler {
    /// Slurm.
    Slurm,
    /// PBS Professional and OpenPBS.
    Pbs,
    /// Flux.
    Flux,
}

impl BatchScheduler {
    /// All schedulers.
    pub const ALL: [Self; 3] = [Self::Slurm, Self::Pbs, Self::Flux];

    /// Name as users write it.
    pub fn title(self) -> &'static str {
        match self {
            Self::Slurm => "Slurm",
            Self::Pbs => "PBS",
            Self::Flux => "Flux",
        }
    }

    /// The program that submits a script.
    pub fn program(self) -> &'static str {
        self.submit_words()[0]
    }

    fn submit_words(self) -> &'static [&'static str] {
        match self {
            Self::Slurm => &["sbatch", "--parsable"],
            Self::Pbs => &["qsub"],
            Self::Flux => &["flux", "batch"],
        }
    }

    /// The command that submits a script and prints the job's ID.
    pub fn submit_command(self, script: &str) -> Vec<String> {
        self.submit_words().iter().copied().chain([script]).map(str::to_owned).collect()
    }

    /// What starts a line with a directive.
    fn sentinel(self) -> &'static str {
        match self {
            Self::Slurm => "#SBATCH ",
            Self::Pbs => "#PBS ",
            Self::Flux => "# flux: ",
        }
    }

    /// The job ID in the output of [`Self::submit_command`].
    pub fn parse_job_id(self, output: &str) -> Option<String> {
        // Sites print messages before the ID.
        let line = output.lines().map(str::trim).rfind(|line| !line.is_empty())?;
        // `ID;CLUSTER` with several Slurm clusters.
        let id = if self == Self::Slurm { line.split(';').next()? } else { line };
        let starts_right = match self {
            Self::Slurm | Self::Pbs => id.starts_with(|c: char| c.is_ascii_digit()),
            Self::Flux => {
                id.starts_with(['ƒ', 'f']) || id.starts_with(|c: char| c.is_ascii_digit())
            }
        };
        (starts_right && check::is_job_id(id)).then(|| id.to_owned())
    }
}

impl fmt::Display for BatchScheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.title())
    }
}

/// When a job that depends on others may start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dependency {
    /// The other job's ID.
    pub job: String,
    /// Whether the other job must succeed, or only end.
    pub must_succeed: bool,
}

/// A job to submit, as the user describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchJob {
    /// Name in the queue.
    pub name: String,
    /// Number of nodes.
    pub nodes: u32,
    /// Time limit.
    pub time: Option<TimeLimit>,
    /// Account, project or bank that is charged.
    pub account: Option<String>,
    /// Partition, queue or QOS; `None`: the site's default.
    pub queue: Option<String>,
    /// GPUs to request on each node; `None`: all that the site's nodes have.
    pub gpus_per_node: Option<u32>,
    /// The tasks of a job array; `None`: a single job.
    pub array: Option<JobArray>,
    /// Jobs to wait for.
    pub after: Vec<Dependency>,
    /// Environment modules to load.
    pub modules: Vec<String>,
    /// Container image to run the program in.
    pub container: Option<String>,
    /// Container runtime; `None`: the site's.
    pub container_runtime: Option<ContainerRuntime>,
    /// Seconds between the signal and the time limit; 0: no signal.
    pub signal_before: u32,
    /// Whether the job is put back into the queue.
    pub requeue: bool,
    /// Further directives, which replace those of the site for the same option.
    pub directives: Vec<String>,
    /// Settings of the site to omit, with the directives that they require.
    pub without: Vec<String>,
    /// Folder of the script and of the job's output, relative to where it is submitted.
    pub job_dir: String,
    /// Path of regatta on the nodes.
    pub regatta: String,
    /// Options for `regatta launch`.
    pub launch_options: Vec<String>,
    /// The command of the ranks, or `regatta` with one of its commands.
    pub command: Vec<String>,
}

/// Why a job cannot be submitted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum BatchError {
    /// Options that the site requires.
    #[error("{site} requires {}", .missing.join(", and "))]
    Missing { site: String, missing: Vec<String> },
    /// A value that cannot be in a directive.
    #[error("{option} {value:?}: {expected}")]
    BadValue { option: &'static str, value: String, expected: &'static str },
    /// The signal would precede the job.
    #[error(
        "--signal-before {before} is not less than the time limit of {limit} s; reduce it, or 0 \
         disables the signal"
    )]
    SignalBeforeStart { before: u32, limit: u64 },
    /// Not supported by the scheduler.
    #[error("{scheduler} {what}; {fix}")]
    Unsupported { scheduler: BatchScheduler, what: &'static str, fix: &'static str },
    /// A plug-in of NCCL, for ranks that do not use NCCL.
    #[error(
        "{scheduler} starts the ranks by mpiexec at this site, for oneCCL, which loads no plug-in of \
         NCCL; remove {option}"
    )]
    PluginForOneCcl { scheduler: BatchScheduler, option: &'static str },
    /// All tasks of an array would write to one run folder.
    #[error(
        "--array: every task would write to the run folder {0}, which the command names; remove its \
         --run-dir or --resume, and each task gets its own"
    )]
    SharedRunDir(String),
    /// `--container` with a command of regatta.
    #[error(
        "--container runs a program of yours: `regatta {0}` runs on the nodes themselves; remove \
         --container"
    )]
    ContainerOfRegatta(String),
    /// An empty command.
    #[error("no command: name the program and its arguments after `--`")]
    NoCommand,
    /// Flux would read a part of an argument as a directive.
    #[error("argument {0:?} has a line that Flux reads as a directive; pass it in a file instead")]
    ArgumentIsDirective(String),
}

/// The script that runs a job, with comments.
pub fn script(
    scheduler: BatchScheduler,
    job: &BatchJob,
    site: &Profile,
) -> Result<String, BatchError> {
    check::check(scheduler, job, site)?;
    let directives = directives::directives(scheduler, job, site);
    let body = body::body(scheduler, job, site)?;
    let shell = if job.modules.is_empty() { "#!/bin/bash" } else { "#!/bin/bash -l" };
    let script = job.job_dir.clone() + "/job.sh";
    let submit = scheduler.submit_command(&script);
    let mut lines = vec![
        shell.to_owned(),
        format!("# Job script of `regatta submit` for {} ({scheduler}).", site_title(site)),
        format!("# Submit: mkdir -p {}; save this as {script}; {}", job.job_dir, submit.join(" ")),
        "#".to_owned(),
    ];
    for directive in directives {
        lines.push(format!("# {}", directive.why));
        lines.push(format!("{}{}", scheduler.sentinel(), directive.option));
    }
    Ok(lines.join("\n") + "\n" + &body)
}

/// Where the runs of a job are; `None` if its command chooses another folder.
pub fn run_dir(job: &BatchJob) -> RunDir {
    body::run_dir(&job.command)
}

fn site_title(site: &Profile) -> &str {
    if site.title.is_empty() { &site.name } else { &site.title }
}

/// The context of conditions in the site's settings.
fn context(job: &BatchJob, site: &Profile) -> JobContext {
    let hardware = &site.matches.hardware;
    JobContext {
        nodes: job.nodes,
        gpus_per_node: job.gpus_per_node.or(hardware.gpus).unwrap_or(0),
        vendor: gpu_vendor(job, site),
        ..JobContext::default()
    }
}

/// The settings of the site that apply to a job.
fn settings(job: &BatchJob, site: &Profile) -> Vec<SiteSetting> {
    let mut settings = site.settings(&context(job, site));
    settings.retain(|setting| !job.without.contains(&setting.variable));
    settings
}

/// Words as a shell reads them, each after a space.
fn quote_all(words: &[String]) -> String {
    words.iter().map(|word| format!(" {}", quote(word))).collect()
}

/// The vendor of the job's GPUs, if known.
fn gpu_vendor(job: &BatchJob, site: &Profile) -> Option<GpuVendor> {
    site.matches.hardware.vendor.filter(|_| job.gpus_per_node != Some(0))
}

#[cfg(test)]
mod tests;
