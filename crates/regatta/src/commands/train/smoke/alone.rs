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
use crate::commands::train::{TrainArgs, alone};
use crate::output;

/// Starts the ranks.
pub fn run(resolved: &Resolved, args: &TrainArgs) -> Result<ExitCode> {
    let (launch, _) = alone::launch_args(resolved, args)?;
    let show = Rc::new(RefCell::new(Show::new(true, args.json)));
    let heard = show.clone();
    let hear = Box::new(move |line: &str| {
        let Some(told) = line.strip_prefix(TOLD) else { return };
        let shown = serde_json::from_str(told).map_err(Into::into);
        if let Err(error) = shown.and_then(|told| heard.borrow_mut().hear(told)) {
            output::complain(&format!("{WARNING}note:{WARNING:#} what rank 0 told: {error}\n"));
        }
    });
    let listener = launch::Listener { takes: |line| line.starts_with(TOLD), hear };
    let code = launch::run_heard(&launch, Some(listener))?;
    show.borrow_mut().ranks_ended()?;
    Ok(code)
}
