//! Command lines that start one agent per node. No I/O.
//!
//! An agent owns its whole node and binds its ranks itself, so all binding and resource limits of
//! the launcher are turned off. The death of one agent must not end the others: the coordinator
//! decides how to react. The job's secret is in the bootstrap document, which is passed on standard
//! input or in a file, never in arguments or the environment.

use std::ffi::OsString;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use regatta_model::{Scheduler, hostlist};

use super::slurm_gres::{self, Gres};

/// The program that starts the agents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentLauncher {
    /// Slurm's `srun`, as one step.
    Srun,
    /// `mpiexec` of HPE PALS.
    Pals,
    /// `mpiexec` of MPICH and its derivatives.
    Hydra,
    /// `mpiexec` of Open MPI 4 and 5.
    OpenMpi,
    /// `flux run`.
    Flux,
    /// One `ssh` per host.
    Ssh,
}

impl fmt::Display for AgentLauncher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Srun => "srun",
            Self::Pals => "mpiexec of PALS",
            Self::Hydra => "mpiexec of MPICH",
            Self::OpenMpi => "mpiexec of Open MPI",
            Self::Flux => "flux run",
            Self::Ssh => "ssh",
        })
    }
}

/// The agents to launch.
#[derive(Debug, Clone, Copy)]
pub struct LaunchSpec<'a> {
    /// Hosts as the scheduler spells them, one agent each.
    pub hosts: &'a [String],
    /// Absolute path of this program.
    pub program: &'a Path,
    /// File with the bootstrap document, visible to every node and readable by its owner only, for
    /// launchers that do not pass standard input to every agent.
    pub bootstrap_file: Option<&'a Path>,
    /// The ssh program and its options; empty for `ssh`.
    pub ssh: &'a [String],
    /// Further options of the launcher.
    pub options: &'a [String],
    /// GRES request of a Slurm step, see [`full_node_gres`](super::slurm_gres::full_node_gres).
    pub gres: &'a Gres,
}

/// A command to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaunchCommand {
    /// The program.
    pub program: OsString,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Variables to remove from its environment, and so from the agents'.
    pub env_remove: Vec<String>,
    /// Variables to set.
    pub env: Vec<(String, String)>,
    /// Path and content of a host file to write first: a host list could exceed the maximum
    /// length of an argument.
    pub hostfile: Option<(PathBuf, String)>,
    /// Whether it reads the bootstrap document from standard input for all its agents.
    pub bootstrap_on_stdin: bool,
    /// Indices of its hosts.
    pub hosts: Range<usize>,
}

/// Why agents cannot be launched.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum LauncherError {
    /// PBS has no launcher of its own.
    #[error(
        "no mpiexec found to start agents on the nodes of this PBS job: load the site's MPI \
         module, or start them over ssh with --hostfile $PBS_NODEFILE"
    )]
    NoMpiexec,
    /// An unrecognised `mpiexec`.
    #[error(
        "unrecognised mpiexec in PATH, version {version:?}: put mpiexec of PALS, MPICH or Open MPI \
         first in PATH, or start agents over ssh with --hostfile $PBS_NODEFILE"
    )]
    UnknownMpiexec { version: String },
    /// Not in an allocation.
    #[error("no allocation found: list the hosts with --hostfile to start agents over ssh")]
    NoNodes,
    /// The launcher needs a bootstrap file.
    #[error("{0} does not forward standard input to every agent: a bootstrap file is required")]
    NoBootstrapFile(AgentLauncher),
}

impl AgentLauncher {
    /// Whether agents read the bootstrap document from standard input instead of a file.
    pub fn bootstraps_via_stdin(self) -> bool {
        // The others pass it to the first agent only; Flux stores it with the job, readable by
        // others.
        matches!(self, Self::Srun | Self::Ssh)
    }

