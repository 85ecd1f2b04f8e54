//! Started by a person: starts the ranks, each this program again, and shows what rank 0 tells.

use std::cell::RefCell;
use std::process::ExitCode;
use std::rc::Rc;

use anyhow::Result;
use regatta_train::config::Resolved;

use super::rank::TOLD;
use super::show::Show;
use crate::cli::WARNING;
use crate::commands::launch;
use crate::commands::self_launch::sets_rank_count;
use crate::commands::train::args::RankArgs;
use crate::commands::train::{TrainArgs, alone};
use crate::options::SourceArgs;
use crate::output;
use crate::plan::Discovery;

/// On one machine: a rank alone has nobody to meet, and many only take longer to say the same.
const LOCAL_RANKS: std::ops::RangeInclusive<usize> = 2..=8;

/// Starts the ranks.
pub fn run(resolved: &Resolved, args: &TrainArgs) -> Result<ExitCode> {
    let (launch, _) = alone::launch_args(resolved, args, wanted_ranks(&args.ranks)?)?;
    let show = Rc::new(RefCell::new(Show::new(true, args.json)));
    let heard = show.clone();
    let hear = Box::new(move |line: &str| {
        let Some(told) = line.strip_prefix(TOLD) else { return };
        let shown = serde_json::from_str(told).map_err(Into::into);
        if let Err(error) = shown.and_then(|told| heard.borrow_mut().hear(told)) {
            output::eprint(&format!("{WARNING}note:{WARNING:#} what rank 0 told: {error}\n"));
        }
    });
    let listener = launch::LineObserver {
        is_event: |line| line.starts_with(TOLD),
        on_line: hear,
        prints_run_dir: false,
    };
    let code = launch::run_with_observer(&launch, Some(listener))?;
    show.borrow_mut().ranks_ended()?;
    Ok(code)
}

/// How many ranks there are to be, if that is not for the launcher to say: on one machine a rank for
/// each core.
fn wanted_ranks(ranks: &RankArgs) -> Result<Option<u32>> {
    let elsewhere = ranks.nodes.is_some() || ranks.hostfile.is_some();
    let said = ranks.ranks.is_some() || ranks.ranks_per_node.is_some() || elsewhere;
    if said || sets_rank_count(ranks.launch.as_deref())? {
        return Ok(ranks.ranks);
    }
    let survey = Discovery::run(&SourceArgs::default(), 0)?;
    let by_launcher = survey.needs_agents() || survey.allocation.me.is_some();
    let cores = survey.machines[0].cores.len().clamp(*LOCAL_RANKS.start(), *LOCAL_RANKS.end());
    Ok((!by_launcher).then_some(cores as u32))
}
