//! Before the first step: all ranks are told the same, and have their parts of the same parameters.

use std::path::{Path, PathBuf};

use regatta_comm::{Collectives, Comm};
use sha2::{Digest, Sha256};

use super::error::TrainError;
use super::keep::{self, Holding, Keeper};
use super::report::{self, Speed};
use super::traffic::Traffic;
use super::{Job, TOKENIZER, Training, resume};
use crate::checkpoint::manifest::{DATA, RUN, SPLIT};
use crate::checkpoint::{About, Checkpoint, Kind, any, any_of_run, is_among};
use crate::config::{Config, ConfigError, Memory, Resume};
use crate::data::{DataError, Dataset, Loader, Order, Tokens};
use crate::metrics::{self, Event};
use crate::model::Model;
use crate::offload::{Offload, Where};
use crate::parallel::context::Ring;
use crate::parallel::tensor::Group;
use crate::parallel::{Groups, Zero};
use crate::run;
use crate::state::Sharing;
use crate::step::{Engine, Net};
use regatta_predict::cost::{Form, cost};
use regatta_predict::mesh::Mesh;
use regatta_predict::pipeline::{Stage, StageError};
use regatta_predict::plan::ParallelPlan;
use regatta_predict::shape::Shape;

/// Where a run's state is that is not in memory.
const OFFLOADED: &str = "offloaded";

impl Training {
    /// All ranks have their parts of the same parameters, and are ready for the next step.
    pub(super) fn begin(job: Job, tell: &mut dyn FnMut(Event)) -> Result<Self, TrainError> {
        let (rank, ranks) = (job.comm.rank() as usize, job.comm.size() as usize);
        let (plan, shape) = planned(&job)?;
        all_alike(&job)?;
        let checkpoints = checkpoints(&job.config, &job.folder);
        // First of all, so that nothing of a run changes that another job is at.
        let mut keeper = match &checkpoints {
            Some(folder) => Some(Keeper::new(folder, rank, ranks, job.config.checkpoint.keep)?),
            None => None,
        };
        if [job.config.offload.optimizer, job.config.offload.parameters].contains(&Memory::Disk) {
            keeper.iter_mut().for_each(Keeper::wait_for_parts);
        }
        let found = resume::together(&job, checkpoints.as_deref())?;
        if let Some(found) = &found {
            resume::fits(&found.checkpoint, &shape, &job.dataset.tokenizer.fingerprint())?;
            if job.config.checkpoint.resume == Resume::Auto {
                let Job { config, dataset, .. } = &job;
                resume::same_data(&found.checkpoint, &config.data.source, &dataset.digest)?;
            }
        }
        let told = |f: &resume::Found| {
            let About { step, tokens, .. } = f.checkpoint.about();
            let is_own = checkpoints.iter().any(|own| is_among(&f.checkpoint, own));
            // What another run has kept is not kept by this one.
            (*step, *tokens, is_own.then_some(*step))
        };
        let (done, tokens, kept) = found.as_ref().map_or((0, 0, None), told);
        let about = report::about(&job, &plan, &shape, done);
        tell(Event::Begin(Box::new(about.clone())));
        many_kinds(&shape, job.dataset.tokenizer.vocabulary()).into_iter().for_each(&mut *tell);
        apart(&plan.mesh, &*job.comm).into_iter().for_each(&mut *tell);
        let mut training = Self::new(job, plan, shape, &about)?;
        (training.tokens, training.kept) = (tokens, kept);
        let notes = training.config.notes(&training.plan);
        notes.into_iter().for_each(|note| tell(Event::Note(note)));
        if let Some(found) = found {
            found.skipped.iter().for_each(|note| tell(Event::Note(note.clone())));
            keeper.iter_mut().for_each(|keeper| keeper.pass_over(&found.damaged));
            training.restore(&found.checkpoint)?;
            let from = found.checkpoint.folder().display();
            tell(Event::Note(format!("goes on after step {done} of {from}")));
        }
        if let Some(keeper) = &keeper
            && training.config.checkpoint.resume != Resume::Auto
        {
            for path in keeper.set_aside(kept)? {
                let note = "is of the run before, and kept under this name";
                tell(Event::Note(format!("{} {note}", path.display())));
            }
        }
        training.keeper = keeper;
        spread(&mut training.engine)?;
        // All must be there before any begins to write.
        training.comm.barrier()?;
        let Dataset { tokenizer, validation: tokens, .. } = &training.dataset;
        if let (0, Some(folder)) = (rank, &checkpoints) {
            tokenizer.save(&folder.join(TOKENIZER))?;
        }
        training.validation = validation(&training.config, tokens, tell);
        Ok(training)
    }

