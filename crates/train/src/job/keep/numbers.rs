//! A rank's numbers on their way to a checkpoint and back: as parts of whole parameters, whatever the
//! rank has of them.

use std::ops::Range;

use super::holding::{Holding, Numbers};
use super::place::parts;
use crate::checkpoint::{Checkpoint, Kind, Piece};
use crate::job::TrainError;
use crate::step::Engine;

/// Numbers that are on their way at once.
const AT_A_TIME: usize = 1 << 20;

/// Copies numbers of this rank's share of a block, from a place in the share on.
pub fn fetch(
    engine: &mut Engine,
    what: (usize, Kind),
    start: usize,
    numbers: &mut [f32],
) -> Result<(), TrainError> {
    let Engine { net, state, .. } = engine;
    Ok(state.fetch(&*net.device, what, start, numbers)?)
}

/// Replaces numbers of this rank's share of a block, from a place in the share on.
pub fn put(
    engine: &mut Engine,
    what: (usize, Kind),
    start: usize,
    numbers: &[f32],
) -> Result<(), TrainError> {
    let Engine { net, state, .. } = engine;
    Ok(state.put(&*net.device, what, start, numbers)?)
}

/// This rank's part of everything.
pub fn pieces(engine: &mut Engine) -> Result<Vec<Piece>, TrainError> {
    let holding = Holding::of(engine);
    let blocks = engine.net.model.blocks.clone();
    let mut pieces = Vec::new();
    for some in holding.written(&blocks) {
        let mut start = some.start(&holding.shares[some.block]);
        for part in parts(some.parameter, some.range.clone()) {
            let (name, shape) = (some.parameter.name.clone(), some.parameter.whole.clone());
            let mut numbers = vec![0.0; part.len(&shape)];
            fetch(engine, (some.block, some.kind), start, &mut numbers)?;
            start += numbers.len();
            pieces.push(Piece { name, kind: some.kind, shape, part, numbers });
        }
    }
    Ok(pieces)
}

/// Reads this rank's shares of all parameters, and of moments where there are any: a model from
/// elsewhere has none. Where ranks have more than their shares, the rest is still to come.
pub fn restore(engine: &mut Engine, checkpoint: &Checkpoint) -> Result<(), TrainError> {
    let holding = Holding::of(engine);
    let blocks = engine.net.model.blocks.clone();
    let mut room = Vec::new();
    for some in holding.all(&blocks) {
        match checkpoint.shape(&some.parameter.name, some.kind) {
            Some(shape) if shape != some.parameter.whole => return Err(other(checkpoint, &some)),
            None if some.kind != Kind::Parameter => continue,
            _ => {}
        }
        let start = some.start(&holding.shares[some.block]);
        for chunk in chunks(some.range.clone()) {
            read(checkpoint, &some, chunk.clone(), &mut room)?;
            put(engine, (some.block, some.kind), start + chunk.start - some.range.start, &room)?;
        }
    }
    Ok(())
}

/// The checkpoint's tensor is of another model.
fn other(checkpoint: &Checkpoint, some: &Numbers<'_>) -> TrainError {
    let (folder, name) = (checkpoint.folder().to_owned(), &some.parameter.name);
    let there = checkpoint.shape(name, some.kind).unwrap_or_default();
    let why = format!("{name} is of shape {there:?} there, {:?} here", some.parameter.whole);
    TrainError::Other { folder, what: "model", why }
}

/// Reads a range of what a rank has of a parameter.
fn read(
    checkpoint: &Checkpoint,
    some: &Numbers<'_>,
    range: Range<usize>,
    numbers: &mut Vec<f32>,
) -> Result<(), TrainError> {
    let (parameter, kind) = (some.parameter, some.kind);
    numbers.resize(range.len(), 0.0);
    let mut rest = &mut numbers[..];
    for part in parts(parameter, range) {
        let (here, behind) = rest.split_at_mut(part.len(&parameter.whole));
        checkpoint.read(&parameter.name, kind, &part, here)?;
        rest = behind;
    }
    Ok(())
}

/// A range in pieces that are not too long.
pub fn chunks(range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.step_by(AT_A_TIME).map(move |start| start..(start + AT_A_TIME).min(end))
}
