//! Checkpoints of a training: what each rank writes, when all have, and how it is read again.

mod holding;
mod numbers;
mod place;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use holding::Holding;
use numbers::pieces;
pub use numbers::{chunks, fetch, put, restore};

use super::TrainError;
use crate::checkpoint::{About, CheckpointError, State, Writer};
use crate::step::Engine;

/// No disk takes longer for a rank's part of a checkpoint.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);

/// What became of a checkpoint.
#[derive(Debug)]
pub enum Kept {
    /// It is complete; rank 0 knows where.
    Complete {
        /// Of so many steps.
        step: u64,
        /// Its folder, on rank 0.
        folder: Option<PathBuf>,
        /// How long it took.
        seconds: f64,
        /// What else is to be said.
        notes: Vec<String>,
    },
    /// Some rank could not write its part. The one before is as it was.
    Failed {
        /// Of so many steps.
        step: u64,
        /// Why, on the ranks that know.
        why: Option<Arc<CheckpointError>>,
    },
}

/// A rank's part in the checkpoints of a training.
pub struct Keeper {
    writer: Writer,
    ranks: usize,
    /// The step of the one that is being written, and when it began.
    under_way: Option<(u64, Instant)>,
    /// Why that could not even begin on this rank.
    refused: Option<Arc<CheckpointError>>,
}

impl Keeper {
    /// In a folder that all ranks see.
    pub fn new(
        folder: &Path,
        rank: usize,
        ranks: usize,
        keep: usize,
    ) -> Result<Self, CheckpointError> {
        let writer = Writer::new(folder, rank, ranks, keep)?;
        Ok(Self { writer, ranks, under_way: None, refused: None })
    }

    /// Learns which checkpoints are damaged.
    pub fn pass_over(&mut self, folders: &[PathBuf]) {
        self.writer.pass_over(folders);
    }

    /// Takes later checkpoints, or all, out of the way of a run that does not go on from them.
    pub fn set_aside(&self, after: Option<u64>) -> Result<Vec<PathBuf>, CheckpointError> {
        self.writer.set_aside(after)
    }

    /// Begins a checkpoint. None must be under way. What goes wrong is heard when all have ended.
    pub fn begin(&mut self, engine: &mut Engine, about: About) -> Result<(), TrainError> {
        self.under_way = Some((about.step, Instant::now()));
        let begun = self.writer.begin(about, pieces(engine)?);
        self.refused = begun.err().map(Arc::new);
        Ok(())
    }

    /// Waits until this rank's part is written, or is known not to be.
    pub fn wait(&mut self) {
        if self.under_way.is_some() {
            self.writer.finish(PATIENCE);
        }
    }

    /// What this rank has to tell the others: whether its part is written, and whether that failed.
    pub fn says(&mut self) -> [f64; 2] {
        match self.writer.state() {
            _ if self.under_way.is_none() => [0.0, 0.0],
            _ if self.refused.is_some() => [0.0, 1.0],
            State::Written { .. } => [1.0, 0.0],
            State::Failed { .. } => [0.0, 1.0],
            _ => [0.0, 0.0],
        }
    }

    /// Hears how many ranks said what. When all have written, rank 0 makes it complete; when all
    /// have ended and some have failed, all forget it.
    pub fn hear(&mut self, [written, failed]: [f64; 2]) -> Option<Kept> {
        let ended = (written + failed) as usize == self.ranks;
        let (step, began) = self.under_way.take_if(|_| ended)?;
        if failed > 0.0 {
            let why = match (self.refused.take(), self.writer.state()) {
                (Some(error), _) | (None, State::Failed { error, .. }) => Some(error),
                _ => None,
            };
            self.writer.abandon(step);
            return Some(Kept::Failed { step, why });
        }
        Some(match self.writer.commit(step) {
            Ok(committed) => {
                let left = committed.iter().flat_map(|c| &c.left).map(ToString::to_string);
                let notes = left.collect();
                let seconds = began.elapsed().as_secs_f64();
                Kept::Complete { step, folder: committed.map(|c| c.path), seconds, notes }
            }
            Err(error) => Kept::Failed { step, why: Some(Arc::new(error)) },
        })
    }
}
