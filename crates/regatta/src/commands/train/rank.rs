//! A rank of the training. Rank 0 reports the events.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use anyhow::{Context, Result};
use regatta_comm::gather::all_gather;
use regatta_comm::{Collectives, Comm, bootstrap, hierarchical};
use regatta_launch::channel::RankEnd;
use regatta_model::result::STOPPED_EARLY;
use regatta_model::run_folder::unix_seconds;
use regatta_predict::cost::rank_cost;
use regatta_train::config::Config;
use regatta_train::data::{self, DataDirs, DataSpec, Dataset};
use regatta_train::metrics::{EndReason, Event, Recorder};
use regatta_train::training::{self, TrainingSetup};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};

use super::gpu_trace;
use super::reporter::ProgressReporter;
use super::run_folder;
use crate::commands::compute_device::{self, ComputeDevice};
use crate::commands::launcher::new_run_id;
use crate::commands::rank_events::EventSink;
use crate::commands::rank_request::note_unrecorded;
use crate::commands::train_task::TrainTask;
use crate::system::memory_limits;

/// Upper bound on threads per rank.
const MAX_THREADS: usize = 4096;

/// Signals that save a checkpoint and stop: Ctrl-C, and those that schedulers send before SIGKILL.
const STOP_SIGNALS: [i32; 6] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2];

/// Trains on this rank.
pub fn run(task: &TrainTask, channel: Option<RankEnd>) -> Result<ExitCode> {
    let mut config = task.resolved.config.clone();
    let comm: Arc<dyn Comm> =
        Arc::new(hierarchical::join(bootstrap::BootstrapConfig::from_env()?)?);
    note_unrecorded();
    let folder = run_folder(task, &*comm)?;
    if is_restart() {
        training::resume_own_run(&mut config, &folder, &run_id())?;
    }
    let unused_gpu = compute_device::resolve(&mut config, &*comm)?;
    let rank = comm.rank();
    let tensorboard_host = config.metrics.tensorboard.then(bootstrap::host_name);
    let mut recorder = (rank == 0).then(|| Recorder::new(&folder, tensorboard_host));
    let reporter = || Ok(ProgressReporter::of_rank(task.json, &folder));
    let mut sink = EventSink::new(rank, channel, reporter)?;
    let mut report = |event: Event| {
        let now = unix_seconds(SystemTime::now());
        let warning = recorder.as_mut().and_then(|recorder| recorder.record(&event, now));
        sink.emit(event);
        warning.into_iter().for_each(|warning| sink.emit(Event::Note(warning)));
    };
    // Tells the other ranks the cause, because they wait for this one.
    let abort = |e: &anyhow::Error| comm.abort(&e.to_string());
    let _lock = (rank == 0).then(|| run_folder::lock(&folder)).transpose().inspect_err(abort)?;
    let dataset = open_dataset(&config, &*comm).inspect_err(abort)?;
    let threads = threads(&config);
    let (device, size_note) =
        open_device(&mut config, &dataset, threads, &folder, &*comm).inspect_err(abort)?;
    let gemm_flops_per_second = device.measure_gemm_peak(&*comm).inspect_err(abort)?;
    let vocab_size = config.shape(dataset.tokenizer.vocab_size())?.vocab_size;
    let notes = unused_gpu.into_iter().chain(size_note).chain(device.notes(vocab_size));
    let notes: Vec<String> = notes.collect();
    let trace = gpu_trace::path(rank).filter(|_| device.start_trace());
    let setup = setup(task, config, comm.clone(), dataset, device, folder.clone());
    let setup = TrainingSetup { gemm_flops_per_second, ..setup.inspect_err(abort)? };
    // Installed only now: before there is any state to save, a signal ends the process at once.
    let stop = stop_flag()?;
    let stop = || stop.load(Ordering::Relaxed);
    let mut emit = |event: Event| {
        // By now the configuration has been checked against the checkpoint.
        let has_steps_left = match &event {
            Event::Start(about) if rank == 0 => Some(about.start_step < about.steps),
            _ => None,
        };
        report(event);
        if let Some(has_steps_left) = has_steps_left
            && let Err(error) = task.save_config(&folder, has_steps_left)
        {
            let effect = "so --resume will use the previous one";
            report(Event::Note(format!("cannot save the configuration, {effect}: {error:#}")));
        }
    };
    notes.into_iter().filter(|_| rank == 0).for_each(|note| emit(Event::Note(note)));
    let reason = training::run(setup, &stop, &mut emit)?;
    trace.map_or(Ok(()), |path| gpu_trace::write(&path, rank))?;
    sink.finish()?.map_or(Ok(()), |reporter| reporter.finish())?;
    Ok(match reason {
        EndReason::Completed => ExitCode::SUCCESS,
        EndReason::Interrupted => ExitCode::from(STOPPED_EARLY),
    })
}

