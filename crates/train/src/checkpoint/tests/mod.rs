//! Checkpoints end to end: written by several ranks, read by others, damaged, interrupted.

mod crash;
mod damage;
mod faults;
mod faulty;
mod round;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::disk::{Disk, SystemDisk};
use super::*;
use crate::testing::TempDir;
use regatta_predict::shape::{Family, ModelShape};

/// The names in a checkpoint directory, without the lock file.
fn names(dir: &TempDir) -> Vec<String> {
    let mut names = dir.names();
    names.retain(|name| name != dir_layout::LOCK);
    names
}

/// A tiny model.
fn shape() -> ModelShape {
    ModelShape {
        vocab_size: 7,
        hidden_size: 4,
        num_kv_heads: 1,
        intermediate_size: 6,
        ..regatta_predict::testing::shape(Family::Llama)
    }
}

fn meta(step: u64) -> CheckpointMeta {
    let config = "[train]\nsteps = 10\n".to_owned();
    let (tokenizer, extra) = ("characters".to_owned(), Default::default());
    CheckpointMeta { step, tokens: step * 32, seed: 7, shape: shape(), config, tokenizer, extra }
}

/// The elements of a tensor at a step.
fn elements(step: u64, kind: StateTensor, name: &str, len: usize) -> Vec<f32> {
    let start = name.bytes().map(u64::from).sum::<u64>() + 1000 * step + 7 * kind as u64;
    (0..len as u64).map(|i| (start + i) as f32 / 16.0).collect()
}

/// How tensors are sharded.
#[derive(Debug, Clone, Copy)]
enum Split {
    /// Each rank has every n-th tensor.
    Tensors,
    /// Each rank has a flat range.
    Flat,
    /// Each rank has some rows.
    Rows,
    /// Each rank has some columns.
    Columns,
}

fn slice(
    split: Split,
    shape: &[usize],
    tensor: usize,
    rank: usize,
    ranks: usize,
) -> Option<TensorSlice> {
    let (rows, columns) = shard::matrix(shape).unwrap();
    let share = |n: usize| n * rank / ranks..n * (rank + 1) / ranks;
    match split {
        Split::Tensors => (tensor % ranks == rank).then_some(TensorSlice::Whole),
        Split::Flat => Some(TensorSlice::Flat(share(rows * columns))),
        Split::Rows => Some(TensorSlice::Rectangle { rows: share(rows), columns: 0..columns }),
        Split::Columns => Some(TensorSlice::Rectangle { rows: 0..rows, columns: share(columns) }),
    }
}

fn elements_of(slice: &TensorSlice, shape: &[usize], all: &[f32]) -> Vec<f32> {
    slice.contiguous_ranges(shape).flat_map(|run| all[run].iter().copied()).collect()
}

fn tensors() -> Vec<(StateTensor, String, Vec<usize>)> {
    let blocks = shape().blocks();
    let parameters = blocks.iter().flat_map(|block| &block.parameters);
    let of = |p: &regatta_predict::shape::ParamSpec| {
        StateTensor::ALL.map(|kind| (kind, p.name.clone(), p.shape.clone()))
    };
    parameters.flat_map(of).collect()
}

fn shards(step: u64, split: Split, rank: usize, ranks: usize) -> Vec<Shard> {
    let mut shards = Vec::new();
    for (index, (kind, name, shape)) in tensors().into_iter().enumerate() {
        let Some(slice) = slice(split, &shape, index, rank, ranks) else { continue };
        let all = elements(step, kind, &name, shape.iter().product());
        let elements = elements_of(&slice, &shape, &all);
        shards.push(Shard { meta: ShardMeta { name, kind, shape, slice }, elements });
    }
    shards
}

const TIMEOUT: Duration = Duration::from_secs(60);

/// What a training loop does: all ranks start and finish, rank 0 commits or abandons.
fn save(
    writers: &mut [Writer],
    step: u64,
    split: Split,
) -> Result<Option<Committed>, Arc<CheckpointError>> {
    let ranks = writers.len();
    for (rank, writer) in writers.iter_mut().enumerate() {
        writer.begin(meta(step), shards(step, split, rank, ranks)).map_err(Arc::new)?;
    }
    let states: Vec<State> = writers.iter_mut().map(|writer| writer.finish(TIMEOUT)).collect();
    for state in states {
        match state {
            State::Written { .. } => {}
            State::Failed { error, .. } => {
                writers.iter_mut().for_each(|writer| writer.abandon(step));
                return Err(error);
            }
            state => panic!("{state:?} after {TIMEOUT:?}"),
        }
    }
    // Rank 0 first, because it reports the result.
    let results: Vec<_> = writers.iter_mut().map(|writer| writer.commit(step)).collect();
    results.into_iter().next().unwrap().map_err(Arc::new)
}

fn writers(folder: &Path, ranks: usize, keep: usize) -> Vec<Writer> {
    (0..ranks).map(|rank| Writer::new(folder, rank, ranks, keep).unwrap()).collect()
}

/// All elements are those of the step.
fn assert_is(checkpoint: &Checkpoint, step: u64) {
    assert_eq!(checkpoint.meta(), &meta(step));
    for (kind, name, shape) in tensors() {
        assert_eq!(checkpoint.shape(&name, kind), Some(shape.as_slice()));
        let expected = elements(step, kind, &name, shape.iter().product());
        assert_eq!(checkpoint.read_whole(&name, kind).unwrap(), expected, "{kind}/{name}");
    }
}
