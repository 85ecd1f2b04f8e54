//! The commands that start the agents of a job.

use std::path::Path;

use regatta_place::batch::BatchScheduler;
use regatta_place::launcher_options::{LauncherSyntax, RequiredOption};

use crate::agent_launcher::command::{AgentLauncher, LaunchCommand, LaunchSpec};
use crate::agent_launcher::slurm_gres::{self, Gres};
use crate::config::JobConfig;
use crate::discovery::Discovery;
use crate::error::{LaunchError, Result};
use crate::{host, rank_env};

/// The launcher of a job's agents, and its options.
#[derive(Debug)]
pub struct AgentCommands<'a> {
    config: &'a JobConfig,
    discovery: &'a Discovery,
    /// All nodes, the spares last.
    pub hosts: Vec<String>,
    /// The launcher.
    pub launcher: AgentLauncher,
    /// The options that the site's settings require of the step of the agents: an allocation may be
    /// without them, as from a plain `salloc`. Only srun's, which are about the NICs of the step.
    pub step_options: Vec<RequiredOption>,
    /// Notes for the user.
    pub notes: Vec<String>,
}

impl<'a> AgentCommands<'a> {
    /// Chooses the launcher and its options.
    pub fn new(config: &'a JobConfig, discovery: &'a Discovery) -> Result<Self> {
        if !discovery.allocation.all_hosts_known() {
            return Err(LaunchError::UnknownHosts);
        }
        let scheduler = discovery.allocation.scheduler;
        let default = || AgentLauncher::for_scheduler(scheduler, host::mpiexec_version);
        let launcher = config.agents.launcher.map_or_else(default, Ok)?;
        let step_options = match launcher {
            AgentLauncher::Srun => required_options(config, discovery, LauncherSyntax::Srun)?,
            _ => Vec::new(),
        };
        let notes = notes_of_unmet_options(config, launcher, discovery)?;
        Ok(Self { config, discovery, hosts: discovery.hosts(), launcher, step_options, notes })
    }

    /// The commands, for launchers that need it with this file as the bootstrap document.
    pub fn commands(&self, bootstrap_file: Option<&Path>) -> Result<Vec<LaunchCommand>> {
        let Self { config, hosts, launcher, .. } = self;
        let own = std::env::current_exe().map_err(LaunchError::io("path of this program"))?;
        let ssh = config.agents.ssh.as_deref().unwrap_or_default();
        let ssh = shlex::split(ssh).ok_or_else(|| LaunchError::SshQuote(ssh.to_owned()))?;
        let job = self.discovery.env.get("SLURM_JOB_ID");
        let job = job.filter(|_| *launcher == AgentLauncher::Srun).and_then(host::slurm_job);
        let gres = job.map_or(Gres::Inherited, |job| slurm_gres::full_node_gres(&job, hosts));
        let required = self.step_options.iter().map(|required| &required.option);
        // The user's options last: srun uses the last of several values.
        let options: Vec<String> = required.chain(&config.agents.options).cloned().collect();
        Ok(launcher.commands(&LaunchSpec {
            hosts,
            program: config.agents.program.as_deref().unwrap_or(&own),
            bootstrap_file,
            ssh: &ssh,
            options: &options,
            gres: &gres,
        })?)
    }
}

/// The options that the site requires of the agents' step in a job on a described machine.
pub fn described_step_options(
    config: &JobConfig,
    discovery: &Discovery,
) -> Result<Vec<RequiredOption>> {
    let (site, _) = discovery.resolve_job(&config.source, &config.placement)?;
    let is_slurm = site.profile.batch.scheduler == Some(BatchScheduler::Slurm);
    match config.agents.launcher.map_or(is_slurm, |own| own == AgentLauncher::Srun) {
        true => required_options(config, discovery, LauncherSyntax::Srun),
        false => Ok(Vec::new()),
    }
}

fn required_options(
    config: &JobConfig,
    discovery: &Discovery,
    launcher: LauncherSyntax,
) -> Result<Vec<RequiredOption>> {
    let (site, _) = discovery.resolve_job(&config.source, &config.placement)?;
    Ok(rank_env::agent_step_options(discovery, &site.profile, &config.rank_env, launcher))
}

/// Notes about the options of PALS that settings need, which are for MPI processes: ranks of agents are
/// none. Ranks of this program do not use the settings.
fn notes_of_unmet_options(
    config: &JobConfig,
    launcher: AgentLauncher,
    discovery: &Discovery,
) -> Result<Vec<String>> {
    if launcher != AgentLauncher::Pals || config.workload.own_ranks().is_some() {
        return Ok(Vec::new());
    }
    let note = |RequiredOption { option, why }: &RequiredOption| {
        format!(
            "ranks started by agents have no {option} of mpiexec: {why} Start them by `mpiexec $(regatta map \
             --format pals) regatta launch`, as `regatta submit` does"
        )
    };
    Ok(required_options(config, discovery, LauncherSyntax::Pals)?.iter().map(note).collect())
}
