//! Smoke test: checks that training works on all ranks, and times each check.
//!
//! Runs on every rank. Rank 0 reports each check when it finishes; checks after one that could not be
//! completed are skipped.

mod all_reduce;
mod consistency;
mod event;
mod rank_notes;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use regatta_comm::{Collectives, Comm, ReduceOp};

pub use event::{
    AllReduceTiming, Check, CheckResult, CheckStatus, Details, Findings, RankInfo, SlowestRank,
    SmokeEvent,
};

use super::checkpointing::{self, CheckpointManager, OwnedShards, SaveOutcome};
use super::{Result, TrainError, TrainingLoop, TrainingSetup, gather, report, start};
use crate::checkpoint::{Checkpoint, StateTensor};
use crate::metrics::{Event, StepMetrics, StepSeconds};
use crate::state::ParamInit;
use crate::step::Engine;

/// A smoke test on one of its ranks.
pub struct SmokeTest<'a> {
    comm: Arc<dyn Comm>,
    stop: &'a dyn Fn() -> bool,
    emit: &'a mut dyn FnMut(CheckResult),
    current: Check,
    passed: bool,
}

impl<'a> SmokeTest<'a> {
    /// On ranks that have joined. `stop` is polled after every check and step; `emit` receives each result on
    /// rank 0.
    pub fn new(
        comm: Arc<dyn Comm>,
        stop: &'a dyn Fn() -> bool,
        emit: &'a mut dyn FnMut(CheckResult),
    ) -> Self {
        Self { comm, stop, emit, current: Check::Join, passed: true }
    }

    /// The current or last check.
    pub fn current(&self) -> Check {
        self.current
    }

    /// Whether all checks passed so far.
    pub fn passed(&self) -> bool {
        self.passed
    }

    /// Reports the bootstrap.
    pub fn joined(&mut self, duration: Duration) -> Result<()> {
        let ranks = self.comm.size();
        let hosts: BTreeSet<String> = (0..ranks).map(|rank| self.comm.peer(rank).host).collect();
        let hosts = hosts.len() as u32;
        self.finish_check(Check::Join, duration, Findings::of(Details::World { ranks, hosts }))
    }

    /// Reports the ranks.
    pub fn ranks(&mut self, own: &RankInfo) -> Result<()> {
        self.check(Check::Ranks, |comm| {
            let ranks = gather::all_gather(comm, own)?;
            let notes = rank_notes::notes(&ranks);
            let details = Details::Ranks(ranks);
            Ok(((), Findings { details, notes, error: None }))
        })
    }

    /// Runs a check and reports its findings.
    pub fn check<T, E: From<TrainError>>(
        &mut self,
        name: Check,
        work: impl FnOnce(&dyn Comm) -> Result<(T, Findings), E>,
    ) -> Result<T, E> {
        self.current = name;
        let start = Instant::now();
        let (value, findings) = work(&*self.comm)?;
        self.finish_check(name, start.elapsed(), findings)?;
        Ok(value)
    }

    fn finish_check(&mut self, check: Check, duration: Duration, findings: Findings) -> Result<()> {
        self.current = check;
        let own = (duration.as_secs_f64(), (self.stop)());
        let all: Vec<(f64, bool)> = gather::all_gather(&*self.comm, &own)?;
        if all.iter().any(|(_, stop)| *stop) {
            return Err(TrainError::Interrupted);
        }
        let status = findings.status();
        self.passed &= status != CheckStatus::Failed;
        let slowest = (0..).zip(&all).max_by(|(_, a), (_, b)| a.0.total_cmp(&b.0));
        let slowest = slowest.map(|(rank, (seconds, _))| {
            let host = self.comm.peer(rank).host;
            SlowestRank { rank, host, seconds: *seconds }
        });
        if self.comm.rank() == 0 {
            (self.emit)(CheckResult { check, status, seconds: own.0, slowest, findings });
        }
        Ok(())
    }

