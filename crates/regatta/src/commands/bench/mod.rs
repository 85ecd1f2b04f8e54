//! `regatta bench`: measures collectives, pairs of ranks and node rooflines, and reads, compares and
//! plots results.

mod baseline;
mod case;
mod files;
mod multi_run;
mod net_plugin;
pub mod options;
mod parent;
mod plot;
mod rank;
mod reporter;
mod result_file;
mod tune_nccl;

use std::process::ExitCode;

use anyhow::{Result, bail};
use regatta_measure::request::BenchRequest;

use super::rank_request::RankContext;
use super::self_launch::is_rank;
use crate::args::bench::{BenchArgs, BenchCommand};

/// Runs the command, either as a rank of a job or as the parent that launches the ranks.
pub fn run(mut args: BenchArgs) -> Result<ExitCode> {
    if let Some(ranks) = args.command.ranks_mut() {
        net_plugin::apply(ranks, is_rank("bench")?)?;
    }
    match &args.command {
        BenchCommand::Compare(args) => files::compare(args)?,
        BenchCommand::Read(args) => files::read(args)?,
        _ => {}
    }
    let Some(options) = options::parse(&args.command)? else { return Ok(ExitCode::SUCCESS) };
    let in_a_job = is_rank("bench")?;
    let collective = args.command.collective();
    match (in_a_job, collective.filter(|(_, args)| args.is_multi_run())) {
        (true, None) => rank::run_in_job(&options),
        (true, Some(_)) => {
            bail!(
                "--sweep, --scan and --tune with NCCL launch the ranks themselves: run them outside of \
                 a job"
            )
        }
        (false, multi_run) => {
            options.check_output_files()?;
            match multi_run {
                Some((operations, args)) => multi_run::run(&operations, args, &options.request),
                None => parent::run(&options),
            }
        }
    }
}

/// Runs a rank that the parent process launched.
pub fn run_rank(request: &BenchRequest, context: RankContext) -> Result<ExitCode> {
    rank::run(request, context, || bail!("the parent process of the ranks is gone"))
}
