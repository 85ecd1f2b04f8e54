//! Whether training on all ranks works here, and how long each part takes.
//!
//! Every rank does this, part by part. Rank 0 tells each when it is over; what follows from a part
//! that could not be brought to its end is not tried.

mod alike;
mod gather;
mod part;
mod places;
mod reduce;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use regatta_comm::{Collectives, Comm, ReduceOp};

pub use part::{Figures, Findings, Name, Part, Place, Reduced, Slowest, Told, Verdict};

use super::keep::{self, Holding, Keeper, Kept};
use super::{Job, TrainError, Training, begin, report};
use crate::checkpoint::{Checkpoint, Kind};
use crate::metrics::{Event, StepMetrics, StepSeconds};
use crate::step::Engine;

/// A check of all ranks, as one of them does it.
pub struct Smoke<'a> {
    comm: Arc<dyn Comm>,
    stop: &'a dyn Fn() -> bool,
    tell: &'a mut dyn FnMut(Part),
    under_way: Name,
    works: bool,
}

impl<'a> Smoke<'a> {
    /// Of ranks that have met. `stop` is asked after every part and step, `tell` hears of
    /// each part on rank 0.
    pub fn new(
        comm: Arc<dyn Comm>,
        stop: &'a dyn Fn() -> bool,
        tell: &'a mut dyn FnMut(Part),
    ) -> Self {
        Self { comm, stop, tell, under_way: Name::Join, works: true }
    }

    /// The part that is under way, or was the last.
    pub fn under_way(&self) -> Name {
        self.under_way
    }

    /// Whether all parts were as they should be, so far.
    pub fn works(&self) -> bool {
        self.works
    }

    /// Ranks have met, after so long.
    pub fn joined(&mut self, took: Duration) -> Result<(), TrainError> {
        let ranks = self.comm.size();
        let hosts: BTreeSet<String> = (0..ranks).map(|rank| self.comm.peer(rank).host).collect();
        let hosts = hosts.len() as u32;
        self.ended(Name::Join, took, Findings::of(Figures::World { ranks, hosts }))
    }

    /// What each rank has.
    pub fn ranks(&mut self, own: &Place) -> Result<(), TrainError> {
        self.part(Name::Ranks, |comm| {
            let places = gather::gather(comm, own)?;
            let notes = places::notes(&places);
            let figures = Figures::Places(places);
            Ok(((), Findings { figures, notes, wrong: None }))
        })
    }

    /// Does one part, and says what was found.
    pub fn part<T, E: From<TrainError>>(
        &mut self,
        name: Name,
        work: impl FnOnce(&dyn Comm) -> Result<(T, Findings), E>,
    ) -> Result<T, E> {
        self.under_way = name;
        let began = Instant::now();
        let (value, findings) = work(&*self.comm)?;
        self.ended(name, began.elapsed(), findings)?;
        Ok(value)
    }

    fn ended(&mut self, part: Name, took: Duration, findings: Findings) -> Result<(), TrainError> {
        self.under_way = part;
        let own = (took.as_secs_f64(), (self.stop)());
        let all: Vec<(f64, bool)> = gather::gather(&*self.comm, &own)?;
        if all.iter().any(|(_, stop)| *stop) {
            return Err(TrainError::Stopped);
        }
        let verdict = findings.verdict();
        self.works &= verdict != Verdict::Failed;
        let slowest = (0..).zip(&all).max_by(|(_, a), (_, b)| a.0.total_cmp(&b.0));
        let slowest = slowest.map(|(rank, (seconds, _))| {
            let host = self.comm.peer(rank).host;
            Slowest { rank, host, seconds: *seconds }
        });
        if self.comm.rank() == 0 {
            (self.tell)(Part { part, verdict, seconds: own.0, slowest, findings });
        }
        Ok(())
    }

