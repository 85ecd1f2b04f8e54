//! Which shards a rank owns, and which of them it writes: together, all ranks write each element once. No I/O.

use std::ops::Range;

use crate::checkpoint::StateTensor;
use crate::step::Engine;
use regatta_predict::mesh::{Mesh, MeshCoord};
use regatta_predict::shape::{Module, ParamBlock, ParamSpec, Shard};

/// The shards of a model that a rank owns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedShards {
    /// The device mesh.
    pub mesh: Mesh,
    /// This rank's coordinates.
    pub coord: MeshCoord,
    /// Its range of each block; empty for blocks of other stages.
    pub shards: Vec<Range<usize>>,
    /// Ranks that a block is sharded over.
    pub shard_count: usize,
}

/// A range of a parameter or of its optimizer state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardRange<'a> {
    /// Index of the block.
    pub block: usize,
    /// The parameter.
    pub parameter: &'a ParamSpec,
    /// Parameter or moment.
    pub kind: StateTensor,
    /// Range within this rank's part of the parameter.
    pub range: Range<usize>,
}

impl ShardRange<'_> {
    /// Start within the block.
    pub fn start(&self) -> usize {
        self.parameter.offset + self.range.start
    }
}

impl OwnedShards {
    /// The shards of this rank.
    pub fn of(engine: &Engine) -> Self {
        let (state, groups) = (&engine.state, &engine.groups);
        let mut shards = vec![0..0; state.shards.len()];
        for block in state.local_blocks() {
            shards[block] = state.shards[block].clone();
        }
        Self { mesh: groups.mesh, coord: groups.coord, shards, shard_count: state.shard_count }
    }

    /// This rank's index among the replicas of the same shards.
    pub fn replica(&self) -> Shard {
        let Self { mesh, coord, shard_count, .. } = self;
        Shard { rank: coord.data_rank(mesh) / shard_count, ranks: mesh.data_ranks() / shard_count }
    }

