//! Writes checkpoints: every rank writes its shards in the background to a partial directory; once all have,
//! rank 0 writes the manifest and renames the directory.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::commit::{CheckpointDir, Committed};
use super::dir_layout::{self, LOCK, Role};
use super::disk::{Disk, SystemDisk};
use super::error::{CheckpointError, Result};
use super::find::Skipped;
use super::manifest::{self, CheckpointMeta, Sidecar, VERSION};
use super::shard::{Shard, ShardMeta};
use super::shard_file::{self, ShardFileLayout};
use crate::lock_file::{LockResult, lock_file};

/// State of a writer.
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "the fields' names say it")]
pub enum State {
    /// No save in progress.
    Idle,
    /// This rank is writing its shards.
    Writing { step: u64 },
    /// This rank has written its shards. Rank 0 commits once all have.
    Written { step: u64 },
    /// This rank failed to write its shards, and removed them; earlier checkpoints are unaffected. Rank 0
    /// abandons the save.
    Failed { step: u64, error: Arc<CheckpointError> },
}

impl State {
    /// After this rank's shards of a step were written or not.
    fn after(step: u64, result: Result<()>) -> Self {
        match result {
            Ok(()) => Self::Written { step },
            Err(error) => Self::Failed { step, error: Arc::new(error) },
        }
    }
}

/// A rank's checkpoint writer.
pub struct Writer {
    dir: CheckpointDir,
    rank: usize,
    ranks: usize,
    keep: usize,
    /// The step being written, and the thread that writes it.
    thread: Option<(u64, JoinHandle<Result<()>>)>,
    /// The state while no thread is writing.
    state: State,
    /// Metadata of the save in progress; rank 0 writes it on commit.
    meta: Option<CheckpointMeta>,
    /// Steps whose checkpoints are damaged.
    damaged: BTreeSet<u64>,
    /// Held by rank 0 for its lifetime: leftovers of others are then safe to remove.
    lock: Option<File>,
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Unlocks explicitly, because a child process may have inherited the descriptor.
        if let Some(lock) = &self.lock {
            let _ = lock.unlock();
        }
    }
}

impl Writer {
    /// A writer for this directory that keeps the newest `keep` checkpoints. Rank 0 cleans up after killed jobs,
    /// so all ranks must create their writers before any starts to write.
    pub fn new(checkpoints: &Path, rank: usize, ranks: usize, keep: usize) -> Result<Self> {
        Self::with_disk(Arc::new(SystemDisk), checkpoints, rank, ranks, keep)
    }

    /// On another file system.
    pub fn with_disk(
        disk: Arc<dyn Disk>,
        checkpoints: &Path,
        rank: usize,
        ranks: usize,
        keep: usize,
    ) -> Result<Self> {
        disk.create_dir(checkpoints).map_err(CheckpointError::writing(checkpoints, 0))?;
        let dir = CheckpointDir { disk, path: checkpoints.to_owned() };
        let lock = if rank == 0 { lock(checkpoints)? } else { None };
        // Without a lock, leftovers may belong to a running job.
        if lock.is_some() {
            dir.sweep()?;
        }
        let (keep, damaged) = (keep.max(1), BTreeSet::new());
        let (thread, state, meta) = (None, State::Idle, None);
        Ok(Self { dir, rank, ranks, keep, thread, state, meta, damaged, lock })
    }

    /// Marks checkpoints as damaged: they do not count towards `keep`.
    pub fn mark_damaged(&mut self, skipped: &[Skipped]) {
        let names = skipped.iter().filter_map(|skipped| skipped.folder.file_name()?.to_str());
        self.damaged.extend(names.filter_map(dir_layout::parse).map(|(step, _)| step));
    }

    /// Moves complete checkpoints, all or those after a step, out of the way of a run that does not resume from
    /// them. On rank 0, which gets the new paths.
    pub fn move_aside(&self, after: Option<u64>) -> Result<Vec<PathBuf>> {
        match self.rank {
            0 => self.dir.move_aside(after),
            _ => Ok(Vec::new()),
        }
    }

    /// Starts to write this rank's shards, possibly none, in the background.
    pub fn begin(&mut self, meta: CheckpointMeta, shards: Vec<Shard>) -> Result<()> {
        let metas: Vec<ShardMeta> = shards.iter().map(|shard| shard.meta.clone()).collect();
        let task = self.prepare(meta, &metas)?;
        shards.iter().try_for_each(shard_file::check)?;
        let step = task.step;
        let thread = thread::Builder::new()
            .name("checkpoint".to_owned())
            .spawn(move || task.run(shards.into_iter().map(Ok)))
            .map_err(CheckpointError::io("start a thread for", &self.dir.path))?;
        self.thread = Some((step, thread));
        Ok(())
    }

    /// Writes this rank's shards before it returns, requesting the elements of one shard at a time, to save
    /// memory. Only errors of these requests are returned; others are in the state.
    pub fn write_blocking<E: From<CheckpointError>>(
        &mut self,
        meta: CheckpointMeta,
        shards: Vec<ShardMeta>,
        elements: &mut dyn FnMut(usize) -> Result<Vec<f32>, E>,
    ) -> Result<(), E> {
        let task = self.prepare(meta, &shards)?;
        let mut missing = None;
        let shards = shards.into_iter().enumerate().map(|(number, meta)| match elements(number) {
            Ok(elements) => Ok(Shard { meta, elements }),
            Err(error) => {
                missing = Some(error);
                let (name, why) = (meta.name, "cannot be read".to_owned());
                Err(CheckpointError::InvalidShard { name, why })
            }
        });
        let (step, result) = (task.step, task.run(shards));
        self.state = State::after(step, result);
        missing.map_or(Ok(()), Err)
    }

