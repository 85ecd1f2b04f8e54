//! How a checkpoint comes onto the disk: every rank writes its pieces in the background into a
//! folder that is called partial; when all have, rank 0 describes them and gives it its name.

use std::collections::BTreeSet;
use std::fs::{File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::commit::{self, Committed};
use super::disk::{Disk, System};
use super::error::CheckpointError;
use super::folder::{self, LOCK, Role};
use super::manifest::{About, Sidecar, VERSION};
use super::piece::Piece;
use super::shard::{self, Layout};

/// Where a writer stands.
#[derive(Debug, Clone)]
pub enum State {
    /// There is nothing to do.
    Idle,
    /// This rank's pieces are being written.
    Writing {
        /// Of this step.
        step: u64,
    },
    /// This rank's pieces are on the disk. When all ranks' are, rank 0 commits.
    Written {
        /// Of this step.
        step: u64,
    },
    /// They could not be written; this rank's are removed, and the last good checkpoint is as it
    /// was. Rank 0 abandons the rest, the next one can begin.
    Failed {
        /// Of this step.
        step: u64,
        /// Why.
        error: Arc<CheckpointError>,
    },
}

/// A rank's writer of checkpoints.
pub struct Writer {
    checkpoints: PathBuf,
    rank: usize,
    ranks: usize,
    keep: usize,
    disk: Arc<dyn Disk>,
    stage: Stage,
    /// What the last one is about: rank 0 writes it at the end.
    about: Option<About>,
    /// Steps whose checkpoints were found to be damaged.
    damaged: BTreeSet<u64>,
    /// Held by rank 0 as long as it lives: left-overs of others are nobody's then.
    lock: Option<File>,
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Closing alone would not do while a process that was just started has the file too.
        if let Some(lock) = &self.lock {
            let _ = lock.unlock();
        }
    }
}

enum Stage {
    Working(u64, JoinHandle<Result<(), CheckpointError>>),
    Resting(State),
}

impl Writer {
    /// The writer of a rank, for checkpoints in this folder, of which the newest are kept. Rank 0
    /// removes what killed jobs left there: all ranks' writers are to be made before any begins.
    pub fn new(
        checkpoints: &Path,
        rank: usize,
        ranks: usize,
        keep: usize,
    ) -> Result<Self, CheckpointError> {
        Self::on(Arc::new(System), checkpoints, rank, ranks, keep)
    }

    /// The same on another disk.
    pub fn on(
        disk: Arc<dyn Disk>,
        checkpoints: &Path,
        rank: usize,
        ranks: usize,
        keep: usize,
    ) -> Result<Self, CheckpointError> {
        disk.create_folder(checkpoints).map_err(CheckpointError::writing(checkpoints, 0))?;
        let lock = if rank == 0 { lock(checkpoints)? } else { None };
        // Where nobody can lock, the left-overs may be of a job that still runs.
        if lock.is_some() {
            commit::sweep(&*disk, checkpoints)?;
        }
        let (checkpoints, keep) = (checkpoints.to_owned(), keep.max(1));
        let stage = Stage::Resting(State::Idle);
        let damaged = BTreeSet::new();
        Ok(Self { checkpoints, rank, ranks, keep, disk, stage, about: None, damaged, lock })
    }

    /// Learns which checkpoints are damaged: they do not count among those to keep.
    pub fn pass_over(&mut self, folders: &[PathBuf]) {
        let names = folders.iter().filter_map(|folder| folder.file_name()?.to_str());
        self.damaged.extend(names.filter_map(folder::parse).map(|(step, _)| step));
    }

    /// Takes complete checkpoints out of the way of a run that does not go on from them, as they
    /// would be taken for its own: those after the step that it begins from, or all. By rank 0,
    /// which learns where they are now.
    pub fn set_aside(&self, after: Option<u64>) -> Result<Vec<PathBuf>, CheckpointError> {
        match self.rank {
            0 => commit::set_aside(&*self.disk, &self.checkpoints, after),
            _ => Ok(Vec::new()),
        }
    }

    /// Begins to write this rank's pieces, which may be none, and returns at once.
    pub fn begin(&mut self, about: About, pieces: Vec<Piece>) -> Result<(), CheckpointError> {
        if let State::Writing { step } = self.state() {
            return Err(CheckpointError::Busy { writing: step });
        }
        let layout = shard::lay_out(&pieces)?;
        let step = about.step;
        let task = Task {
            disk: Arc::clone(&self.disk),
            checkpoints: self.checkpoints.clone(),
            step,
            rank: self.rank,
            ranks: self.ranks,
        };
        self.about = Some(about);
        let thread = thread::Builder::new()
            .name("checkpoint".to_owned())
            .spawn(move || task.run(&layout, pieces))
            .map_err(CheckpointError::io("start a thread to write", &self.checkpoints))?;
        self.stage = Stage::Working(step, thread);
        Ok(())
    }

    /// Where it stands, without waiting.
    pub fn state(&mut self) -> State {
        if let Stage::Working(step, thread) = &self.stage {
            let step = *step;
            if !thread.is_finished() {
                return State::Writing { step };
            }
            self.join(step);
        }
        match &self.stage {
            Stage::Resting(state) => state.clone(),
            Stage::Working(step, _) => State::Writing { step: *step },
        }
    }