    /// Reads this rank's parts of a checkpoint. Of ranks that have the same only the first does, and
    /// the others get it from there: thousands that read all of a model are too many for any disk.
    fn restore(&mut self, checkpoint: &Checkpoint) -> Result<(), TrainError> {
        if Holding::of(&self.engine).copy().rank != 0 {
            return Ok(());
        }
        keep::restore(&mut self.engine, checkpoint).map_err(|error| match error {
            TrainError::Checkpoint(why) => resume::unread(&*self.comm, checkpoint.folder(), why),
            other => other,
        })
    }

    /// With parameters as they are before training, and nothing that is kept or tried.
    pub(super) fn new(
        job: Job,
        plan: ParallelPlan,
        shape: Shape,
        about: &metrics::About,
    ) -> Result<Self, TrainError> {
        let speed = Speed::new(about, &shape);
        let Job { config, comm, device, dataset, folder, run, .. } = job;
        let extra = [(RUN, run), (DATA, dataset.digest.clone()), (SPLIT, plan.mesh.to_string())];
        let extra = extra.into_iter().filter(|(_, what)| !what.is_empty());
        let extra = extra.map(|(name, what)| (name.to_owned(), what)).collect();
        let form = Form::new(config.train.precision.activation_bytes(), config.train.recompute);
        let cost = cost(&shape, &plan, form, comm.rank() as usize)
            .map_err(|error| ConfigError::Contradiction(error.to_string()))?;
        let groups = Groups::new(comm.clone(), plan.mesh)?;
        let stage = stage(&plan, &shape, &groups)?;
        let tensor = Group::new(groups.tensor.clone(), plan.sequence);
        let ring = Ring::new(groups.ring.clone(), groups.seat.context_share(&plan.mesh));
        let model = Model::tiled(shape, tensor.share, config.parallel.tiles);
        let net = Net::within(tensor, model, device).in_ring(ring);
        let how = sharing(&config, &plan, &folder);
        let engine = Engine::new(net, groups, stage, &how, config.train.seed)?;
        Ok(Self {
            schedule: config.schedule(plan.mesh.dp),
            config,
            plan,
            comm,
            engine,
            dataset,
            validation: None,
            keeper: None,
            folder,
            done: about.done,
            tokens: 0,
            kept: None,
            extra,
            speed,
            traffic: Traffic::new(cost),
        })
    }
}

/// What the ranks of a job share, and of which model.
pub(super) fn planned(job: &Job) -> Result<(ParallelPlan, Shape), TrainError> {
    let (ranks, vocabulary) = (job.comm.size() as usize, job.dataset.tokenizer.vocabulary());
    Ok(job.config.planned(ranks, vocabulary)?)
}

/// This rank's part in the pipeline.
fn stage(plan: &ParallelPlan, shape: &Shape, groups: &Groups) -> Result<Stage, ConfigError> {
    if plan.mesh.pp == 1 {
        return Ok(Stage::whole(shape));
    }
    let how = (plan.schedule, plan.mesh.pp, plan.chunks, plan.accumulation);
    let contradiction = |error: StageError| ConfigError::Contradiction(error.to_string());
    Stage::new(shape, how, groups.seat.pp).map_err(contradiction)
}

/// How the state is shared, and where it is kept.
fn sharing(config: &Config, plan: &ParallelPlan, run: &Path) -> Sharing {
    let place = |memory| match memory {
        Memory::Device => Where::Device,
        Memory::Host => Where::Host,
        Memory::Disk => Where::Disk,
    };
    let told = &config.offload;
    let folder = match told.folder.as_str() {
        "" => run.join(OFFLOADED),
        folder => PathBuf::from(folder),
    };
    let (optimizer, parameters) = (place(told.optimizer), place(told.parameters));
    let zero = Zero::level(plan.zero).unwrap_or_default();
    Sharing { zero, offload: Offload { optimizer, parameters, folder } }
}

