//! `regatta bench`: measures collectives, pairs, devices and disks, and reads, compares and draws
//! results.

mod alone;
pub mod args;
mod asked;
mod backend;
pub mod bar;
mod begun;
mod file_args;
mod files;
mod keep;
mod part;
mod pieces;
mod plot;
mod rank;
mod repeat;
mod report;
mod verdict;

use std::process::ExitCode;

use anyhow::{Result, bail};

pub use args::BenchArgs;
use args::What;

use super::ranks::is_rank;

/// Runs the command: as a rank of a job, or as one that starts the ranks.
pub fn run(mut args: BenchArgs) -> Result<ExitCode> {
    if let Some(args) = args.what.run_mut() {
        part::settle(args);
    }
    match &args.what {
        What::Compare(args) => return files::compare(args),
        What::Read(args) => return files::read(args),
        _ => {}
    }
    let Some(asked) = asked::asked(&args.what)? else { return Ok(ExitCode::SUCCESS) };
    let in_a_job = is_rank("bench")?;
    let more = args.what.run().map(|(_, args)| args).filter(|args| args.is_repeated());
    match (in_a_job, more) {
        (true, None) => rank::run(asked),
        (true, Some(_)) => {
            bail!("--sweep and --scan start ranks themselves: run them without `regatta launch`")
        }
        (false, Some(args)) => repeat::run(args),
        (false, None) => alone::run(&asked),
    }
}
