//! A rank of the benchmark. Rank 0 reports the events.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

use anyhow::{Result, bail};
use regatta_comm::nccl::Gpu;
use regatta_comm::{Collectives, Comm, ReduceOp, bootstrap, tune};
use regatta_launch::channel::RankEnd;
use regatta_measure::collectives::{self, BenchEvent, BenchProgress, MemoryKind, RunConfig};
use regatta_measure::pairs::{self, PairsOptions};
use regatta_measure::roofline;
use regatta_model::run_folder::{self, bench_result_name};
use regatta_model::{document, units};

use super::backend::{self, Connection};
use super::metadata;
use super::options::{BenchOptions, RooflineTest, Workload};
use super::reporter::Reporter;
use crate::commands::rank_events::EventSink;
use crate::commands::rank_worker::RankContext;
use crate::commands::reporter_output::ReporterOutput;

/// Upper bound on result files in a run folder.
const MAX_RESULT_FILES: usize = 9999;

/// Buffers per rank and size, including those of the communicator.
const BUFFERS: u64 = 3;

/// Runs the benchmark on this rank.
pub fn run(options: BenchOptions<'_>, mut context: RankContext) -> Result<ExitCode> {
    if let Workload::Tune(_, config) = &options.workload {
        return run_tuning(&options, config, context.channel);
    }
    let connection = backend::connect(options.ranks, options.timeout)?;
    options.workload.check_ranks(connection.comm.size())?;
    let mut sink = event_sink(connection.comm.rank(), &options, context.channel.take())?;
    let metadata = metadata::collect(&connection, &options, context)?;
    sink.emit(BenchEvent::Started(Box::new(metadata)));
    let measured = match options.workload {
        Workload::Collectives { config, register, .. } => {
            measure_collectives(&connection, *config, register, &mut sink)
        }
        Workload::Pairs(options) => measure_pairs(&connection.comm, &options, &mut sink),
        Workload::Roofline(test, _) => measure_roofline(&connection.comm, &test, &mut sink),
        Workload::Tune(..) => Ok(()),
    };
    if let (Err(_), EventSink::Local(reporter)) = (&measured, &mut sink) {
        reporter.flush();
    }
    measured?;
    sink.emit(BenchEvent::Finished);
    finish(sink)
}

/// Measures collectives over the size range.
fn measure_collectives(
    connection: &Connection,
    mut config: RunConfig,
    register: bool,
    sink: &mut BenchSink,
) -> Result<()> {
    let comm = &connection.comm;
    config.memory = match (connection.device, register) {
        (Some(_), _) => MemoryKind::Device,
        (None, false) => MemoryKind::Heap,
        (None, true) => MemoryKind::Registered,
    };
    if let Some(note) = fit_to_memory(connection, &mut config)? {
        sink.emit(BenchEvent::Note(note));
    }
    Ok(collectives::run(comm, &config, &mut |event| sink.emit(event))?)
}

/// Drops sizes that exceed the memory, and returns a note if there are any.
fn fit_to_memory(connection: &Connection, config: &mut RunConfig) -> Result<Option<String>> {
    let comm = &connection.comm;
    let mut max = [i64::try_from(max_size(connection)?).unwrap_or(i64::MAX)];
    comm.all_reduce(&mut max, ReduceOp::Min)?;
    let max = max[0].unsigned_abs();
    let before = config.sizes.len();
    config.sizes.retain(|size| *size <= max);
    let available = units::format_bytes(max);
    if config.sizes.is_empty() {
        bail!("all sizes exceed the available memory of {available} per rank");
    }
    let skipped = units::pluralize(before - config.sizes.len(), "size");
    let note = || format!("{skipped} skipped: only {available} of memory available per rank");
    Ok((config.sizes.len() < before).then(note))
}

