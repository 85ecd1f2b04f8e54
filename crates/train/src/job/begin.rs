//! Before the first step: all ranks are told the same, and have the same parameters.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use regatta_comm::{Collectives, Comm};
use sha2::{Digest, Sha256};

use super::error::TrainError;
use super::keep::{self, Keeper};
use super::report::{self, Speed};
use super::{CHECKPOINTS, Job, TOKENIZER, Training};
use crate::checkpoint::{
    self, About, Checkpoint, CheckpointError, Kind, MANIFEST, Skipped, newest_good,
};
use crate::config::{Config, ConfigError, Memory, Plan, Resume};
use crate::data::{DataError, Dataset, Loader, Order, Tokens};
use crate::memory::{Format, ViewMut};
use crate::metrics::{self, Event};
use crate::model::Model;
use crate::offload::{Offload, Where};
use crate::parallel::pipeline::Stage;
use crate::parallel::{Groups, Mesh, Zero};
use crate::shape::Shape;
use crate::state::Sharing;
use crate::step::{Engine, Net};

/// Where a run's state is that is not in memory.
const OFFLOADED: &str = "offloaded";

impl Training {
    /// All ranks have the same parameters, and are ready for the next step.
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
        let found = match rank {
            0 => find(&job.config, checkpoints.as_deref())?,
            _ => None,
        };
        if let Some(found) = &found {
            fits(&found.checkpoint, &shape, &job.dataset.tokenizer.fingerprint())?;
        }
        let told =
            |f: &Found| [f.checkpoint.about().step as i64, f.checkpoint.about().tokens as i64];
        let mut before = found.as_ref().map_or([0, 0], told);
        job.comm.broadcast(&mut before, 0)?;
        let [done, tokens] = before.map(i64::unsigned_abs);
        let about = report::about(&job, &plan, &shape, done);
        tell(Event::Begin(Box::new(about.clone())));
        many_kinds(&shape, job.dataset.tokenizer.vocabulary()).into_iter().for_each(&mut *tell);
        apart(&plan.mesh, &*job.comm).into_iter().for_each(&mut *tell);
        let mut training = Self::new(job, plan, shape, &about)?;
        training.tokens = tokens;
        let how = sharing(&training.config, &training.plan, &training.folder);
        how.notes(&training.engine.groups).into_iter().for_each(|note| tell(Event::Note(note)));
        if let Some(found) = &found {
            found.skipped.iter().for_each(|note| tell(Event::Note(note.clone())));
            keeper.iter_mut().for_each(|keeper| keeper.pass_over(&found.damaged));
            let from = found.checkpoint.folder().display();
            tell(Event::Note(format!("goes on after step {done} of {from}")));
        }
        training.restore(found.as_ref().map(|found| &found.checkpoint))?;
        if let Some(keeper) = &keeper
            && training.config.checkpoint.resume != Resume::Auto
        {
            for path in keeper.set_aside(done)? {
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

    /// Reads this rank's share of the checkpoint that rank 0 found, if it did. Ranks that have all
    /// get it from the first.
    fn restore(&mut self, found: Option<&Checkpoint>) -> Result<(), TrainError> {
        if let Some(checkpoint) = found {
            keep::restore(&mut self.engine, checkpoint)?;
        }
        if self.engine.state.sharing == 1 {
            return Ok(());
        }
        let told = found.map(|checkpoint| checkpoint.folder().as_os_str().as_bytes().to_vec());
        if let Some(folder) = told_all(&*self.comm, told)?
            && found.is_none()
        {
            let folder = PathBuf::from(OsString::from_vec(folder));
            keep::restore(&mut self.engine, &Checkpoint::open(&folder)?)?;
        }
        Ok(())
    }

    /// With parameters as they are before training, and nothing that is kept or tried.
    pub(super) fn new(
        job: Job,
        plan: Plan,
        shape: Shape,
        about: &metrics::About,
    ) -> Result<Self, TrainError> {
        let speed = Speed::new(about, &shape);
        let Job { config, comm, device, dataset, folder, .. } = job;
        let groups = Groups::new(comm.clone(), plan.mesh)?;
        let stage = Stage::whole(&shape);
        let net = Net::new(Model::new(shape), device);
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
            kept: (about.done > 0).then_some(about.done),
            speed,
        })
    }
}

