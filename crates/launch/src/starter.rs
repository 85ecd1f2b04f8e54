//! Which command lines start one agent on each node, by the scheduler's own means. No I/O.
//!
//! An agent has all of its node: it binds its ranks itself. So whatever would bind it or give it a
//! part of the node is turned off, and the death of one agent must not end the others: what a dead
//! node means is the coordinator's to decide. The job's secret is in the boot document, which goes
//! over standard input or through a file, never into arguments or the environment.

use std::ffi::OsString;
use std::ops::Range;
use std::path::{Path, PathBuf};

use regatta_model::{Scheduler, hostlist};

use crate::slurm::{self, Gres};

/// What starts the agents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Starter {
    /// Slurm's `srun`: one step.
    Srun,
    /// HPE's PALS `mpiexec`.
    Pals,
    /// The `mpiexec` of MPICH and its kin.
    Hydra,
    /// Open MPI's `mpiexec`, 4 and 5.
    OpenMpi,
    /// `flux run`.
    Flux,
    /// One `ssh` a host.
    Ssh,
}

/// The agents to be started.
#[derive(Debug, Clone, Copy)]
pub struct Agents<'a> {
    /// The hosts, as the scheduler spells them, one agent each.
    pub hosts: &'a [String],
    /// This program, by its absolute path.
    pub program: &'a Path,
    /// The file with the boot document, which every node sees, for starters that do not hand their
    /// standard input to every agent. It must be readable by its owner alone.
    pub boot_file: Option<&'a Path>,
    /// The ssh program with its options; none: `ssh`.
    pub ssh: &'a [String],
    /// What Slurm has to be asked for, see [`whole_gres`](crate::slurm::whole_gres).
    pub gres: &'a Gres,
}

/// One command to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invocation {
    /// The program.
    pub program: OsString,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Variables to take out of its environment, and so out of the agents'.
    pub unset: Vec<String>,
    /// Variables to set.
    pub set: Vec<(String, String)>,
    /// A file to be written before, with its content: the host list, where an argument could get
    /// longer than the system allows.
    pub hostfile: Option<(PathBuf, String)>,
    /// Whether it wants the boot document on its standard input, for all its agents.
    pub takes_boot: bool,
    /// Which of the hosts it starts agents on.
    pub hosts: Range<usize>,
}

/// Why agents cannot be started.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StarterError {
    /// PBS has no starter of its own.
    #[error(
        "no mpiexec found to start agents on the nodes of this PBS job; load the site's MPI \
         module, or start them by ssh with --hostfile $PBS_NODEFILE"
    )]
    NoMpiexec,
    /// An `mpiexec` of another kind.
    #[error(
        "the mpiexec in PATH is of no known kind, it says {said:?}; put that of PALS, MPICH or \
         Open MPI first in PATH, or start agents by ssh with --hostfile $PBS_NODEFILE"
    )]
    StrangeMpiexec {
        /// The first line of what `mpiexec --version` printed.
        said: String,
    },
    /// There is nothing but this machine.
    #[error("no allocation of nodes here; give the hosts with --hostfile to start agents by ssh")]
    NoNodes,
    /// There is no boot file, and the starter needs one.
    #[error("{0:?} does not pass standard input on to every agent: a boot file is needed")]
    NoBootFile(Starter),
}

impl Starter {
    /// Whether agents get the boot document on standard input; if not, from a file.
    pub fn boots_by_stdin(self) -> bool {
        match self {
            Self::Srun | Self::Ssh => true,
            // These hand it to the first agent only.
            Self::Pals | Self::Hydra | Self::OpenMpi => false,
            // Flux keeps it with the job, for everybody who may look at that.
            Self::Flux => false,
        }
    }