    /// Identifies an `mpiexec` by the output of `mpiexec --version`.
    pub fn detect_mpiexec(version_output: &str) -> Option<Self> {
        let says = |word: &str| version_output.contains(word);
        if says("Open MPI") || says("OpenRTE") || says("open-mpi.org") {
            return Some(Self::OpenMpi);
        }
        if says("HYDRA") || says("Intel(R) MPI") {
            return Some(Self::Hydra);
        }
        // As in "mpiexec version 1.2.12".
        let version = version_output.trim_start().strip_prefix("mpiexec version ");
        let pals = version.is_some_and(|v| v.starts_with(|c: char| c.is_ascii_digit()));
        (pals || says("PALS")).then_some(Self::Pals)
    }

    /// The launcher for a scheduler. `mpiexec_version` returns the output of `mpiexec --version` and
    /// is called only where needed.
    pub fn for_scheduler(
        scheduler: Scheduler,
        mpiexec_version: impl FnOnce() -> Option<String>,
    ) -> Result<Self, LauncherError> {
        match scheduler {
            Scheduler::Slurm => Ok(Self::Srun),
            Scheduler::Flux => Ok(Self::Flux),
            Scheduler::Hostfile => Ok(Self::Ssh),
            Scheduler::None => Err(LauncherError::NoNodes),
            Scheduler::Pbs => {
                let output = mpiexec_version().ok_or(LauncherError::NoMpiexec)?;
                let version = || output.lines().next().unwrap_or_default().to_owned();
                let unknown = || LauncherError::UnknownMpiexec { version: version() };
                Self::detect_mpiexec(&output).ok_or_else(unknown)
            }
        }
    }

    /// The commands that launch all agents.
    pub fn commands(self, spec: &LaunchSpec<'_>) -> Result<Vec<LaunchCommand>, LauncherError> {
        if spec.hosts.is_empty() {
            return Ok(Vec::new());
        }
        let bootstrap = match (self.bootstraps_via_stdin(), spec.bootstrap_file) {
            (true, _) => Path::new("-"),
            (false, Some(file)) => file,
            (false, None) => return Err(LauncherError::NoBootstrapFile(self)),
        };
        let command = vec![spec.program.into(), "agent".into(), "--boot".into(), bootstrap.into()];
        let nodes = 0..spec.hosts.len();
        Ok(match self {
            Self::Srun => srun(spec, &command),
            Self::Ssh => nodes.map(|node| ssh(spec, node, &command)).collect(),
            Self::Pals => vec![pals(spec, bootstrap, command)],
            Self::Hydra => vec![hydra(spec, bootstrap, command)],
            Self::OpenMpi => vec![open_mpi(spec, bootstrap, command)],
            Self::Flux => vec![flux(spec, command)],
        })
    }
}

/// Variables by which the job's options would restrict the step or redirect its output, and that no
/// command-line option resets.
const RESTRICTING: [&str; 24] = [
    // Fewer CPUs.
    "SLURM_CPUS_PER_TASK",
    "SRUN_CPUS_PER_TASK",
    "SLURM_CPUS_PER_GPU",
    "SLURM_TRES_PER_TASK",
    "SLURM_EXACT",
    "SLURM_EXCLUSIVE",
    "SLURM_HINT",
    "SLURM_THREADS_PER_CORE",
    "SLURM_NTASKS_PER_CORE",
    "SLURM_NTASKS_PER_SOCKET",
    // Fewer GPUs.
    "SLURM_NTASKS_PER_GPU",
    "SLURM_GPUS",
    "SLURM_GPUS_PER_NODE",
    "SLURM_GPUS_PER_SOCKET",
    "SLURM_GPUS_PER_TASK",
    "SLURM_GRES",
    "SLURM_STEP_GRES",
    // Conflict with --mem.
    "SLURM_MEM_PER_CPU",
    "SLURM_MEM_PER_GPU",
    "SLURM_MEM_PER_NODE",
    // Other hosts, other outputs.
    "SLURM_HOSTFILE",
    "SLURM_STDOUTMODE",
    "SLURM_STDERRMODE",
    "SLURM_LABELIO",
];

