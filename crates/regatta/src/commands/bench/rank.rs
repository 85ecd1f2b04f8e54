//! A rank of the benchmark: measures with the others; rank 0 tells.

use std::iter;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

use anyhow::{Result, bail};
use regatta_comm::nccl::Gpu;
use regatta_comm::{Collectives, Comm, ReduceOp, join, tune};
use regatta_launch::folder;
use regatta_measure::run::{self, Event, Memory, Plan, Progress};
use regatta_measure::{ceiling, pairs};
use regatta_model::{document, units};

use super::asked::{Asked, Ceiling, Job};
use super::backend::{self, Connected};
use super::begun;
use super::pieces::pieces;
use super::report::Report;
use crate::output;

/// What a line begins with that is for the process that started the ranks.
pub const EVENT: &str = "regatta-bench-event ";

/// More results than anybody makes in one job.
const MOST_FILES: u32 = 9999;

/// How many buffers of a size a rank has, with what the communicator needs.
const BUFFERS: u64 = 3;

/// Measures.
pub fn run(asked: Asked<'_>) -> Result<ExitCode> {
    if let Job::Tune(_, effort) = &asked.job {
        return tuned(&asked, effort);
    }
    let connected = backend::connect(asked.ranks.backend, asked.timeout)?;
    asked.job.check_ranks(connected.comm.size())?;
    let mut teller = Teller::new(connected.comm.rank(), &asked)?;
    let begun = begun::begun(&connected, &asked)?;
    teller.tell(Event::Begin(Box::new(begun)));
    let measured = match asked.job {
        Job::Tables { plan, register, .. } => tables(&connected, *plan, register, &mut teller),
        Job::Pairs(options) => every_pair(&connected.comm, &options, &mut teller),
        Job::Ceiling(what, _) => ceilings(&connected, &what, &mut teller),
        Job::Tune(..) => Ok(()),
    };
    measured.inspect_err(|_| teller.keep())?;
    teller.tell(Event::End);
    teller.end()
}

/// Collectives over sizes.
fn tables(
    connected: &Connected,
    mut plan: Plan,
    register: bool,
    teller: &mut Teller,
) -> Result<()> {
    let comm = &connected.comm;
    plan.memory = match (connected.device, register) {
        (Some(_), _) => Memory::Device,
        (None, false) => Memory::Heap,
        (None, true) => Memory::Registered,
    };
    if let Some(note) = fit(connected, &mut plan)? {
        teller.tell(Event::Note(note));
    }
    Ok(run::run(comm, &plan, &mut |event| teller.tell(event))?)
}

/// Leaves out sizes for which there is no room, and says so.
fn fit(connected: &Connected, plan: &mut Plan) -> Result<Option<String>> {
    let comm = &connected.comm;
    let mut most = [i64::try_from(room(connected)?).unwrap_or(i64::MAX)];
    comm.all_reduce(&mut most, ReduceOp::Min)?;
    let most = most[0].unsigned_abs();
    let before = plan.sizes.len();
    plan.sizes.retain(|size| *size <= most);
    let left_out = before - plan.sizes.len();
    let room = units::bytes(most);
    if plan.sizes.is_empty() {
        bail!("no size fits: a rank has memory for {room}");
    }
    let left_out = (left_out > 0).then(|| units::count(left_out, "size"));
    Ok(left_out.map(|sizes| format!("{sizes} left out: a rank has memory for {room}")))
}

/// The greatest size that this rank has memory for, while all others of its node have as much. What
/// lies on a device is filled and checked through host memory.
fn room(connected: &Connected) -> Result<u64> {
    let comm = &connected.comm;
    let own = comm.peer(comm.rank()).host;
    let here: Vec<u32> = (0..comm.size()).filter(|rank| comm.peer(*rank).host == own).collect();
    let each = |free: u64, ranks: usize| free / ranks.max(1) as u64 / BUFFERS;
    let host = crate::system::free_memory().map_or(u64::MAX, |free| each(free, here.len()));
    let buses = backend::buses(comm, connected.device)?;
    let Some((vendor, device)) = connected.device else { return Ok(host) };
    let bus = |rank: &u32| &buses[*rank as usize];
    let sharing = here.iter().filter(|rank| bus(rank) == bus(&comm.rank())).count();
    let free = Gpu::open(vendor, device)?.free_bytes()?;
    Ok(each(free, sharing).min(host))
}

