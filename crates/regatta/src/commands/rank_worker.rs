//! `regatta rank-worker`: a rank of a command that launches its own ranks. The command sends it the
//! request through the rank's channel, and receives its messages.

use std::process::ExitCode;

use anyhow::{Context, Result};
use regatta_launch::channel::RankEnd;

use super::rank_request::{RankContext, RankRequest, RankTask, report_lost_peer};
use super::{bench, doctor, train};

/// Runs the command.
pub fn run() -> Result<ExitCode> {
    // SAFETY: the first action of this process, which has no other thread.
    let channel = unsafe { RankEnd::take_from_env() }?;
    let mut channel = channel
        .context("this command is for the ranks of `regatta bench`, `doctor` and `train`")?;
    let RankRequest { task, command_line, machine } = channel.recv_input()?;
    let mut to_launcher = channel.try_clone()?;
    let context = RankContext { command_line, machine, channel: Some(channel) };
    let result = match task {
        RankTask::Bench(request) => bench::run_rank(&request, context),
        RankTask::Doctor(request) => doctor::rank::run(&request, context),
        RankTask::Train(task) => train::run_rank(&task, context.channel),
    };
    if let Err(error) = &result {
        report_lost_peer(&mut to_launcher, error);
    }
    result
}
