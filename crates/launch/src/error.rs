//! Why a job cannot be launched.

use regatta_discover::MachineFileError;
use regatta_discover::allocation::AllocationError;
use regatta_model::document::DocumentError;
use regatta_model::result::RankExit;
use regatta_model::units::pluralize;
use regatta_place::PlaceError;
use regatta_place::rendezvous::RendezvousError;
use regatta_place::site_profile::ProfileError;

use crate::agent_launcher::command::LauncherError;
use crate::agent_launcher::state::StartLauncherError;
use crate::agents::bootstrap_document::BootstrapError;
use crate::local::LocalStartError;
use crate::node_pool::NodePoolError;
use crate::process::StartError;
use crate::run_folder::RunFolderError;
use crate::secret_file::SecretFileError;
use crate::signal_catcher::SignalError;

/// A result of launching a job.
pub type Result<T> = std::result::Result<T, LaunchError>;

/// Why a part of a job cannot be had.
pub type PartError = Box<dyn std::error::Error + Send + Sync>;

/// Why a job cannot be launched.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum LaunchError {
    /// A system call or a file operation failed.
    #[error("{what}")]
    Io { what: String, source: std::io::Error },
    /// Nodes, launcher or profile could not be determined.
    #[error(transparent)]
    Allocation(#[from] AllocationError),
    #[error(transparent)]
    MachineFile(#[from] MachineFileError),
    #[error(transparent)]
    Place(#[from] PlaceError),
    #[error(transparent)]
    Profile(#[from] ProfileError),
    #[error(transparent)]
    NodePool(#[from] NodePoolError),
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    #[error(transparent)]
    Launcher(#[from] LauncherError),
    #[error(transparent)]
    StartLauncher(#[from] StartLauncherError),
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    #[error(transparent)]
    RunFolder(#[from] RunFolderError),
    #[error(transparent)]
    Secret(#[from] SecretFileError),
    #[error(transparent)]
    Signals(#[from] SignalError),
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// A part of the job.
    #[error(transparent)]
    Part(PartError),
    /// A signal arrived before any rank ran.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
    /// The ranks of this node cannot be started.
    #[error("{hosts}")]
    LocalStart { hosts: String, source: LocalStartError },
    #[error("machine of {host}")]
    Machine { host: String, source: DocumentError },
    #[error("machine of {host}: the agent has not reported")]
    NoMachine { host: String },
    /// The allocation has fewer nodes.
    #[error(
        "--nodes {nodes}{} exceeds the {} of the allocation",
        if *spares > 0 { format!(" plus --spares {spares}") } else { String::new() },
        pluralize(*available, "node")
    )]
    TooManyNodes { nodes: u32, spares: u32, available: usize },
    /// The launcher started another number of ranks.
    #[error(
        "this is rank {rank} of {size}, but the plan has {}: the launcher does not report the ranks per \
         node; pass --ranks-per-node, or --hostfile with `host slots=4` lines",
        pluralize(*planned as usize, "rank")
    )]
    JobSize { rank: u32, size: u32, planned: u32 },
    /// Variables of another launcher contradict the plan.
    #[error(
        "{variable}={value}, set by {launcher}, contradicts the plan, which has {variable}={planned} in a \
         job of {}; unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE if they are left over, else start \
         the ranks with one launcher only, or describe the job with --hostfile, --ranks-per-node and \
         --rank",
        pluralize(*ranks as usize, "rank")
    )]
    Identity {
        variable: String,
        value: String,
        planned: String,
        ranks: u32,
        launcher: &'static str,
    },
    /// Each rank of another launcher would launch a job.
    #[error(
        "this process is rank {rank} of {size} already (RANK and WORLD_SIZE, set by {launcher}), and each of \
         these ranks would launch a job of its own; unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE if \
         they are left over, else start the ranks with one launcher only"
    )]
    IsRank { rank: u32, size: u32, launcher: &'static str },
    #[error("{option} {rank} is out of range: the job has ranks 0 to {last}")]
    NoRank { option: &'static str, rank: u32, last: u32 },
    #[error(
        "rank {rank} of the environment is out of range: the job has {}; to launch a job from within a \
         rank, unset the launcher's variables (such as RANK and WORLD_SIZE)",
        pluralize(*ranks as usize, "rank")
    )]
    NotARank { rank: u32, ranks: u32 },
    #[error("the job has no rank 0")]
    NoRanks,
    #[error("MASTER_PORT={text} is not a port; unset it")]
    MasterPort { text: String, source: std::num::ParseIntError },
    #[error(
        "MASTER_ADDR={address} is a loopback address, but the job has {nodes} nodes; unset MASTER_ADDR, or \
         pass --master-addr"
    )]
    LoopbackAddress { address: String, nodes: usize },
    #[error(
        "the launcher does not report the host of rank 0; run eval \"$(regatta env)\" in the job script \
         before the launcher, which exports MASTER_ADDR, or pass --master-addr, or --hostfile with the \
         job's nodes"
    )]
    UnknownMaster,
    #[error(
        "MASTER_PORT {port}, a hash of {source_of_port}, is in use on {host}: pass the same free port to every \
         rank with --master-port"
    )]
    PortInUse { port: u16, source_of_port: &'static str, host: String },
    #[error("no free port on {host}: pass --master-port")]
    NoPort { host: String },
    #[error("the host names of the job's nodes are unknown: pass --hostfile")]
    UnknownHosts,
    #[error("--ssh {0}: unclosed quote")]
    SshQuote(String),
    /// Agents did not connect.
    #[error("cannot start agents on {hosts}: {cause}{hint}")]
    Agents { hosts: String, cause: String, hint: &'static str },
}

/// A signal arrived before any rank ran.
#[derive(Debug, thiserror::Error)]
#[error("interrupted by {0} while starting agents")]
pub struct Interrupted(pub RankExit);

impl LaunchError {
    /// An error of a system call or a file operation.
    pub(crate) fn io(what: impl ToString) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Io { what: what.to_string(), source }
    }

    /// Exit code: 127 if the user's command cannot be executed, like a shell; that of the signal if one
    /// arrived.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Interrupted(Interrupted(ending)) => ending.exit_code(),
            Self::LocalStart { source: LocalStartError::Start(_), .. } => StartError::EXIT_CODE,
            _ => 1,
        }
    }
}
