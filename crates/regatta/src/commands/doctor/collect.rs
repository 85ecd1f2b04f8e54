//! The launch of the ranks that collect facts: the process of the hidden option `--collect`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};
use regatta_discover::systems;
use regatta_doctor::JobFacts;
use regatta_launch::config::JobConfig;
use regatta_model::Scheduler;

use super::nodes::Tests;
use super::observer::DoctorObserver;
use crate::commands::launch::{self, LaunchOptions, new_run_id, run_dir_or_new};
use regatta_launch::discovery::Discovery;

/// Restarts after the loss of a node, without it.
const MAX_RESTARTS: u32 = 3;
/// Time for a rank to exit after a signal: it holds nothing worth saving.
const GRACE: Duration = Duration::from_secs(2);

/// Runs the tests on all nodes. The launch tolerates nodes that do not start or are lost.
pub fn collect(mut options: LaunchOptions, tests: &Tests) -> Result<JobFacts> {
    let config = &mut options.job;
    let is_temporary = config.run_dir.is_none();
    let run_dir = writable_run_dir(config.run_dir.as_ref(), &new_run_id());
    config.run_dir = Some(run_dir.clone());
    config.min_nodes = Some(1);
    config.max_restarts = Some(MAX_RESTARTS);
    config.grace = Some(GRACE);
    let discovery = Discovery::of_job(config)?;
    if let Some(me) = discovery.allocation.this_rank {
        bail!(
            "this is rank {} of a job: run `regatta doctor` once for the whole job, without srun or \
             mpiexec",
            me.rank
        );
    }
    let mut observer = DoctorObserver::new(tests.clone(), &discovery);
    observer.set_request(config, &discovery)?;
    let parts = vec![observer.request()];
    launch::launch(&options, discovery.clone(), Some(&mut observer), parts)?;
    let mut facts = observer.finish();
    if facts.nodes.is_empty() {
        bail!("no node reported; see the messages above");
    }
    complete(&mut facts, &options.job, &discovery)?;
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
    if given.is_none() && std::fs::create_dir_all("runs").is_err() {
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
