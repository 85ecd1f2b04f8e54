//! Drives a job: runs attempts until it is finished, and tells the caller what happens.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use regatta_model::document;
use regatta_model::result::RunResult;
use regatta_model::run_folder;

use crate::attempt::AttemptSpec;
use crate::config::JobConfig;
use crate::discovery::Discovery;
use crate::error::{LaunchError, Result};
use crate::job::{self, AttemptOutcome};
use crate::job_host::JobHost;
use crate::launch_target::{AgentConnector, AgentTarget, LaunchTarget, LocalTarget};
use crate::node_pool::NodePool;
use crate::parts::{JobParts, ObservedWorkers};
use crate::reaper;
use crate::restart_policy::{AttemptEnd, NextStep, Restart, RestartPolicy, RestartWait};
use crate::run_folder::RunFolder;
use crate::signal_catcher::SignalCatcher;
use crate::status::{JobObserver, JobStatus};

/// Interval of signal checks before a restart.
const RESTART_POLL: Duration = Duration::from_millis(50);

/// A job to run.
pub struct Job<'a> {
    /// What is asked of it.
    pub config: &'a JobConfig,
    /// What is asked of it besides its ranks.
    pub parts: JobParts<'a>,
}

/// The ID of a run that starts now.
pub fn new_run_id() -> String {
    run_folder::run_id(SystemTime::now(), std::process::id())
}

/// The given run folder, or a new one in `runs`.
pub fn run_dir_or_new(run_dir: Option<&PathBuf>, id: &str) -> PathBuf {
    run_dir.cloned().unwrap_or_else(|| PathBuf::from(run_folder::ROOT).join(id))
}

/// The nodes and spares of a job.
pub fn node_pool(config: &JobConfig, discovery: &Discovery) -> Result<NodePool> {
    let nodes = discovery.allocation.nodes.len();
    let min_nodes = config.min_nodes.map(|n| n as usize);
    Ok(NodePool::new(nodes, config.spares as usize, min_nodes)?)
}

/// Plans a job that is not started: its first attempt without the variables of a run folder.
pub fn dry_run(job: &mut Job<'_>, mut discovery: Discovery) -> Result<AttemptSpec> {
    // Agents run on all nodes, ranks on all but the spares, which are the last.
    let nodes = &mut discovery.allocation.nodes;
    nodes.truncate(nodes.len() - job.config.spares as usize);
    let mut attempt = LocalTarget::new(job.config, discovery, &new_run_id(), None).plan(0, &[])?;
    for part in &mut job.parts {
        part.plan(&mut attempt, Path::new(run_folder::PLACEHOLDER)).map_err(LaunchError::Part)?;
    }
    Ok(attempt)
}

/// Runs a job in a new run folder and returns the result of its last attempt.
pub fn run(
    mut job: Job<'_>,
    discovery: Discovery,
    observer: &mut dyn JobObserver,
) -> Result<RunResult> {
    let id = new_run_id();
    let mut folder = RunFolder::create(&run_dir_or_new(job.config.run_dir.as_ref(), &id))?;
    let ended = run_in(&mut job, discovery, &id, &mut folder, observer);
    if ended.is_err() {
        job.parts.iter_mut().for_each(|part| part.discard(&folder));
        folder.discard();
    }
    // What the caller prints waits for the terminal.
    reaper::suspend_heartbeats();
    ended
}

fn run_in(
    job: &mut Job<'_>,
    discovery: Discovery,
    id: &str,
    folder: &mut RunFolder,
    observer: &mut dyn JobObserver,
) -> Result<RunResult> {
    let mut host = SignalCatcher::new()?;
    let (config, hosts) = (job.config, discovery.hosts());
    let mut pool = node_pool(config, &discovery)?;
    let path =
        std::path::absolute(folder.path()).map_err(LaunchError::io("path of the run folder"))?;
    let mut target: Box<dyn LaunchTarget> = match discovery.needs_agents() {
        true => {
            let (run, folder, host) = (id, &path, &mut host);
            let connector = AgentConnector { config, run, folder, host, observer };
            Box::new(AgentTarget::connect(connector, discovery, &mut pool)?)
        }
        false => Box::new(LocalTarget::new(config, discovery, id, Some(folder.logs()))),
    };
    let policy = RestartPolicy::new(pool, config.restarts(), config.fence_time());
    let parts = &mut job.parts;
    let mut driver =
        JobDriver { config, parts, folder, path, hosts, policy, host: &mut host, observer };
    let result = driver.run(target.as_mut());
    driver.report_excluded();
    target.shutdown(observer);
    result
}

/// Runs the attempts of a job.
pub(crate) struct JobDriver<'a, 'b> {
    pub(crate) config: &'a JobConfig,
    pub(crate) parts: &'a mut JobParts<'b>,
    pub(crate) folder: &'a mut RunFolder,
    /// Absolute path of the folder.
    pub(crate) path: PathBuf,
    /// All hosts of the allocation.
    pub(crate) hosts: Vec<String>,
    pub(crate) policy: RestartPolicy,
    pub(crate) host: &'a mut dyn JobHost,
    pub(crate) observer: &'a mut dyn JobObserver,
}