/// Messages of every pair.
fn every_pair(comm: &dyn Comm, options: &pairs::Options, teller: &mut Teller) -> Result<()> {
    let mut progress = |done, of| {
        let doing = "messages of pairs".to_owned();
        teller.tell(Event::Progress(Progress { doing, done, of, left_s: 0.0 }));
    };
    if let Some(mut found) = pairs::measure(comm, options, &mut progress)? {
        let judged = pairs::judge(&found, &options.bounds);
        found.findings = judged.iter().map(ToString::to_string).collect();
        teller.tell(Event::Pairs(Box::new(found)));
    }
    Ok(())
}

/// What each rank can do by itself, while all others do the same.
fn ceilings(connected: &Connected, what: &Ceiling, teller: &mut Teller) -> Result<()> {
    let comm = &connected.comm;
    let stop = AtomicBool::new(false);
    let mut report = |progress: ceiling::Progress<'_>| {
        let (doing, done, of) = (progress.what.to_owned(), progress.done, progress.total);
        teller.tell(Event::Progress(Progress { doing, done, of, left_s: 0.0 }));
    };
    comm.barrier()?;
    let rows = match what {
        Ceiling::Gemm(settings) => ceiling::gemm::measure(settings, &stop, &mut report),
        Ceiling::Copy(settings) => ceiling::copy::measure(settings, &stop, &mut report),
        Ceiling::Disk(settings) => ceiling::disk::measure(settings, &stop, &mut report),
    };
    let gathered = ceiling::gather(comm, &rows?)?;
    if comm.rank() == 0 {
        let all = ceiling::ceilings(gathered, |rank| comm.peer(rank).host);
        teller.tell(Event::Ceilings(all));
    }
    Ok(())
}

/// All algorithms over the network.
fn tuned(asked: &Asked<'_>, effort: &tune::Effort) -> Result<ExitCode> {
    let mut engine = join::engine(backend::settings(asked.timeout)?)?;
    let rank = regatta_comm::background::Engine::rank(&engine);
    let mut teller = Teller::new(rank, asked)?;
    let doing = "all algorithms of all collectives".to_owned();
    teller.tell(Event::Progress(Progress { doing, done: 0, of: 1, left_s: 0.0 }));
    let table = tune::tune(&mut engine, effort)?;
    teller.tell(Event::Tuned(document::to_json(&table)?));
    teller.tell(Event::End);
    teller.end()
}

/// A new file in the run folder, if the job has one that is seen here. Another `regatta bench` of
/// the same job may have left its own.
fn file_of_run() -> Option<PathBuf> {
    let folder = PathBuf::from(std::env::var_os(folder::VARIABLE)?);
    let more = (2..=MOST_FILES).map(|number| format!("bench-{number}.json"));
    let mut files = iter::once("bench.json".to_owned()).chain(more).map(|name| folder.join(name));
    files.find(|file| folder.is_dir() && !file.exists())
}

/// Who takes what happens.
enum Teller {
    /// Ranks but the first have nothing to say.
    Nobody,
    /// The process that started the ranks.
    Starter,
    Here(Box<Report>),
}

impl Teller {
    fn new(rank: u32, asked: &Asked<'_>) -> Result<Self> {
        Ok(match rank {
            0 if asked.ranks.events => Self::Starter,
            0 => {
                let out = asked.output.out.clone().or_else(file_of_run);
                Self::Here(Box::new(Report::new(asked, out)?))
            }
            _ => Self::Nobody,
        })
    }

    fn tell(&mut self, event: Event) {
        match self {
            Self::Nobody => {}
            Self::Starter => {
                // Whoever does not listen is gone, and so is soon this rank.
                let text = serde_json::to_string(&event).unwrap_or_default();
                for piece in pieces(&text) {
                    let _ = output::print(&format!("{EVENT}{piece}\n"));
                }
            }
            Self::Here(report) => report.hear(event),
        }
    }

    /// It ends before its time.
    fn keep(&mut self) {
        if let Self::Here(report) = self {
            report.keep();
        }
    }

    fn end(self) -> Result<ExitCode> {
        match self {
            Self::Here(mut report) => report.finish(),
            _ => Ok(ExitCode::SUCCESS),
        }
    }
}