    /// Whose `mpiexec` it is, from what `mpiexec --version` prints.
    pub fn of_mpiexec(version_output: &str) -> Option<Self> {
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

    /// The starter of a scheduler's jobs. `mpiexec_version` is what `mpiexec --version` prints, and
    /// is asked for only where it matters.
    pub fn choose(
        scheduler: Scheduler,
        mpiexec_version: impl FnOnce() -> Option<String>,
    ) -> Result<Self, StarterError> {
        match scheduler {
            Scheduler::Slurm => Ok(Self::Srun),
            Scheduler::Flux => Ok(Self::Flux),
            Scheduler::Hostfile => Ok(Self::Ssh),
            Scheduler::None => Err(StarterError::NoNodes),
            Scheduler::Pbs => {
                let said = mpiexec_version().ok_or(StarterError::NoMpiexec)?;
                let first = || said.lines().next().unwrap_or_default().to_owned();
                let strange = || StarterError::StrangeMpiexec { said: first() };
                Self::of_mpiexec(&said).ok_or_else(strange)
            }
        }
    }

    /// The commands that start all agents.
    pub fn invocations(self, agents: &Agents<'_>) -> Result<Vec<Invocation>, StarterError> {
        if agents.hosts.is_empty() {
            return Ok(Vec::new());
        }
        let boot = match (self.boots_by_stdin(), agents.boot_file) {
            (true, _) => Path::new("-"),
            (false, Some(file)) => file,
            (false, None) => return Err(StarterError::NoBootFile(self)),
        };
        let command = agents.command(boot);
        let whole = 0..agents.hosts.len();
        Ok(match self {
            Self::Srun => srun(agents, &command),
            Self::Ssh => whole.map(|node| ssh(agents, node, &command)).collect(),
            Self::Pals => vec![pals(agents, boot, command)],
            Self::Hydra => vec![hydra(agents, boot, command)],
            Self::OpenMpi => vec![open_mpi(agents, boot, command)],
            Self::Flux => vec![flux(agents, command)],
        })
    }
}

impl Agents<'_> {
    /// An agent's own command line.
    fn command(&self, boot: &Path) -> Vec<OsString> {
        vec![self.program.into(), "agent".into(), "--boot".into(), boot.into()]
    }
}

/// Variables by which the job's options would narrow the step, or lead its output away. Options on
/// the command line override others; for these there is none that says "everything".
const NARROWING: [&str; 24] = [
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
    // Contradict --mem.
    "SLURM_MEM_PER_CPU",
    "SLURM_MEM_PER_GPU",
    "SLURM_MEM_PER_NODE",
    // Other hosts, other outputs.
    "SLURM_HOSTFILE",
    "SLURM_STDOUTMODE",
    "SLURM_STDERRMODE",
    "SLURM_LABELIO",
];

