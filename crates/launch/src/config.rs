//! What is asked of a job.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use regatta_model::run_folder::RunKind;
use regatta_model::{JobSpec, Machine, ReservedCores, SmtPolicy};
use regatta_place::environment::Framework;
use regatta_place::site_profile::PlacementDefaults;

use crate::agent_launcher::command::AgentLauncher;
use crate::process::EnvSetting;
use crate::supervisor::JobLimits;
use crate::wrap::Wrap;

/// Grace period by default.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(30);

/// A job to launch.
#[derive(Debug, Clone)]
pub struct JobConfig {
    /// What the ranks run.
    pub workload: Workload,
    /// Where machines and nodes come from.
    pub source: JobSource,
    /// Ranks and their binding.
    pub placement: PlacementRequest,
    /// Environment of the ranks.
    pub rank_env: RankEnvOptions,
    /// A tool to run ranks under.
    pub wrap: Option<Wrap>,
    /// Ranks whose output is shown; all if empty.
    pub shown_ranks: Vec<u32>,
    /// The run folder; `None`: a new one.
    pub run_dir: Option<PathBuf>,
    /// Nodes to hold back as spares, the last of the allocation.
    pub spares: u32,
    /// Smallest number of nodes to continue on; `None`: all that the job started with.
    pub min_nodes: Option<u32>,
    /// Maximum number of restarts; `None`: one for each node that may be replaced or dropped.
    pub max_restarts: Option<u32>,
    /// Time between SIGTERM and SIGKILL; `None`: the default.
    pub grace: Option<Duration>,
    /// A job without progress for this long counts as hung.
    pub hang_timeout: Option<Duration>,
    /// Time without a heartbeat after which a node, or the launcher itself, counts as lost.
    pub heartbeat_timeout: Duration,
    /// How agents are started on the nodes.
    pub agents: AgentOptions,
}

/// What the ranks of a job run.
#[derive(Debug, Clone)]
pub enum Workload {
    /// A command of the user.
    Command(Vec<OsString>),
    /// This program, which gets a request and reports to the command that launched it.
    OwnRanks(OwnRanks),
}

/// Ranks of this program.
#[derive(Debug, Clone)]
pub struct OwnRanks {
    /// Command of the ranks.
    pub command: Vec<OsString>,
    /// Command line of the user, for the result.
    pub user_command: Vec<String>,
    /// What they do, for readers of the run folder.
    pub kind: RunKind,
    /// The request: input of the ranks' channels.
    pub request: Arc<[u8]>,
    /// Working directory on other nodes; `None`: that of the launcher.
    pub dir: Option<PathBuf>,
    /// Whether they need the job's secret.
    pub needs_secret: bool,
    /// Whether they save on a signal and then exit with code 75.
    pub saves_on_signal: bool,
}

/// Where the machine description, the nodes and the site profile come from.
#[derive(Debug, Clone, Default)]
pub struct JobSource {
    /// Files with machine descriptions; none: this machine is discovered.
    pub machines: Vec<PathBuf>,
    /// A machine description in place of the files.
    pub system: Option<Machine>,
    /// File with the nodes; `None`: the scheduler's.
    pub hostfile: Option<PathBuf>,
    /// Number of nodes.
    pub nodes: Option<u32>,
    /// Name of the site profile; `None`: it is detected.
    pub site: Option<String>,
    /// Files with further site profiles.
    pub site_files: Vec<PathBuf>,
    /// Whether the allocation is ignored: the job runs on this machine only.
    pub standalone: bool,
}

/// Ranks and binding, of which the site profile may complete some.
#[derive(Debug, Clone, Default)]
pub struct PlacementRequest {
    /// All but what follows.
    pub job: JobSpec,
    /// Cores that no rank is bound to; `None`: the site's.
    pub reserve: Option<ReservedCores>,
    /// Hardware threads used per core; `None`: the site's.
    pub smt: Option<SmtPolicy>,
}

/// The environment variables that a rank gets.
#[derive(Debug, Clone, Default)]
pub struct RankEnvOptions {
    /// Framework to set variables for.
    pub framework: Framework,
    /// Address rank 0 listens on; `None`: it is chosen.
    pub master_addr: Option<String>,
    /// Port rank 0 listens on; `None`: it is chosen.
    pub master_port: Option<u16>,
    /// Variables that are not set, with a note for those that would not be set anyway.
    pub without: Vec<String>,
    /// Variables that have these values, or none, whatever the site and the user have set.
    pub set: Vec<EnvSetting>,
}

/// How agents are started.
#[derive(Debug, Clone)]
pub struct AgentOptions {
    /// The launcher; `None`: that of the scheduler, else ssh.
    pub launcher: Option<AgentLauncher>,
    /// Further options of the launcher.
    pub options: Vec<String>,
    /// The ssh command with options.
    pub ssh: Option<String>,
    /// Path of this program on the nodes; `None`: as here.
    pub program: Option<PathBuf>,
    /// Time for all agents to connect.
    pub start_timeout: Duration,
    /// Maximum number of children of an agent.
    pub fan_out: u32,
}

impl JobConfig {
    /// Time between SIGTERM and SIGKILL after a failure.
    pub fn grace(&self) -> Duration {
        self.grace.unwrap_or(DEFAULT_GRACE)
    }

    /// Time after which no rank runs on a node that was declared lost.
    pub(crate) fn fence_time(&self) -> Duration {
        self.heartbeat_timeout + self.grace()
    }

    /// The limits of the job.
    pub fn limits(&self) -> JobLimits {
        let saves = self.workload.own_ranks().is_some_and(|ranks| ranks.saves_on_signal);
        let unlimited = saves && self.grace.is_none();
        JobLimits {
            signal_grace: (!unlimited).then(|| self.grace()),
            hang_after: self.hang_timeout,
            may_stop_early: saves,
            ..JobLimits::new(self.grace())
        }
    }

    /// Maximum number of restarts.
    pub fn restarts(&self) -> u32 {
        let replaceable = self.spares.saturating_add(u32::from(self.min_nodes.is_some()));
        self.max_restarts.unwrap_or(replaceable)
    }
}

impl Workload {
    /// The command of the ranks.
    pub fn command(&self) -> &[OsString] {
        match self {
            Self::Command(command) | Self::OwnRanks(OwnRanks { command, .. }) => command,
        }
    }

    /// The command line of the user.
    pub fn user_command(&self) -> Vec<String> {
        match self {
            Self::Command(words) => words.iter().map(|w| w.to_string_lossy().into()).collect(),
            // The ranks' own command says nothing to the user.
            Self::OwnRanks(ranks) => ranks.user_command.clone(),
        }
    }

    /// The ranks, if they are of this program.
    pub fn own_ranks(&self) -> Option<&OwnRanks> {
        match self {
            Self::Command(_) => None,
            Self::OwnRanks(ranks) => Some(ranks),
        }
    }

    /// Whether the ranks are known to need the job's secret.
    pub fn needs_secret(&self) -> bool {
        self.own_ranks().is_some_and(|ranks| ranks.needs_secret)
    }
}

impl PlacementRequest {
    /// The job, completed with the defaults of the site.
    pub fn resolve(&self, site: &PlacementDefaults) -> JobSpec {
        let reserve = self.reserve.as_ref().or(site.reserve.as_ref());
        JobSpec {
            reserve: reserve.cloned().unwrap_or_default(),
            smt: self.smt.or(site.smt).unwrap_or_default(),
            ..self.job.clone()
        }
    }
}
