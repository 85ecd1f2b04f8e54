//! The options of `regatta launch` as a job, its parts, and what is shown.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use regatta_events::record::settings::Level;
use regatta_launch::config::{AgentOptions, JobConfig, JobSource, Workload};
use regatta_launch::wrap::Wrap;
use regatta_observe::net_log::Requirement;

use crate::cli::LaunchArgs;
use crate::options::NetPlugin;

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
    /// Record collectives.
    pub profile: Option<Level>,
    /// Table of NCCL's tuner plug-in.
    pub tuner: Option<PathBuf>,
    /// Network plug-in of NCCL.
    pub net_plugin: Option<NetPlugin>,
}

impl PartOptions {
    /// Whether there is a network to check.
    pub fn checks_net(&self) -> bool {
        self.check_net || self.require_net.is_some()
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
        let parts = PartOptions {
            check_net: self.check_net,
            require_net: self.require_net,
            profile: self.profile.level,
            tuner: self.tuner.table,
            net_plugin: self.net_plugin.library,
        };
        let Self { tee, dry_run, preflight, .. } = self;
        Ok(LaunchOptions { job, parts, tee, dry_run, preflight })
    }
}
