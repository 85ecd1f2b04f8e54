//! The parent process: launches the ranks and reports the events of rank 0.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use regatta_comm::nccl::{self, Vendor};
use regatta_launch::discovery::Discovery;
use regatta_launch::forked;
use regatta_measure::request::{Backend, BenchRequest};
use regatta_model::run_folder::BENCH_RESULT;

use super::net_plugin;
use super::options::BenchOptions;
use super::reporter::Reporter;
use crate::args::bench::BenchRankArgs;
use crate::commands::launcher::{self, LaunchOptions, RankReporter, new_run_id, run_dir_or_new};
use crate::commands::rank_events::RankEvents;
use crate::commands::rank_request::RankTask;
use crate::commands::reporter_output::ReporterOutput;
use crate::commands::self_launch::{
    LaunchRequest, has_rank_count, local_rank_count, note_oversubscription, set_request,
};
use crate::options::{NcclPluginArgs, RankCountArgs};

/// Launches the ranks.
pub fn run(options: &BenchOptions<'_>) -> Result<ExitCode> {
    let folder = run_dir_or_new(options.ranks.run_dir.as_ref(), &new_run_id());
    let launch = BenchLaunch::new(options.ranks)?;
    let out = options.output.out.clone().unwrap_or_else(|| folder.join(BENCH_RESULT));
    let reporter = Reporter::new(options, Some(out), ReporterOutput::queued())?;
    launch.run(&options.request, &folder, reporter).map(ExitCode::from)
}

/// The ranks of a benchmark, to be launched once or, by a sweep, several times.
#[derive(Clone)]
pub struct BenchLaunch {
    pub options: LaunchOptions,
    pub discovery: Discovery,
}

impl BenchLaunch {
    /// The ranks that the options name. Discovers the machine, and so precedes the first launch.
    pub fn new(ranks: &BenchRankArgs) -> Result<Self> {
        let mut options = launch_options(ranks)?;
        let discovery = Discovery::of_job(&options.job)?;
        if !has_rank_count(&options.job) {
            options.job.placement.job.ranks = default_rank_count(&discovery, ranks.backend);
        }
        Ok(Self { options, discovery })
    }

    /// Runs a benchmark with this run folder. Returns the exit code.
    pub fn run(
        mut self,
        request: &BenchRequest,
        folder: &Path,
        mut reporter: Reporter,
    ) -> Result<u8> {
        let job = &mut self.options.job;
        if let Some(ranks) = job.placement.job.ranks {
            request.workload.check_ranks(ranks)?;
        }
        note_oversubscription(job, &self.discovery);
        job.run_dir = Some(folder.to_owned());
        set_request(job, &self.discovery, RankTask::Bench(Box::new(request.clone())))?;
        let events = &mut RankEvents(&mut reporter);
        let events = RankReporter { observer: events, names_run_dir: false };
        let code = launcher::launch(&self.options, self.discovery, Some(events), Vec::new())?;
        let is_good = reporter.finish()?;
        Ok(code.max((!is_good).into()))
    }

    /// The backend, if it is known before the launch that the ranks do not read variables of NCCL: if
    /// requested, or if they are on this machine, which has fewer GPUs.
    pub fn host_backend(&self, requested: Backend) -> Option<Backend> {
        if requested != Backend::Auto {
            return (!requested.reads_nccl_variables()).then_some(requested);
        }
        let ranks = self.options.job.placement.job.ranks.unwrap_or(1);
        let is_on_host = !self.discovery.needs_agents() && gpu_count() < ranks;
        is_on_host.then_some(Backend::Host)
    }
}

/// Options of `regatta launch` for these ranks.
fn launch_options(ranks: &BenchRankArgs) -> Result<LaunchOptions> {
    let nccl_tests = (ranks.threads.is_some() || ranks.gpus.is_some())
        .then(|| ranks.threads.unwrap_or(1).saturating_mul(ranks.gpus.unwrap_or(1)));
    let (net_plugin, all) = (net_plugin::for_launch(ranks), ranks.plugins.clone());
    let request = LaunchRequest {
        counts: RankCountArgs { ranks: ranks.counts.ranks.or(nccl_tests), ..ranks.counts.clone() },
        plugins: NcclPluginArgs { net_plugin, ..all },
        gpus: ranks.backend.may_use_gpus(),
        user_options: ranks.launch.as_deref(),
    };
    request.options()
}

/// The number of GPUs that NCCL or RCCL can use; 0 without the library.
fn gpu_count() -> u32 {
    let count = |vendor| nccl::device_count(vendor).unwrap_or(0);
    let most = || Vendor::ALL.map(count).into_iter().max().unwrap_or(0);
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
