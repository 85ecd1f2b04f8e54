//! Started by a person: starts the ranks, each this program again, and shows what rank 0 tells.

use std::cell::RefCell;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::SystemTime;

use anyhow::{Context, Result, bail};
use clap::Parser;
use regatta_launch::folder::run_id;

use super::args::{Backend, RankArgs};
use super::asked::Asked;
use super::rank::EVENT;
use super::report::Report;
use crate::cli::{Cli, Command, LaunchArgs};
use crate::commands::launch;
use crate::options::SourceArgs;
use crate::plan::Survey;

/// On one machine without GPUs: enough to see how it scales, and not more than are patient.
const LOCAL_RANKS: std::ops::RangeInclusive<usize> = 2..=8;

/// Starts the ranks.
pub fn run(asked: &Asked<'_>) -> Result<ExitCode> {
    let id = run_id(SystemTime::now(), std::process::id());
    let folder = asked.ranks.run_dir.clone().unwrap_or_else(|| PathBuf::from("runs").join(id));
    let ranks = wanted_ranks(asked.ranks)?;
    ranks.map_or(Ok(()), |ranks| asked.job.check_ranks(ranks))?;
    let launch = launch_args(asked.ranks, ranks, &folder)?;
    let out = asked.output.out.clone().unwrap_or_else(|| folder.join("bench.json"));
    let report = Rc::new(RefCell::new(Report::new(asked, Some(out))?));
    let hears = report.clone();
    let hear = Box::new(move |line: &str| match line.strip_prefix(EVENT) {
        Some(event) => hears.borrow_mut().hear_text(event),
        None => hears.borrow_mut().make_way(),
    });
    let listener = launch::Listener { takes: |line| line.starts_with(EVENT), hear };
    let code = launch::run_heard(&launch, Some(listener))?;
    let ended = report.borrow_mut().finish()?;
    Ok(if code == ExitCode::SUCCESS { ended } else { code })
}

/// The options of `regatta launch` that start these ranks.
fn launch_args(ranks: &RankArgs, count: Option<u32>, folder: &Path) -> Result<Box<LaunchArgs>> {
    let mut words: Vec<OsString> = ["regatta", "launch", "--run-dir"].map(OsString::from).to_vec();
    words.push(folder.into());
    let mut option = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            words.extend([name.into(), value.into()]);
        }
    };
    option("--ranks-per-node", ranks.ranks_per_node.map(|n| n.to_string()));
    option("--nodes", ranks.nodes.map(|n| n.to_string()));
    let hostfile = ranks.hostfile.as_ref().map(|file| file.to_string_lossy().into_owned());
    option("--hostfile", hostfile);
    option("--ranks", count.map(|n| n.to_string()));
    if !matches!(ranks.backend, Backend::Auto | Backend::Nccl | Backend::Rccl) {
        words.push("--no-gpus".into());
    }
    // A benchmark of too many ranks is a benchmark of that.
    words.push("--oversubscribe".into());
    words.extend(ranks.trying.iter().map(|name| format!("--trying={name}").into()));
    words.extend(more_words(ranks)?);
    words.push("--".into());
    words.push(std::env::current_exe().context("where this program is")?.into());
    words.extend(std::env::args_os().skip(1));
    // Who is a rank already, by its scheduler, becomes that rank: nobody hears its events.
    let surroundings = Survey::take(&SourceArgs::default(), 0);
    if !surroundings.is_ok_and(|survey| survey.allocation.me.is_some()) {
        words.push("--events".into());
    }
    parsed(words)
}

/// The user's own options for `regatta launch`.
fn more_words(ranks: &RankArgs) -> Result<Vec<OsString>> {
    let more = ranks.launch.as_deref().unwrap_or_default();
    let more = shlex::split(more).context("--launch: a quote is not closed")?;
    Ok(more.into_iter().map(OsString::from).collect())
}

fn parsed(words: Vec<OsString>) -> Result<Box<LaunchArgs>> {
    match Cli::try_parse_from(words).map(|cli| cli.command) {
        Ok(Command::Launch(args)) => Ok(args),
        Ok(_) => bail!("--launch takes options of `regatta launch` only"),
        Err(error) => {
            let error = error.to_string();
            let what = error.lines().next().unwrap_or_default();
            bail!("--launch: {}", what.trim_start_matches("error: "))
        }
    }
}

/// How many ranks there are to be, if that is not for the launcher to say.
fn wanted_ranks(ranks: &RankArgs) -> Result<Option<u32>> {
    if ranks.ranks.is_some() {
        return Ok(ranks.ranks);
    }
    if ranks.threads.is_some() || ranks.gpus.is_some() {
        return Ok(Some(ranks.threads.unwrap_or(1).saturating_mul(ranks.gpus.unwrap_or(1))));
    }
    let elsewhere = ranks.nodes.is_some() || ranks.hostfile.is_some();
    if ranks.ranks_per_node.is_some() || elsewhere || is_said_to_launch(ranks)? {
        return Ok(None);
    }
    let survey = Survey::take(&SourceArgs::default(), 0)?;
    let machine = &survey.machines[0];
    let devices = matches!(ranks.backend, Backend::Auto | Backend::Nccl | Backend::Rccl);
    let by_launcher = survey.is_elsewhere()
        || survey.allocation.me.is_some()
        || (devices && !machine.gpus.is_empty());
    let cores = machine.cores.len().clamp(*LOCAL_RANKS.start(), *LOCAL_RANKS.end());
    Ok((!by_launcher).then_some(cores as u32))
}

/// Whether the user's own options for `regatta launch` say how many ranks there are, or where.
fn is_said_to_launch(ranks: &RankArgs) -> Result<bool> {
    let mut words: Vec<OsString> = ["regatta", "launch"].map(OsString::from).to_vec();
    words.extend(more_words(ranks)?);
    words.extend(["--".into(), "regatta".into()]);
    let LaunchArgs { source, job, .. } = *parsed(words)?;
    let nodes = source.nodes.is_some() || source.hostfile.is_some();
    Ok(nodes || job.ranks.is_some() || job.ranks_per_node.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Command;

    #[test]
    fn launch_says_how_many_ranks_there_are_or_nothing_of_it() {
        let said = |launch: &str| {
            let words = ["regatta", "bench", "all-reduce", "--launch", launch];
            let Command::Bench(args) = Cli::try_parse_from(words).unwrap().command else {
                panic!("no benchmark");
            };
            is_said_to_launch(&args.what.run().unwrap().1.ranks).unwrap()
        };
        for launch in ["-N2", "--nodes=2", "--hostfile hosts", "-n 4", "--ranks-per-node 2"] {
            assert!(said(launch), "{launch}");
        }
        for launch in ["--start-within 60", "--without NCCL_ALGO --grace 1", ""] {
            assert!(!said(launch), "{launch}");
        }
    }
}