    /// All parts of a training, after its data is there.
    pub fn training(&mut self, job: Job) -> Result<(), TrainError> {
        let stop = self.stop;
        let agreed = self.part(Name::Agreement, |_| agreement(&job))?;
        self.part(Name::AllReduce, |comm| {
            Ok::<_, TrainError>(((), Findings::of(Figures::Reduced(reduce::check(comm)?))))
        })?;
        let name = job.name.clone();
        let mut training = self.part(Name::Broadcast, |_| broadcast(job, agreed))?;
        self.part(Name::Steps, |_| steps(&mut training, &name, stop))?;
        let digest = self.part(Name::Same, |comm| same(comm, &mut training.engine))?;
        self.part(Name::Checkpoint, |_| checkpoint(&mut training, &digest))
    }
}

/// What a part comes to.
type Found<T> = Result<(T, Findings), TrainError>;

/// What all ranks agree to train.
type Agreed = (regatta_predict::plan::ParallelPlan, regatta_predict::shape::Shape);

fn agreement(job: &Job) -> Found<Agreed> {
    begin::all_alike(job)?;
    Ok((begin::planned(job)?, Findings::default()))
}

/// Copies but the first forget the initial state, so that it shows whether they get it.
fn broadcast(job: Job, (plan, shape): Agreed) -> Found<Training> {
    let about = report::about(&job, &plan, &shape, 0);
    let mut training = Training::new(job, plan, shape, &about)?;
    let comm = training.comm.clone();
    if Holding::of(&training.engine).copy().rank != 0 {
        forget(&mut training.engine)?;
    }
    begin::spread(&mut training.engine)?;
    let wrong = alike::difference(&*comm, &mut training.engine)?;
    let parameters = about.parameters;
    let figures = Figures::State { parameters, bytes: bytes(&training.engine) };
    Ok((training, Findings { figures, notes: Vec::new(), wrong }))
}

/// All numbers become zero.
fn forget(engine: &mut Engine) -> Result<(), TrainError> {
    for block in engine.state.held() {
        for kind in Kind::ALL {
            for chunk in keep::chunks(engine.state.shares[block].clone()) {
                keep::put(engine, (block, kind), chunk.start, &vec![0.0; chunk.len()])?;
            }
        }
    }
    Ok(())
}

/// Bytes of this rank's parameters and moments.
fn bytes(engine: &Engine) -> u64 {
    let state = &engine.state;
    let numbers: usize = state.held().map(|block| state.shares[block].len()).sum();
    (Kind::ALL.len() * numbers * engine.net.device.real_format().size()) as u64
}

fn steps(training: &mut Training, model: &str, stop: &dyn Fn() -> bool) -> Found<()> {
    let mut data = training.read_ahead()?;
    let mut all: Vec<StepMetrics> = Vec::new();
    for _ in 0..training.config.train.steps {
        let mut hear = |event| {
            if let Event::Step(step) = event {
                all.push(*step);
            }
        };
        if training.step(&mut data, stop, &mut hear)? {
            return Err(TrainError::Stopped);
        }
    }
    let losses: Vec<f64> = all.iter().map(|step| step.loss).collect();
    let (first_loss, last_loss) = ends(&losses);
    let seconds: f64 = all.iter().map(|step| step.seconds.step).sum();
    let figures = Figures::Trained {
        model: model.to_owned(),
        steps: all.len() as u64,
        first_loss,
        last_loss,
        tokens_per_second: all.len() as f64 * training.step_tokens() as f64 / seconds,
        step_seconds: mean(&all),
    };
    // One step says nothing about learning.
    let wrong = (all.len() > 1 && last_loss >= first_loss).then(|| {
        format!("the loss did not go down: {first_loss:.4} at first, {last_loss:.4} at last")
    });
    Ok(((), Findings { figures, notes: Vec::new(), wrong }))
}

/// The mean loss of the first and the last steps: single ones go up and down.
fn ends(losses: &[f64]) -> (f64, f64) {
    let some = (losses.len() / 5).max(1).min(losses.len());
    let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
    (mean(&losses[..some]), mean(&losses[losses.len() - some..]))
}

