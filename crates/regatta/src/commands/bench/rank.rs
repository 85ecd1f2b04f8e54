//! A rank of the benchmark: measures with the others; rank 0 tells.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use regatta_comm::{Collectives, Comm, ReduceOp};
use regatta_measure::run::{self, Average, Event, Memory, Plan, Rounds, Sizes, names};
use regatta_model::bench::{BenchMachine, BenchParameters, BenchShape, Program, SizeStep};
use regatta_model::{BenchResult, Operation, units};

use super::args::{RunArgs, SizeArgs};
use super::backend::{self, Connected};
use super::report::Report;
use crate::options::SourceArgs;
use crate::output;
use crate::plan::Survey;

/// What a line begins with that is for the process that started the ranks.
pub const EVENT: &str = "regatta-bench-event ";

/// How many buffers of a size a rank has, with what the communicator needs.
const BUFFERS: u64 = 3;

/// Measures.
pub fn run(operations: Vec<Operation>, args: &RunArgs) -> Result<ExitCode> {
    let sizes = sizes(&args.sizes).map_err(anyhow::Error::msg)?;
    let mut plan = Plan {
        operations,
        dtypes: names::dtypes(&args.sizes.datatype).map_err(anyhow::Error::msg)?,
        ops: names::ops(&args.sizes.op).map_err(anyhow::Error::msg)?,
        root: args.sizes.root,
        sizes: sizes.list().map_err(anyhow::Error::msg)?,
        rounds: Rounds {
            warmup: args.rounds.warmup,
            iterations: args.rounds.iterations.unwrap_or(20),
            or_more: args.rounds.iterations.is_none(),
            check: args.rounds.check,
        },
        average: match args.rounds.average {
            0 => Average::First,
            2 => Average::Least,
            3 => Average::Greatest,
            _ => Average::Mean,
        },
        memory: Memory::Heap,
    };
    let connected = backend::connect(args)?;
    let comm = &connected.comm;
    if plan.root >= comm.size() {
        anyhow::bail!("-r {}, but the ranks are 0 to {}", plan.root, comm.size() - 1);
    }
    plan.memory = match (connected.devices, args.rounds.register) {
        (true, _) => Memory::Device,
        (false, 0) => Memory::Heap,
        (false, _) => Memory::Registered,
    };
    let mut teller = Teller::new(comm.rank(), args)?;
    teller.tell(Event::Begin(Box::new(begun(&connected, &plan, &sizes, args))));
    if let Some(note) = fit(comm, &mut plan, connected.devices)? {
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

/// The sizes that the options ask for; nccl-tests would measure one only if none does.
fn sizes(args: &SizeArgs) -> Result<Sizes, String> {
    const LARGEST: u64 = 32 << 20;
    let none = [args.min, args.max, args.step, args.factor].iter().all(Option::is_none);
    if none {
        return Ok(Sizes { min: 8, max: LARGEST, step: SizeStep::Factor(2) });
    }
    let step = match (args.factor, args.step) {
        (Some(factor), None) => SizeStep::Factor(factor),
        (None, step) => SizeStep::Bytes(step.unwrap_or(1 << 20)),
        (Some(_), Some(_)) => return Err("give -f or -i, not both".to_owned()),
    };
    let max = args.max.unwrap_or(LARGEST);
    Ok(Sizes { min: args.min.unwrap_or(LARGEST.min(max)), max, step })
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

/// All that is known before anything is measured.
fn begun(connected: &Connected, plan: &Plan, sizes: &Sizes, args: &RunArgs) -> BenchResult {
    let comm = &connected.comm;
    let mut hosts: Vec<String> = Vec::new();
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    for rank in 0..comm.size() {
        let host = comm.peer(rank).host;
        if !counts.contains_key(&host) {
            hosts.push(host.clone());
        }
        *counts.entry(host).or_default() += 1;
    }
    let each = counts.values().next().copied();
    let command: Vec<String> = std::env::args().filter(|word| word != "--events").collect();
    let mut versions =
        BTreeMap::from([("regatta".to_owned(), env!("CARGO_PKG_VERSION").to_owned())]);
    if let Some(version) = &connected.version {
        versions.insert(connected.name.to_owned(), version.clone());
    }
    let shape = BenchShape {
        ranks: Some(comm.size()),
        nodes: Some(hosts.len() as u32),
        ranks_per_node: each.filter(|each| counts.values().all(|count| count == each)),
        hosts,
    };
    let label = args.output.label.clone().unwrap_or_else(|| {
        let ranks = units::count(comm.size() as usize, "rank");
        let nodes = units::count(shape.hosts.len(), "node");
        format!("{}, {ranks} on {nodes}", connected.name)
    });
    BenchResult {
        program: Program::Regatta,
        label,
        command: Some(command.join(" ")),
        started_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).ok().map(|t| t.as_secs()),
        machine: machine(),
        shape,
        backend: Some(connected.name.to_owned()),
        settings: settings(),
        versions,
        parameters: Some(BenchParameters {
            threads: 1,
            devices: 1,
            min_bytes: sizes.min,
            max_bytes: sizes.max,
            step: sizes.step,
            warmup: u64::from(plan.rounds.warmup),
            iterations: u64::from(plan.rounds.iterations),
            check: u64::from(plan.rounds.check),
            ..BenchParameters::default()
        }),
        ..BenchResult::default()
    }
}

/// This machine in short. A benchmark does not fail because something of it cannot be read.
fn machine() -> Option<BenchMachine> {
    let survey = Survey::take(&SourceArgs::default(), 0).ok()?;
    let machine = survey.machines.into_iter().next()?;
    Some(BenchMachine {
        processor: machine.cpu_model.clone().unwrap_or_default(),
        cores: machine.cores.len() as u32,
        memory_bytes: machine.numa.iter().map(|node| node.memory_bytes).sum(),
        gpus: machine.gpus.iter().map(|gpu| gpu.name.clone()).collect(),
        nics: machine.nics.iter().map(|nic| nic.name.clone()).collect(),
        name: machine.host,
    })
}

/// Variables that change what is measured.
fn settings() -> BTreeMap<String, String> {
    const FAMILIES: [&str; 8] =
        ["NCCL_", "RCCL_", "FI_", "REGATTA_", "HSA_", "CUDA_", "HIP_", "ROCR_"];
    let matters = |name: &str| {
        FAMILIES.iter().any(|family| name.starts_with(family)) && !name.contains("SECRET")
    };
    std::env::vars().filter(|(name, _)| matters(name)).collect()
}
