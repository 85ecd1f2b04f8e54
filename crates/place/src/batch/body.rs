//! The commands of a batch script. Every word of the user is quoted.

use regatta_model::shell::quote;

use super::container::{ContainerCommands, container};
use super::{BatchError, BatchJob, BatchScheduler, mpiexec, quote_all};
use crate::site_profile::Profile;

/// Where the runs of a job are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunDir {
    /// `run-0`, `run-1` and so on in the job folder, one per start of the job.
    Numbered,
    /// `run` in the job folder, which a job that starts again resumes.
    Resumed,
    /// A folder that the command names.
    Named(String),
    /// Not known.
    Unknown,
}

impl RunDir {
    /// Start of the names of [`RunDir::Numbered`] folders.
    pub const NUMBERED_PREFIX: &str = "run-";
    /// Name of the [`RunDir::Resumed`] folder.
    pub const RESUMED_NAME: &str = "run";
    /// Start of the names of the folders of an array's tasks, which have the folders of their runs.
    pub const TASK_PREFIX: &str = "task-";
}

/// How the command of a job is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunKind {
    /// A program, by `regatta launch`.
    Program,
    /// `regatta launch`.
    Launch,
    /// `regatta train`.
    Train,
    /// `regatta bench`.
    Bench,
    /// Another command of regatta.
    Other,
}

impl RunKind {
    /// How this command is started.
    pub fn of(command: &[String]) -> Self {
        let program = command.first().map_or("", |word| word.rsplit('/').next().unwrap_or(word));
        match (program == "regatta", command.get(1).map(String::as_str)) {
            (false, _) => Self::Program,
            (true, Some("launch")) => Self::Launch,
            (true, Some("train")) => Self::Train,
            (true, Some("bench")) => Self::Bench,
            (true, _) => Self::Other,
        }
    }
}

/// Where the runs of this command are.
pub(super) fn run_dir(command: &[String]) -> RunDir {
    let kind = RunKind::of(command);
    let own = command.get(2..).unwrap_or_default();
    let own = own.split(|word| word == "--").next().unwrap_or_default();
    let value = |option: &str| {
        let at = own.iter().position(|word| word.split('=').next() == Some(option))?;
        let inline = own[at].split_once('=').map(|(_, value)| value.to_owned());
        inline.or_else(|| own.get(at + 1).cloned())
    };
    let named = match kind {
        RunKind::Program => None,
        RunKind::Train => value("--run-dir").or_else(|| value("--resume")),
        RunKind::Launch | RunKind::Bench => value("--run-dir"),
        RunKind::Other => return RunDir::Unknown,
    };
    match (named, kind) {
        (Some(folder), _) => RunDir::Named(folder),
        (None, RunKind::Train) => RunDir::Resumed,
        (None, _) => RunDir::Numbered,
    }
}

/// Flux removes the variables of its jobs from the environment of batch scripts.
const FLUX_JOB_ID: &str = "
# Flux does not set this variable in batch scripts; regatta finds the nodes of the job by it.
FLUX_JOB_ID=$(flux getattr jobid) || exit
export FLUX_JOB_ID
";

/// The commands after the directives.
pub(super) fn body(
    scheduler: BatchScheduler,
    job: &BatchJob,
    site: &Profile,
) -> Result<String, BatchError> {
    let mut text = String::new();
    if scheduler == BatchScheduler::Pbs {
        text += "\n# PBS starts scripts in the home folder.\ncd \"$PBS_O_WORKDIR\" || exit\n";
    }
    if scheduler == BatchScheduler::Flux {
        text += FLUX_JOB_ID;
    }
    if !job.modules.is_empty() {
        text += "\n";
        text.extend(job.modules.iter().map(|m| format!("module load {} || exit\n", quote(m))));
    }
    if let Some(index) = job.array.and_then(|_| task_index(scheduler)) {
        text += &format!("\n# The task of the array.\ntask={index}\n");
    }
    let by_mpiexec = mpiexec::is_needed(scheduler, job, site);
    let runs = if by_mpiexec { RunDir::Unknown } else { run_dir(&job.command) };
    if runs == RunDir::Numbered {
        let dir = run_parent(job);
        text += &format!(
            "\n# A run folder holds one run: a job that starts again uses the next one.\nrun=0\n\
             while [ -e \"{dir}/run-$run\" ]; do run=$((run + 1)); done\n"
        );
    }
    let container = container(scheduler, job, site)?;
    text += &container.setup;
    let command = match by_mpiexec {
        true => {
            text += &mpiexec::setup(job);
            mpiexec::command(job, &container)
        }
        false => command(job, &container, &runs)?,
    };
    let continues = scheduler == BatchScheduler::Slurm && job.requeue && job.signal_before > 0;
    Ok(text
        + &match continues {
            true => requeue_after_limit(job, &command),
            false => format!("\n{}\n", with_timer(scheduler, job, &command)),
        })
}

