//! A rank of a benchmark: connects with the others over the backend under test, measures what the
//! request says, and reports events.

mod connect;
mod error;
mod memory;
mod metadata;

use regatta_comm::{Collectives, Comm, bootstrap, tune};
use regatta_model::Machine;

use self::connect::Connection;
pub use self::error::BenchError;
use crate::collectives::{self, BenchEvent, BenchProgress, MemoryKind, RunConfig};
use crate::pairs::{self, PairsOptions};
use crate::request::{BenchRequest, RooflineTest, Workload};
use crate::roofline::{self, copy, disk, disk::DiskSettings, gemm};

type Result<T = (), E = BenchError> = std::result::Result<T, E>;

/// Receives the events of this rank; only those of rank 0 are complete.
type OnEvent<'a> = &'a mut dyn FnMut(BenchEvent);

/// What the process of the rank knows about its node.
pub struct NodeContext<'a> {
    /// Command line of the user.
    pub command_line: &'a [String],
    /// The node, for the result; called on rank 0 only.
    pub machine: &'a dyn Fn() -> Option<Machine>,
    /// Available host memory in bytes.
    pub available_memory: &'a dyn Fn() -> Option<u64>,
}

/// Runs the benchmark on this rank. Collective.
pub fn run(request: &BenchRequest, node: &NodeContext<'_>, on_event: OnEvent<'_>) -> Result {
    if let Workload::Tune(config) = &request.workload {
        return tune(request, config, on_event);
    }
    let connection = connect::connect(request, on_event)?;
    let comm = &connection.comm;
    request.workload.check_ranks(comm.size())?;
    let metadata = metadata::collect(&connection, request, node)?;
    on_event(BenchEvent::Started(Box::new(metadata)));
    match &request.workload {
        Workload::Collectives { config, register, .. } => {
            measure_collectives(&connection, config, *register, node, on_event)?;
        }
        Workload::Pairs(options) => measure_pairs(comm, options, on_event)?,
        Workload::Roofline(test) => measure_roofline(comm, test, on_event)?,
        Workload::Tune(_) => {}
    }
    on_event(BenchEvent::Finished);
    Ok(())
}

impl Workload {
    /// Checks the number of ranks.
    pub fn check_ranks(&self, ranks: u32) -> Result {
        match self {
            Self::Collectives { config, .. } if config.root >= ranks => {
                let (root, last) = (config.root, ranks.saturating_sub(1));
                Err(BenchError::RootOutOfRange { root, last })
            }
            Self::Pairs(_) if ranks < 2 => Err(BenchError::TooFewRanks),
            _ => Ok(()),
        }
    }
}

/// Measures collectives over the size range.
fn measure_collectives(
    connection: &Connection,
    config: &RunConfig,
    register: bool,
    node: &NodeContext<'_>,
    on_event: OnEvent<'_>,
) -> Result {
    let memory = match (connection.device, register) {
        (Some(_), _) => MemoryKind::Device,
        (None, false) => MemoryKind::Heap,
        (None, true) => MemoryKind::Registered,
    };
    let mut config = RunConfig { memory, ..config.clone() };
    if let Some(note) = memory::drop_too_large(connection, &mut config.sizes, node)? {
        on_event(BenchEvent::Note(note));
    }
    Ok(collectives::run(&connection.comm, &config, on_event)?)
}

/// Progress without an estimated time left.
fn progress(task: &str, done: usize, total: usize) -> BenchEvent {
    BenchEvent::Progress(BenchProgress { task: task.to_owned(), done, total, eta_s: 0.0 })
}

/// Measures all pairs.
fn measure_pairs(comm: &dyn Comm, options: &PairsOptions, on_event: OnEvent<'_>) -> Result {
    let mut on_progress = |done, total| on_event(progress("pairs of ranks", done, total));
    if let Some(mut pairs) = pairs::measure(comm, options, &mut on_progress)? {
        let findings = pairs::diagnose(&pairs);
        pairs.findings = findings.iter().map(ToString::to_string).collect();
        on_event(BenchEvent::Pairs(Box::new(pairs)));
    }
    Ok(())
}

/// Measures the roofline of every rank, all at the same time.
fn measure_roofline(comm: &dyn Comm, test: &RooflineTest, on_event: OnEvent<'_>) -> Result {
    let mut on_progress = |case: roofline::CaseProgress<'_>| {
        on_event(progress(case.name, case.done, case.total));
    };
    comm.barrier()?;
    let rows = match test {
        RooflineTest::Gemm => gemm::measure(&gemm::settings(), &mut on_progress),
        RooflineTest::Copy => copy::measure(&copy::settings(), &mut on_progress),
        RooflineTest::Disk { dir, bytes } => {
            let settings =
                DiskSettings { dir: dir.clone(), bytes: *bytes, ..DiskSettings::default() };
            disk::measure(&settings, &mut on_progress)
        }
    };
    let all = roofline::gather(comm, &rows?)?;
    if comm.rank() == 0 {
        on_event(BenchEvent::Rooflines(all));
    }
    Ok(())
}

/// Benchmarks all algorithms over the network.
fn tune(request: &BenchRequest, config: &tune::TuneConfig, on_event: OnEvent<'_>) -> Result {
    let mut engine = bootstrap::engine(connect::settings(request)?)?;
    on_event(progress("all algorithms of all collectives", 0, 1));
    on_event(BenchEvent::TuningTable(Box::new(tune::tune(&mut engine, config)?)));
    on_event(BenchEvent::Finished);
    Ok(())
}