    /// All checks of training, once the data is open.
    pub fn training(&mut self, setup: TrainingSetup) -> Result<()> {
        let stop = self.stop;
        let agreed = self.check(Check::Agreement, |_| agreement(&setup))?;
        self.check(Check::AllReduce, |comm| {
            Ok::<_, TrainError>(((), Findings::of(Details::AllReduce(all_reduce::check(comm)?))))
        })?;
        let name = setup.name.clone();
        let mut training = self.check(Check::Broadcast, |_| broadcast(setup, agreed))?;
        self.check(Check::Steps, |_| steps(&mut training, &name, stop))?;
        let digest =
            self.check(Check::Consistency, |comm| check_consistency(comm, &mut training.engine))?;
        self.check(Check::Checkpoint, |_| checkpoint(&mut training, &digest))
    }
}

/// Output of a check.
type CheckOutput<T> = Result<(T, Findings)>;

/// The plan and shape that all ranks agree on.
type Agreed = (regatta_predict::layout::ParallelLayout, regatta_predict::shape::ModelShape);

fn agreement(setup: &TrainingSetup) -> CheckOutput<Agreed> {
    start::check_agreement(setup)?;
    Ok((start::plan(setup)?, Findings::default()))
}

/// All replicas but the first clear their state before the broadcast, to verify that they receive it.
fn broadcast(setup: TrainingSetup, (plan, shape): Agreed) -> CheckOutput<TrainingLoop> {
    let meta = report::run_info(&setup, &plan, &shape, 0);
    let init = ParamInit::Random { seed: setup.config.train.seed };
    let mut training = TrainingLoop::new(setup, plan, shape, &meta, init)?;
    let comm = training.comm.clone();
    if OwnedShards::of(&training.engine).replica().rank != 0 {
        zero_state(&mut training.engine)?;
    }
    start::broadcast_state(&mut training.engine)?;
    let error = consistency::mismatch(&*comm, &mut training.engine)?;
    let parameters = meta.parameters;
    let details = Details::State { parameters, bytes: bytes(&training.engine) };
    Ok((training, Findings { details, notes: Vec::new(), error }))
}

/// Sets parameters and optimizer state to zero.
fn zero_state(engine: &mut Engine) -> Result<()> {
    for block in engine.state.local_blocks() {
        for kind in StateTensor::ALL {
            for chunk in checkpointing::chunks(engine.state.shards[block].clone()) {
                checkpointing::put(engine, (block, kind), chunk.start, &vec![0.0; chunk.len()])?;
            }
        }
    }
    Ok(())
}

/// Bytes of this rank's parameters and optimizer state.
fn bytes(engine: &Engine) -> u64 {
    let state = &engine.state;
    let elements: usize = state.local_blocks().map(|block| state.shards[block].len()).sum();
    (StateTensor::ALL.len() * elements * engine.device_model.device.master_dtype().size()) as u64
}

fn steps(training: &mut TrainingLoop, model: &str, stop: &dyn Fn() -> bool) -> CheckOutput<()> {
    let mut data = training.prefetch_data()?;
    let mut all: Vec<StepMetrics> = Vec::new();
    for _ in 0..training.config.train.steps {
        let mut emit = |event| {
            if let Event::Step(step) = event {
                all.push(*step);
            }
        };
        if training.step(&mut data, stop, &mut emit)? {
            return Err(TrainError::Interrupted);
        }
    }
    let losses: Vec<f64> = all.iter().map(|step| step.loss).collect();
    let (first_loss, last_loss) = ends(&losses);
    let seconds: f64 = all.iter().map(|step| step.seconds.step).sum();
    let details = Details::Steps {
        model: model.to_owned(),
        steps: all.len() as u64,
        first_loss,
        last_loss,
        tokens_per_second: all.len() as f64 * training.tokens_per_step() as f64 / seconds,
        step_seconds: StepSeconds::mean(all.iter()),
    };
    // A single step proves nothing.
    let ends = format!("{first_loss:.4} at the start, {last_loss:.4} at the end");
    let is_rising = all.len() > 1 && last_loss >= first_loss;
    let error = is_rising.then(|| format!("the loss did not decrease: {ends}"));
    Ok(((), Findings { details, notes: Vec::new(), error }))
}

