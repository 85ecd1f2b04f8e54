//! Operations of rank 0 in the checkpoint directory: committing, pruning, and cleaning up after killed jobs.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use regatta_model::text::hex;
use sha2::{Digest, Sha256};

use super::dir_layout::{self, MANIFEST, MANIFEST_SUM, Role};
use super::disk::Disk;
use super::error::{CheckpointError, Result};
use super::manifest::{CheckpointMeta, Manifest, Sidecar};

/// A committed checkpoint.
#[derive(Debug)]
pub struct Committed {
    /// Its directory.
    pub path: PathBuf,
    /// Why old checkpoints could not be removed; they only waste space.
    pub left: Vec<CheckpointError>,
}

/// Writes the manifest and renames the directory to its final name. All data is synced before the rename, and
/// the rename before this returns.
pub(super) fn commit(
    disk: &dyn Disk,
    checkpoints: &Path,
    meta: CheckpointMeta,
    ranks: usize,
) -> Result<Committed> {
    let step = meta.step;
    let partial = dir_layout::path(checkpoints, step, Role::Partial);
    let sidecars: Vec<Sidecar> = (0..ranks)
        .map(|rank| sidecar(disk, &partial, step, rank, ranks))
        .collect::<Result<_, _>>()?;
    let path = partial.join(MANIFEST);
    let manifest = Manifest::gather(meta, sidecars)
        .map_err(|why| CheckpointError::Manifest { path: path.clone(), why })?;
    clean(disk, &partial, &manifest)?;
    let text = manifest.to_text();
    let sum = format!("{}  {MANIFEST}\n", hex(&Sha256::digest(&text)));
    write_text(disk, &path, &text)?;
    write_text(disk, &partial.join(MANIFEST_SUM), &sum)?;
    disk.sync_folder(&partial).map_err(CheckpointError::io("sync", &partial))?;
    let replaced = give_name(disk, checkpoints, step)?;
    let left = replaced.and_then(|old| remove(disk, &old).err()).into_iter().collect();
    Ok(Committed { path: dir_layout::path(checkpoints, step, Role::Complete), left })
}

/// Removes files that the manifest does not list, such as those of an earlier attempt with more ranks.
fn clean(disk: &dyn Disk, partial: &Path, manifest: &Manifest) -> Result<()> {
    for name in disk.list(partial).map_err(CheckpointError::io("list", partial))? {
        if !manifest.files.contains_key(&name) {
            let path = partial.join(name);
            disk.remove(&path).map_err(CheckpointError::io("remove", &path))?;
        }
    }
    Ok(())
}

/// Renames a checkpoint to its final name. An existing one of the same step, kept until then, is returned for
/// removal.
fn give_name(disk: &dyn Disk, checkpoints: &Path, step: u64) -> Result<Option<PathBuf>> {
    let [complete, partial, replaced] = [Role::Complete, Role::Partial, Role::Replaced]
        .map(|role| dir_layout::path(checkpoints, step, role));
    let rename = |from: &Path, to: &Path| {
        disk.rename(from, to).map_err(CheckpointError::io("rename to its final name", from))
    };
    let name = dir_layout::path(Path::new(""), step, Role::Complete).to_string_lossy().into_owned();
    let names = disk.list(checkpoints).map_err(CheckpointError::io("list", checkpoints))?;
    let again = names.contains(&name);
    if again {
        rename(&complete, &replaced)?;
    }
    if let Err(error) = rename(&partial, &complete) {
        if again {
            // The existing checkpoint stays valid until the new one is.
            let _ = disk.rename(&replaced, &complete);
        }
        return Err(error);
    }
    disk.sync_folder(checkpoints).map_err(CheckpointError::io("sync", checkpoints))?;
    Ok(again.then_some(replaced))
}

fn sidecar(
    disk: &dyn Disk,
    partial: &Path,
    step: u64,
    rank: usize,
    ranks: usize,
) -> Result<Sidecar> {
    let path = partial.join(dir_layout::sidecar(rank));
    let bytes = match disk.read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(CheckpointError::NotShared { path, rank });
        }
        result => result.map_err(CheckpointError::io("read", &path))?,
    };
    let sidecar = String::from_utf8(bytes)
        .map_err(|error| error.to_string())
        .and_then(|text| Sidecar::parse(&text));
    let wrong = |why: String| CheckpointError::Sidecar { path: path.clone(), why };
    let sidecar = sidecar.map_err(wrong)?;
    let is = (sidecar.step, sidecar.rank, sidecar.ranks);
    if is != (step, rank, ranks) {
        let (step_is, rank_is, ranks_are) = is;
        return Err(wrong(format!(
            "belongs to step {step_is}, rank {rank_is} of {ranks_are}, not to step {step}, rank {rank} \
             of {ranks}"
        )));
    }
    Ok(sidecar)
}