/// Whether `regatta launch` restarted the ranks of this run.
fn is_restart() -> bool {
    let count = std::env::var("TORCHELASTIC_RESTART_COUNT").ok();
    count.and_then(|text| text.parse::<u64>().ok()).is_some_and(|count| count > 0)
}

/// The ID of the run, the same after a restart.
fn run_id() -> String {
    std::env::var("TORCHELASTIC_RUN_ID").unwrap_or_default()
}

/// A flag that the stop signals set.
pub fn stop_flag() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in STOP_SIGNALS {
        signal_hook::flag::register(signal, stop.clone()).context("signals")?;
    }
    Ok(stop)
}

/// The run folder, for metrics and checkpoints: that of `--resume` or `--run-dir`, or the job's. If a
/// scheduler started the ranks, rank 0 names a new one.
pub fn run_folder(task: &TrainTask, comm: &dyn Comm) -> Result<PathBuf> {
    let of_job = || std::env::var_os(regatta_model::run_folder::VARIABLE).map(PathBuf::from);
    if let Some(folder) = task.run_dir().or_else(of_job) {
        return Ok(folder);
    }
    let ids = all_gather(comm, &new_run_id())?;
    Ok(Path::new(regatta_model::run_folder::ROOT).join(&ids[0]))
}

/// Threads of this rank: as configured, or one per available core.
pub fn threads(config: &Config) -> usize {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    if config.train.threads == 0 { cores() } else { config.train.threads.min(MAX_THREADS) }
}

/// Opens the compute device once the run is known to fit in its memory, with the micro-batch size that does.
/// Returns a note for the user, too.
pub fn open_device(
    config: &mut Config,
    dataset: &Dataset,
    threads: usize,
    run_folder: &Path,
    comm: &dyn Comm,
) -> Result<(ComputeDevice, Option<String>)> {
    let vocab_size = dataset.tokenizer.vocab_size();
    check_memory(config, vocab_size, comm)?;
    let device = ComputeDevice::open(config, threads, comm)?;
    let note = device.fit_memory(config, vocab_size, run_folder, comm)?;
    Ok((device, note))
}

/// A run on an opened device. Collective if it is a GPU.
pub fn setup(
    task: &TrainTask,
    config: Config,
    comm: Arc<dyn Comm>,
    dataset: Dataset,
    device: ComputeDevice,
    folder: PathBuf,
) -> Result<TrainingSetup> {
    Ok(TrainingSetup {
        name: task.resolved.name.clone(),
        device_comm: device.device_comm(&*comm)?,
        threads: threads(&config),
        kernels: device.kernels(&config, comm.size() as usize),
        gemm_flops_per_second: 0.0,
        device: device.into_device(),
        run: run_id(),
        require_checkpoint: task.resume,
        config,
        comm,
        dataset,
        folder,
    })
}

/// Opens the dataset. The first rank of each node tokenizes and verifies it while the others wait.
pub fn open_dataset(config: &Config, comm: &dyn Comm) -> Result<Dataset> {
    let (spec, dirs) = (data_spec(config), DataDirs::of(|name| std::env::var_os(name)));
    let host = comm.peer(comm.rank()).host;
    let open = || data::open(&spec, &dirs);
    let is_first = (0..comm.rank()).all(|rank| comm.peer(rank).host != host);
    let dataset = is_first.then(open).transpose()?;
    dataset.as_ref().map_or(Ok(()), Dataset::verify)?;
    comm.barrier()?;
    Ok(dataset.map_or_else(open, Ok)?)
}

/// Fails if the run does not fit in host memory, instead of leaving that to the OOM killer, which gives no
/// reason. Ranks exchange what they need of which memory limit, because several may share a node or
/// a cgroup.
fn check_memory(config: &Config, vocab_size: usize, comm: &dyn Comm) -> Result<()> {
    let (layout, shape) = config.validate_with_vocab(comm.size() as usize, vocab_size)?;
    let memory = rank_cost(&shape, &layout, config.cost_options(), comm.rank() as usize)?.memory;
    let (rank, host) = (comm.rank(), comm.peer(comm.rank()).host);
    let limits = memory_limits(&host);
    let need = config.memory_need(&layout, &memory);
    // No rank allocates before all have read the free memory.
    let all = all_gather(comm, &need.entry(&limits))?;
    if config.train.check_memory {
        need.check((rank, &host), &limits, &all)?;
    }
    Ok(comm.barrier()?)
}

/// The dataset of the configuration.
pub fn data_spec(config: &Config) -> DataSpec {
    let tokenizer = match config.data.tokenizer.as_str() {
        "auto" | "char" => None,
        path => Some(PathBuf::from(path)),
    };
    let (data, validation) = (config.data.source.clone(), config.data.val_fraction);
    DataSpec { data, tokenizer, require_char: config.data.tokenizer == "char", validation }
}
