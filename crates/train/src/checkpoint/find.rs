//! Finds the latest valid checkpoint.

use std::cmp::Reverse;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::commit::CheckpointDir;
use super::dir_layout::{MANIFEST, Role};
use super::disk::SystemDisk;
use super::error::{CheckpointError, Result};
use super::manifest::{CheckpointMeta, RUN};
use super::reader::Checkpoint;
use crate::run_paths;

/// A damaged checkpoint that was skipped.
#[derive(Debug)]
pub struct Skipped {
    /// Its directory.
    pub folder: PathBuf,
    /// All errors found.
    pub why: Vec<CheckpointError>,
}

impl fmt::Display for Skipped {
    /// The directory and the first error, with paths relative to the directory.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let folder = self.folder.display().to_string();
        let why = self.why.first().map(ToString::to_string).unwrap_or_default();
        write!(f, "{folder}: {}", why.replace(&format!("{folder}/"), ""))
    }
}

/// The latest valid checkpoint, if any, and newer ones that are damaged. One of another format version is an
/// error: an older checkpoint in its place would discard its steps. Reads all data, so one rank does it for
/// all.
pub fn latest_valid(checkpoints: &Path) -> Result<(Option<Checkpoint>, Vec<Skipped>)> {
    let mut skipped = Vec::new();
    for folder in folders(checkpoints)? {
        let opened = Checkpoint::open(&folder);
        if let Err(error @ CheckpointError::Version { .. }) = opened {
            return Err(error);
        }
        let checked = opened.map_err(|error| vec![error]);
        match checked.and_then(|checkpoint| checkpoint.verify().map(|_| checkpoint)) {
            Ok(checkpoint) => return Ok((Some(checkpoint), skipped)),
            Err(why) => skipped.push(Skipped { folder, why }),
        }
    }
    Ok((None, skipped))
}

/// The checkpoint in this folder, or the latest valid one of the run or the checkpoint directory there, with
/// newer ones that are damaged. The data of the former is not read.
pub fn find(folder: &Path) -> Result<(Option<Checkpoint>, Vec<Skipped>)> {
    match Checkpoint::open(folder) {
        Ok(checkpoint) => Ok((Some(checkpoint), Vec::new())),
        Err(error) if folder.join(MANIFEST).exists() => Err(error),
        Err(_) => latest_valid(&run_paths::find_checkpoint_dir(folder)),
    }
}

/// Whether there is any checkpoint, valid or not.
pub fn has_checkpoint(checkpoints: &Path) -> Result<bool> {
    Ok(!folders(checkpoints)?.is_empty())
}

/// Metadata of the newest checkpoint that can be opened, without reading its data.
pub fn newest_meta(checkpoints: &Path) -> Option<CheckpointMeta> {
    let folders = folders(checkpoints).ok()?;
    folders.iter().find_map(|folder| Some(Checkpoint::open(folder).ok()?.meta().clone()))
}

/// Whether a checkpoint is one of the complete ones in a directory.
pub fn is_in_dir(checkpoint: &Checkpoint, checkpoints: &Path) -> bool {
    let canonical = |folder: &Path| folder.canonicalize().ok();
    let own = canonical(checkpoint.folder());
    let all = folders(checkpoints).unwrap_or_default();
    own.is_some() && all.iter().any(|folder| canonical(folder) == own)
}

/// Whether any complete checkpoint in a directory was written by this run.
pub fn has_checkpoint_of_run(checkpoints: &Path, run: &str) -> Result<bool> {
    for folder in folders(checkpoints)? {
        match Checkpoint::open(&folder) {
            Ok(one) if one.meta().extra.get(RUN).is_some_and(|name| name == run) => {
                return Ok(true);
            }
            Err(error @ CheckpointError::Version { .. }) => return Err(error),
            _ => {}
        }
    }
    Ok(false)
}

/// Directories of complete checkpoints, newest first. One about to be replaced counts if its replacement is
/// missing.
pub(super) fn folders(checkpoints: &Path) -> Result<Vec<PathBuf>> {
    let dir = CheckpointDir { disk: Arc::new(SystemDisk), path: checkpoints.to_owned() };
    let mut found = match dir.entries() {
        Err(CheckpointError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            return Ok(Vec::new());
        }
        found => found?,
    };
    found.retain(|(_, role)| matches!(role, Role::Complete | Role::Replaced));
    found.sort_by_key(|(step, role)| (Reverse(*step), *role != Role::Complete));
    found.dedup_by_key(|(step, _)| *step);
    Ok(found.into_iter().map(|(step, role)| dir.step(step, role)).collect())
}