/// Where the time of a step went, on the mean.
fn mean(all: &[StepMetrics]) -> StepSeconds {
    let of = |part: fn(&StepSeconds) -> f64| {
        all.iter().map(|step| part(&step.seconds)).sum::<f64>() / all.len().max(1) as f64
    };
    StepSeconds {
        step: of(|s| s.step),
        data: of(|s| s.data),
        forward: of(|s| s.forward),
        backward: of(|s| s.backward),
        communication: of(|s| s.communication),
        optimizer: of(|s| s.optimizer),
        checkpoint: of(|s| s.checkpoint),
        other: of(|s| s.other),
    }
}

fn same(comm: &dyn Comm, engine: &mut Engine) -> Found<String> {
    let digest = alike::digest(engine)?;
    let wrong = alike::difference(comm, engine)?;
    let figures = Figures::Digest(digest.clone());
    Ok((digest, Findings { figures, notes: Vec::new(), wrong }))
}

/// Writes a checkpoint in a folder of its own, reads it back, and removes it.
fn checkpoint(training: &mut Training, digest: &str) -> Found<()> {
    let comm = training.comm.clone();
    // The name of nothing that may be there already.
    let mut number = [i64::from(std::process::id())];
    comm.broadcast(&mut number, 0)?;
    let folder = training.folder.join(format!("smoke-{}", number[0]));
    let wrong = keep_and_read(training, &folder, digest)?;
    if comm.rank() == 0 {
        // What is left of it does no harm, and what failed is said already.
        let _ = std::fs::remove_dir_all(&folder);
    }
    let folder = folder.display().to_string();
    let figures = Figures::Kept { bytes: bytes(&training.engine), folder };
    Ok(((), Findings { figures, notes: Vec::new(), wrong }))
}

/// What ranks have to complain about, if anything.
fn keep_and_read(
    training: &mut Training,
    folder: &Path,
    digest: &str,
) -> Result<Option<String>, TrainError> {
    let comm = training.comm.clone();
    let keeper = Keeper::new(folder, comm.rank() as usize, comm.size() as usize, 1);
    // All must be there before any begins to write.
    let refused = keeper.as_ref().err().map(ToString::to_string);
    let refused = gather::complaint(&*comm, refused)?;
    let (Ok(mut keeper), None) = (keeper, &refused) else { return Ok(refused) };
    let about = training.about();
    keeper.begin(&mut training.engine, about)?;
    keeper.wait();
    let mut said = keeper.says();
    comm.all_reduce(&mut said, ReduceOp::Sum)?;
    let own = match keeper.hear(said) {
        Some(Kept::Complete { .. }) => None,
        Some(Kept::Failed { why, .. }) => why.map(|why| why.to_string()),
        None => Some("the checkpoint neither was written nor failed".to_owned()),
    };
    if let Some(wrong) = gather::complaint(&*comm, own)? {
        return Ok(Some(wrong));
    }
    let own = read(training, folder, digest)?;
    Ok(gather::complaint(&*comm, own)?)
}

/// Reads the checkpoint in a folder. What is wrong with it, if anything.
fn read(
    training: &mut Training,
    folder: &Path,
    digest: &str,
) -> Result<Option<String>, TrainError> {
    let engine = &mut training.engine;
    forget(engine)?;
    let kept = match Checkpoint::latest(folder) {
        Ok(Some(kept)) => kept,
        Ok(None) => return Ok(Some(format!("sees no checkpoint in {}", folder.display()))),
        Err(error) => return Ok(Some(error.to_string())),
    };
    match keep::restore(engine, &kept) {
        Err(TrainError::Checkpoint(error)) => Ok(Some(error.to_string())),
        Err(error) => Err(error),
        Ok(()) if alike::digest(engine)? != digest => {
            Ok(Some(format!("{} has other numbers than were written", folder.display())))
        }
        Ok(()) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_compared_by_their_ends() {
        assert_eq!(ends(&[2.0]), (2.0, 2.0));
        assert_eq!(ends(&[4.0, 3.0]), (4.0, 3.0));
        let falling: Vec<f64> = (0..10).map(|step| 10.0 - f64::from(step)).collect();
        assert_eq!(ends(&falling), (9.5, 1.5));
    }
}
