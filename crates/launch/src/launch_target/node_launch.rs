//! What the agents of a job's nodes get to start an attempt.

use std::collections::HashMap;
use std::ffi::OsString;

use regatta_model::PlacedNode;

use super::connect::ConnectedAgents;
use crate::agent_launcher::command::AgentLauncher;
use crate::agents::message::{NodeLaunch, RankLaunch};
use crate::attempt::{AttemptSpec, setting};
use crate::config::{JobConfig, OwnRanks};
use crate::error::{LaunchError, Result};
use crate::process::EnvSetting;

/// The ranks of each node.
pub(super) fn node_launches(
    config: &JobConfig,
    attempt: &AttemptSpec,
    agents: &ConnectedAgents,
) -> Result<Vec<(u32, NodeLaunch)>> {
    let environment = attempt.environment();
    let workload = &config.workload;
    let cwd = match workload.own_ranks() {
        Some(OwnRanks { dir: Some(dir), .. }) => dir.clone(),
        _ => std::env::current_dir().map_err(LaunchError::io("current directory"))?,
    };
    let rank_launch = |&rank: &u32| {
        let spec = &attempt.ranks[rank as usize].spec;
        let own = environment.ranks.get(&rank).into_iter().flatten();
        RankLaunch {
            rank,
            command: (spec.command != workload.command()).then(|| spec.command.clone()),
            env: own.map(setting).collect(),
            binding: spec.binding.clone(),
        }
    };
    let common: Vec<EnvSetting> = environment.common.iter().map(setting).collect();
    // All ranks have the same.
    let input = attempt.ranks.first().and_then(|rank| rank.spec.input.as_deref());
    let node_launch = |ranks: &[u32]| NodeLaunch {
        attempt: attempt.number,
        command: workload.command().to_vec(),
        cwd: cwd.clone().into(),
        base_env: inherited_env(agents),
        env_remove_prefixes: removed_prefixes(agents.launcher),
        common_env: common.clone(),
        files: attempt.files.clone(),
        cache_dir: attempt.cache_dir.clone(),
        input: input.map(<[u8]>::to_vec),
        needs_secret: workload.needs_secret(),
        report_progress: config.hang_timeout.is_some(),
        ranks: ranks.iter().map(rank_launch).collect(),
    };
    let hosts = agents.hosts.iter().map(String::as_str);
    let index: HashMap<&str, u32> = hosts.zip(0..).collect();
    let nodes = attempt.job.placement.nodes.iter();
    let launch = |n: &PlacedNode| Some((*index.get(n.host.as_str())?, node_launch(&n.ranks)));
    Ok(nodes.filter_map(launch).collect())
}

/// The variables that ranks inherit from the launcher in addition to the agent's environment.
/// With ssh, which Open MPI uses too, all but those of the host or the login session; otherwise
/// those that were unset for the agent launcher, which forwards all others itself.
fn inherited_env(agents: &ConnectedAgents) -> Vec<(OsString, OsString)> {
    const HOST_SPECIFIC: [&str; 13] = [
        "HOME", "HOST", "HOSTNAME", "LOGNAME", "MAIL", "OLDPWD", "PWD", "SHELL", "SHLVL", "TERM",
        "TMPDIR", "USER", "_",
    ];
    const PREFIXES: [&str; 4] = ["SSH_", "XDG_", "DBUS_", "DISPLAY"];
    let inherited = |name: &str| match agents.launcher {
        AgentLauncher::Ssh | AgentLauncher::OpenMpi => {
            !HOST_SPECIFIC.contains(&name) && !PREFIXES.iter().any(|p| name.starts_with(p))
        }
        _ => agents.unset.contains(name),
    };
    std::env::vars_os().filter(|(name, _)| inherited(&name.to_string_lossy())).collect()
}

/// Prefixes of the agent launcher's variables that ranks must not see: they describe the MPI job of
/// the agents.
fn removed_prefixes(launcher: AgentLauncher) -> Vec<String> {
    let prefixes = match launcher {
        AgentLauncher::Pals | AgentLauncher::Hydra | AgentLauncher::OpenMpi => {
            "PMI_ PMIX_ OMPI_ PRTE_ HYDI_ MPI_LOCAL MPIR_CVAR_ PALS_RANKID PALS_LOCAL_RANKID \
             PALS_LOCAL_SIZE"
        }
        AgentLauncher::Flux => "FLUX_TASK_ PMI_",
        AgentLauncher::Srun | AgentLauncher::Ssh => "",
    };
    prefixes.split_whitespace().map(str::to_owned).collect()
}
