//! Before the first step: all ranks are told the same, and have the same parameters.

use std::path::{Path, PathBuf};

use regatta_comm::{Collectives, Comm};
use sha2::{Digest, Sha256};

use super::error::TrainError;
use super::keep::{self, Keeper};
use super::report::{self, Speed};
use super::{Job, TOKENIZER, Training};
use crate::checkpoint::manifest::{DATA, RUN};
use crate::checkpoint::{
    About, Checkpoint, CheckpointError, Kind, MANIFEST, Skipped, any, any_of_run, is_among,
    newest_good,
};
use crate::config::{Config, Plan, Resume};
use crate::data::{DataError, Dataset, Loader, Order, Tokens};
use crate::memory::{Format, ViewMut};
use crate::metrics::{self, Event};
use crate::model::Model;
use crate::parallel::pipeline::Stage;
use crate::parallel::{Groups, Mesh};
use crate::run;
use crate::shape::Shape;
use crate::step::{Engine, Net};

impl Training {
    /// All ranks have the same parameters, and are ready for the next step.
    pub(super) fn begin(job: Job, tell: &mut dyn FnMut(Event)) -> Result<Self, TrainError> {
        let (rank, ranks) = (job.comm.rank() as usize, job.comm.size() as usize);
        let plan = job.config.validate(ranks)?;
        let shape = job.config.shape(job.dataset.tokenizer.vocabulary())?;
        all_alike(&job)?;
        let checkpoints = checkpoints(&job.config, &job.folder);
        // First of all, so that nothing of a run changes that another job is at.
        let mut keeper = match &checkpoints {
            Some(folder) => Some(Keeper::new(folder, rank, ranks, job.config.checkpoint.keep)?),
            None => None,
        };
        let found = match rank {
            0 => find(&job.config, checkpoints.as_deref())?,
            _ => None,
        };
        if let Some(found) = &found {
            fits(&found.checkpoint, &shape, &job.dataset.tokenizer.fingerprint())?;
            if job.config.checkpoint.resume == Resume::Auto {
                same_data(&found.checkpoint, &job.config.data.source, &job.dataset.digest)?;
            }
        }
        let told = |f: &Found| {
            let About { step, tokens, .. } = f.checkpoint.about();
            let is_own = checkpoints.iter().any(|own| is_among(&f.checkpoint, own));
            [*step as i64, *tokens as i64, i64::from(is_own)]
        };
        let mut before = found.as_ref().map_or([0; 3], told);
        job.comm.broadcast(&mut before, 0)?;
        let [done, tokens, is_own] = before.map(i64::unsigned_abs);
        // What another run has kept is not kept by this one.
        let kept = (is_own > 0).then_some(done);
        let about = report::about(&job, &plan, &shape, done);
        tell(Event::Begin(Box::new(about.clone())));
        many_kinds(&shape, job.dataset.tokenizer.vocabulary()).into_iter().for_each(&mut *tell);
        let mut training = Self::new(job, plan, shape, &about)?;
        (training.tokens, training.kept) = (tokens, kept);
        if let Some(found) = found {
            found.skipped.iter().for_each(|note| tell(Event::Note(note.clone())));
            keeper.iter_mut().for_each(|keeper| keeper.pass_over(&found.damaged));
            keep::restore(&mut training.engine, &found.checkpoint)?;
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
        spread(&mut training.engine, &*training.comm)?;
        // All must be there before any begins to write.
        training.comm.barrier()?;
        let Dataset { tokenizer, validation: tokens, .. } = &training.dataset;
        if let (0, Some(folder)) = (rank, &checkpoints) {
            tokenizer.save(&folder.join(TOKENIZER))?;
        }
        training.validation = validation(&training.config, tokens, tell);
        Ok(training)
    }

    /// With parameters as they are before training, and nothing that is kept or tried.
    pub(super) fn new(
        job: Job,
        plan: Plan,
        shape: Shape,
        about: &metrics::About,
    ) -> Result<Self, TrainError> {
        let speed = Speed::new(about, &shape);
        let Job { config, comm, device, dataset, folder, run, .. } = job;
        let extra = [(RUN, run), (DATA, dataset.digest.clone())];
        let extra = extra.into_iter().filter(|(_, what)| !what.is_empty());
        let extra = extra.map(|(name, what)| (name.to_owned(), what)).collect();
        let groups = Groups::new(comm.clone(), Mesh::data(plan.ranks))?;
        let stage = Stage::whole(&shape);
        let net = Net::new(Model::new(shape), device);
        let engine = Engine::new(net, groups, stage, config.train.seed);
        Ok(Self {
            schedule: config.schedule(plan.ranks),
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
        })
    }
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
fn checkpoints(config: &Config, folder: &Path) -> Option<PathBuf> {
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

/// Where a training goes on from.
#[derive(Debug)]
pub struct Found {
    /// The checkpoint.
    pub checkpoint: Checkpoint,
    /// Newer ones that are damaged, and how.
    pub skipped: Vec<String>,
    /// Where those are.
    pub damaged: Vec<PathBuf>,
}

/// The checkpoint to go on from, if there is one. `own` is where this training keeps its own.
pub fn find(config: &Config, own: Option<&Path>) -> Result<Option<Found>, TrainError> {
    let folder = match (&config.checkpoint.resume, own) {
        (Resume::Never, _) | (Resume::Auto, None) => return Ok(None),
        (Resume::Auto, Some(own)) => own.to_owned(),
        (Resume::From(path), _) => path.clone(),
    };
    let (checkpoint, skipped) = match Checkpoint::open(&folder) {
        Ok(one) => {
            one.verify().map_err(|all| first(&folder, all))?;
            (Some(one), Vec::new())
        }
        Err(error) if folder.join(MANIFEST).exists() => return Err(error.into()),
        Err(_) => newest_good(&run::kept_in(&folder))?,
    };
    let damaged = skipped.iter().map(|skipped| skipped.folder.clone()).collect();
    let skipped: Vec<String> = skipped.iter().map(told).collect();
    match (checkpoint, &config.checkpoint.resume) {
        (Some(checkpoint), _) => Ok(Some(Found { checkpoint, skipped, damaged })),
        (None, Resume::Auto) if skipped.is_empty() => Ok(None),
        (None, _) => Err(TrainError::Nothing { folder, skipped: skipped.join("; ") }),
    }
}

fn first(folder: &Path, all: Vec<CheckpointError>) -> TrainError {
    let folder = folder.to_owned();
    match all.into_iter().next() {
        Some(error) => error.into(),
        None => TrainError::Nothing { folder, skipped: String::new() },
    }
}

fn told(skipped: &Skipped) -> String {
    let why = skipped.why.first().map(ToString::to_string).unwrap_or_default();
    format!("{} is damaged and passed over: {why}", skipped.folder.display())
}

/// The checkpoint is of this model and these tokens.
pub fn fits(checkpoint: &Checkpoint, shape: &Shape, tokenizer: &str) -> Result<(), TrainError> {
    let About { shape: other, tokenizer: made_by, .. } = checkpoint.about();
    let wrong = |what, why| {
        let folder = checkpoint.folder().to_owned();
        Err(TrainError::Other { folder, what, why })
    };
    if other != shape {
        return wrong("model", difference(other, shape));
    }
    // A model from elsewhere does not say what its tokens are.
    if !made_by.is_empty() && made_by != tokenizer {
        let why = format!(
            "its tokens are by {made_by}, the data's by {tokenizer}: data.tokenizer names the file \
             that makes them"
        );
        return wrong("tokenizer", why);
    }
    Ok(())
}

/// A run goes on with the data that it has begun with: samples would be left out or seen twice.
fn same_data(checkpoint: &Checkpoint, source: &str, digest: &str) -> Result<(), TrainError> {
    let About { extra, .. } = checkpoint.about();
    match extra.get(DATA).filter(|then| *then != digest) {
        None => Ok(()),
        Some(then) => Err(TrainError::OtherData {
            folder: checkpoint.folder().to_owned(),
            source_now: source.to_owned(),
            then: then.clone(),
            now: digest.to_owned(),
        }),
    }
}

/// The first size in which two models differ.
fn difference(there: &Shape, here: &Shape) -> String {
    let fields = |shape: &Shape| match serde_json::to_value(shape) {
        Ok(serde_json::Value::Object(fields)) => fields,
        _ => serde_json::Map::new(),
    };
    let (there, here) = (fields(there), fields(here));
    let differs = there.iter().find(|(name, value)| here.get(*name) != Some(value));
    differs.map_or_else(String::new, |(name, value)| {
        let here = here.get(name).map(ToString::to_string).unwrap_or_default();
        format!("model.{name} is {value} there, {here} here")
    })
}

/// All ranks get what rank 0 has.
pub fn spread(engine: &mut Engine, comm: &dyn Comm) -> Result<(), TrainError> {
    let state = &mut engine.state;
    for block in state.held() {
        for kind in Kind::ALL {
            broadcast(state.own_mut(block, kind), comm)?;
        }
    }
    Ok(())
}

fn broadcast(numbers: ViewMut<'_>, comm: &dyn Comm) -> Result<(), TrainError> {
    match numbers.format() {
        Format::F64 => comm.broadcast(numbers.host::<f64>(), 0)?,
        Format::F32 => comm.broadcast(numbers.host::<f32>(), 0)?,
        Format::Bf16 => comm.broadcast(numbers.host::<half::bf16>(), 0)?,
    }
    Ok(())
}
