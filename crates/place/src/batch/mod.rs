//! Batch jobs: the scheduler's directives that a job and its site require, and the script with them.
//! No I/O.

mod array;
mod body;
mod container;
mod directives;
mod mpiexec;
mod settings;
mod time_limit;

use std::fmt;

use regatta_model::GpuVendor;
use serde::{Deserialize, Serialize};

use crate::site_profile::{JobContext, Profile};

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
        match self {
            Self::Slurm => "sbatch",
            Self::Pbs => "qsub",
            Self::Flux => "flux",
        }
    }

    /// The command that submits a script and prints the job's ID.
    pub fn submit_command(self, script: &str) -> Vec<String> {
        let words: &[&str] = match self {
            Self::Slurm => &["sbatch", "--parsable"],
            Self::Pbs => &["qsub"],
            Self::Flux => &["flux", "batch"],
        };
        words.iter().copied().chain([script]).map(str::to_owned).collect()
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
        (starts_right && is_job_id(id)).then(|| id.to_owned())
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
    check(scheduler, job, site)?;
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

/// The vendor of the job's GPUs, if known.
fn gpu_vendor(job: &BatchJob, site: &Profile) -> Option<GpuVendor> {
    site.matches.hardware.vendor.filter(|_| job.gpus_per_node != Some(0))
}

fn check(scheduler: BatchScheduler, job: &BatchJob, site: &Profile) -> Result<(), BatchError> {
    check_values(job)?;
    check_profile(site)?;
    let missing = missing_options(scheduler, job, site);
    if !missing.is_empty() {
        return Err(BatchError::Missing { site: site_title(site).to_owned(), missing });
    }
    if let Some(limit) = job.time
        && u64::from(job.signal_before) >= limit.seconds()
    {
        let (before, limit) = (job.signal_before, limit.seconds());
        return Err(BatchError::SignalBeforeStart { before, limit });
    }
    if scheduler == BatchScheduler::Flux && job.requeue {
        return Err(BatchError::Unsupported {
            scheduler,
            what: "does not put jobs back into the queue",
            fix: "remove --requeue and submit a second job with --after-any JOBID",
        });
    }
    check_array(scheduler, job)?;
    let checks_net = job.launch_options.iter().any(|o| o == CHECK_NET || o == REQUIRE_NET);
    if checks_net && mpiexec::is_needed(scheduler, job, site) {
        return Err(BatchError::Unsupported {
            scheduler,
            what: "starts the ranks by mpiexec at this site, for oneCCL, which logs nothing that \
                   --check-net reads",
            fix: "remove --check-net and --require-net",
        });
    }
    let is_flux_directive = |line: &str| {
        let tag = line.trim_start_matches(|c: char| !c.is_ascii_alphanumeric());
        tag.starts_with("flux:") || tag.starts_with("FLUX:")
    };
    let hides_directive = |word: &&String| word.lines().skip(1).any(is_flux_directive);
    match job.command.iter().find(hides_directive) {
        Some(word) if scheduler == BatchScheduler::Flux => {
            Err(BatchError::ArgumentIsDirective(word.clone()))
        }
        _ => Ok(()),
    }
}

fn check_array(scheduler: BatchScheduler, job: &BatchJob) -> Result<(), BatchError> {
    let Some(array) = job.array else { return Ok(()) };
    if scheduler == BatchScheduler::Flux {
        return Err(BatchError::Unsupported {
            scheduler,
            what: "has no job arrays",
            fix: "remove --array and submit one job per task, as in a loop over --name",
        });
    }
    if scheduler == BatchScheduler::Pbs && array.count() == 1 {
        return Err(BatchError::Unsupported {
            scheduler,
            what: "needs at least two tasks in an array",
            fix: "remove --array",
        });
    }
    match body::run_dir(&job.command) {
        RunDir::Named(folder) => Err(BatchError::SharedRunDir(folder)),
        RunDir::Numbered | RunDir::Resumed | RunDir::Unknown => Ok(()),
    }
}

/// The required options that are missing, each with what it is for.
fn missing_options(scheduler: BatchScheduler, job: &BatchJob, site: &Profile) -> Vec<String> {
    let is_missing = |requirement: &&Requirement| match requirement {
        Requirement::Account => job.account.is_none(),
        Requirement::Queue => job.queue.is_none() && site.batch.queue.is_none(),
        Requirement::Time => job.time.is_none(),
    };
    // The site's options are those of its own scheduler.
    let own = site.batch.scheduler.is_none_or(|own| own == scheduler);
    let required = site.batch.require.iter().filter(|_| own);
    required.filter(is_missing).map(|requirement| requirement.hint().to_owned()).collect()
}

/// Values in directives have no quotes: schedulers disagree on how they are read.
fn check_values(job: &BatchJob) -> Result<(), BatchError> {
    let word = "expected letters, digits and any of _ . - + : , / @ =";
    let bad = |option, value: &str, expected| {
        Err(BatchError::BadValue { option, value: value.to_owned(), expected })
    };
    if !is_name(&job.name) {
        let expected = "expected a letter or digit, then letters, digits and any of _ . - +";
        return bad("--name", &job.name, expected);
    }
    for (option, value) in [("--account", &job.account), ("--partition", &job.queue)] {
        if let Some(value) = value.as_ref().filter(|value| !is_word(value)) {
            return bad(option, value, word);
        }
    }
    if let Some(after) = job.after.iter().find(|after| !is_job_id(&after.job)) {
        return bad("--after", &after.job, "expected a job ID");
    }
    if !is_word(&job.job_dir) || job.job_dir.starts_with('-') || job.job_dir.contains(':') {
        return bad(
            "--job-dir",
            &job.job_dir,
            "expected letters, digits and any of _ . - + , / @ =",
        );
    }
    if let Some(directive) = job.directives.iter().find(|d| !is_directive(d)) {
        let expected = "expected an option of the scheduler, as in --directive=--qos=debug";
        return bad("--directive", directive, expected);
    }
    if let Some(module) = job.modules.iter().find(|m| m.starts_with('-') || m.is_empty()) {
        return bad("--module", module, "expected the name of a module");
    }
    if let Some(image) = job.container.iter().find(|c| c.starts_with('-') || c.is_empty()) {
        return bad("--container", image, "expected an image");
    }
    if job.command.first().is_none_or(String::is_empty) {
        Err(BatchError::NoCommand)
    } else {
        Ok(())
    }
}

/// The profile may be a user's file.
fn check_profile(site: &Profile) -> Result<(), BatchError> {
    let batch = &site.batch;
    let bad = |option, value: &str, expected| {
        Err(BatchError::BadValue { option, value: value.to_owned(), expected })
    };
    let expected = "expected an option of the scheduler with a reason, each on one line";
    let is_good = |d: &BatchDirective| is_directive(&d.option) && !d.why.contains(char::is_control);
    if let Some(directive) = batch.directives.iter().find(|d| !is_good(d)) {
        return bad("directives of the site profile", &directive.option, expected);
    }
    if let Some(option) = batch.container_options.iter().flatten().find(|o| !is_directive(o)) {
        return bad("container_options of the site profile", option, "expected an option");
    }
    let words =
        [("queue of the site profile", &batch.queue), ("chunk of the site profile", &batch.chunk)];
    for (option, value) in words {
        if let Some(value) = value.as_ref().filter(|value| !is_word(value)) {
            return bad(option, value, "expected a single word");
        }
    }
    match site_title(site).contains(char::is_control) {
        true => bad("title of the site profile", site_title(site), "expected a single line"),
        false => Ok(()),
    }
}

/// Whether a text is an option of a scheduler on one line.
fn is_directive(text: &str) -> bool {
    text.starts_with('-') && !text.contains(char::is_control)
}

fn is_name(text: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_.-+".contains(c);
    text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.chars().all(is_part)
}

fn is_word(text: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_.-+:,/@=".contains(c);
    !text.is_empty() && text.chars().all(is_part)
}

/// Whether a text is a job ID: `123`, `123_4`, `123[4].server`, `ƒM7Zq9AKHno`.
fn is_job_id(text: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_.-[]ƒ".contains(c);
    !text.is_empty() && !text.starts_with('-') && text.chars().all(is_part)
}

#[cfg(test)]
mod tests;
