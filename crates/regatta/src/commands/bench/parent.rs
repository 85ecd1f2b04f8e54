//! The parent process: launches the ranks and reports the events of rank 0.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use regatta_comm::nccl::{self, Vendor};
use regatta_launch::discovery::Discovery;
use regatta_launch::forked;
use regatta_measure::request::Backend;
use regatta_model::run_folder::BENCH_RESULT;

use super::args::BenchRankArgs;
use super::net_plugin;
use super::options::BenchOptions;
use super::reporter::Reporter;
use crate::commands::launch::{self, LaunchOptions, new_run_id, run_dir_or_new};
use crate::commands::rank_worker::RankTask;
use crate::commands::reporter_output::ReporterOutput;
use crate::commands::self_launch::{
    LaunchRequest, has_rank_count, local_rank_count, note_oversubscription, set_request,
};

/// Launches the ranks.
pub fn run(options: &BenchOptions<'_>) -> Result<ExitCode> {
    let folder = run_dir_or_new(options.ranks.run_dir.as_ref(), &new_run_id());
    let mut args = launch_options(options.ranks, folder.clone())?;
    let discovery = Discovery::of_job(&args.job)?;
    if !has_rank_count(&args.job) {
        args.job.placement.job.ranks = default_rank_count(&discovery, options.ranks.backend);
    }
    if let Some(ranks) = args.job.placement.job.ranks {
        options.request.workload.check_ranks(ranks)?;
    }
    note_oversubscription(&args.job, &discovery);
    let task = RankTask::Bench(Box::new(options.request.clone()));
    set_request(&mut args.job, &discovery, task)?;
    let out = options.output.out.clone().unwrap_or_else(|| folder.join(BENCH_RESULT));
    let mut reporter = Reporter::new(options, Some(out), ReporterOutput::queued())?;
    let code = launch::launch(&args, discovery, Some(&mut reporter), Vec::new())?;
    let exit_code = reporter.finish()?;
    Ok(if code == ExitCode::SUCCESS { exit_code } else { code })
}

/// Options of `regatta launch` for these ranks.
fn launch_options(ranks: &BenchRankArgs, run_dir: PathBuf) -> Result<LaunchOptions> {
    let nccl_tests = (ranks.threads.is_some() || ranks.gpus.is_some())
        .then(|| ranks.threads.unwrap_or(1).saturating_mul(ranks.gpus.unwrap_or(1)));
    let request = LaunchRequest {
        ranks: ranks.ranks.or(nccl_tests),
        ranks_per_node: ranks.ranks_per_node,
        nodes: ranks.nodes,
        hostfile: ranks.hostfile.as_deref(),
        run_dir,
        gpus: ranks.backend.may_use_gpus(),
        profile: ranks.profile.level,
        tuner: ranks.tuner.table.clone(),
        net_plugin: net_plugin::for_launch(ranks),
        user_options: ranks.launch.as_deref(),
    };
    let mut args = request.options()?;
    args.job.rank_env.inherit.extend(ranks.sweep_var.iter().cloned());
    Ok(args)
}

/// The backend, if it is known before the launch that the ranks do not read variables of NCCL: if requested,
/// or if they are on this machine, which has fewer GPUs.
pub fn host_backend(ranks: &BenchRankArgs) -> Result<Option<Backend>> {
    match ranks.backend {
        backend if backend.reads_nccl_variables() => return Ok(None),
        Backend::Auto => {}
        backend => return Ok(Some(backend)),
    }
    let args = launch_options(ranks, PathBuf::new())?;
    let discovery = Discovery::of_job(&args.job)?;
    let count = match has_rank_count(&args.job) {
        true => args.job.placement.job.ranks.unwrap_or(1),
        false => default_rank_count(&discovery, ranks.backend).unwrap_or(1),
    };
    let has_gpus = gpu_count() >= count;
    let uses_host_memory = !discovery.needs_agents() && !has_gpus;
    Ok(uses_host_memory.then_some(Backend::Host))
}

/// The number of GPUs that NCCL or RCCL can use; 0 without the library.
fn gpu_count() -> u32 {
    let count = |vendor| nccl::device_count(vendor).unwrap_or(0);
    let most = || [Vendor::Nvidia, Vendor::Amd].map(count).into_iter().max().unwrap_or(0);
    forked::isolated(most).unwrap_or(0)
}

/// The number of ranks on a single machine without GPUs; otherwise the launcher determines it. Ranks
/// use GPUs if requested, or if there are several (a single rank has no peer) and the library is
/// available.
fn default_rank_count(discovery: &Discovery, backend: Backend) -> Option<u32> {
    let uses_gpus = match backend {
        Backend::Auto if discovery.machines[0].gpus.len() > 1 => gpu_count() > 1,
        Backend::Auto => false,
        backend => backend.may_use_gpus(),
    };
    local_rank_count(discovery).filter(|_| !uses_gpus)
}