/// The largest size that fits in this rank's share of the node's free memory. Device buffers are
/// filled and checked through host memory.
fn max_size(connection: &Connection) -> Result<u64> {
    let comm = &connection.comm;
    let own = comm.peer(comm.rank()).host;
    let local: Vec<u32> = (0..comm.size()).filter(|rank| comm.peer(*rank).host == own).collect();
    let each = |free: u64, ranks: usize| free / ranks.max(1) as u64 / BUFFERS;
    let host = crate::system::available_memory().map_or(u64::MAX, |free| each(free, local.len()));
    let buses = backend::buses(comm, connection.device)?;
    let Some((vendor, device)) = connection.device else { return Ok(host) };
    let bus = |rank: &u32| &buses[*rank as usize];
    let sharing = local.iter().filter(|rank| bus(rank) == bus(&comm.rank())).count();
    let free = Gpu::open(vendor, device)?.free_bytes()?;
    Ok(each(free, sharing).min(host))
}

/// Progress without an estimated time left.
fn progress(task: &str, done: usize, total: usize) -> BenchEvent {
    BenchEvent::Progress(BenchProgress { task: task.to_owned(), done, total, eta_s: 0.0 })
}

/// Measures all pairs.
fn measure_pairs(comm: &dyn Comm, options: &PairsOptions, sink: &mut BenchSink) -> Result<()> {
    let mut progress = |done, total| sink.emit(progress("pairs of ranks", done, total));
    if let Some(mut pairs) = pairs::measure(comm, options, &mut progress)? {
        let findings = pairs::diagnose(&pairs, &options.thresholds);
        pairs.findings = findings.iter().map(ToString::to_string).collect();
        sink.emit(BenchEvent::Pairs(Box::new(pairs)));
    }
    Ok(())
}

/// Measures the roofline of every rank, all at the same time.
fn measure_roofline(comm: &dyn Comm, test: &RooflineTest, sink: &mut BenchSink) -> Result<()> {
    let stop = AtomicBool::new(false);
    let mut on_progress = |case: roofline::CaseProgress<'_>| {
        sink.emit(progress(case.name, case.done, case.total));
    };
    comm.barrier()?;
    let rows = match test {
        RooflineTest::Gemm(settings) => roofline::gemm::measure(settings, &stop, &mut on_progress),
        RooflineTest::Copy(settings) => roofline::copy::measure(settings, &stop, &mut on_progress),
        RooflineTest::Disk(settings) => roofline::disk::measure(settings, &stop, &mut on_progress),
    };
    let gathered = roofline::gather(comm, &rows?)?;
    if comm.rank() == 0 {
        let all = roofline::to_rooflines(gathered, |rank| comm.peer(rank).host);
        sink.emit(BenchEvent::Rooflines(all));
    }
    Ok(())
}

/// Benchmarks all algorithms over the network.
fn run_tuning(
    options: &BenchOptions,
    config: &tune::TuneConfig,
    channel: Option<RankEnd>,
) -> Result<ExitCode> {
    let mut engine = bootstrap::engine(backend::settings(options.ranks, options.timeout)?)?;
    let rank = regatta_comm::engine::Engine::rank(&engine);
    let mut sink = event_sink(rank, options, channel)?;
    sink.emit(progress("all algorithms of all collectives", 0, 1));
    let table = tune::tune(&mut engine, config)?;
    sink.emit(BenchEvent::TuningTable(document::to_json(&table)?));
    sink.emit(BenchEvent::Finished);
    finish(sink)
}

/// A new result file in the run folder, if it is visible here. Another `regatta bench` of the job
/// may have left its own.
fn new_result_file() -> Option<PathBuf> {
    let folder = std::env::var_os(run_folder::VARIABLE).map(PathBuf::from)?;
    let names = (1..=MAX_RESULT_FILES).map(bench_result_name);
    names.map(|name| folder.join(name)).find(|file| folder.is_dir() && !file.exists())
}

/// Where the events of a rank go.
type BenchSink = EventSink<Reporter>;

fn event_sink(rank: u32, options: &BenchOptions, channel: Option<RankEnd>) -> Result<BenchSink> {
    let out = || options.output.out.clone().or_else(new_result_file);
    let reporter = || {
        options.check_output_files()?;
        Reporter::new(options, out(), ReporterOutput::default())
    };
    EventSink::new(rank, channel, reporter)
}

fn finish(sink: BenchSink) -> Result<ExitCode> {
    sink.finish()?.map_or(Ok(ExitCode::SUCCESS), |mut reporter| reporter.finish())
}