/// One step; one a node where the job has other numbers of GPUs on other nodes.
///
/// Slurm numbers the tasks in its own order of nodes, whatever the order of the list: an agent is
/// known by `SLURMD_NODENAME`.
fn srun(agents: &Agents<'_>, command: &[OsString]) -> Vec<Invocation> {
    let step = |nodes: Range<usize>, gres: Vec<String>| {
        let options = srun_options(&agents.hosts[nodes.clone()]).into_iter().chain(gres);
        let args = options.map(OsString::from).chain(command.iter().cloned());
        Invocation {
            unset: NARROWING.map(str::to_owned).to_vec(),
            takes_boot: true,
            ..Invocation::new("srun", args, nodes)
        }
    };
    let all = 0..agents.hosts.len();
    match agents.gres {
        Gres::Inherited => vec![step(all, Vec::new())],
        Gres::Same(gres) => vec![step(all, vec![format!("--gres={gres}")])],
        Gres::Each(each) => {
            // Where the job has none, its own request must not be taken over either.
            let of = |node: usize| each.get(node).and_then(Option::as_deref).unwrap_or("none");
            let asks = |node| slurm::alone(of(node));
            all.map(|node| step(node..node + 1, asks(node))).collect()
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
        // Beside other steps of the job, with all of its CPUs and memory.
        "--overlap",
        "--mem=0",
        "--cpu-bind=none",
        "--mem-bind=none",
        "--gpu-bind=none",
        // An agent is no MPI process; its ranks must not find a rank's variables.
        "--mpi=none",
        // sbatch --export=NONE would be handed on.
        "--export=ALL",
        "--input=all",
        // No agent's end, nor a node's, ends the others.
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--no-kill",
    ];
    options.extend(fixed.map(str::to_owned));
    options
}

/// Defaults of the user's that would bind agents, label their lines or put them elsewhere.
const PALS_DEFAULTS: [&str; 6] = [
    "PALS_DEPTH",
    "PALS_ENVLIST",
    "PALS_EXCLUSIVE",
    "PALS_HOSTLIST",
    "PALS_LABEL",
    "PALS_MEM_BIND",
];

/// `--pmi none`: an agent is no MPI process. `PALS_TRANSFER`: the program is where every node sees
/// it and need not be copied.
fn pals(agents: &Agents<'_>, boot: &Path, command: Vec<OsString>) -> Invocation {
    let options = ["--cpu-bind", "none", "--pmi", "none", "--envall", "--no-abort-on-failure"];
    Invocation {
        unset: PALS_DEFAULTS.map(str::to_owned).to_vec(),
        set: vec![("PALS_TRANSFER".to_owned(), "false".to_owned())],
        ..mpiexec(agents, boot, str::to_owned, ["--ppn", "1", "--hostfile"], &options, command)
    }
}

/// Without auto-cleanup, an agent's end does not end the others.
fn hydra(agents: &Agents<'_>, boot: &Path, command: Vec<OsString>) -> Invocation {
    let options = ["-bind-to", "none", "-disable-auto-cleanup"];
    let line = |host: &str| format!("{host}:1");
    mpiexec(agents, boot, line, ["-ppn", "1", "-f"], &options, command)
}

/// With recovery, an agent's end, by a signal or not, does not end the others.
fn open_mpi(agents: &Agents<'_>, boot: &Path, command: Vec<OsString>) -> Invocation {
    let options = ["--bind-to", "none", "--stdin", "none", "--enable-recovery"];
    let line = |host: &str| format!("{host} slots=1");
    mpiexec(agents, boot, line, ["--map-by", "ppr:1:node", "--hostfile"], &options, command)
}

/// What all `mpiexec` share: so many processes, on the hosts of a file, a line each. Always a file:
/// a single argument has at most 128 KiB, which the names of a big machine's nodes pass.
fn mpiexec(
    agents: &Agents<'_>,
    boot: &Path,
    line: impl Fn(&str) -> String,
    placement: [&str; 3],
    options: &[&str],
    command: Vec<OsString>,
) -> Invocation {
    let file = boot.with_extension("hosts");
    let text = agents.hosts.iter().map(|host| line(host) + "\n").collect();
    let mut args: Vec<OsString> = vec!["-n".into(), agents.hosts.len().to_string().into()];
    args.extend(placement.map(OsString::from));
    args.push(file.clone().into());
    args.extend(options.iter().map(OsString::from));
    args.extend(command);
    Invocation {
        hostfile: Some((file, text)),
        ..Invocation::new("mpiexec", args, 0..agents.hosts.len())
    }
}

/// `--exclusive`: whole nodes. `exit-timeout`: else Flux ends all, half a minute after the first.
fn flux(agents: &Agents<'_>, command: Vec<OsString>) -> Invocation {
    let count = agents.hosts.len();
    let mut args = vec![
        "run".to_owned(),
        format!("--nodes={count}"),
        format!("--ntasks={count}"),
        format!("--requires=host:{}", hostlist::compress(agents.hosts)),
        "--exclusive".to_owned(),
    ];
    for option in ["cpu-affinity=off", "gpu-affinity=off", "pmi=off", "exit-timeout=none"] {
        args.extend(["-o".to_owned(), option.to_owned()]);
    }
    Invocation::new("flux", args.into_iter().map(OsString::from).chain(command), 0..count)
}

/// Nobody must be asked for a password, and a host that is down must be told from one that is slow.
/// Options are single words, for a stand-in for ssh may know no more than to skip those.
const SSH_OPTIONS: [&str; 6] = [
    "-T",
    "-x",
    "-oBatchMode=yes",
    "-oConnectTimeout=15",
    "-oLogLevel=ERROR",
    // A name from a file must not pass for an option.
    "--",
];

/// The far side hands the words to the user's shell, so they are quoted; `exec` leaves no shell
/// waiting. As no starter numbers the agents, each is told its number.
fn ssh(agents: &Agents<'_>, node: usize, command: &[OsString]) -> Invocation {
    let quote = |word: &OsString| {
        let bytes = std::os::unix::ffi::OsStrExt::as_bytes(word.as_os_str());
        // No word holds a null byte: it came from arguments.
        shlex::bytes::try_quote(bytes).map_or_else(|_| bytes.to_vec(), |quoted| quoted.into_owned())
    };
    let mut remote = b"exec".to_vec();
    for word in command.iter().chain(&["--node".into(), node.to_string().into()]) {
        remote.push(b' ');
        remote.extend(quote(word));
    }
    let ssh = agents.ssh.split_first();
    let (program, own) = ssh.map_or(("ssh", &[][..]), |(program, own)| (program, own));
    let mut args: Vec<OsString> = own.iter().map(OsString::from).collect();
    args.extend(SSH_OPTIONS.map(OsString::from));
    args.push((&agents.hosts[node]).into());
    args.push(std::os::unix::ffi::OsStringExt::from_vec(remote));
    Invocation { takes_boot: true, ..Invocation::new(program, args, node..node + 1) }
}

impl Invocation {
    fn new(program: &str, args: impl IntoIterator<Item = OsString>, hosts: Range<usize>) -> Self {
        Self {
            program: program.into(),
            args: args.into_iter().collect(),
            unset: Vec::new(),
            set: Vec::new(),
            hostfile: None,
            takes_boot: false,
            hosts,
        }
    }
}

#[cfg(test)]
#[path = "starter_tests.rs"]
mod tests;
