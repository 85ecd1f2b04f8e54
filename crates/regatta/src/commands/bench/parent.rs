//! Started by a person: starts the ranks, each this program again, and shows what rank 0 tells.

use std::cell::RefCell;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::SystemTime;

use anyhow::Result;
use regatta_comm::nccl::{self, Vendor};
use regatta_launch::folder::run_id;
use regatta_model::Machine;

use super::args::{Backend, RankArgs};
use super::asked::Asked;
use super::rank::EVENT;
use super::report::Report;
use crate::cli::LaunchArgs;
use crate::commands::launch;
use crate::commands::ranks::{Wanted, says_how_many};
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
    let launch = launch_args(asked.ranks, ranks, folder.clone())?;
    let out = asked.output.out.clone().unwrap_or_else(|| folder.join("bench.json"));
    let report = Rc::new(RefCell::new(Report::new(asked, Some(out))?));
    let hears = report.clone();
    let hear = Box::new(move |line: &str| match line.strip_prefix(EVENT) {
        Some(event) => hears.borrow_mut().hear_text(event),
        None => hears.borrow_mut().make_way(),
    });
    let listener =
        launch::Listener { takes: |line| line.starts_with(EVENT), hear, names_folder: false };
    let code = launch::run_heard(&launch, Some(listener))?;
    let ended = report.borrow_mut().finish()?;
    Ok(if code == ExitCode::SUCCESS { ended } else { code })
}

/// The options of `regatta launch` that start these ranks.
fn launch_args(ranks: &RankArgs, count: Option<u32>, folder: PathBuf) -> Result<Box<LaunchArgs>> {
    let wanted = Wanted {
        ranks: count,
        ranks_per_node: ranks.ranks_per_node,
        nodes: ranks.nodes,
        hostfile: ranks.hostfile.as_deref(),
        folder,
        gpus: matches!(ranks.backend, Backend::Auto | Backend::Nccl | Backend::Rccl),
        launch: ranks.launch.as_deref(),
        more: ranks.trying.iter().map(|name| format!("--trying={name}")).collect(),
    };
    wanted.launch_args()
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
    if ranks.ranks_per_node.is_some() || elsewhere || says_how_many(ranks.launch.as_deref())? {
        return Ok(None);
    }
    let survey = Survey::take(&SourceArgs::default(), 0)?;
    let machine = &survey.machines[0];
    let devices = matches!(ranks.backend, Backend::Auto | Backend::Nccl | Backend::Rccl);
    let by_launcher = survey.is_elsewhere()
        || survey.allocation.me.is_some()
        || (devices && has_devices(machine, ranks.backend));
    let cores = machine.cores.len().clamp(*LOCAL_RANKS.start(), *LOCAL_RANKS.end());
    Ok((!by_launcher).then_some(cores as u32))
}

/// Whether ranks work on GPUs: whoever asks for them does; else there must be several, for one rank
/// has nobody to send to, and the library.
fn has_devices(machine: &Machine, backend: Backend) -> bool {
    let library = |vendor| nccl::devices(vendor).is_ok_and(|count| count > 1);
    let several = machine.gpus.len() > 1;
    backend != Backend::Auto || several && (library(Vendor::Nvidia) || library(Vendor::Amd))
}
