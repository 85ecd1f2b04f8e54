//! Checkpointing of a training run: which shards each rank writes, when a checkpoint is complete, and how it
//! is restored.

mod owned_shards;
mod periodic;
mod slices;
#[cfg(test)]
mod tests;
mod transfer;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use owned_shards::OwnedShards;
use transfer::{OwnedShard, owned_shards};
pub use transfer::{restore, visit_block};

use super::{Result, TrainError};
use crate::checkpoint::{self, CheckpointError, CheckpointMeta, Shard, State, Writer};
use crate::run_clock;
use crate::step::Engine;

/// Upper bound for writing a rank's shards.
const TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// Result of a checkpoint.
#[derive(Debug)]
pub enum SaveOutcome {
    /// The checkpoint is complete.
    Complete { step: u64, folder: Option<PathBuf>, seconds: f64, notes: Vec<String> },
    /// Some rank failed to write its shards. The previous checkpoint is unaffected.
    Failed { step: u64, why: Option<Arc<CheckpointError>> },
}

/// Saves checkpoints of a training run; every rank has one.
pub struct CheckpointManager {
    /// Writes this rank's shards.
    pub writer: Writer,
    ranks: usize,
    /// Whether shards are copied and written while training continues; else training blocks, and they need no
    /// additional memory.
    pub in_background: bool,
    /// Step and start time of the save in progress.
    in_progress: Option<(u64, Instant)>,
    /// Why the save in progress could not start on this rank.
    start_error: Option<Arc<CheckpointError>>,
}

impl CheckpointManager {
    /// In a directory that all ranks share.
    pub fn new(folder: &Path, rank: usize, ranks: usize, keep: usize) -> checkpoint::Result<Self> {
        let writer = Writer::new(folder, rank, ranks, keep)?;
        Ok(Self { writer, ranks, in_background: true, in_progress: None, start_error: None })
    }

    /// Starts a save. None may be in progress. Errors are reported once all ranks have finished.
    pub fn start(&mut self, engine: &mut Engine, meta: CheckpointMeta) -> Result<()> {
        self.in_progress = Some((meta.step, run_clock::now()));
        let shards = owned_shards(engine);
        let started = match self.in_background {
            true => {
                let copy = |shard: &OwnedShard| {
                    Ok(Shard { meta: shard.meta.clone(), elements: shard.elements(engine)? })
                };
                let copies = shards.iter().map(copy).collect::<Result<_>>()?;
                self.writer.begin(meta, copies).map_err(TrainError::from)
            }
            false => {
                let metas = shards.iter().map(|shard| shard.meta.clone()).collect();
                self.writer.write_blocking(meta, metas, &mut |index| shards[index].elements(engine))
            }
        };
        self.start_error = None;
        match started {
            Err(TrainError::Checkpoint(error)) => self.start_error = Some(Arc::new(error)),
            other => other?,
        }
        Ok(())
    }

    /// Waits until this rank's shards are written or have failed.
    pub fn wait(&mut self) {
        if self.in_progress.is_some() {
            self.writer.finish(TIMEOUT);
        }
    }

    /// Whether this rank has written its shards, and whether it has failed.
    pub fn save_counts(&mut self) -> [f64; 2] {
        match self.writer.state() {
            _ if self.in_progress.is_none() => [0.0, 0.0],
            _ if self.start_error.is_some() => [0.0, 1.0],
            State::Written { .. } => [1.0, 0.0],
            State::Failed { .. } => [0.0, 1.0],
            _ => [0.0, 0.0],
        }
    }

    /// Handles the sums of [`Self::save_counts`] over all ranks. Once all have finished, commits the checkpoint,
    /// or abandons it if any rank failed.
    pub fn resolve(&mut self, [written, failed]: [f64; 2]) -> Option<SaveOutcome> {
        let is_finished = (written + failed) as usize == self.ranks;
        let (step, start) = self.in_progress.take_if(|_| is_finished)?;
        if failed > 0.0 {
            let why = match (self.start_error.take(), self.writer.state()) {
                (Some(error), _) | (None, State::Failed { error, .. }) => Some(error),
                _ => None,
            };
            self.writer.abandon(step);
            return Some(SaveOutcome::Failed { step, why });
        }
        Some(match self.writer.commit(step) {
            Ok(committed) => {
                let left = committed.iter().flat_map(|c| &c.left).map(ToString::to_string);
                let notes = left.collect();
                let seconds = run_clock::elapsed(start).as_secs_f64();
                SaveOutcome::Complete { step, folder: committed.map(|c| c.path), seconds, notes }
            }
            Err(error) => SaveOutcome::Failed { step, why: Some(Arc::new(error)) },
        })
    }
}
