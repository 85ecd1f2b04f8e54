//! `regatta bench`: measures collectives, and reads, compares and draws results.

mod alone;
pub mod args;
mod asked;
mod backend;
mod bar;
mod begun;
mod files;
mod plot;
mod rank;
mod report;
mod verdict;

use std::process::ExitCode;

use anyhow::Result;
use regatta_launch::secret_file;

pub use args::BenchArgs;
use args::What;

/// Runs the command: as a rank of a job, or as one that starts the ranks.
pub fn run(args: &BenchArgs) -> Result<ExitCode> {
    let (operations, options) = match &args.what {
        What::Compare(args) => return files::compare(args),
        What::Read(args) => return files::read(args),
        other => match other.run() {
            Some(run) => run,
            None => return Ok(ExitCode::SUCCESS),
        },
    };
    let in_a_job = [secret_file::VARIABLE, "RANK", "WORLD_SIZE"];
    match in_a_job.iter().all(|name| std::env::var_os(name).is_some()) {
        true => rank::run(operations, options),
        false => alone::run(operations, options),
    }
}