/// The index of an array's task.
fn task_index(scheduler: BatchScheduler) -> Option<&'static str> {
    match scheduler {
        BatchScheduler::Slurm => Some("$SLURM_ARRAY_TASK_ID"),
        BatchScheduler::Pbs => Some("$PBS_ARRAY_INDEX"),
        BatchScheduler::Flux => None,
    }
}

/// The folder of the run folders: that of the job, or of its task.
fn run_parent(job: &BatchJob) -> String {
    let task = job.array.map_or(String::new(), |_| format!("/{}$task", RunDir::TASK_PREFIX));
    job.job_dir.clone() + &task
}

/// The command that starts the ranks.
fn command(
    job: &BatchJob,
    container: &ContainerCommands,
    runs: &RunDir,
) -> Result<String, BatchError> {
    let kind = RunKind::of(&job.command);
    let parent = run_parent(job);
    let run_dir = match runs {
        RunDir::Numbered => format!(" --run-dir \"{parent}/run-$run\""),
        RunDir::Resumed if job.array.is_some() => format!(" --run-dir \"{parent}/run\""),
        RunDir::Resumed => format!(" --run-dir {parent}/run"),
        RunDir::Named(_) | RunDir::Unknown => String::new(),
    };
    let options = quote_all(&job.launch_options);
    if kind == RunKind::Program {
        let regatta = quote(&job.regatta);
        let ContainerCommands { launch_options, prefix, .. } = container;
        let words = quote_all(&job.command);
        return Ok(format!(
            "{regatta} launch{options}{launch_options}{run_dir} \\\n    --{prefix}{words}"
        ));
    }
    let (subcommand, rest) = (job.command.get(1), job.command.get(2..).unwrap_or_default());
    if job.container.is_some() {
        return Err(BatchError::ContainerOfRegatta(subcommand.cloned().unwrap_or_default()));
    }
    let program = if job.command[0] == "regatta" { &job.regatta } else { &job.command[0] };
    let start = quote(program) + &quote_all(subcommand.map_or(&[], std::slice::from_ref));
    let rest = quote_all(rest);
    Ok(match kind {
        RunKind::Launch => format!("{start}{options}{run_dir} \\\n   {rest}"),
        RunKind::Train if !rest.is_empty() => format!("{start}{run_dir} \\\n   {rest}"),
        RunKind::Train => format!("{start}{run_dir}"),
        // After the operation, which is a subcommand.
        _ => format!("{start}{rest}{run_dir}"),
    })
}

/// The command in place of this shell, so that signals reach it. PBS sends no signal before the time
/// limit: a timer does.
fn with_timer(scheduler: BatchScheduler, job: &BatchJob, command: &str) -> String {
    let limit = job.time.filter(|_| scheduler == BatchScheduler::Pbs && job.signal_before > 0);
    let Some(limit) = limit else {
        return format!("# `exec`: signals of {scheduler} reach regatta.\nexec {command}");
    };
    let seconds = limit.seconds() - u64::from(job.signal_before);
    format!(
        "# PBS sends no signal before the time limit: `timeout` sends TERM {} s earlier, so that \
         the\n# ranks can save. `exec`: signals of PBS reach regatta.\nexec timeout \
         --preserve-status --signal=TERM {seconds} \\\n    {command}",
        job.signal_before
    )
}

/// Runs a command, and puts the job back into the queue if it saved before the time limit. The
/// command runs beside the shell, which waits: with `exec`, nothing could look at its exit code.
///
/// A signal may arrive at any line: before the ranks' process is known, or before `wait`.
fn requeue_after_limit(job: &BatchJob, command: &str) -> String {
    // The last task of an array has the ID of the array, which would requeue all of them.
    let id = match job.array {
        Some(_) => "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID",
        None => "$SLURM_JOB_ID",
    };
    format!(
        "
stop_ranks() {{
    signalled=1
    [ -z \"$ranks\" ] || kill -TERM \"$ranks\"
}}
# The time limit is near: the ranks save and exit with code 75.
trap 'limit=1; stop_ranks' USR1
# The job is cancelled.
trap stop_ranks TERM
{command} &
ranks=$!
# A signal before this line found no ranks.
[ -z \"$signalled\" ] || stop_ranks
wait \"$ranks\"
code=$?
# A signal interrupts `wait`, whose code is then more than 128.
while [ -n \"$signalled\" ] && [ \"$code\" -gt 128 ]; do
    signalled=
    wait \"$ranks\"
    code=$?
done
# 75: the work is not finished. The job continues where it stopped when it starts again.
if [ \"$code\" -eq 75 ] && [ -n \"$limit\" ]; then
    scontrol requeue \"{id}\"
fi
exit \"$code\"
"
    )
}