/// What the ranks of a job share, and of which model.
pub(super) fn planned(job: &Job) -> Result<(Plan, Shape), TrainError> {
    let plan = job.config.validate(job.comm.size() as usize)?;
    let shape = job.config.shape(job.dataset.tokenizer.vocabulary())?;
    shape.check_tensor(plan.mesh.tp).map_err(ConfigError::Contradiction)?;
    trainable(&job.config, &plan)?;
    Ok((plan, shape))
}

/// Splits that can be planned and explained, and not yet trained.
fn trainable(config: &Config, plan: &Plan) -> Result<(), ConfigError> {
    let Mesh { tp, cp, pp, .. } = plan.mesh;
    let all = [
        ("parallel.tp", tp == 1),
        ("parallel.cp", cp == 1),
        ("parallel.pp", pp == 1),
        ("parallel.tiles", config.parallel.tiles == 1),
    ];
    match all.into_iter().find(|(_, can)| !can) {
        None => Ok(()),
        Some((what, _)) => Err(ConfigError::Contradiction(format!(
            "{what}: this version can plan that, and not train it: leave it out, or see what it \
             would cost with --explain"
        ))),
    }
}

/// How the state is shared, and where it is kept.
fn sharing(config: &Config, plan: &Plan, run: &Path) -> Sharing {
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
    let dataset = &job.dataset;
    let (train, validation) = (dataset.train.len(), dataset.validation.len());
    let data = format!("{} {train} {validation}", dataset.tokenizer.fingerprint());
    agree(&*job.comm, &[("configuration", &job.config.to_toml()), ("data", &data)])
}

/// Where checkpoints are, if there are to be any.
fn checkpoints(config: &Config, run: &Path) -> Option<PathBuf> {
    let told = &config.checkpoint;
    let folder = match told.folder.as_str() {
        "" => run.join(CHECKPOINTS),
        folder => PathBuf::from(folder),
    };
    (told.every != 0).then_some(folder)
}

/// Has ranks that are started anew go on from what the run has kept, whatever it first began from.
pub fn go_on(config: &mut Config, run: &Path) -> Result<(), TrainError> {
    if let Some(own) = checkpoints(config, run)
        && checkpoint::any(&own)?
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

/// What rank 0 has to say, if it has.
fn told_all(comm: &dyn Comm, own: Option<Vec<u8>>) -> Result<Option<Vec<u8>>, TrainError> {
    let mut length = [own.as_ref().map_or(-1, |own| own.len() as i64)];
    comm.broadcast(&mut length, 0)?;
    let Ok(length) = usize::try_from(length[0]) else { return Ok(None) };
    let mut text = own.unwrap_or_default();
    text.resize(length, 0);
    comm.broadcast(&mut text, 0)?;
    Ok(Some(text))
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
        Err(_) => newest_good(&inside(&folder))?,
    };
    let damaged = skipped.iter().map(|skipped| skipped.folder.clone()).collect();
    let skipped: Vec<String> = skipped.iter().map(told).collect();
    match (checkpoint, &config.checkpoint.resume) {
        (Some(checkpoint), _) => Ok(Some(Found { checkpoint, skipped, damaged })),
        (None, Resume::Auto) if skipped.is_empty() => Ok(None),
        (None, _) => Err(TrainError::Nothing { folder, skipped: skipped.join("; ") }),
    }
}

/// A run's folder has its checkpoints in a folder of their own.
fn inside(folder: &Path) -> PathBuf {
    let inside = folder.join(CHECKPOINTS);
    if inside.is_dir() { inside } else { folder.to_owned() }
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
        let why = format!("its tokens are by {made_by}, the data's by {tokenizer}");
        return wrong("tokenizer", why);
    }
    Ok(())
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

/// All ranks get what the first of those has that have the same share.
pub fn spread(engine: &mut Engine) -> Result<(), TrainError> {
    let Engine { state, groups, .. } = engine;
    if let Some(comm) = groups.copies(state.sharing) {
        for block in state.held() {
            for kind in Kind::ALL {
                state.change(block, kind, |own| broadcast(own, &**comm))??;
            }
        }
    }
    Ok(state.publish()?)
}

fn broadcast(numbers: ViewMut<'_>, comm: &dyn Comm) -> Result<(), TrainError> {
    match numbers.format() {
        Format::F64 => comm.broadcast(numbers.host::<f64>(), 0)?,
        Format::F32 => comm.broadcast(numbers.host::<f32>(), 0)?,
        Format::Bf16 => comm.broadcast(numbers.host::<half::bf16>(), 0)?,
    }
    Ok(())
}
