//! Ranks on this node.

use std::time::Duration;

use anyhow::{Context, Result};
use regatta_launch::cache_dir;
use regatta_launch::config::JobConfig;
use regatta_launch::cpu_binding;
use regatta_launch::job::AttemptOutcome;
use regatta_launch::local::{LocalOptions, LocalWorkers};
use regatta_launch::node_pool::PoolUpdate;
use regatta_launch::port::{self, ReservedPort};
use regatta_launch::process::RankSpec;
use regatta_launch::run_folder::LogFolder;
use regatta_launch::secret_file::{self, SecretFile};
use regatta_launch::worker_group::WorkerGroup;
use regatta_place::rendezvous::fallback_ports;
use regatta_wire::secret::Secret;

use super::LaunchTarget;
use super::rank_specs::{Attempt, AttemptSpec};
use crate::discovery::Discovery;
use crate::env;
use crate::output;

/// This node.
pub struct LocalTarget<'a> {
    config: &'a JobConfig,
    discovery: Discovery,
    run: String,
    logs: Option<LogFolder>,
    hosts: Vec<String>,
    workers: Option<LocalWorkers>,
    /// Secret by which the ranks authenticate each other.
    secret: Option<SecretFile>,
    /// Port of rank 0, reserved while the launcher runs.
    port: Option<ReservedPort>,
}

impl<'a> LocalTarget<'a> {
    /// This node, for a run.
    pub fn new(
        config: &'a JobConfig,
        discovery: Discovery,
        run: &str,
        logs: Option<LogFolder>,
    ) -> Self {
        let hosts = discovery.allocation.nodes.iter().map(|n| n.host.clone()).collect();
        let run = run.to_owned();
        Self { config, discovery, run, logs, hosts, workers: None, secret: None, port: None }
    }

    /// Passes the job's secret to the ranks. A failure is an error only for regatta's own ranks:
    /// others are not known to use its collectives.
    fn share_secret(&mut self, specs: &mut [RankSpec]) -> Result<()> {
        if self.secret.is_none() {
            match SecretFile::write(&std::env::temp_dir(), &Secret::generate()?) {
                Ok(file) => self.secret = Some(file),
                Err(error) if self.config.workload.needs_secret() => return Err(error.into()),
                Err(error) => output::note(&error.to_string()),
            }
        }
        let setting = secret_file::setting(self.secret.as_ref());
        specs.iter_mut().for_each(|spec| spec.env.push(setting.clone()));
        Ok(())
    }
}

impl LaunchTarget for LocalTarget<'_> {
    fn plan(&mut self, attempt: u32) -> Result<AttemptSpec> {
        let plan = self.discovery.clone().plan(&self.config.source, &self.config.placement)?;
        // Only for rank 0 a free port is required, and it is reserved below.
        let mut rendezvous = env::planned_rendezvous(&self.config.rank_env, &plan, 1)?;
        if self.config.rank_env.master_port.is_none() {
            self.port = None;
            let port = port::reserve(fallback_ports(rendezvous.port))
                .context("no free port on this node: pass --master-port")?;
            rendezvous.port = port.port();
            rendezvous.port_why = "free on this node when the job started".to_owned();
            self.port = Some(port);
        }
        AttemptSpec::new(
            self.config,
            plan,
            &rendezvous,
            Attempt { run: &self.run, number: attempt },
        )
    }

    fn start(&mut self, plan: &AttemptSpec, attempt: u32) -> Result<&mut dyn WorkerGroup> {
        let mut specs: Vec<_> = plan.ranks.iter().map(|r| r.spec.clone()).collect();
        self.share_secret(&mut specs)?;
        // Ranks of `regatta train` and `regatta bench` have no code caches.
        if self.config.workload.own_ranks().is_none() {
            let values = specs.iter_mut().flat_map(|s| s.env.iter_mut().map(|(_, value)| value));
            if let Some(warning) = cache_dir::secure(&plan.cache_dir, values) {
                output::note(&warning);
            }
        }
        let options = LocalOptions {
            logs: self.logs.clone(),
            attempt,
            report_progress: self.config.hang_timeout.is_some(),
            notify: None,
        };
        if attempt == 0 {
            let bindings = specs.iter().map(|spec| &spec.binding);
            cpu_binding::unavailable(bindings).iter().for_each(|note| output::note(note));
        }
        let workers = LocalWorkers::start(&specs, &options);
        Ok(self.workers.insert(workers.with_context(|| self.hosts.join(","))?))
    }

    fn restart_decision(&mut self, _: &AttemptOutcome) -> PoolUpdate {
        PoolUpdate::Unchanged
    }

    fn poll(&mut self, timeout: Duration) {
        std::thread::sleep(timeout);
    }

    fn possibly_running(&mut self, _: &AttemptOutcome) -> Vec<usize> {
        Vec::new()
    }

    fn hosts(&self) -> &[String] {
        &self.hosts
    }

    fn excluded(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    fn shutdown(self: Box<Self>) {}
}