impl JobDriver<'_, '_> {
    /// Runs the job, and again after failures.
    pub(crate) fn run(&mut self, target: &mut dyn LaunchTarget) -> Result<RunResult> {
        let mut attempt = 0;
        loop {
            let outcome = self.attempt(target, attempt)?;
            let restart = match self.next_step(target, &outcome) {
                NextStep::Restart(restart) => restart,
                NextStep::Finish | NextStep::GiveUp(_) => return Ok(outcome.result),
            };
            if !self.wait(target, &restart, &outcome) {
                return Ok(outcome.result);
            }
            attempt += 1;
        }
    }

    /// Runs one attempt.
    fn attempt(&mut self, target: &mut dyn LaunchTarget, number: u32) -> Result<AttemptOutcome> {
        let mut attempt = target.plan(number, self.policy.pool.active())?;
        attempt.notes.iter().for_each(|note| self.observer.on_status(&JobStatus::Note(note)));
        self.observer.on_status(&JobStatus::Placed(&attempt));
        self.report_excluded();
        attempt.set_run_dir(&self.path);
        for part in self.parts.iter_mut() {
            part.plan(&mut attempt, &self.path).map_err(LaunchError::Part)?;
            part.start(&attempt, self.folder).map_err(LaunchError::Part)?;
        }
        attempt.write_to(self.folder)?;
        let workers = target.start(&attempt, self.observer)?;
        let folder = self.folder.path().to_owned();
        self.observer.on_status(&JobStatus::Started { attempt: &attempt, folder: &folder });
        let mut workers = ObservedWorkers { workers, parts: self.parts.as_mut_slice() };
        let Self { config, folder, host, observer, .. } = self;
        let mut outcome = job::run(config, &attempt, &mut workers, folder, *host, *observer);
        self.conclude(&mut outcome.result)?;
        Ok(outcome)
    }

    /// Completes, reports and saves the result of an attempt.
    fn conclude(&mut self, result: &mut RunResult) -> Result<()> {
        let Self { parts, folder, observer, .. } = self;
        parts.iter_mut().for_each(|part| part.finish(folder, result));
        observer.on_status(&JobStatus::Ended { result, folder: folder.path() });
        if let Some(reason) = observer.failure().filter(|_| result.exit_code == 0) {
            (result.exit_code, result.reason) = (1, reason);
        }
        parts.iter_mut().rev().for_each(|part| part.conclude(folder, result));
        // A full disk may be the cause of the failure and must not hide it.
        if let Err(error) = folder.write_durable(run_folder::RESULT, &document::to_json(result)?) {
            observer.on_status(&JobStatus::Note(&error.to_string()));
        }
        Ok(())
    }

    /// Decides and reports what follows an attempt.
    fn next_step(&mut self, target: &dyn LaunchTarget, outcome: &AttemptOutcome) -> NextStep {
        let failure = outcome.result.failure.as_ref();
        let end = AttemptEnd {
            result: &outcome.result,
            interrupted: outcome.terminated || self.host.termination().is_some(),
            missing: target.missing(),
            failed_node: failure.and_then(|f| self.hosts.iter().position(|h| *h == f.host)),
            node_lost_at: outcome.node_lost_at,
        };
        let next = self.policy.after(end, self.host.now());
        let hosts = &self.hosts;
        if let NextStep::GiveUp(update) | NextStep::Restart(Restart { update, .. }) = &next {
            self.observer.on_status(&JobStatus::NodesChanged { update, hosts });
        }
        if let NextStep::Restart(Restart { number, delay, .. }) = next {
            let (restart, max) = (number, self.policy.max_restarts);
            self.observer.on_status(&JobStatus::Restarting { restart, max, delay });
        }
        next
    }

    /// Waits until the job may be restarted. Returns false if a termination signal arrives.
    fn wait(
        &mut self,
        target: &mut dyn LaunchTarget,
        restart: &Restart,
        outcome: &AttemptOutcome,
    ) -> bool {
        let mut is_reported = false;
        while self.host.termination().is_none() {
            let wait =
                restart.wait(self.host.now(), || target.possibly_running(&outcome.lost_nodes));
            match wait {
                RestartWait::Ready => return true,
                RestartWait::Fence { nodes, remaining } if !is_reported => {
                    is_reported = true;
                    let hosts = nodes.iter().map(|&node| self.hosts[node].as_str()).collect();
                    self.observer.on_status(&JobStatus::Fencing { hosts, remaining });
                }
                RestartWait::Fence { .. } | RestartWait::Backoff => {}
            }
            target.poll(RESTART_POLL);
        }
        false
    }

    /// Reports the nodes that were given up.
    fn report_excluded(&mut self) {
        let excluded = self.policy.pool.excluded().iter();
        let excluded: Vec<(String, String)> =
            excluded.map(|(node, why)| (self.hosts[*node].clone(), why.clone())).collect();
        self.observer.on_status(&JobStatus::Excluded(&excluded));
    }
}

#[cfg(test)]
mod tests;
