//! The parent process: launches the ranks, each this program again, and reports the events of rank
//! 0.

use std::cell::RefCell;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::SystemTime;

use anyhow::Result;
use regatta_comm::nccl::{self, Vendor};
use regatta_launch::folder::run_id;
use regatta_model::Machine;

use super::args::{Backend, BenchRankArgs};
use super::options::BenchOptions;
use super::rank::EVENT_PREFIX;
use super::reporter::Reporter;
use crate::cli::LaunchArgs;
use crate::commands::launch;
use crate::commands::self_launch::{LaunchRequest, sets_rank_count};
use crate::options::SourceArgs;
use crate::plan::Discovery;

/// Default number of ranks on a single machine without GPUs.
const LOCAL_RANKS: std::ops::RangeInclusive<usize> = 2..=8;

/// Launches the ranks.
pub fn run(options: &BenchOptions<'_>) -> Result<ExitCode> {
    let id = run_id(SystemTime::now(), std::process::id());
    let folder = options.ranks.run_dir.clone().unwrap_or_else(|| PathBuf::from("runs").join(id));
    let ranks = rank_count(options.ranks)?;
    ranks.map_or(Ok(()), |ranks| options.workload.check_ranks(ranks))?;
    let launch = launch_args(options.ranks, ranks, folder.clone())?;
    let out = options.output.out.clone().unwrap_or_else(|| folder.join("bench.json"));
    let reporter = Rc::new(RefCell::new(Reporter::new(options, Some(out))?));
    let listener = reporter.clone();
    let hear = Box::new(move |line: &str| match line.strip_prefix(EVENT_PREFIX) {
        Some(chunk) => listener.borrow_mut().on_chunk(chunk),
        None => listener.borrow_mut().hide_progress(),
    });
    let listener = launch::LineObserver {
        is_event: |line| line.starts_with(EVENT_PREFIX),
        on_line: hear,
        prints_run_dir: false,
    };
    let code = launch::run_with_observer(&launch, Some(listener))?;
    let exit_code = reporter.borrow_mut().finish()?;
    Ok(if code == ExitCode::SUCCESS { exit_code } else { code })
}

/// Options of `regatta launch` for these ranks.
fn launch_args(
    ranks: &BenchRankArgs,
    count: Option<u32>,
    folder: PathBuf,
) -> Result<Box<LaunchArgs>> {
    let wanted = LaunchRequest {
        ranks: count,
        ranks_per_node: ranks.ranks_per_node,
        nodes: ranks.nodes,
        hostfile: ranks.hostfile.as_deref(),
        run_dir: folder,
        gpus: matches!(ranks.backend, Backend::Auto | Backend::Nccl | Backend::Rccl),
        user_options: ranks.launch.as_deref(),
        options: ranks.sweep_var.iter().map(|name| format!("--inherit={name}")).collect(),
    };
    wanted.launch_args()
}

/// The number of ranks, unless the launcher determines it.
fn rank_count(ranks: &BenchRankArgs) -> Result<Option<u32>> {
    if ranks.ranks.is_some() {
        return Ok(ranks.ranks);
    }
    if ranks.threads.is_some() || ranks.gpus.is_some() {
        return Ok(Some(ranks.threads.unwrap_or(1).saturating_mul(ranks.gpus.unwrap_or(1))));
    }
    let on_other_nodes = ranks.nodes.is_some() || ranks.hostfile.is_some();
    if ranks.ranks_per_node.is_some() || on_other_nodes || sets_rank_count(ranks.launch.as_deref())? {
        return Ok(None);
    }
    let survey = Discovery::run(&SourceArgs::default(), 0)?;
    let machine = &survey.machines[0];
    let devices = matches!(ranks.backend, Backend::Auto | Backend::Nccl | Backend::Rccl);
    let by_launcher = survey.needs_agents()
        || survey.allocation.me.is_some()
        || (devices && uses_gpus(machine, ranks.backend));
    let cores = machine.cores.len().clamp(*LOCAL_RANKS.start(), *LOCAL_RANKS.end());
    Ok((!by_launcher).then_some(cores as u32))
}

/// Whether ranks use GPUs: if requested, or if there are several (a single rank has no peer) and
/// the library is available.
fn uses_gpus(machine: &Machine, backend: Backend) -> bool {
    let library = |vendor| nccl::devices(vendor).is_ok_and(|count| count > 1);
    let several = machine.gpus.len() > 1;
    backend != Backend::Auto || several && (library(Vendor::Nvidia) || library(Vendor::Amd))
}
