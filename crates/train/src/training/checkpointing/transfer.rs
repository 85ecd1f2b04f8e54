//! Copies a rank's shards to a checkpoint and back, as slices of the full parameters.

use std::ops::Range;

use super::owned_shards::{OwnedShards, ShardRange};
use super::slices::slices;
use crate::checkpoint::{Checkpoint, ShardMeta, StateTensor};
use crate::step::Engine;
use crate::training::{Result, TrainError};

/// Elements copied at a time.
const CHUNK_LEN: usize = 1 << 20;

/// Passes this rank's parameters and optimizer state of a block to `visit`, chunk by chunk. Writes the chunk
/// back if `visit` returns true.
pub fn visit_block(
    engine: &mut Engine,
    block: usize,
    visit: &mut dyn FnMut(&mut [f32]) -> Result<bool>,
) -> Result<()> {
    let mut elements = Vec::new();
    for kind in StateTensor::ALL {
        for chunk in chunks(engine.state.shards[block].clone()) {
            elements.resize(chunk.len(), 0.0);
            engine.state.read_elements(block, kind, chunk.start, &mut elements)?;
            if visit(&mut elements)? {
                engine.state.write_elements(block, kind, chunk.start, &elements)?;
            }
        }
    }
    Ok(())
}

/// A shard of a checkpoint and its location in the engine.
#[derive(Debug, Clone)]
pub struct OwnedShard {
    /// Name, kind, shape and slice.
    pub meta: ShardMeta,
    block: usize,
    start: usize,
}

impl OwnedShard {
    /// Its elements.
    pub fn elements(&self, engine: &mut Engine) -> Result<Vec<f32>> {
        let ShardMeta { kind, shape, slice, .. } = &self.meta;
        let mut elements = vec![0.0; slice.len(shape)];
        engine.state.read_elements(self.block, *kind, self.start, &mut elements)?;
        Ok(elements)
    }
}

/// The shards that this rank writes.
pub fn owned_shards(engine: &Engine) -> Vec<OwnedShard> {
    let mut shards = Vec::new();
    for range in OwnedShards::of(engine).written(&engine.device_model.model.blocks) {
        let ShardRange { block, parameter, kind, .. } = range;
        let mut start = range.start();
        for slice in slices(range.parameter, range.range.clone()) {
            let (name, shape) = (parameter.name.clone(), parameter.full_shape.clone());
            let len = slice.len(&shape);
            shards.push(OwnedShard { meta: ShardMeta { name, kind, shape, slice }, block, start });
            start += len;
        }
    }
    shards
}

/// Reads this rank's shards of all parameters, and of optimizer state if present (imported models have
/// none). Unsharded copies are updated later.
pub fn restore(engine: &mut Engine, checkpoint: &Checkpoint) -> Result<()> {
    let blocks = engine.device_model.model.blocks.clone();
    let mut buffer = Vec::new();
    for range in OwnedShards::of(engine).all(&blocks) {
        let (name, full_shape) = (&range.parameter.name, &range.parameter.full_shape);
        match checkpoint.shape(name, range.kind) {
            Some(stored) if stored != full_shape => {
                let folder = checkpoint.folder().to_owned();
                let why = format!(
                    "{name} has shape {stored:?} in the checkpoint and {full_shape:?} in the model"
                );
                return Err(TrainError::Incompatible { folder, what: "model", why });
            }
            None if range.kind != StateTensor::Parameter => continue,
            _ => {}
        }
        for chunk in chunks(range.range.clone()) {
            let start = range.parameter.offset + chunk.start;
            read(checkpoint, &range, chunk, &mut buffer)?;
            engine.state.write_elements(range.block, range.kind, start, &buffer)?;
        }
    }
    Ok(())
}

/// Reads a range of this rank's slice of a parameter.
fn read(
    checkpoint: &Checkpoint,
    owned: &ShardRange<'_>,
    range: Range<usize>,
    elements: &mut Vec<f32>,
) -> Result<()> {
    let (parameter, kind) = (owned.parameter, owned.kind);
    elements.resize(range.len(), 0.0);
    let mut rest = &mut elements[..];
    for slice in slices(parameter, range) {
        let (part, after) = rest.split_at_mut(slice.len(&parameter.full_shape));
        checkpoint.read(&parameter.name, kind, &slice, part)?;
        rest = after;
    }
    Ok(())
}

/// A range in chunks of limited size.
fn chunks(range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.step_by(CHUNK_LEN).map(move |start| start..(start + CHUNK_LEN).min(end))
}
