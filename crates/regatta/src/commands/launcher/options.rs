//! The options of `regatta launch` as a job, its parts, and what is shown.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};
use regatta_launch::config::{AgentOptions, JobConfig, JobSource, Workload};
use regatta_launch::parts::JobParts;
use regatta_launch::wrap::Wrap;
use regatta_observe::net_log::Requirement;

use super::nccl_plugins::{NET_VARIABLE, NcclPlugins};
use super::net_check::NetCheck;
use super::profile::Profile;
use crate::cli::LaunchArgs;
use crate::options::{NcclPluginArgs, NetPlugin};

/// What `regatta launch` is asked for.
#[derive(Debug, Clone)]
pub struct LaunchOptions {
    pub job: JobConfig,
    pub parts: PartOptions,
    /// File for the shown output.
    pub tee: Option<PathBuf>,
    /// Only print what would be launched.
    pub dry_run: bool,
    /// Check the nodes first.
    pub preflight: bool,
}

/// What is asked of a job besides its ranks.
#[derive(Debug, Clone)]
pub struct PartOptions {
    /// Report the network.
    pub check_net: bool,
    /// Fail on another network.
    pub require_net: Option<Requirement>,
    pub plugins: NcclPluginArgs,
}

impl PartOptions {
    /// The parts of a job; files of the options are checked.
    pub fn load(&self, config: &JobConfig, is_live: bool) -> Result<JobParts<'static>> {
        let mut parts: JobParts<'_> = Vec::new();
        if self.check_net || self.require_net.is_some() {
            parts.push(Box::new(NetCheck::new(self.require_net.clone())));
        }
        if let Some(level) = self.plugins.profile {
            parts.push(Box::new(Profile::new(level, config.hang_timeout)));
        }
        let (tuner, net) = (self.plugins.tuner.as_deref(), self.plugins.net_plugin.as_ref());
        if tuner.is_some() || net.is_some() {
            parts.push(Box::new(NcclPlugins::load(tuner, net, is_live)?));
        }
        Ok(parts)
    }

    /// Fails if a part needs one launch for the whole job: this is that of one rank.
    pub fn check_one_launch(&self) -> Result<()> {
        let install = || "install the plug-in with `regatta plugin install`".to_owned();
        let set = |path: &Path| format!("set {NET_VARIABLE}={} for all ranks", path.display());
        let NcclPluginArgs { profile, tuner, net_plugin } = &self.plugins;
        let (option, instead) = match (profile, tuner, net_plugin) {
            _ if self.check_net || self.require_net.is_some() => {
                let log = "set NCCL_DEBUG=INFO and read the log with `regatta net-log`".to_owned();
                ("--check-net and --require-net need", log)
            }
            (Some(_), ..) => ("--profile needs", install()),
            (_, Some(_), _) => ("--tuner needs", install()),
            (.., Some(NetPlugin::Regatta)) => ("--net-plugin needs", install()),
            (.., Some(NetPlugin::Path(path))) => ("--net-plugin needs", set(path)),
            (None, None, None) => return Ok(()),
        };
        bail!(
            "{option} one `regatta launch` for the whole job, not one per rank: start it without srun or \
             mpiexec, or {instead}"
        )
    }
}

impl LaunchArgs {
    /// The options, with the user's command as the workload.
    pub fn into_options(self) -> Result<LaunchOptions> {
        let (seconds, ranks) = (Duration::from_secs, self.wrap_ranks);
        let job = JobConfig {
            workload: Workload::Command(self.command),
            source: JobSource { standalone: self.standalone, ..self.source.source() },
            placement: self.job.request(),
            rank_env: self.rank_env.options(),
            wrap: self.wrap.map(|text| Wrap::new(&text, ranks)).transpose()?,
            shown_ranks: self.show,
            run_dir: self.run_dir,
            spares: self.spares,
            min_nodes: self.min_nodes,
            max_restarts: self.max_restarts,
            grace: self.grace.map(seconds),
            hang_timeout: self.hang_timeout.map(seconds),
            heartbeat_timeout: seconds(self.heartbeat_timeout),
            agents: AgentOptions {
                launcher: self.launcher,
                options: self.launcher_option,
                ssh: self.ssh,
                program: self.agent,
                start_timeout: seconds(self.start_timeout),
                fan_out: self.fan_out,
            },
        };
        let Self { check_net, require_net, plugins, tee, dry_run, preflight, .. } = self;
        let parts = PartOptions { check_net, require_net, plugins };
        Ok(LaunchOptions { job, parts, tee, dry_run, preflight })
    }
}