/// One step, or one per node where GPU counts differ between nodes.
///
/// Slurm numbers tasks by its own node order, not by the order of the list, so an agent identifies
/// its node by `SLURMD_NODENAME`.
fn srun(spec: &LaunchSpec<'_>, command: &[OsString]) -> Vec<LaunchCommand> {
    let step = |nodes: Range<usize>, gres: Vec<String>| {
        let options = srun_options(&spec.hosts[nodes.clone()]).into_iter().chain(gres);
        let options = options.chain(spec.options.iter().cloned());
        let args = options.map(OsString::from).chain(command.iter().cloned());
        LaunchCommand {
            env_remove: RESTRICTING.map(str::to_owned).to_vec(),
            bootstrap_on_stdin: true,
            ..LaunchCommand::new("srun", args, nodes)
        }
    };
    let all = 0..spec.hosts.len();
    match spec.gres {
        Gres::Inherited => vec![step(all, Vec::new())],
        Gres::Uniform(gres) => vec![step(all, vec![format!("--gres={gres}")])],
        Gres::PerNode(each) => {
            // Without GPUs on a node, the job's own request must not be inherited either.
            let of = |node: usize| each.get(node).and_then(Option::as_deref).unwrap_or("none");
            let options = |node| slurm_gres::single_node_options(of(node));
            all.map(|node| step(node..node + 1, options(node))).collect()
        }
    }
}

fn srun_options(hosts: &[String]) -> Vec<String> {
    let count = hosts.len();
    let mut options = vec![
        format!("--nodes={count}"),
        format!("--ntasks={count}"),
        format!("--nodelist={}", hostlist::compress(hosts)),
    ];
    let fixed = [
        "--ntasks-per-node=1",
        "--distribution=block",
        // Share the allocation with other steps, with all CPUs and memory.
        "--overlap",
        "--mem=0",
        "--cpu-bind=none",
        "--mem-bind=none",
        "--gpu-bind=none",
        // An agent is not an MPI process, and its ranks must not inherit MPI variables.
        "--mpi=none",
        // `sbatch --export=NONE` would be inherited.
        "--export=ALL",
        "--input=all",
        // The exit of an agent or the loss of a node does not end the others.
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--no-kill",
    ];
    options.extend(fixed.map(str::to_owned));
    options
}

/// User defaults that would bind agents, label their output or move them.
const PALS_DEFAULTS: [&str; 6] = [
    "PALS_DEPTH",
    "PALS_ENVLIST",
    "PALS_EXCLUSIVE",
    "PALS_HOSTLIST",
    "PALS_LABEL",
    "PALS_MEM_BIND",
];

/// `--pmi none`: an agent is not an MPI process. `PALS_TRANSFER=false`: the program is on a shared
/// file system and need not be copied.
fn pals(spec: &LaunchSpec<'_>, bootstrap: &Path, command: Vec<OsString>) -> LaunchCommand {
    let options = ["--cpu-bind", "none", "--pmi", "none", "--envall", "--no-abort-on-failure"];
    LaunchCommand {
        env_remove: PALS_DEFAULTS.map(str::to_owned).to_vec(),
        env: vec![("PALS_TRANSFER".to_owned(), "false".to_owned())],
        ..mpiexec(spec, bootstrap, str::to_owned, ["--ppn", "1", "--hostfile"], &options, command)
    }
}

/// Without auto-cleanup, the exit of an agent does not end the others.
fn hydra(spec: &LaunchSpec<'_>, bootstrap: &Path, command: Vec<OsString>) -> LaunchCommand {
    let options = ["-bind-to", "none", "-disable-auto-cleanup"];
    let line = |host: &str| format!("{host}:1");
    mpiexec(spec, bootstrap, line, ["-ppn", "1", "-f"], &options, command)
}

/// With recovery, the exit of an agent does not end the others.
fn open_mpi(spec: &LaunchSpec<'_>, bootstrap: &Path, command: Vec<OsString>) -> LaunchCommand {
    let options = ["--bind-to", "none", "--stdin", "none", "--enable-recovery"];
    let line = |host: &str| format!("{host} slots=1");
    mpiexec(spec, bootstrap, line, ["--map-by", "ppr:1:node", "--hostfile"], &options, command)
}

