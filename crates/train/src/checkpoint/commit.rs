//! Operations of rank 0 in the checkpoint directory: committing, pruning, and cleaning up after killed jobs.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use regatta_model::text::hex;
use sha2::{Digest, Sha256};

use super::dir_layout::{self, MANIFEST, MANIFEST_SUM, Role};
use super::disk::Disk;
use super::error::{CheckpointError, Result};
use super::manifest::{self, CheckpointMeta, Manifest, Sidecar};

/// A committed checkpoint.
#[derive(Debug)]
pub struct Committed {
    /// Its directory.
    pub path: PathBuf,
    /// Why old checkpoints could not be removed; they only waste space.
    pub left: Vec<CheckpointError>,
}

/// A directory of checkpoints.
#[derive(Clone)]
pub(super) struct CheckpointDir {
    pub disk: Arc<dyn Disk>,
    pub path: PathBuf,
}

impl CheckpointDir {
    /// The directory of a step.
    pub fn step(&self, step: u64, role: Role) -> PathBuf {
        dir_layout::path(&self.path, step, role)
    }

    fn list(&self, folder: &Path) -> Result<Vec<String>> {
        self.disk.list(folder).map_err(CheckpointError::io("list", folder))
    }

    fn rename(&self, action: &'static str, from: &Path, to: &Path) -> Result<()> {
        self.disk.rename(from, to).map_err(CheckpointError::io(action, from))
    }

    fn remove(&self, folder: &Path) -> Result<()> {
        self.disk.remove_dir(folder).map_err(CheckpointError::io("remove", folder))
    }

    pub fn sync(&self, folder: &Path) -> Result<()> {
        self.disk.sync_dir(folder).map_err(CheckpointError::io("sync", folder))
    }

    /// Writes a small file and syncs it.
    pub fn write_text(&self, path: &Path, text: &str) -> Result<()> {
        let failed = || CheckpointError::writing(path, text.len() as u64);
        let mut file = self.disk.create(path).map_err(failed())?;
        file.write(text.as_bytes()).map_err(failed())?;
        file.sync().map_err(failed())
    }

    /// Writes the manifest and renames the directory to its final name. All data is synced before the rename,
    /// and the rename before this returns.
    pub fn commit(&self, meta: CheckpointMeta, ranks: usize) -> Result<Committed> {
        let step = meta.step;
        let partial = self.step(step, Role::Partial);
        let sidecars = (0..ranks).map(|rank| self.sidecar(step, rank, ranks));
        let sidecars = sidecars.collect::<Result<_>>()?;
        let path = partial.join(MANIFEST);
        let manifest = Manifest::gather(meta, sidecars)
            .map_err(|why| CheckpointError::File { path: path.clone(), why })?;
        self.clean(&partial, &manifest)?;
        let text = manifest::to_text(&manifest);
        let sum = format!("{}  {MANIFEST}\n", hex(&Sha256::digest(&text)));
        self.write_text(&path, &text)?;
        self.write_text(&partial.join(MANIFEST_SUM), &sum)?;
        self.sync(&partial)?;
        let replaced = self.give_name(step)?;
        let left = replaced.and_then(|old| self.remove(&old).err()).into_iter().collect();
        Ok(Committed { path: self.step(step, Role::Complete), left })
    }

    /// Removes files that the manifest does not list, such as those of an earlier attempt with more ranks.
    fn clean(&self, partial: &Path, manifest: &Manifest) -> Result<()> {
        for name in self.list(partial)? {
            if !manifest.files.contains_key(&name) {
                let path = partial.join(name);
                self.disk.remove(&path).map_err(CheckpointError::io("remove", &path))?;
            }
        }
        Ok(())
    }

    /// Renames a checkpoint to its final name. An existing one of the same step, kept until then, is returned
    /// for removal.
    fn give_name(&self, step: u64) -> Result<Option<PathBuf>> {
        let [complete, partial, replaced] =
            [Role::Complete, Role::Partial, Role::Replaced].map(|role| self.step(step, role));
        let action = "rename to its final name";
        let again = self.entries()?.contains(&(step, Role::Complete));
        if again {
            self.check_version(step)?;
            self.rename(action, &complete, &replaced)?;
        }
        self.rename(action, &partial, &complete).inspect_err(|_| {
            if again {
                // The existing checkpoint stays valid until the new one is.
                let _ = self.disk.rename(&replaced, &complete);
            }
        })?;
        self.sync(&self.path)?;
        Ok(again.then_some(replaced))
    }

