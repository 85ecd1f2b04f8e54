//! Which checkpoint to go on from: the newest that is good.

use std::cmp::Reverse;
use std::io;
use std::path::{Path, PathBuf};

use super::commit::entries;
use super::disk::System;
use super::error::CheckpointError;
use super::folder::{self, Role};
use super::manifest::RUN;
use super::reader::Checkpoint;

/// A checkpoint that was passed over.
#[derive(Debug)]
pub struct Skipped {
    /// Its folder.
    pub folder: PathBuf,
    /// All that is wrong with it.
    pub why: Vec<CheckpointError>,
}

/// The newest checkpoint that is whole, if there is any, and newer ones that are not. All numbers
/// are read to find out, so one rank does this for all.
pub fn newest_good(
    checkpoints: &Path,
) -> Result<(Option<Checkpoint>, Vec<Skipped>), CheckpointError> {
    let mut skipped = Vec::new();
    for folder in folders(checkpoints)? {
        let checked = Checkpoint::open(&folder).map_err(|error| vec![error]);
        match checked.and_then(|checkpoint| checkpoint.verify().map(|_| checkpoint)) {
            Ok(checkpoint) => return Ok((Some(checkpoint), skipped)),
            Err(why) => skipped.push(Skipped { folder, why }),
        }
    }
    Ok((None, skipped))
}

/// Whether there is any checkpoint, good or not.
pub fn any(checkpoints: &Path) -> Result<bool, CheckpointError> {
    Ok(!folders(checkpoints)?.is_empty())
}

/// Whether a checkpoint is one of the complete ones of a folder.
pub fn is_among(checkpoint: &Checkpoint, checkpoints: &Path) -> bool {
    let real = |folder: &Path| folder.canonicalize().ok();
    let own = real(checkpoint.folder());
    let all = folders(checkpoints).unwrap_or_default();
    own.is_some() && all.iter().any(|folder| real(folder) == own)
}

/// Whether any complete checkpoint of a folder was written by the run of this name.
pub fn any_of_run(checkpoints: &Path, run: &str) -> Result<bool, CheckpointError> {
    let is_its = |folder: &PathBuf| {
        let about = Checkpoint::open(folder);
        about.is_ok_and(|one| one.about().extra.get(RUN).is_some_and(|name| name == run))
    };
    Ok(folders(checkpoints)?.iter().any(is_its))
}

/// The folders of complete checkpoints, the newest first. One that was about to be replaced counts
/// where the other did not come.
pub(super) fn folders(checkpoints: &Path) -> Result<Vec<PathBuf>, CheckpointError> {
    let mut found = match entries(&System, checkpoints) {
        Err(CheckpointError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            return Ok(Vec::new());
        }
        found => found?,
    };
    found.retain(|(_, role)| matches!(role, Role::Complete | Role::Replaced));
    found.sort_by_key(|(step, role)| (Reverse(*step), *role != Role::Complete));
    found.dedup_by_key(|(step, _)| *step);
    Ok(found.into_iter().map(|(step, role)| folder::path(checkpoints, step, role)).collect())
}