/// Common part of all `mpiexec` variants: process count and host file, one line per host. Always a
/// file, because an argument is limited to 128 KiB, which the host names of a large machine exceed.
fn mpiexec(
    spec: &LaunchSpec<'_>,
    bootstrap: &Path,
    line: impl Fn(&str) -> String,
    placement: [&str; 3],
    options: &[&str],
    command: Vec<OsString>,
) -> LaunchCommand {
    let file = bootstrap.with_extension("hosts");
    let text = spec.hosts.iter().map(|host| line(host) + "\n").collect();
    let mut args: Vec<OsString> = vec!["-n".into(), spec.hosts.len().to_string().into()];
    args.extend(placement.map(OsString::from));
    args.push(file.clone().into());
    args.extend(options.iter().map(OsString::from));
    args.extend(spec.options.iter().map(OsString::from));
    args.extend(command);
    let command = LaunchCommand::new("mpiexec", args, 0..spec.hosts.len());
    LaunchCommand { hostfile: Some((file, text)), ..command }
}

/// `--exclusive`: whole nodes. `exit-timeout=none`: otherwise Flux ends the job 30 s after the first
/// exit.
fn flux(spec: &LaunchSpec<'_>, command: Vec<OsString>) -> LaunchCommand {
    let count = spec.hosts.len();
    let mut args = vec![
        "run".to_owned(),
        format!("--nodes={count}"),
        format!("--ntasks={count}"),
        format!("--requires=host:{}", hostlist::compress(spec.hosts)),
        "--exclusive".to_owned(),
    ];
    for option in ["cpu-affinity=off", "gpu-affinity=off", "pmi=off", "exit-timeout=none"] {
        args.extend(["-o".to_owned(), option.to_owned()]);
    }
    args.extend(spec.options.iter().cloned());
    LaunchCommand::new("flux", args.into_iter().map(OsString::from).chain(command), 0..count)
}

/// Never prompt for a password, and fail after a connection timeout. Options are single words: a
/// substitute for ssh may only know how to skip those.
const SSH_OPTIONS: [&str; 6] = [
    "-T",
    "-x",
    "-oBatchMode=yes",
    "-oConnectTimeout=15",
    "-oLogLevel=ERROR",
    // A host name must not be parsed as an option.
    "--",
];

/// The remote user's shell parses the command, so its words are quoted; `exec` replaces the shell.
/// Nothing numbers the agents, so each gets its node index.
fn ssh(spec: &LaunchSpec<'_>, node: usize, command: &[OsString]) -> LaunchCommand {
    let quote = |word: &OsString| {
        let bytes = std::os::unix::ffi::OsStrExt::as_bytes(word.as_os_str());
        // Quoting fails only on a null byte, which arguments cannot contain.
        shlex::bytes::try_quote(bytes).map_or_else(|_| bytes.to_vec(), |quoted| quoted.into_owned())
    };
    let mut remote = b"exec".to_vec();
    for word in command.iter().chain(&["--node".into(), node.to_string().into()]) {
        remote.push(b' ');
        remote.extend(quote(word));
    }
    let ssh = spec.ssh.split_first();
    let (program, own) = ssh.map_or(("ssh", &[][..]), |(program, own)| (program, own));
    let mut args: Vec<OsString> = own.iter().chain(spec.options).map(OsString::from).collect();
    args.extend(SSH_OPTIONS.map(OsString::from));
    args.push((&spec.hosts[node]).into());
    args.push(std::os::unix::ffi::OsStringExt::from_vec(remote));
    LaunchCommand { bootstrap_on_stdin: true, ..LaunchCommand::new(program, args, node..node + 1) }
}

impl LaunchCommand {
    fn new(program: &str, args: impl IntoIterator<Item = OsString>, hosts: Range<usize>) -> Self {
        Self {
            program: program.into(),
            args: args.into_iter().collect(),
            env_remove: Vec::new(),
            env: Vec::new(),
            hostfile: None,
            bootstrap_on_stdin: false,
            hosts,
        }
    }
}

#[cfg(test)]
#[path = "command_tests.rs"]
mod tests;
