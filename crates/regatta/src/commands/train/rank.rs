//! A rank of a training: trains with the others; rank 0 tells.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use anyhow::{Context, Result};
use regatta_comm::{Collectives, Comm, host, join};
use regatta_kernels_cpu::Cpu;
use regatta_launch::folder;
use regatta_predict::cost::{Form, cost};
use regatta_predict::footprint::Footprint;
use regatta_train::config::{Config, Resolved};
use regatta_train::data::{self, Dataset, Places, Prepared, Spec};
use regatta_train::job::{self, Job};
use regatta_train::metrics::Event;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};

use super::alone;
use super::args::TrainArgs;
use super::place;
use super::report::{Record, Report};
use crate::output;
use crate::system::memory_limits;

/// What a line begins with that is for the process that started the ranks.
pub const EVENT: &str = "regatta-train-event ";

/// Threads of a rank, at most.
const MOST_THREADS: usize = 4096;

/// No name of a run is longer.
const LONGEST_ID: usize = 64;

/// What makes a training save and end: Ctrl-C, and what schedulers send before they kill.
const STOP: [i32; 6] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2];

/// Trains.
pub fn run(resolved: &Resolved, args: &TrainArgs) -> Result<ExitCode> {
    let mut config = resolved.config.clone();
    let comm: Arc<dyn Comm> = Arc::new(host::join(join::Settings::from_environment()?)?);
    let folder = training_folder(args, &*comm)?;
    if is_started_anew() {
        job::go_on(&mut config, &folder, &run_name())?;
    }
    let rank = comm.rank();
    let mut teller = Teller::new(rank, args, &folder, &config);
    // Others may wait for this rank, and should know why they wait in vain.
    let abort = |e: &anyhow::Error| comm.abort(&e.to_string());
    // Held to the end: nobody else is to write there.
    let _held = (rank == 0).then(|| place::hold(&folder)).transpose().inspect_err(abort)?;
    let opened = prepared(&config, &*comm).inspect_err(abort)?;
    check_memory(&config, opened.tokenizer.vocabulary(), &*comm).inspect_err(abort)?;
    let threads = threads(&config);
    let device = Cpu::new(threads, config.train.precision);
    let kernels = device.kernels().to_owned();
    let job = Job {
        config,
        name: resolved.name.clone(),
        comm,
        device: Box::new(device),
        threads,
        kernels,
        dataset: opened,
        folder: folder.clone(),
        run: run_name(),
    };
    // Not before: until there is something to keep, a signal ends it at once.
    let stop = stop_flag()?;
    let stop = || stop.load(Ordering::Relaxed);
    let mut tell = |event: Event| {
        // When it begins, the configuration is known to fit what the run has kept.
        let begins = rank == 0 && matches!(event, Event::Begin(_));
        teller.tell(event);
        if let Some(error) = begins.then(|| alone::keep_config(resolved, &folder).err()).flatten() {
            let note = format!("--resume will go on with the configuration before: {error:#}");
            teller.tell(Event::Note(note));
        }
    };
    job::run(job, &stop, &mut tell)?;
    Ok(ExitCode::SUCCESS)
}

/// Whether these ranks take the place of others of the same run, as `regatta launch` tells them.
fn is_started_anew() -> bool {
    let count = std::env::var("TORCHELASTIC_RESTART_COUNT").ok();
    count.and_then(|text| text.parse::<u64>().ok()).is_some_and(|count| count > 0)
}

/// What `regatta launch` calls the run: the same for ranks that are started anew.
pub fn run_name() -> String {
    std::env::var("TORCHELASTIC_RUN_ID").unwrap_or_default()
}

/// Becomes true when the training is told to end.
pub fn stop_flag() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in STOP {
        signal_hook::flag::register(signal, stop.clone()).context("signals")?;
    }
    Ok(stop)
}