/// Mean loss of the first and of the last steps, because single ones fluctuate.
fn ends(losses: &[f64]) -> (f64, f64) {
    let some = (losses.len() / 5).max(1).min(losses.len());
    let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
    (mean(&losses[..some]), mean(&losses[losses.len() - some..]))
}

fn check_consistency(comm: &dyn Comm, engine: &mut Engine) -> CheckOutput<String> {
    let digest = consistency::digest(engine)?;
    let error = consistency::mismatch(comm, engine)?;
    let details = Details::Digest(digest.clone());
    Ok((digest, Findings { details, notes: Vec::new(), error }))
}

/// Writes a checkpoint to a temporary directory, reads it back, and removes it.
fn checkpoint(training: &mut TrainingLoop, digest: &str) -> CheckOutput<()> {
    let comm = training.comm.clone();
    // A name that is unique on a shared file system.
    let mut number = [i64::from(std::process::id())];
    comm.broadcast(&mut number, 0)?;
    let folder = training.folder.join(format!("smoke-{}", number[0]));
    let error = save_and_restore(training, &folder, digest)?;
    if comm.rank() == 0 {
        // Leftovers are harmless, and errors are already reported.
        let _ = std::fs::remove_dir_all(&folder);
    }
    let folder = folder.display().to_string();
    let details = Details::Checkpoint { bytes: bytes(&training.engine), folder };
    Ok(((), Findings { details, notes: Vec::new(), error }))
}

/// The first error of any rank, if any.
fn save_and_restore(
    training: &mut TrainingLoop,
    dir: &Path,
    digest: &str,
) -> Result<Option<String>> {
    let comm = training.comm.clone();
    let manager = CheckpointManager::new(dir, comm.rank() as usize, comm.size() as usize, 1);
    // All managers must exist before any rank starts to write.
    let error = manager.as_ref().err().map(ToString::to_string);
    let error = gather::first_error(&*comm, error)?;
    let (Ok(mut manager), None) = (manager, &error) else { return Ok(error) };
    let meta = training.checkpoint_meta();
    manager.start(&mut training.engine, meta)?;
    manager.wait();
    let mut counts = manager.save_counts();
    comm.all_reduce(&mut counts, ReduceOp::Sum)?;
    let own = match manager.resolve(counts) {
        Some(SaveOutcome::Complete { .. }) => None,
        Some(SaveOutcome::Failed { why, .. }) => why.map(|why| why.to_string()),
        None => Some("the save neither completed nor failed in time".to_owned()),
    };
    if let Some(error) = gather::first_error(&*comm, own)? {
        return Ok(Some(error));
    }
    let own = read(training, dir, digest)?;
    Ok(gather::first_error(&*comm, own)?)
}

/// Reads the checkpoint back. Returns what is wrong, if anything.
fn read(training: &mut TrainingLoop, folder: &Path, digest: &str) -> Result<Option<String>> {
    let engine = &mut training.engine;
    zero_state(engine)?;
    let checkpoint = match Checkpoint::latest(folder) {
        Ok(Some(checkpoint)) => checkpoint,
        Ok(None) => return Ok(Some(format!("found no checkpoint in {}", folder.display()))),
        Err(error) => return Ok(Some(error.to_string())),
    };
    match checkpointing::restore(engine, &checkpoint) {
        Err(TrainError::Checkpoint(error)) => Ok(Some(error.to_string())),
        Err(error) => Err(error),
        Ok(()) if consistency::digest(engine)? != digest => {
            Ok(Some(format!("{} differs from the saved state", folder.display())))
        }
        Ok(()) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_compared_by_the_means_of_their_ends() {
        assert_eq!(ends(&[2.0]), (2.0, 2.0));
        assert_eq!(ends(&[4.0, 3.0]), (4.0, 3.0));
        let falling: Vec<f64> = (0..10).map(|step| 10.0 - f64::from(step)).collect();
        assert_eq!(ends(&falling), (9.5, 1.5));
    }
}