    fn sidecar(&self, step: u64, rank: usize, ranks: usize) -> Result<Sidecar> {
        let path = self.step(step, Role::Partial).join(dir_layout::sidecar(rank));
        let bytes = match self.disk.read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(CheckpointError::NotShared { path, rank });
            }
            result => result.map_err(CheckpointError::io("read", &path))?,
        };
        let sidecar = String::from_utf8(bytes)
            .map_err(|error| error.to_string())
            .and_then(|text| Sidecar::parse(&text));
        let wrong = |why: String| CheckpointError::File { path: path.clone(), why };
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

    /// Fails if the checkpoint of a step has another format version: it must not be removed.
    fn check_version(&self, step: u64) -> Result<()> {
        let path = self.step(step, Role::Complete).join(MANIFEST);
        let text = self.disk.read(&path).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        match text.and_then(|text| manifest::other_version(&text)) {
            Some(found) => Err(CheckpointError::Version { path, found }),
            None => Ok(()),
        }
    }

    /// Removes the oldest checkpoints beyond `keep`, up to the step just committed: later ones belong to another
    /// run. Damaged checkpoints do not count, and are removed with those of their age; those of another format
    /// version stay.
    pub fn prune(&self, newest: u64, keep: usize, damaged: &BTreeSet<u64>) -> Vec<CheckpointError> {
        let mut found = match self.entries() {
            Ok(found) => found,
            Err(error) => return vec![error],
        };
        found.retain(|(step, role)| *role == Role::Complete && *step <= newest);
        let mut steps: Vec<u64> = found.into_iter().map(|(step, _)| step).collect();
        steps.sort_unstable_by(|a, b| b.cmp(a));
        let good = steps.iter().copied().filter(|step| !damaged.contains(step));
        let oldest = good.take(keep).last().unwrap_or(newest);
        let old = steps.into_iter().filter(|step| *step < oldest);
        let old = old.filter(|step| self.check_version(*step).is_ok());
        old.filter_map(|step| self.remove_step(step).err()).collect()
    }

    /// Renames complete checkpoints, all or those after a step, so that they are no longer found. Returns the new
    /// paths.
    pub fn move_aside(&self, after: Option<u64>) -> Result<Vec<PathBuf>> {
        let names = self.list(&self.path)?;
        let found = names.iter().filter_map(|name| dir_layout::parse(name));
        let is_later = |step: u64| after.is_none_or(|after| step > after);
        let later = found.filter(|(step, role)| *role == Role::Complete && is_later(*step));
        let renamed = later.map(|(step, role)| {
            let mut numbered = (1..).map(|n| dir_layout::aside(step, n));
            let free = numbered.find(|name| !names.contains(name));
            let to = self.path.join(free.unwrap_or_default());
            self.rename("set aside", &self.step(step, role), &to).map(|()| to)
        });
        renamed.collect()
    }

    fn remove_step(&self, step: u64) -> Result<()> {
        let removed = self.step(step, Role::Removed);
        // A partially removed checkpoint must not look complete.
        self.rename("remove", &self.step(step, Role::Complete), &removed)?;
        self.remove(&removed)
    }

    /// Cleans up after killed jobs.
    pub fn sweep(&self) -> Result<()> {
        let all = self.entries()?;
        for &(step, role) in &all {
            let path = self.step(step, role);
            let is_only = !all.contains(&(step, Role::Complete));
            match role {
                Role::Complete => {}
                Role::Replaced if is_only => {
                    self.rename("restore", &path, &self.step(step, Role::Complete))?;
                }
                Role::Replaced | Role::Partial | Role::Removed => self.remove(&path)?,
            }
        }
        Ok(())
    }

    /// Removes a partial checkpoint; leftovers are removed at the next start.
    pub fn discard(&self, step: u64) {
        let _ = self.disk.remove_dir(&self.step(step, Role::Partial));
    }

    /// The steps with directories, and their roles.
    pub fn entries(&self) -> Result<Vec<(u64, Role)>> {
        let names = self.list(&self.path)?;
        Ok(names.iter().filter_map(|name| dir_layout::parse(name)).collect())
    }
}
