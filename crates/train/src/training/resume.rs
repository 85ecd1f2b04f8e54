//! Finds the checkpoint to resume from: rank 0 chooses the latest valid one, and every rank opens it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use regatta_comm::{Comm, gather};

use super::TrainingSetup;
use super::error::{Result, TrainError};
use crate::checkpoint::manifest::DATA;
use crate::checkpoint::{self, Checkpoint, CheckpointError, CheckpointMeta, Skipped};
use crate::config::{Config, Resume};
use regatta_predict::shape::ModelShape;

/// The checkpoint to resume from.
#[derive(Debug)]
pub struct ResumePoint {
    /// The checkpoint.
    pub checkpoint: Checkpoint,
    /// Newer checkpoints that were skipped.
    pub skipped: Vec<Skipped>,
}

/// The checkpoint that rank 0 found, on all ranks. Only rank 0 knows the skipped ones. `own` is the checkpoint
/// directory of this run.
pub fn find_on_all_ranks(setup: &TrainingSetup, own: &Path) -> Result<Option<ResumePoint>> {
    let comm = &*setup.comm;
    let Some(base) = base(&setup.config, own) else { return Ok(None) };
    if comm.rank() == 0 {
        let found = find(&setup.config, &base)?;
        if found.is_none() && setup.require_checkpoint {
            return Err(TrainError::no_checkpoint(&base));
        }
        // Relative to the configured path, which may be mounted elsewhere on other nodes.
        let relative = found.as_ref().map(|found| {
            let folder = found.checkpoint.folder();
            folder.strip_prefix(&base).unwrap_or(folder).as_os_str().as_bytes().to_vec()
        });
        gather::all_gather(comm, &relative)?;
        return Ok(found);
    }
    let of_ranks = gather::all_gather(comm, &None::<Vec<u8>>)?;
    let Some(relative) = of_ranks.into_iter().next().flatten() else { return Ok(None) };
    let folder = match &relative[..] {
        [] => base,
        relative => base.join(OsStr::from_bytes(relative)),
    };
    let checkpoint = Checkpoint::open(&folder).map_err(|why| unreadable(comm, &folder, why))?;
    Ok(Some(ResumePoint { checkpoint, skipped: Vec::new() }))
}

/// The error of a rank that cannot read a checkpoint.
pub fn unreadable(comm: &dyn Comm, folder: &Path, source: CheckpointError) -> TrainError {
    let rank = comm.rank();
    let (host, folder) = (comm.peer(rank).host, folder.to_owned());
    TrainError::UnreadableCheckpoint { rank, host, folder, source: Box::new(source) }
}

/// Where to look for checkpoints, if anywhere.
fn base(config: &Config, own: &Path) -> Option<PathBuf> {
    match &config.checkpoint.resume {
        Resume::Never => None,
        Resume::Auto => Some(own.to_owned()),
        Resume::From(path) => Some(path.clone()),
    }
}

/// The checkpoint to resume from, if any: the one in this folder, or the latest valid one below it.
fn find(config: &Config, folder: &Path) -> Result<Option<ResumePoint>> {
    let (checkpoint, skipped) = checkpoint::find(folder)?;
    // One that was searched for is verified.
    if let Some(given) = checkpoint.as_ref().filter(|found| found.folder() == folder) {
        let error = given.verify().err().and_then(|all| all.into_iter().next());
        error.map_or(Ok(()), Err)?;
    }
    match (checkpoint, &config.checkpoint.resume) {
        (Some(checkpoint), _) => Ok(Some(ResumePoint { checkpoint, skipped })),
        (None, Resume::Auto) if skipped.is_empty() => Ok(None),
        (None, _) => {
            let skipped: Vec<String> = skipped.iter().map(ToString::to_string).collect();
            let skipped = skipped.join("; ").replace(&format!("{}/", folder.display()), "");
            Err(TrainError::NoCheckpoint { folder: folder.to_owned(), skipped })
        }
    }
}

/// Fails if the checkpoint has a different model, tokenizer or optimizer.
pub fn check_compatible(
    saved: &Checkpoint,
    shape: &ModelShape,
    tokenizer: &str,
    config: &Config,
) -> Result<()> {
    let CheckpointMeta { shape: other, tokenizer: made_by, config: text, .. } = saved.meta();
    let wrong = |what, why| {
        let folder = saved.folder().to_owned();
        Err(TrainError::Incompatible { folder, what, why })
    };
    if other != shape {
        return wrong("model", difference(other, shape, config));
    }
    // Imported models do not record their tokenizer.
    if !made_by.is_empty() && made_by != tokenizer {
        let why = format!(
            "it was trained with tokenizer {made_by}, the data has {tokenizer}: set data.tokenizer to its \
            tokenizer file"
        );
        return wrong("tokenizer", why);
    }
    // Imported models have neither a configuration nor optimizer state.
    let (before, now) = (Config::from_toml(saved.folder(), text), config.optimizer.name);
    let before = before.map_or(now, |config| config.optimizer.name);
    if !text.is_empty() && before != now {
        let why = format!(
            "optimizer.name is {before} in the checkpoint and {now} in the configuration; remove the \
            override, or discard the optimizer state with `regatta checkpoint export` and `import`"
        );
        return wrong("optimizer", why);
    }
    Ok(())
}

/// Fails if the data changed: the run would skip or repeat samples.
pub fn check_data(checkpoint: &Checkpoint, source: &str, digest: &str) -> Result<()> {
    let CheckpointMeta { extra, .. } = checkpoint.meta();
    match extra.get(DATA).filter(|then| *then != digest) {
        None => Ok(()),
        Some(then) => Err(TrainError::DataChanged {
            folder: checkpoint.folder().to_owned(),
            source_now: source.to_owned(),
            then: then.clone(),
            now: digest.to_owned(),
        }),
    }
}

/// The first field in which two shapes differ, and the fix.
fn difference(there: &ModelShape, here: &ModelShape, config: &Config) -> String {
    let fields = |shape: &ModelShape| match serde_json::to_value(shape) {
        Ok(serde_json::Value::Object(fields)) => fields,
        _ => serde_json::Map::new(),
    };
    let (there, here) = (fields(there), fields(here));
    let differs = there.iter().find(|(name, value)| here.get(*name) != Some(value));
    differs.map_or_else(String::new, |(name, value)| {
        let here = here.get(name).map(ToString::to_string).unwrap_or_default();
        if name == "vocab_size" && config.model.vocab_size == 0 {
            return format!(
                "the checkpoint's vocabulary has {value} tokens, the tokenizer of data.source has {here}: use \
                 the run's data and tokenizer, or start a new run"
            );
        }
        format!("model.{name} is {value} in the checkpoint and {here} in the configuration; remove the override, or start a new run")
    })
}
