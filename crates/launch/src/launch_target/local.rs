//! Ranks on this node.

use std::time::Duration;

use regatta_place::rendezvous::fallback_ports;
use regatta_wire::secret::Secret;

use super::LaunchTarget;
use crate::attempt::AttemptSpec;
use crate::config::JobConfig;
use crate::discovery::Discovery;
use crate::error::{LaunchError, Result};
use crate::local::{LocalOptions, LocalWorkers};
use crate::port::{self, ReservedPort};
use crate::process::RankSpec;
use crate::run_folder::LogFolder;
use crate::secret_file::{self, SecretFile};
use crate::status::{JobObserver, JobStatus};
use crate::worker_group::WorkerGroup;
use crate::{cache_dir, cpu_binding, rank_env};

/// This node.
pub struct LocalTarget<'a> {
    config: &'a JobConfig,
    discovery: Discovery,
    run: &'a str,
    logs: Option<LogFolder>,
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
        run: &'a str,
        logs: Option<LogFolder>,
    ) -> Self {
        Self { config, discovery, run, logs, workers: None, secret: None, port: None }
    }

    /// Passes the job's secret to the ranks. A failure is an error only for regatta's own ranks:
    /// others are not known to use its collectives.
    fn share_secret(
        &mut self,
        specs: &mut [RankSpec],
        observer: &mut dyn JobObserver,
    ) -> Result<()> {
        if self.secret.is_none() {
            let secret =
                Secret::generate().map_err(LaunchError::io("generate the job's secret"))?;
            match SecretFile::write(&std::env::temp_dir(), &secret) {
                Ok(file) => self.secret = Some(file),
                Err(error) if self.config.workload.needs_secret() => return Err(error.into()),
                Err(error) => observer.on_status(&JobStatus::Note(&error.to_string())),
            }
        }
        let setting = secret_file::setting(self.secret.as_ref());
        specs.iter_mut().for_each(|spec| spec.env.push(setting.clone()));
        Ok(())
    }
}

impl LaunchTarget for LocalTarget<'_> {
    fn plan(&mut self, attempt: u32, _: &[usize]) -> Result<AttemptSpec> {
        let placed = self.discovery.clone().plan(&self.config.source, &self.config.placement)?;
        // Only for rank 0 a free port is required, and it is reserved below.
        let options = &self.config.rank_env;
        let mut rendezvous = rank_env::choose_rendezvous(options, &placed, 1, &|_| None)?;
        if self.config.rank_env.master_port.is_none() {
            self.port = None;
            let no_port = || LaunchError::NoPort { host: "this node".to_owned() };
            let port = port::reserve(fallback_ports(rendezvous.port)).ok_or_else(no_port)?;
            rendezvous.port = port.port();
            rendezvous.port_why = "free on this node when the job started".to_owned();
            self.port = Some(port);
        }
        AttemptSpec::new(self.config, placed, &rendezvous, self.run, attempt)
    }

    fn start(
        &mut self,
        attempt: &AttemptSpec,
        observer: &mut dyn JobObserver,
    ) -> Result<&mut dyn WorkerGroup> {
        let mut specs: Vec<_> = attempt.ranks.iter().map(|r| r.spec.clone()).collect();
        self.share_secret(&mut specs, observer)?;
        // Ranks of `regatta train` and `regatta bench` have no code caches.
        if self.config.workload.own_ranks().is_none() {
            let values = specs.iter_mut().flat_map(|s| s.env.iter_mut().map(|(_, value)| value));
            if let Some(warning) = cache_dir::secure(&attempt.cache_dir, values) {
                observer.on_status(&JobStatus::Note(&warning));
            }
        }
        let options = LocalOptions {
            logs: self.logs.clone(),
            attempt: attempt.number,
            report_progress: self.config.hang_timeout.is_some(),
            notify: None,
        };
        if attempt.number == 0 {
            let note = cpu_binding::unavailable(specs.iter().map(|spec| &spec.binding));
            note.iter().for_each(|note| observer.on_status(&JobStatus::Note(note)));
        }
        let hosts = || self.discovery.hosts().join(",");
        let failed = |source| LaunchError::LocalStart { hosts: hosts(), source };
        Ok(self.workers.insert(LocalWorkers::start(&specs, &options).map_err(failed)?))
    }

    fn poll(&mut self, timeout: Duration) {
        std::thread::sleep(timeout);
    }

    fn missing(&self) -> Vec<usize> {
        Vec::new()
    }

    fn possibly_running(&mut self, _: &[u32]) -> Vec<usize> {
        Vec::new()
    }

    fn shutdown(self: Box<Self>, _: &mut dyn JobObserver) {}
}