    /// All ranges.
    pub fn all<'a>(&self, blocks: &'a [ParamBlock]) -> Vec<ShardRange<'a>> {
        self.select(blocks, |_, _| true)
    }

    /// The ranges this rank writes: replicas of the same shards write equal parts.
    pub fn written<'a>(&self, blocks: &'a [ParamBlock]) -> Vec<ShardRange<'a>> {
        let mut all = self.select(blocks, |block, index| self.is_writer(block, index, blocks));
        let count = all.iter().map(|shard| shard.range.len()).sum();
        let own = self.replica().range(count);
        let mut before = 0;
        for ShardRange { range, .. } in &mut all {
            let clip = |at: usize| at.clamp(before, before + range.len()) - before;
            let (from, to) = (clip(own.start), clip(own.end));
            before += range.len();
            *range = range.start + from..range.start + to;
        }
        all.retain(|shard| !shard.range.is_empty());
        all
    }

    /// Whether this stage and tensor-parallel rank writes a parameter.
    fn is_writer(&self, block: usize, index: usize, blocks: &[ParamBlock]) -> bool {
        let parameter = &blocks[block].parameters[index];
        // The tied embedding of the last stage is written by the first.
        let is_tied_copy = parameter.role.module == Module::TokenEmbedding && self.coord.pp > 0;
        // Parameters replicated over the tensor-parallel group are written by its ranks in turn.
        let is_sharded = parameter.len() < parameter.full_shape.iter().product();
        !is_tied_copy && (is_sharded || (block + index) % self.mesh.tp == self.coord.tp)
    }

    fn select<'a>(
        &self,
        blocks: &'a [ParamBlock],
        is_selected: impl Fn(usize, usize) -> bool,
    ) -> Vec<ShardRange<'a>> {
        let mut all = Vec::new();
        for kind in StateTensor::ALL {
            for (block, owned) in self.shards.iter().enumerate() {
                for (index, parameter) in blocks[block].parameters.iter().enumerate() {
                    let clip = |at: usize| {
                        at.clamp(owned.start, owned.end).max(parameter.offset) - parameter.offset
                    };
                    let full = parameter.range();
                    let range = clip(full.start)..clip(full.end);
                    if !range.is_empty() && is_selected(block, index) {
                        all.push(ShardRange { block, parameter, kind, range });
                    }
                }
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::super::slices::slices;
    use super::*;
    use crate::model::Model;
    use regatta_predict::shape::Family;
    use regatta_predict::shape::ModelShape;
    use regatta_predict::testing::shape;

    /// A model that is divisible by `tp`.
    fn model(llama: bool, tied: bool, tp: usize, layers: usize, vocabulary: usize) -> ModelShape {
        let mut shape = shape(if llama { Family::Llama } else { Family::Gpt2 });
        (shape.vocab_size, shape.num_layers, shape.tie_embeddings) = (vocabulary, layers, tied);
        (shape.num_kv_heads, shape.num_heads) = (tp, tp * if llama { 2 } else { 1 });
        (shape.hidden_size, shape.intermediate_size) = (shape.num_heads * 2, tp * 3);
        shape
    }

    /// The shards of a rank, and its blocks. The last stage also has a tied embedding.
    fn owned_shards(
        shape: &ModelShape,
        (mesh, tiles): (Mesh, usize),
        shard_count: usize,
        rank: usize,
    ) -> (Vec<ParamBlock>, OwnedShards) {
        let coord = mesh.coord(rank);
        let model = Model::tiled(shape.clone(), coord.tensor_shard(&mesh), tiles);
        let Model { mut blocks, users, .. } = model;
        let last = coord.pp == mesh.pp - 1;
        let is_tied_copy = shape.tie_embeddings && last && coord.pp > 0;
        if is_tied_copy {
            blocks[0]
                .parameters
                .retain(|parameter| parameter.role.module == Module::TokenEmbedding);
        }
        let own = Shard { rank: coord.pp, ranks: mesh.pp }.range(shape.num_layers + 2);
        let shard = Shard { rank: coord.data_rank(&mesh) % shard_count, ranks: shard_count };
        let of = |(number, block): (usize, &ParamBlock)| {
            let padded = block.padded_len().next_multiple_of(shard_count);
            let has = own.contains(&users[number]) || is_tied_copy && users[number] == 0;
            if has { shard.range(padded) } else { 0..0 }
        };
        let shards = blocks.iter().enumerate().map(of).collect();
        (blocks, OwnedShards { mesh, coord, shards, shard_count })
    }

    /// How often each element of the model is among the selected ranges.
    fn marks<'a>(
        shape: &ModelShape,
        ranks: &'a [(Vec<ParamBlock>, OwnedShards)],
        choose: impl Fn(&'a OwnedShards, &'a [ParamBlock]) -> Vec<ShardRange<'a>>,
    ) -> HashMap<(StateTensor, String), Vec<usize>> {
        let mut marks = HashMap::new();
        for block in shape.blocks() {
            for parameter in &block.parameters {
                for kind in StateTensor::ALL {
                    marks.insert((kind, parameter.name.clone()), vec![0; parameter.len()]);
                }
            }
        }
        for (blocks, owned) in ranks {
            for ShardRange { parameter, kind, range, .. } in choose(owned, blocks) {
                let marks = marks.get_mut(&(kind, parameter.name.clone())).unwrap();
                for part in slices(parameter, range) {
                    for run in part.contiguous_ranges(&parameter.full_shape) {
                        marks[run].iter_mut().for_each(|n| *n += 1);
                    }
                }
            }
        }
        marks
    }

    proptest! {
        #[test]
        fn all_ranks_together_write_every_element_once(
            llama: bool, tied: bool, layers in 1usize..4, vocabulary in 5usize..20,
            tp in 1usize..5, cp in 1usize..3, shard in 1usize..4, replicas in 1usize..4,
            pp in 1usize..4, is_sharded: bool, tiles in 1usize..4,
        ) {
            // Context-parallel ranks belong to the shard group.
            let data = shard * replicas * cp;
            let mesh = Mesh { dp: data / cp, cp, tp, pp: pp.min(layers + 2), shard };
            let shape = model(llama, tied, tp, layers, vocabulary);
            let shard_count = if is_sharded { shard } else { 1 };
            let ranks: Vec<_> =
                (0..mesh.ranks()).map(|rank| owned_shards(&shape, (mesh, tiles), shard_count, rank)).collect();
            for ((kind, name), marks) in marks(&shape, &ranks, OwnedShards::written) {
                prop_assert!(marks.iter().all(|n| *n == 1), "{kind}/{name}: {marks:?}");
            }
            for ((kind, name), marks) in marks(&shape, &ranks, OwnedShards::all) {
                let each = data / shard_count;
                prop_assert!(marks.iter().all(|n| *n >= each), "{kind}/{name}: {marks:?}");
            }
        }
    }

    #[test]
    fn replicas_write_equal_parts() {
        let shape = model(false, true, 1, 3, 13);
        let mesh = Mesh::data_parallel(4);
        let all = StateTensor::ALL.len() * shape.num_params();
        for rank in 0..4 {
            let (blocks, owned) = owned_shards(&shape, (mesh, 1), 1, rank);
            let own: usize = owned.written(&blocks).iter().map(|n| n.range.len()).sum();
            assert!(own.abs_diff(all / 4) <= 1, "{own} of {all}");
        }
    }
}
