//! A rank of the benchmark: measures with the others; rank 0 tells.

use std::process::ExitCode;

use anyhow::Result;
use regatta_comm::{Collectives, Comm, ReduceOp};
use regatta_measure::run::{self, Event, Memory, Plan};
use regatta_model::{Operation, units};

use super::args::RunArgs;
use super::report::Report;
use super::{asked, backend, begun};
use crate::output;

/// What a line begins with that is for the process that started the ranks.
pub const EVENT: &str = "regatta-bench-event ";

/// How many buffers of a size a rank has, with what the communicator needs.
const BUFFERS: u64 = 3;

/// Measures.
pub fn run(operations: Vec<Operation>, args: &RunArgs) -> Result<ExitCode> {
    let (mut plan, sizes) = asked::plan(operations, args)?;
    let connected = backend::connect(args)?;
    let comm = &connected.comm;
    if plan.root >= comm.size() {
        anyhow::bail!("-r {}, but the ranks are 0 to {}", plan.root, comm.size() - 1);
    }
    plan.memory = match (connected.device.is_some(), args.rounds.register) {
        (true, _) => Memory::Device,
        (false, 0) => Memory::Heap,
        (false, _) => Memory::Registered,
    };
    let mut teller = Teller::new(comm.rank(), args)?;
    let begun = begun::begun(&connected, &plan, &sizes, args)?;
    teller.tell(Event::Begin(Box::new(begun)));
    if let Some(note) = fit(comm, &mut plan, connected.device.is_some())? {
        teller.tell(Event::Note(note));
    }
    run::run(comm, &plan, &mut |event| teller.tell(event))?;
    teller.tell(Event::End);
    teller.end()
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
    fn new(rank: u32, args: &RunArgs) -> Result<Self> {
        Ok(match rank {
            0 if args.ranks.events => Self::Starter,
            0 => Self::Here(Box::new(Report::new(&args.output, args.output.out.clone())?)),
            _ => Self::Nobody,
        })
    }

    fn tell(&mut self, event: Event) {
        match self {
            Self::Nobody => {}
            Self::Starter => {
                // Whoever does not listen is gone, and so is soon this rank.
                let text = serde_json::to_string(&event).unwrap_or_default();
                let _ = output::print(&format!("{EVENT}{text}\n"));
            }
            Self::Here(report) => report.hear(event),
        }
    }

    fn end(self) -> Result<ExitCode> {
        match self {
            Self::Here(mut report) => report.finish(),
            _ => Ok(ExitCode::SUCCESS),
        }
    }
}

/// Leaves out sizes for which there is no room, and says so.
fn fit(comm: &dyn Comm, plan: &mut Plan, devices: bool) -> Result<Option<String>> {
    let host = comm.peer(comm.rank()).host;
    let here = (0..comm.size()).filter(|rank| comm.peer(*rank).host == host).count() as u64;
    // Memory of devices is not known before it is asked for.
    let room = if devices { u64::MAX } else { crate::system::free_memory().unwrap_or(u64::MAX) };
    let each = room / here.max(1) / BUFFERS;
    let mut most = [i64::try_from(each).unwrap_or(i64::MAX)];
    comm.all_reduce(&mut most, ReduceOp::Min)?;
    let most = most[0].unsigned_abs();
    let before = plan.sizes.len();
    plan.sizes.retain(|size| *size <= most);
    let left_out = before - plan.sizes.len();
    if plan.sizes.is_empty() {
        anyhow::bail!("no size fits: a rank has memory for {}", units::bytes(most));
    }
    let note = || {
        format!(
            "{} left out: a rank has memory for {}",
            units::count(left_out, "size"),
            units::bytes(most)
        )
    };
    Ok((left_out > 0).then(note))
}
