//! The launch of the ranks that collect facts.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use regatta_discover::systems;
use regatta_doctor::JobFacts;
use regatta_doctor::request::NodeTests;
use regatta_launch::config::JobConfig;
use regatta_launch::signal_catcher;
use regatta_model::Scheduler;
use regatta_model::result::RankExit;

use super::observer::DoctorObserver;
use crate::commands::launcher::{
    self, Interrupted, LaunchOptions, RankReporter, new_run_id, run_dir_or_new,
};
use regatta_launch::discovery::Discovery;

/// Runs the tests on all nodes. The launch tolerates nodes that do not start or are lost.
pub fn collect(
    options: &LaunchOptions,
    discovery: &Discovery,
    tests: &NodeTests,
) -> Result<JobFacts> {
    if let Some(me) = discovery.allocation.this_rank {
        bail!(
            "this is rank {} of a job: run `regatta doctor` once for the whole job, without srun or \
             mpiexec",
            me.rank
        );
    }
    let mut options = options.clone();
    let is_temporary = options.job.run_dir.is_none();
    let run_dir = writable_run_dir(options.job.run_dir.as_ref(), &new_run_id());
    options.job.run_dir = Some(run_dir.clone());
    let mut observer = DoctorObserver::new(tests.clone(), discovery);
    observer.set_request(&mut options.job, discovery)?;
    let parts = vec![observer.request()];
    let reporter = RankReporter { observer: &mut observer, names_run_dir: true };
    launcher::launch(&options, discovery.clone(), Some(reporter), parts)?;
    if let Some(signal) = signal_catcher::terminated_by() {
        return Err(Interrupted(RankExit::Signal(signal)).into());
    }
    let mut facts = observer.finish();
    if facts.nodes.is_empty() {
        bail!("no node reported; see the messages above");
    }
    complete(&mut facts, &options.job, discovery)?;
    if is_temporary && facts.missing.is_empty() {
        remove(&run_dir);
    }
    Ok(facts)
}

/// Removes a run folder, which has nothing but empty logs, and its parent if that is empty.
fn remove(run_dir: &Path) {
    let _ = std::fs::remove_dir_all(run_dir);
    if let Some(parent) = run_dir.parent() {
        let _ = std::fs::remove_dir(parent);
    }
}

/// The run folder; below the folder of temporary files if the working directory is not writable.
fn writable_run_dir(given: Option<&PathBuf>, id: &str) -> PathBuf {
    if given.is_none() && std::fs::create_dir_all(regatta_model::run_folder::ROOT).is_err() {
        return std::env::temp_dir().join("regatta-runs").join(id);
    }
    run_dir_or_new(given, id)
}

/// Adds what the judgement needs to know about allocation and site.
fn complete(facts: &mut JobFacts, config: &JobConfig, discovery: &Discovery) -> Result<()> {
    let scheduler = discovery.allocation.scheduler;
    facts.scheduler = (scheduler != Scheduler::None).then_some(scheduler);
    let machine = facts.nodes[0].machine.clone();
    let on_node = Discovery { machines: vec![machine], ..discovery.clone() };
    let (site, _) = on_node.resolve_job(&config.source, &config.placement)?;
    facts.expected = systems::system(&site.profile.name).ok();
    facts.site = Some(site.profile.name);
    Ok(())
}
