//! The parent process: launches the ranks, each this program again, and reports the events of rank
//! 0.

use std::cell::RefCell;
use std::process::ExitCode;
use std::rc::Rc;

use anyhow::Result;
use regatta_train::config::Resolved;

use super::rank::EVENT_PREFIX;
use super::report::ReportingProcess;
use super::reporter::SmokeReporter;
use crate::commands::launch;
use crate::commands::self_launch::sets_rank_count;
use crate::commands::train::args::TrainRankArgs;
use crate::commands::train::{TrainArgs, parent};
use crate::options::SourceArgs;
use crate::output;
use crate::plan::Discovery;

/// Default number of ranks on a single machine: communication needs two, and more than eight test
/// nothing new.
const LOCAL_RANKS: std::ops::RangeInclusive<usize> = 2..=8;

/// Launches the ranks.
pub fn run(resolved: &Resolved, args: &TrainArgs) -> Result<ExitCode> {
    let (launch, _) = parent::launch_args(resolved, args, rank_count(&args.ranks)?)?;
    let reporter = Rc::new(RefCell::new(SmokeReporter::new(ReportingProcess::Parent, args.json)));
    let events = reporter.clone();
    let on_line = Box::new(move |line: &str| {
        let Some(event) = line.strip_prefix(EVENT_PREFIX) else { return };
        let event = serde_json::from_str(event).map_err(Into::into);
        if let Err(error) = event.and_then(|event| events.borrow_mut().on_event(event)) {
            output::note(&format!("cannot report an event of rank 0: {error}"));
        }
    });
    let observer = launch::LineObserver {
        is_event: |line| line.starts_with(EVENT_PREFIX),
        on_line,
        prints_run_dir: false,
    };
    let code = launch::run_with_observer(&launch, Some(observer))?;
    reporter.borrow_mut().on_ranks_exited()?;
    Ok(code)
}

/// The number of ranks, unless the launcher determines it.
fn rank_count(ranks: &TrainRankArgs) -> Result<Option<u32>> {
    let on_other_nodes = ranks.nodes.is_some() || ranks.hostfile.is_some();
    let is_set = ranks.ranks.is_some() || ranks.ranks_per_node.is_some() || on_other_nodes;
    if is_set || sets_rank_count(ranks.launch.as_deref())? {
        return Ok(ranks.ranks);
    }
    let survey = Discovery::run(&SourceArgs::default(), 0)?;
    let by_launcher = survey.needs_agents() || survey.allocation.this_rank.is_some();
    let cores = survey.machines[0].cores.len().clamp(*LOCAL_RANKS.start(), *LOCAL_RANKS.end());
    Ok((!by_launcher).then_some(cores as u32))
}
