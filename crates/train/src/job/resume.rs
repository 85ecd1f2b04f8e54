//! Where a training goes on from: rank 0 finds the newest checkpoint that is good, and every rank
//! reads its own parts of it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use regatta_comm::{Collectives, Comm, CommError};

use super::Job;
use super::error::TrainError;
use crate::checkpoint::manifest::DATA;
use crate::checkpoint::{About, Checkpoint, CheckpointError, MANIFEST, Skipped, newest_good};
use crate::config::{Config, Resume};
use crate::run;
use regatta_predict::shape::Shape;

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

/// The checkpoint that all ranks go on from, if there is one: the one that rank 0 finds. Only rank 0
/// knows what was passed over.
pub fn together(job: &Job, own: Option<&Path>) -> Result<Option<Found>, TrainError> {
    let comm = &*job.comm;
    let Some(base) = base(&job.config, own) else { return Ok(None) };
    if comm.rank() == 0 {
        let found = find(&job.config, own)?;
        // Below what all ranks were told: they may call it by different names.
        let inside = found.as_ref().map(|found| {
            let folder = found.checkpoint.folder();
            folder.strip_prefix(&base).unwrap_or(folder).as_os_str().as_bytes()
        });
        first_says(comm, inside)?;
        return Ok(found);
    }
    let Some(inside) = first_says(comm, None)? else { return Ok(None) };
    let folder = match &inside[..] {
        [] => base,
        inside => base.join(OsStr::from_bytes(inside)),
    };
    let checkpoint = Checkpoint::open(&folder).map_err(|why| unread(comm, &folder, why))?;
    Ok(Some(Found { checkpoint, skipped: Vec::new(), damaged: Vec::new() }))
}

/// What rank 0 has to say, if anything, to all.
fn first_says(comm: &dyn Comm, said: Option<&[u8]>) -> Result<Option<Vec<u8>>, CommError> {
    let mut length = [said.map_or(-1, |said| said.len() as i64)];
    comm.broadcast(&mut length, 0)?;
    let Ok(length) = usize::try_from(length[0]) else { return Ok(None) };
    let mut text = said.map_or_else(|| vec![0; length], <[u8]>::to_vec);
    if length > 0 {
        comm.broadcast(&mut text, 0)?;
    }
    Ok(Some(text))
}

/// This rank cannot read its parts of a checkpoint.
pub fn unread(comm: &dyn Comm, folder: &Path, source: CheckpointError) -> TrainError {
    let rank = comm.rank();
    let (host, folder) = (comm.peer(rank).host, folder.to_owned());
    TrainError::Unread { rank, host, folder, source: Box::new(source) }
}

/// Where to look for checkpoints, if anywhere.
fn base(config: &Config, own: Option<&Path>) -> Option<PathBuf> {
    match (&config.checkpoint.resume, own) {
        (Resume::Never, _) | (Resume::Auto, None) => None,
        (Resume::Auto, Some(own)) => Some(own.to_owned()),
        (Resume::From(path), _) => Some(path.clone()),
    }
}

/// The checkpoint to go on from, if there is one. `own` is where this training keeps its own.
pub fn find(config: &Config, own: Option<&Path>) -> Result<Option<Found>, TrainError> {
    let Some(folder) = base(config, own) else { return Ok(None) };
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
pub fn same_data(checkpoint: &Checkpoint, source: &str, digest: &str) -> Result<(), TrainError> {
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