/// Where metrics and checkpoints are: the run that goes on, the one that was named, the job's, or,
/// where a scheduler started the ranks, a new one that rank 0 names.
pub fn training_folder(args: &TrainArgs, comm: &dyn Comm) -> Result<PathBuf> {
    let named = args.resume.clone().or_else(|| args.run_dir.clone());
    let of_job = || std::env::var_os(folder::VARIABLE).map(PathBuf::from);
    if let Some(folder) = named.or_else(of_job) {
        return Ok(folder);
    }
    let mut name = [0u8; LONGEST_ID];
    let id = folder::run_id(SystemTime::now(), std::process::id());
    name.iter_mut().zip(id.bytes()).for_each(|(to, from)| *to = from);
    comm.broadcast(&mut name, 0)?;
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(LONGEST_ID);
    Ok(PathBuf::from("runs").join(String::from_utf8_lossy(&name[..end]).as_ref()))
}

/// As many as are asked for, or as this rank may use cores.
pub fn threads(config: &Config) -> usize {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    // More than that is a mistake, and no system has the memory for it.
    if config.train.threads == 0 { cores() } else { config.train.threads.min(MOST_THREADS) }
}

/// The data. What must be fetched, made or looked through is by the first rank of each node, while
/// the others wait.
pub fn prepared(config: &Config, comm: &dyn Comm) -> Result<Dataset> {
    let (spec, places) = (spec(config), Places::of(|name| std::env::var_os(name)));
    let mut firsts = BTreeMap::new();
    for rank in (0..comm.size()).rev() {
        firsts.insert(comm.peer(rank).host, rank);
    }
    let own = comm.peer(comm.rank()).host;
    let is_first = firsts.get(&own) == Some(&comm.rank());
    if is_first {
        data::open(&data::prepare(&spec, &places)?)?.verify()?;
    }
    comm.barrier()?;
    let prepared: Prepared = data::prepare(&spec, &places)?;
    Ok(data::open(&prepared)?)
}

/// What memory cannot hold is refused: the system would kill a rank for it, and tell nobody why. Ranks
/// tell each other what they need and where, for some share a node's memory only, and some a control
/// group's.
pub fn check_memory(config: &Config, vocabulary: usize, comm: &dyn Comm) -> Result<()> {
    let (plan, shape) = config.planned(comm.size() as usize, vocabulary)?;
    let train = &config.train;
    let form = Form::new(train.precision.activation_bytes(), train.recompute);
    let holds = cost(&shape, &plan, form, comm.rank() as usize)?.holds;
    let footprint = Footprint::of(&holds);
    let rooms = memory_limits(&comm.peer(comm.rank()).host);
    let own = footprint.told(&rooms).map(u64::cast_signed);
    let mut all = vec![own; comm.size() as usize];
    // Nobody takes memory before all have seen how much is free.
    comm.all_gather(&own, all.as_flattened_mut())?;
    if train.check_memory {
        let all: Vec<_> = all.iter().map(|told| told.map(i64::cast_unsigned)).collect();
        footprint.check(&rooms, &all)?;
    }
    Ok(comm.barrier()?)
}

/// What data the configuration asks for.
pub fn spec(config: &Config) -> Spec {
    let tokenizer = match config.data.tokenizer.as_str() {
        "auto" | "char" => None,
        path => Some(PathBuf::from(path)),
    };
    let validation = config.data.validation;
    Spec { data: config.data.source.clone(), tokenizer, validation }
}

/// Who takes what happens: nobody of ranks but the first, which keeps it and passes it on.
struct Teller(Option<(Record, Ear)>);

enum Ear {
    /// The process that started the ranks.
    Starter,
    Here(Box<Report>),
}

impl Teller {
    fn new(rank: u32, args: &TrainArgs, folder: &Path, config: &Config) -> Self {
        let ear = match rank {
            0 if args.ranks.events => Ear::Starter,
            0 => Ear::Here(Box::new(Report::new(args, folder))),
            _ => return Self(None),
        };
        Self(Some((Record::new(folder, config.metrics.tensorboard), ear)))
    }

    fn tell(&mut self, event: Event) {
        if let Some((record, ear)) = &mut self.0 {
            let warning = record.keep(&event);
            ear.hear(event);
            warning.into_iter().for_each(|warning| ear.hear(Event::Note(warning)));
        }
    }
}

impl Ear {
    fn hear(&mut self, event: Event) {
        match self {
            Self::Starter => {
                // Whoever does not listen is gone, and so is soon this rank.
                let text = serde_json::to_string(&event).unwrap_or_default();
                let _ = output::print(&format!("{EVENT}{text}\n"));
            }
            Self::Here(report) => report.hear(&event),
        }
    }
}
