//! What rank 0 does in the folder of checkpoints: a partial one gets its name, old ones go,
//! left-overs of killed jobs are put in order.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::disk::Disk;
use super::error::CheckpointError;
use super::folder::{self, MANIFEST, MANIFEST_SUM, Role};
use super::manifest::{About, Manifest, Sidecar};
use super::shard::hex;

/// A checkpoint that is complete.
#[derive(Debug)]
pub struct Committed {
    /// Its folder.
    pub path: PathBuf,
    /// Why old ones could not be removed: no harm but to the room on the disk.
    pub left: Vec<CheckpointError>,
}

/// Describes what the ranks wrote and gives the folder its name. Everything is on the disk before
/// the name is, and the name before this returns.
pub(super) fn commit(
    disk: &dyn Disk,
    checkpoints: &Path,
    about: About,
    ranks: usize,
) -> Result<Committed, CheckpointError> {
    let step = about.step;
    let partial = folder::path(checkpoints, step, Role::Partial);
    let sidecars: Vec<Sidecar> = (0..ranks)
        .map(|rank| sidecar(disk, &partial, step, rank, ranks))
        .collect::<Result<_, _>>()?;
    let path = partial.join(MANIFEST);
    let manifest = Manifest::gather(about, sidecars)
        .map_err(|why| CheckpointError::Manifest { path: path.clone(), why })?;
    clean(disk, &partial, &manifest)?;
    let text = manifest.to_text();
    let sum = format!("{}  {MANIFEST}\n", hex(&Sha256::digest(&text)));
    write_text(disk, &path, &text)?;
    write_text(disk, &partial.join(MANIFEST_SUM), &sum)?;
    disk.sync_folder(&partial).map_err(CheckpointError::io("sync", &partial))?;
    let replaced = give_name(disk, checkpoints, step)?;
    let left = replaced.and_then(|old| remove(disk, &old).err()).into_iter().collect();
    Ok(Committed { path: folder::path(checkpoints, step, Role::Complete), left })
}

/// Leaves in the folder what the manifest names: files of another number of ranks may be there.
fn clean(disk: &dyn Disk, partial: &Path, manifest: &Manifest) -> Result<(), CheckpointError> {
    for name in disk.list(partial).map_err(CheckpointError::io("list", partial))? {
        if !manifest.files.contains_key(&name) {
            let path = partial.join(name);
            disk.remove(&path).map_err(CheckpointError::io("remove", &path))?;
        }
    }
    Ok(())
}

/// A step that was trained again after a damaged checkpoint may have one of its name already: that
/// is returned, to be removed.
fn give_name(
    disk: &dyn Disk,
    checkpoints: &Path,
    step: u64,
) -> Result<Option<PathBuf>, CheckpointError> {
    let [complete, partial, replaced] = [Role::Complete, Role::Partial, Role::Replaced]
        .map(|role| folder::path(checkpoints, step, role));
    let rename = |from: &Path, to: &Path| {
        disk.rename(from, to).map_err(CheckpointError::io("rename to its final name", from))
    };
    let name = folder::path(Path::new(""), step, Role::Complete).to_string_lossy().into_owned();
    let names = disk.list(checkpoints).map_err(CheckpointError::io("list", checkpoints))?;
    let again = names.contains(&name);
    if again {
        rename(&complete, &replaced)?;
    }
    if let Err(error) = rename(&partial, &complete) {
        if again {
            // The one that was there counts until the new one does.
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
) -> Result<Sidecar, CheckpointError> {
    let path = partial.join(folder::sidecar(rank));
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
            "is of step {step_is}, rank {rank_is} of {ranks_are}, not of step {step}, rank {rank} \
             of {ranks}"
        )));
    }
    Ok(sidecar)
}

/// Removes the oldest beyond those to keep, of the steps up to the one that was just completed:
/// later ones are of another run from here, and not this one's to judge. Damaged ones do not count
/// as kept, and go with those that are as old.
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

/// Gives complete checkpoints, all or those of later steps, names that nobody looks for, and
/// returns these.
pub(super) fn set_aside(
    disk: &dyn Disk,
    checkpoints: &Path,
    after: Option<u64>,
) -> Result<Vec<PathBuf>, CheckpointError> {
    let names = disk.list(checkpoints).map_err(CheckpointError::io("list", checkpoints))?;
    let found = names.iter().filter_map(|name| folder::parse(name));
    let is_later = |step: u64| after.is_none_or(|after| step > after);
    let later = found.filter(|(step, role)| *role == Role::Complete && is_later(*step));
    let moved = later.map(|(step, role)| {
        let mut free = (1..).map(|n| folder::aside(step, n)).filter(|name| !names.contains(name));
        let to = checkpoints.join(free.next().unwrap_or_default());
        let from = folder::path(checkpoints, step, role);
        disk.rename(&from, &to).map_err(CheckpointError::io("set aside", &from)).map(|()| to)
    });
    moved.collect()
}

fn remove_step(disk: &dyn Disk, checkpoints: &Path, step: u64) -> Result<(), CheckpointError> {
    let [complete, removed] =
        [Role::Complete, Role::Removed].map(|role| folder::path(checkpoints, step, role));
    // Half of a checkpoint must not look like one.
    disk.rename(&complete, &removed).map_err(CheckpointError::io("remove", &complete))?;
    remove(disk, &removed)
}

fn remove(disk: &dyn Disk, folder: &Path) -> Result<(), CheckpointError> {
    disk.remove_folder(folder).map_err(CheckpointError::io("remove", folder))
}

/// Puts in order what killed jobs left.
pub(super) fn sweep(disk: &dyn Disk, checkpoints: &Path) -> Result<(), CheckpointError> {
    let all = entries(disk, checkpoints)?;
    for &(step, role) in &all {
        let path = folder::path(checkpoints, step, role);
        let alone = !all.contains(&(step, Role::Complete));
        match role {
            Role::Complete => {}
            Role::Replaced if alone => {
                let complete = folder::path(checkpoints, step, Role::Complete);
                disk.rename(&path, &complete).map_err(CheckpointError::io("restore", &path))?;
            }
            Role::Replaced | Role::Partial | Role::Removed => {
                remove(disk, &path)?;
            }
        }
    }
    Ok(())
}

/// Removes a partial checkpoint; what cannot be removed now is removed at the next start.
pub(super) fn discard(disk: &dyn Disk, checkpoints: &Path, step: u64) {
    let _ = disk.remove_folder(&folder::path(checkpoints, step, Role::Partial));
}

/// The steps that have folders, and what these are.
pub(super) fn entries(
    disk: &dyn Disk,
    checkpoints: &Path,
) -> Result<Vec<(u64, Role)>, CheckpointError> {
    let names = disk.list(checkpoints).map_err(CheckpointError::io("list", checkpoints))?;
    Ok(names.iter().filter_map(|name| folder::parse(name)).collect())
}

/// Writes a small file so that it survives a loss of power.
pub(super) fn write_text(disk: &dyn Disk, path: &Path, text: &str) -> Result<(), CheckpointError> {
    let failed = || CheckpointError::writing(path, text.len() as u64);
    let mut file = disk.create(path).map_err(failed())?;
    file.write(text.as_bytes()).map_err(failed())?;
    file.sync().map_err(failed())
}
