//! Checkpoints of a training: what each rank writes, when all have, and how it is read again.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::error::TrainError;
use crate::checkpoint::{self, About, Checkpoint, CheckpointError, Kind, Part, Piece, Writer};
use crate::shape::{Block, Parameter};
use crate::state::State;
use crate::step::{Engine, Net, StepError};

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
pub fn pieces(engine: &mut Engine) -> Result<Vec<Piece>, StepError> {
    let Engine { net, state, groups, stage } = engine;
    // A tied table that two stages have is the first one's.
    let own: Vec<_> = own(net, state).filter(|(block, ..)| stage.has(*block)).collect();
    let all: usize = own.iter().map(|(.., part)| part.len()).sum();
    let (copy, copies) = groups.copy(state.sharing);
    let written = all * copy / copies..all * (copy + 1) / copies;
    let mut pieces = Vec::new();
    let mut start = 0;
    for (block, kind, parameter, part) in own {
        let end = start + part.len();
        let (from, to) = (written.start.clamp(start, end), written.end.clamp(start, end));
        let part = part.start + from - start..part.start + to - start;
        if !part.is_empty() {
            let mut numbers = vec![0.0; part.len()];
            let first = parameter.start + part.start;
            state.fetch(&*net.device, (block, kind), first, &mut numbers)?;
            pieces.push(piece(parameter, kind, part, numbers));
        }
        start = end;
    }
    Ok(pieces)
}

/// All that this rank has: which numbers of each parameter, and of what belongs to it.
fn own<'a>(
    net: &'a Net,
    state: &State,
) -> impl Iterator<Item = (usize, Kind, &'a Parameter, Range<usize>)> {
    let (shares, held) = (&state.shares, state.held().collect::<Vec<_>>());
    let of = |(block, parameter): (usize, &'a Parameter)| {
        let (range, share) = (parameter.range(), &shares[block]);
        let clamp = |place: usize| place.clamp(range.start, range.end) - parameter.start;
        (block, parameter, clamp(share.start)..clamp(share.end))
    };
    let here: Vec<_> = numbered(&net.model.blocks).map(of).collect();
    let here: Vec<_> = here.into_iter().filter(|(block, ..)| held.contains(block)).collect();
    Kind::ALL.into_iter().flat_map(move |kind| {
        let one = move |(block, parameter, part)| (block, kind, parameter, part);
        here.clone().into_iter().map(one)
    })
}

fn piece(parameter: &Parameter, kind: Kind, part: Range<usize>, numbers: Vec<f32>) -> Piece {
    let whole = part.len() == parameter.len();
    let part = if whole { Part::Whole } else { Part::Flat(part) };
    let (name, shape) = (parameter.name.clone(), parameter.shape.clone());
    Piece { name, kind, shape, part, numbers }
}

/// Reads this rank's parameters, and moments where there are any: a model from elsewhere has none.
pub fn restore(engine: &mut Engine, checkpoint: &Checkpoint) -> Result<(), TrainError> {
    let Engine { net, state, .. } = engine;
    for (block, kind, parameter, part) in own(net, state).collect::<Vec<_>>() {
        let found = checkpoint.shape(&parameter.name, kind).is_some();
        if part.is_empty() || kind != Kind::Parameter && !found {
            continue;
        }
        let (first, mut numbers) = (parameter.start + part.start, vec![0.0; part.len()]);
        let whole = part.len() == parameter.len();
        let part = if whole { Part::Whole } else { Part::Flat(part) };
        checkpoint.read(&parameter.name, kind, &part, &mut numbers)?;
        state.put(&*net.device, (block, kind), first, &numbers)?;
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

    /// Takes later checkpoints out of the way of a run that begins before them.
    pub fn set_aside(&self, after: u64) -> Result<Vec<PathBuf>, CheckpointError> {
        self.writer.set_aside(after)
    }

    /// Begins a checkpoint. None must be under way. What goes wrong is heard when all have ended.
    pub fn begin(&mut self, engine: &mut Engine, about: About) -> Result<(), StepError> {
        let pieces = pieces(engine)?;
        self.under_way = Some((about.step, Instant::now()));
        self.refused = self.writer.begin(about, pieces).err().map(Arc::new);
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
            checkpoint::State::Written { .. } => [1.0, 0.0],
            checkpoint::State::Failed { .. } => [0.0, 1.0],
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
                (Some(error), _) | (None, checkpoint::State::Failed { error, .. }) => Some(error),
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
