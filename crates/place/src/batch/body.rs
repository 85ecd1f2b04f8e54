//! The commands of a batch script. Every word of the user is quoted.

use regatta_model::GpuVendor;
use regatta_model::shell::quote;

use super::{BatchError, BatchJob, BatchScheduler, ContainerRuntime, gpu_vendor, site_title};
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
    let runs = run_dir(&job.command);
    if runs == RunDir::Numbered {
        let dir = &job.job_dir;
        text += &format!(
            "\n# A run folder holds one run: a job that starts again uses the next one.\nrun=0\n\
             while [ -e \"{dir}/run-$run\" ]; do run=$((run + 1)); done\n"
        );
    }
    let command = command(job, site, &runs)?;
    let continues = scheduler == BatchScheduler::Slurm && job.requeue && job.signal_before > 0;
    Ok(text
        + &match continues {
            true => requeue_after_limit(&command),
            false => format!("\n{}\n", with_timer(scheduler, job, &command)),
        })
}

/// The command that starts the ranks.
fn command(job: &BatchJob, site: &Profile, runs: &RunDir) -> Result<String, BatchError> {
    let kind = RunKind::of(&job.command);
    let run_dir = match runs {
        RunDir::Numbered => format!(" --run-dir \"{}/run-$run\"", job.job_dir),
        RunDir::Resumed => format!(" --run-dir {}/run", job.job_dir),
        RunDir::Named(_) | RunDir::Unknown => String::new(),
    };
    let options: String = job.launch_options.iter().map(|o| format!(" {}", quote(o))).collect();
    let words = |words: &[String]| -> String {
        words.iter().map(|word| format!(" {}", quote(word))).collect()
    };
    if kind == RunKind::Program {
        let container = container(job, site)?;
        let regatta = quote(&job.regatta);
        let words = words(&job.command);
        return Ok(format!("{regatta} launch{options}{run_dir} \\\n    --{container}{words}"));
    }
    let (subcommand, rest) = (job.command.get(1), job.command.get(2..).unwrap_or_default());
    if job.container.is_some() {
        return Err(BatchError::ContainerOfRegatta(subcommand.cloned().unwrap_or_default()));
    }
    let program = if job.command[0] == "regatta" { &job.regatta } else { &job.command[0] };
    let start = quote(program) + &words(subcommand.map_or(&[], std::slice::from_ref));
    let rest = words(rest);
    Ok(match kind {
        RunKind::Launch => format!("{start}{options}{run_dir} \\\n   {rest}"),
        RunKind::Train if !rest.is_empty() => format!("{start}{run_dir} \\\n   {rest}"),
        RunKind::Train => format!("{start}{run_dir}"),
        // After the operation, which is a subcommand.
        _ => format!("{start}{rest}{run_dir}"),
    })
}

/// The words that run a program in the job's container.
fn container(job: &BatchJob, site: &Profile) -> Result<String, BatchError> {
    let Some(image) = &job.container else { return Ok(String::new()) };
    let runtime = job.container_runtime.or(site.batch.container);
    let unsupported = |runtime, fix| {
        let site = site_title(site).to_owned();
        Err(BatchError::Container { runtime, site, fix })
    };
    let program = match runtime.unwrap_or(ContainerRuntime::Apptainer) {
        ContainerRuntime::Apptainer => "apptainer",
        ContainerRuntime::Singularity => "singularity",
        ContainerRuntime::PodmanHpc => {
            let fix = "it passes no variables by itself; write `podman-hpc run --gpu -e RANK ...` \
                       before the program";
            return unsupported("podman-hpc", fix);
        }
        ContainerRuntime::Edf => {
            let fix = "srun starts it; submit a script with `srun --environment=FILE`, in which \
                       `regatta launch` becomes each rank";
            return unsupported("the container engine", fix);
        }
    };
    let gpu = match (gpu_vendor(job, site), job.gpus_per_node) {
        (Some(GpuVendor::Amd), _) => " --rocm",
        (Some(GpuVendor::Nvidia), _) => " --nv",
        (None, Some(gpus)) if gpus > 0 => " --nv",
        _ => "",
    };
    Ok(format!(" {program} exec{gpu} --bind \"$PWD\" {}", quote(image)))
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
fn requeue_after_limit(command: &str) -> String {
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
    scontrol requeue \"$SLURM_JOB_ID\"
fi
exit \"$code\"
"
    )
}