/// A word where ranks that talk in every layer are on different hosts.
fn apart(mesh: &Mesh, comm: &dyn Comm) -> Option<Event> {
    let hosts: Vec<String> = (0..comm.size()).map(|rank| comm.peer(rank).host).collect();
    mesh.apart(&hosts).map(Event::Note)
}

/// A word where a model is made for far more kinds of tokens than there are: the data is likely not
/// what was meant.
fn many_kinds(shape: &Shape, kinds: usize) -> Option<Event> {
    let room = shape.vocabulary;
    (room > 4 * kinds).then(|| {
        Event::Note(format!(
            "the model has room for {room} kinds of tokens, and the data has {kinds}: data.source \
             and data.tokenizer say what it is trained on"
        ))
    })
}

/// Ranks that were told different things would train something that nobody asked for.
pub(super) fn all_alike(job: &Job) -> Result<(), TrainError> {
    let Job { config, dataset, comm, .. } = job;
    agree(&**comm, &[("configuration", &config.to_toml()), ("data", &dataset.digest)])
}

/// Where checkpoints are, if there are to be any.
pub(super) fn checkpoints(config: &Config, folder: &Path) -> Option<PathBuf> {
    (config.checkpoint.every != 0).then(|| run::checkpoints(config, folder))
}

/// Has ranks that are started anew go on from what their run has kept, whatever it first began
/// from. What other runs have left there counts only if the `name` of this one is not known.
pub fn go_on(config: &mut Config, run: &Path, name: &str) -> Result<(), TrainError> {
    if let Some(own) = checkpoints(config, run)
        && if name.is_empty() { any(&own)? } else { any_of_run(&own, name)? }
    {
        config.checkpoint.resume = Resume::Auto;
    }
    Ok(())
}

/// What the model is tried on. A text may be too short for that, which is no reason not to train.
fn validation(config: &Config, tokens: &Tokens, tell: &mut dyn FnMut(Event)) -> Option<Loader> {
    if config.train.eval_every == 0 {
        return None;
    }
    let order = Order::straight(tokens.len(), config.model.context as u64);
    let note = |error: &DataError| tell(Event::Note(format!("no validation: {error}")));
    let order = order.inspect_err(note).ok()?;
    Some(Loader::new(tokens.clone(), order))
}

/// All ranks have the same of everything, or the first that differs is named.
pub fn agree(comm: &dyn Comm, told: &[(&'static str, &str)]) -> Result<(), TrainError> {
    for (what, text) in told {
        let own: Vec<u8> = Sha256::digest(text.as_bytes()).to_vec();
        let mut all = vec![0u8; own.len() * comm.size() as usize];
        comm.all_gather(&own, &mut all)?;
        let mut ranks = (0..).zip(all.chunks_exact(own.len()));
        if let Some((rank, _)) = ranks.find(|(_, digest)| *digest != &all[..own.len()]) {
            let host = comm.peer(rank).host;
            return Err(TrainError::Disagree { rank, host, what });
        }
    }
    Ok(())
}

/// Ranks that have the same share of the same blocks all get what the first of them has, and those
/// that use more than their shares the rest.
pub fn spread(engine: &mut Engine) -> Result<(), TrainError> {
    for block in engine.state.held() {
        for kind in Kind::ALL {
            copy_first(engine, (block, kind))?;
        }
        engine.state.weights.updated(block)?;
    }
    Ok(())
}

fn copy_first(engine: &mut Engine, what: (usize, Kind)) -> Result<(), TrainError> {
    let groups = &engine.groups;
    let copies = if engine.state.sharing == 1 { &groups.data } else { &groups.replica };
    let Some(comm) = copies.clone() else { return Ok(()) };
    let mut numbers = Vec::new();
    for chunk in keep::chunks(engine.state.shares[what.0].clone()) {
        numbers.resize(chunk.len(), 0.0);
        keep::fetch(engine, what, chunk.start, &mut numbers)?;
        comm.broadcast(&mut numbers, 0)?;
        keep::put(engine, what, chunk.start, &numbers)?;
    }
    Ok(())
}
