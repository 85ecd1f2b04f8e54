//! A rank of a check: does its part in all parts; rank 0 tells.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use anyhow::Result;
use regatta_comm::{Comm, host, join};
use regatta_kernels_cpu::Cpu;
use regatta_train::config::Resolved;
use regatta_train::job::smoke::{Figures, Findings, Name, Place, Smoke, Told};
use regatta_train::job::{Job, TrainError};

use super::show::Show;
use crate::commands::train::{TrainArgs, rank as training};
use crate::output;

/// What a line begins with that is for the process that started the ranks.
pub const TOLD: &str = "regatta-smoke ";

/// Does this rank's part.
pub fn run(resolved: &Resolved, args: &TrainArgs) -> Result<ExitCode> {
    let settings = join::Settings::from_environment()?;
    let rank = settings.rank;
    let mut teller = Teller::new(rank, args);
    let began = Instant::now();
    let comm: Arc<dyn Comm> = match host::join(settings) {
        Ok(comm) => Arc::new(comm),
        Err(error) => return broken(&mut teller, Name::Join, TrainError::from(error).into()),
    };
    let took = began.elapsed();
    // Not before: until there is somebody to tell, a signal ends it at once.
    let stop = training::stop_flag()?;
    let stop = || stop.load(Ordering::Relaxed);
    let mut tell = |part| teller.tell(Told::Part(Box::new(part)));
    let mut smoke = Smoke::new(comm.clone(), &stop, &mut tell);
    let ended = smoke
        .joined(took)
        .map_err(Into::into)
        .and_then(|()| parts(&mut smoke, &comm, resolved, args));
    let (part, works) = (smoke.under_way(), smoke.works());
    match ended {
        Ok(()) => {
            teller.tell(Told::Done);
            Ok(if works { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Err(error) => {
            // Others may wait for this rank, and should know why they wait in vain.
            comm.abort(&error.to_string());
            broken(&mut teller, part, error)
        }
    }
}

/// All parts after the ranks have met.
fn parts(
    smoke: &mut Smoke<'_>,
    comm: &Arc<dyn Comm>,
    resolved: &Resolved,
    args: &TrainArgs,
) -> Result<()> {
    let config = resolved.config.clone();
    let threads = training::threads(&config);
    let device = Cpu::new(threads, config.train.precision);
    let kernels = device.describe();
    let rank = comm.rank();
    let host = comm.peer(rank).host;
    let cpus = regatta_discover::live_affinity().unwrap_or_default();
    smoke.ranks(&Place { rank, host, cpus, threads, kernels: kernels.clone() })?;
    let folder = training::training_folder(args, &**comm)?;
    let dataset = smoke.part(Name::Data, |comm| {
        let dataset = training::prepared(&config, comm)?;
        training::check_memory(&config, dataset.tokenizer.vocabulary(), comm)?;
        let (source, tokens) = (config.data.source.clone(), dataset.train.len());
        Ok::<_, anyhow::Error>((dataset, Findings::of(Figures::Data { source, tokens })))
    })?;
    let (name, comm, device) = (resolved.name.clone(), comm.clone(), Box::new(device));
    let run = training::run_name();
    smoke.training(Job { config, name, comm, device, threads, kernels, dataset, folder, run })?;
    Ok(())
}

/// A part could not be brought to its end. Rank 0 says so for all; another rank only if it alone
/// knows what is wrong.
fn broken(teller: &mut Teller, part: Name, error: anyhow::Error) -> Result<ExitCode> {
    let known_to_all = matches!(
        error.downcast_ref(),
        Some(
            TrainError::Comm(_)
                | TrainError::Disagree { .. }
                | TrainError::NotFinite { .. }
                | TrainError::Sum { .. }
                | TrainError::Stopped
        )
    );
    match teller {
        Teller::Nobody if !known_to_all => Err(error),
        Teller::Nobody => Ok(ExitCode::FAILURE),
        _ => {
            let told = match error.downcast_ref() {
                Some(TrainError::Stopped) => Told::Stopped(part),
                _ => Told::Broken { part, why: format!("{error:#}") },
            };
            teller.tell(told);
            Ok(ExitCode::FAILURE)
        }
    }
}

/// Who takes what is told.
enum Teller {
    /// Ranks but the first have nothing to say.
    Nobody,
    /// The process that started the ranks.
    Starter,
    Here(Show),
}

impl Teller {
    fn new(rank: u32, args: &TrainArgs) -> Self {
        match rank {
            0 if args.ranks.events => Self::Starter,
            0 => Self::Here(Show::new(false, args.json)),
            _ => Self::Nobody,
        }
    }

    fn tell(&mut self, told: Told) {
        // Whoever does not listen is gone, and so is soon this rank.
        let _ = match self {
            Self::Nobody => Ok(()),
            Self::Starter => {
                let text = serde_json::to_string(&told).unwrap_or_default();
                output::print(&format!("{TOLD}{text}\n"))
            }
            Self::Here(show) => show.hear(told),
        };
    }
}