    fn join(&mut self, step: u64) {
        let idle = Stage::Resting(State::Idle);
        let Stage::Working(_, thread) = std::mem::replace(&mut self.stage, idle) else { return };
        let result = thread.join().unwrap_or_else(|_| {
            let path = folder::path(&self.checkpoints, step, Role::Partial);
            Err(CheckpointError::io("write", &path)(io::Error::other("the thread panicked")))
        });
        self.stage = Stage::Resting(match result {
            Ok(()) => State::Written { step },
            Err(error) => State::Failed { step, error: Arc::new(error) },
        });
    }

    /// Makes a checkpoint of what all ranks have written, and removes the oldest beyond those to
    /// keep: by rank 0, once all ranks' state is [`State::Written`]. If it fails, nothing of it
    /// stays, and the ones before do. On other ranks it only forgets that they have written.
    pub fn commit(&mut self, step: u64) -> Result<Option<Committed>, CheckpointError> {
        let refuse = |why: String| CheckpointError::NotWritten { step, why };
        match self.state() {
            State::Written { step: written } if written == step => {}
            state => return Err(refuse(format!("the writer is {state:?}"))),
        }
        self.stage = Stage::Resting(State::Idle);
        let about = self.about.take().ok_or_else(|| refuse("nothing was begun".to_owned()))?;
        if self.rank != 0 {
            return Ok(None);
        }
        let (disk, checkpoints) = (&*self.disk, self.checkpoints.as_path());
        match commit::commit(disk, checkpoints, about, self.ranks) {
            Ok(mut committed) => {
                self.damaged.remove(&step);
                let left = commit::prune(disk, checkpoints, step, self.keep, &self.damaged);
                committed.left.extend(left);
                Ok(Some(committed))
            }
            Err(error) => {
                commit::discard(disk, checkpoints, step);
                Err(error)
            }
        }
    }

    /// Gives up a checkpoint that some rank could not write: rank 0 removes what the others wrote,
    /// once none of them is writing any more.
    pub fn abandon(&mut self, step: u64) {
        if matches!(self.state(), State::Written { step: s } | State::Failed { step: s, .. } if s == step)
        {
            self.stage = Stage::Resting(State::Idle);
            self.about = None;
        }
        if self.rank == 0 {
            commit::discard(&*self.disk, &self.checkpoints, step);
        }
    }

    /// Waits until this rank's pieces are written, or for so long.
    pub fn finish(&mut self, patience: Duration) -> State {
        let deadline = Instant::now() + patience;
        loop {
            let state = self.state();
            if !matches!(state, State::Writing { .. }) || Instant::now() >= deadline {
                return state;
            }
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// What the thread needs to know.
struct Task {
    disk: Arc<dyn Disk>,
    checkpoints: PathBuf,
    step: u64,
    rank: usize,
    ranks: usize,
}

impl Task {
    fn run(self, layout: &Layout, pieces: Vec<Piece>) -> Result<(), CheckpointError> {
        let result = self.write(layout, pieces);
        if result.is_err() {
            // What cannot be removed now is removed at the next start.
            let folder = folder::path(&self.checkpoints, self.step, Role::Partial);
            if self.ranks == 1 {
                let _ = self.disk.remove_folder(&folder);
            } else {
                let _ = self.disk.remove(&folder.join(folder::sidecar(self.rank)));
                let _ = self.disk.remove(&folder.join(folder::shard(self.rank)));
            }
        }
        result
    }

    fn write(&self, layout: &Layout, pieces: Vec<Piece>) -> Result<(), CheckpointError> {
        let disk = &*self.disk;
        let folder = folder::path(&self.checkpoints, self.step, Role::Partial);
        let path = folder.join(folder::shard(self.rank));
        let (needed, free) = (layout.bytes, disk.free(&self.checkpoints));
        if free.is_some_and(|free| free < needed) {
            return Err(CheckpointError::NoRoom { path, needed, free });
        }
        disk.create_folder(&folder).map_err(CheckpointError::writing(&folder, needed))?;
        let empty = pieces.is_empty();
        let (bytes, pieces) = if empty {
            (0, Vec::new())
        } else {
            (needed, shard::write(disk, &path, layout, pieces)?)
        };
        let (step, rank, ranks) = (self.step, self.rank, self.ranks);
        let sidecar = Sidecar { version: VERSION, step, rank, ranks, bytes, pieces };
        // Its being there says that the numbers are.
        commit::write_text(disk, &folder.join(folder::sidecar(rank)), &sidecar.to_text())?;
        disk.sync_folder(&folder).map_err(CheckpointError::io("sync", &folder))
    }
}

/// Takes the folder for this job. Nothing where the file system cannot lock.
fn lock(checkpoints: &Path) -> Result<Option<File>, CheckpointError> {
    let path = checkpoints.join(LOCK);
    let options = File::options().read(true).write(true).create(true).truncate(false).open(&path);
    let mut file = options.map_err(CheckpointError::writing(&path, 0))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let owner = std::fs::read_to_string(&path).unwrap_or_default().trim().to_owned();
            return Err(CheckpointError::InUse { folder: checkpoints.to_owned(), owner });
        }
        Err(TryLockError::Error(_)) => return Ok(None),
    }
    let node = rustix::system::uname();
    let text = format!("process {} on {}\n", std::process::id(), node.nodename().to_string_lossy());
    // Only for people to read: no reason to fail.
    let _ = file.set_len(0).and_then(|()| file.write_all(text.as_bytes()));
    Ok(Some(file))
}