    /// The task of a new save.
    fn prepare(&mut self, meta: CheckpointMeta, shards: &[ShardMeta]) -> Result<Task> {
        if let State::Writing { step } = self.state() {
            return Err(CheckpointError::Busy { writing: step });
        }
        let layout = shard_file::lay_out(shards)?;
        let (dir, step, rank, ranks) = (self.dir.clone(), meta.step, self.rank, self.ranks);
        self.meta = Some(meta);
        Ok(Task { dir, step, rank, ranks, layout })
    }

    /// The state, without waiting.
    pub fn state(&mut self) -> State {
        if let Some((step, thread)) = self.thread.take_if(|(_, thread)| thread.is_finished()) {
            let result = thread.join().unwrap_or_else(|_| {
                let path = self.dir.step(step, Role::Partial);
                Err(CheckpointError::io("write", &path)(io::Error::other("the thread panicked")))
            });
            self.state = State::after(step, result);
        }
        match self.thread {
            Some((step, _)) => State::Writing { step },
            None => self.state.clone(),
        }
    }

    /// Commits the checkpoint and prunes old ones. For rank 0, once the state of all ranks is
    /// [`State::Written`]; other ranks only become idle. A failed commit leaves earlier checkpoints unaffected.
    pub fn commit(&mut self, step: u64) -> Result<Option<Committed>> {
        let refuse = |why: String| CheckpointError::NotWritten { step, why };
        match self.state() {
            State::Written { step: written } if written == step => {}
            state => return Err(refuse(format!("the writer is {state:?}"))),
        }
        self.state = State::Idle;
        let meta = self.meta.take().ok_or_else(|| refuse("no save was started".to_owned()))?;
        if self.rank != 0 {
            return Ok(None);
        }
        let committed = self.dir.commit(meta, self.ranks);
        let mut committed = committed.inspect_err(|_| self.dir.discard(step))?;
        self.damaged.remove(&step);
        committed.left.extend(self.dir.prune(step, self.keep, &self.damaged));
        Ok(Some(committed))
    }

    /// Abandons a save that failed on some rank: rank 0 removes its files, once no rank is writing.
    pub fn abandon(&mut self, step: u64) {
        if matches!(self.state(), State::Written { step: s } | State::Failed { step: s, .. } if s == step)
        {
            self.state = State::Idle;
            self.meta = None;
        }
        if self.rank == 0 {
            self.dir.discard(step);
        }
    }

    /// Waits until this rank's shards are written, with a timeout.
    pub fn finish(&mut self, timeout: Duration) -> State {
        let deadline = Instant::now() + timeout;
        loop {
            let state = self.state();
            if !matches!(state, State::Writing { .. }) || Instant::now() >= deadline {
                return state;
            }
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// The input of the writing thread.
struct Task {
    dir: CheckpointDir,
    step: u64,
    rank: usize,
    ranks: usize,
    layout: ShardFileLayout,
}

impl Task {
    fn run(self, shards: impl ExactSizeIterator<Item = Result<Shard>>) -> Result<()> {
        self.write(shards).inspect_err(|_| {
            // Leftovers are removed at the next start.
            let Self { dir: CheckpointDir { disk, .. }, rank, .. } = &self;
            let folder = self.dir.step(self.step, Role::Partial);
            if self.ranks == 1 {
                let _ = disk.remove_dir(&folder);
            } else {
                let _ = disk.remove(&folder.join(dir_layout::sidecar(*rank)));
                let _ = disk.remove(&folder.join(dir_layout::shard(*rank)));
            }
        })
    }

    fn write(&self, shards: impl ExactSizeIterator<Item = Result<Shard>>) -> Result<()> {
        let disk = &*self.dir.disk;
        let folder = self.dir.step(self.step, Role::Partial);
        let path = folder.join(dir_layout::shard(self.rank));
        let (needed, free) = (self.layout.bytes, disk.free_bytes(&self.dir.path));
        if free.is_some_and(|free| free < needed) {
            return Err(CheckpointError::NoSpace { path, needed, free });
        }
        disk.create_dir(&folder).map_err(CheckpointError::writing(&folder, needed))?;
        let (bytes, shards) = if shards.len() == 0 {
            (0, Vec::new())
        } else {
            (needed, shard_file::write(disk, &path, &self.layout, shards)?)
        };
        let (step, rank, ranks) = (self.step, self.rank, self.ranks);
        let sidecar = Sidecar { version: VERSION, step, rank, ranks, bytes, shards };
        // The sidecar is written last: it marks the data as complete.
        self.dir
            .write_text(&folder.join(dir_layout::sidecar(rank)), &manifest::to_text(&sidecar))?;
        self.dir.sync(&folder)
    }
}

/// Locks the directory for this job. None if the file system does not support locks.
fn lock(checkpoints: &Path) -> Result<Option<File>> {
    let path = checkpoints.join(LOCK);
    match lock_file(&path).map_err(CheckpointError::writing(&path, 0))? {
        LockResult::Locked(file) => Ok(Some(file)),
        LockResult::Unsupported => Ok(None),
        LockResult::HeldBy(owner) => {
            Err(CheckpointError::Locked { folder: checkpoints.to_owned(), owner })
        }
    }
}