/// Removes the oldest checkpoints beyond `keep`, up to the step just committed: later ones belong to another
/// run. Damaged checkpoints do not count, and are removed with those of their age.
pub(super) fn prune(
    disk: &dyn Disk,
    checkpoints: &Path,
    newest: u64,
    keep: usize,
    damaged: &BTreeSet<u64>,
) -> Vec<CheckpointError> {
    let found = match entries(disk, checkpoints) {
        Ok(found) => found,
        Err(error) => return vec![error],
    };
    let mut steps: Vec<u64> = found
        .into_iter()
        .filter_map(|(step, role)| (role == Role::Complete && step <= newest).then_some(step))
        .collect();
    steps.sort_unstable_by(|a, b| b.cmp(a));
    let good = steps.iter().copied().filter(|step| !damaged.contains(step));
    let oldest = good.take(keep).last().unwrap_or(newest);
    let old = steps.into_iter().filter(|step| *step < oldest);
    old.filter_map(|step| remove_step(disk, checkpoints, step).err()).collect()
}

/// Renames complete checkpoints, all or those after a step, so that they are no longer found. Returns the new
/// paths.
pub(super) fn move_aside(
    disk: &dyn Disk,
    checkpoints: &Path,
    after: Option<u64>,
) -> Result<Vec<PathBuf>> {
    let names = disk.list(checkpoints).map_err(CheckpointError::io("list", checkpoints))?;
    let found = names.iter().filter_map(|name| dir_layout::parse(name));
    let is_later = |step: u64| after.is_none_or(|after| step > after);
    let later = found.filter(|(step, role)| *role == Role::Complete && is_later(*step));
    let renamed = later.map(|(step, role)| {
        let mut free =
            (1..).map(|n| dir_layout::aside(step, n)).filter(|name| !names.contains(name));
        let to = checkpoints.join(free.next().unwrap_or_default());
        let from = dir_layout::path(checkpoints, step, role);
        disk.rename(&from, &to).map_err(CheckpointError::io("set aside", &from)).map(|()| to)
    });
    renamed.collect()
}

fn remove_step(disk: &dyn Disk, checkpoints: &Path, step: u64) -> Result<()> {
    let [complete, removed] =
        [Role::Complete, Role::Removed].map(|role| dir_layout::path(checkpoints, step, role));
    // A partially removed checkpoint must not look complete.
    disk.rename(&complete, &removed).map_err(CheckpointError::io("remove", &complete))?;
    remove(disk, &removed)
}

fn remove(disk: &dyn Disk, folder: &Path) -> Result<()> {
    disk.remove_folder(folder).map_err(CheckpointError::io("remove", folder))
}

/// Cleans up after killed jobs.
pub(super) fn sweep(disk: &dyn Disk, checkpoints: &Path) -> Result<()> {
    let all = entries(disk, checkpoints)?;
    for &(step, role) in &all {
        let path = dir_layout::path(checkpoints, step, role);
        let is_only = !all.contains(&(step, Role::Complete));
        match role {
            Role::Complete => {}
            Role::Replaced if is_only => {
                let complete = dir_layout::path(checkpoints, step, Role::Complete);
                disk.rename(&path, &complete).map_err(CheckpointError::io("restore", &path))?;
            }
            Role::Replaced | Role::Partial | Role::Removed => {
                remove(disk, &path)?;
            }
        }
    }
    Ok(())
}

/// Removes a partial checkpoint; leftovers are removed at the next start.
pub(super) fn discard(disk: &dyn Disk, checkpoints: &Path, step: u64) {
    let _ = disk.remove_folder(&dir_layout::path(checkpoints, step, Role::Partial));
}

/// The steps with directories, and their roles.
pub(super) fn entries(disk: &dyn Disk, checkpoints: &Path) -> Result<Vec<(u64, Role)>> {
    let names = disk.list(checkpoints).map_err(CheckpointError::io("list", checkpoints))?;
    Ok(names.iter().filter_map(|name| dir_layout::parse(name)).collect())
}

/// Writes a small file and syncs it.
pub(super) fn write_text(disk: &dyn Disk, path: &Path, text: &str) -> Result<()> {
    let failed = || CheckpointError::writing(path, text.len() as u64);
    let mut file = disk.create(path).map_err(failed())?;
    file.write(text.as_bytes()).map_err(failed())?;
    file.sync().map_err(failed())
}
