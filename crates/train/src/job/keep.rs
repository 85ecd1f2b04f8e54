//! Checkpoints of a training: what each rank writes, when all have, and how it is read again.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::checkpoint::{About, Checkpoint, CheckpointError, Kind, Part, Piece, State, Writer};
use crate::shape::{Block, Parameter};
use crate::step::Engine;

/// No disk takes longer for a rank's part of a checkpoint.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);

/// All parameters with the numbers of their blocks.
fn numbered(blocks: &[Block]) -> impl Iterator<Item = (usize, &Parameter)> {
    let of = |(number, block): (usize, &'_ Block)| (number, block.parameters.len());
    let all: Vec<(usize, usize)> = blocks.iter().enumerate().map(of).collect();
    let places = all.into_iter().flat_map(|(number, count)| (0..count).map(move |i| (number, i)));
    places.map(|(number, i)| (number, &blocks[number].parameters[i]))
}

/// This rank's part of everything: ranks that have the same numbers share the writing, equally.
pub fn pieces(engine: &Engine, rank: usize, ranks: usize) -> Vec<Piece> {
    let blocks = &engine.net.model.blocks;
    let all = Kind::ALL.len() * blocks.iter().map(Block::len).sum::<usize>();
    let own = all * rank / ranks..all * (rank + 1) / ranks;
    let mut pieces = Vec::new();
    let mut start = 0;
    for kind in Kind::ALL {
        for (block, parameter) in numbered(blocks) {
            let end = start + parameter.len();
            let (from, to) = (own.start.clamp(start, end), own.end.clamp(start, end));
            if from < to {
                pieces.push(piece(engine, (block, kind), parameter, from - start..to - start));
            }
            start = end;
        }
    }
    pieces
}

fn piece(
    engine: &Engine,
    (block, kind): (usize, Kind),
    parameter: &Parameter,
    part: Range<usize>,
) -> Piece {
    let begin = parameter.start;
    let all = engine.state.own(block, kind);
    let mut numbers = vec![0.0; part.len()];
    engine.net.device.fetch(all.part(begin + part.start..begin + part.end), &mut numbers);
    let whole = part.len() == parameter.len();
    let part = if whole { Part::Whole } else { Part::Flat(part) };
    let (name, shape) = (parameter.name.clone(), parameter.shape.clone());
    Piece { name, kind, shape, part, numbers }
}

/// Reads all parameters, and moments where there are any: a model from elsewhere has none.
pub fn restore(engine: &mut Engine, checkpoint: &Checkpoint) -> Result<(), CheckpointError> {
    let Engine { net, state, .. } = engine;
    for (block, parameter) in numbered(&net.model.blocks) {
        for kind in Kind::ALL {
            let found = checkpoint.shape(&parameter.name, kind).is_some();
            if kind != Kind::Parameter && !found {
                continue;
            }
            let mut numbers = vec![0.0; parameter.len()];
            checkpoint.read(&parameter.name, kind, &Part::Whole, &mut numbers)?;
            let mut all = state.own_mut(block, kind);
            net.device.put(&numbers, all.part(parameter.range()));
        }
    }
    Ok(())
}

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
    rank: usize,
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
        Ok(Self { writer, rank, ranks, under_way: None, refused: None })
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
    pub fn begin(&mut self, engine: &Engine, about: About) {
        self.under_way = Some((about.step, Instant::now()));
        let begun = self.writer.begin(about, pieces(engine, self.rank, self.ranks));
        self.refused = begun.err().map(Arc::new);
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
