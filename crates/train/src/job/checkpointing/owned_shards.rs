//! Which shards a rank owns, and index of them it writes: together, all ranks write each element once. No I/O.

use std::ops::Range;

use crate::checkpoint::StateTensor;
use crate::step::Engine;
use regatta_predict::mesh::{Mesh, Seat};
use regatta_predict::shape::{Block, Parameter, Share, TABLE};

/// The shards of a model that a rank owns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedShards {
    /// The device mesh.
    pub mesh: Mesh,
    /// This rank's coordinates.
    pub seat: Seat,
    /// Its range of each block; empty for blocks of other stages.
    pub shares: Vec<Range<usize>>,
    /// Ranks that a block is sharded over.
    pub sharing: usize,
}

/// A range of a parameter or of its optimizer state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardRange<'a> {
    /// Index of the block.
    pub block: usize,
    /// The parameter.
    pub parameter: &'a Parameter,
    /// Parameter or moment.
    pub kind: StateTensor,
    /// Range within this rank's part of the parameter.
    pub range: Range<usize>,
}

impl ShardRange<'_> {
    /// Start within the block.
    pub fn start(&self) -> usize {
        self.parameter.start + self.range.start
    }
}

impl OwnedShards {
    /// The shards of this rank.
    pub fn of(engine: &Engine) -> Self {
        let (state, groups) = (&engine.state, &engine.groups);
        let mut shares = vec![0..0; state.shards.len()];
        for block in state.local_blocks() {
            shares[block] = state.shards[block].clone();
        }
        Self { mesh: groups.mesh, seat: groups.coord, shares, sharing: state.shard_count }
    }

    /// This rank's index among the replicas of the same shards.
    pub fn replica(&self) -> Share {
        let Self { mesh, seat, sharing, .. } = self;
        Share { rank: seat.data_rank(mesh) / sharing, ranks: mesh.data_ranks() / sharing }
    }

    /// All ranges.
    pub fn all<'a>(&self, blocks: &'a [Block]) -> Vec<ShardRange<'a>> {
        self.select(blocks, |_, _| true)
    }

    /// The ranges this rank writes: replicas of the same shards write equal parts.
    pub fn written<'a>(&self, blocks: &'a [Block]) -> Vec<ShardRange<'a>> {
        let mut all = self.select(blocks, |block, index| self.is_writer(block, index, blocks));
        let count = all.iter().map(|shard| shard.range.len()).sum();
        let own = self.replica().of(count);
        let mut before = 0;
        for ShardRange { range, .. } in &mut all {
            let clip = |place: usize| place.clamp(before, before + range.len()) - before;
            let (from, to) = (clip(own.start), clip(own.end));
            before += range.len();
            *range = range.start + from..range.start + to;
        }
        all.retain(|shard| !shard.range.is_empty());
        all
    }

    /// Whether this stage and tensor-parallel rank writes a parameter.
    fn is_writer(&self, block: usize, index: usize, blocks: &[Block]) -> bool {
        let parameter = &blocks[block].parameters[index];
        // The tied embedding of the last stage is written by the first.
        let is_tied_copy = parameter.name == TABLE && self.seat.pp > 0;
        // Parameters replicated over the tensor-parallel group are written by its ranks in turn.
        let is_sharded = parameter.len() < parameter.whole.iter().product();
        !is_tied_copy && (is_sharded || (block + index) % self.mesh.tp == self.seat.tp)
    }

    fn select<'a>(
        &self,
        blocks: &'a [Block],
        is_selected: impl Fn(usize, usize) -> bool,
    ) -> Vec<ShardRange<'a>> {
        let mut all = Vec::new();
        for kind in StateTensor::ALL {
            for (block, share) in self.shares.iter().enumerate() {
                for (index, parameter) in blocks[block].parameters.iter().enumerate() {
                    let clip = |place: usize| {
                        place.clamp(share.start, share.end).max(parameter.start) - parameter.start
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
    use regatta_predict::shape::Shape;
    use regatta_predict::testing::shape;

    /// A model that is divisible by `tp`.
    fn model(llama: bool, tied: bool, tp: usize, layers: usize, vocabulary: usize) -> Shape {
        let mut shape = shape(if llama { Family::Llama } else { Family::Gpt2 });
        (shape.vocabulary, shape.layers, shape.tied) = (vocabulary, layers, tied);
        (shape.kv_heads, shape.heads) = (tp, tp * if llama { 2 } else { 1 });
        (shape.width, shape.feed_forward) = (shape.heads * 2, tp * 3);
        shape
    }

    /// The shards of a rank, and its blocks. The last stage also has a tied embedding.
    fn holding(
        shape: &Shape,
        (mesh, tiles): (Mesh, usize),
        sharing: usize,
        rank: usize,
    ) -> (Vec<Block>, OwnedShards) {
        let seat = mesh.seat(rank);
        let model = Model::tiled(shape.clone(), seat.tensor_share(&mesh), tiles);
        let Model { mut blocks, users, .. } = model;
        let last = seat.pp == mesh.pp - 1;
        let is_tied_copy = shape.tied && last && seat.pp > 0;
        if is_tied_copy {
            blocks[0].parameters.retain(|parameter| parameter.name == TABLE);
        }
        let own = Share { rank: seat.pp, ranks: mesh.pp }.of(shape.layers + 2);
        let share = Share { rank: seat.data_rank(&mesh) % sharing, ranks: sharing };
        let of = |(number, block): (usize, &Block)| {
            let padded = block.room().next_multiple_of(sharing);
            let has = own.contains(&users[number]) || is_tied_copy && users[number] == 0;
            if has { share.of(padded) } else { 0..0 }
        };
        let shares = blocks.iter().enumerate().map(of).collect();
        (blocks, OwnedShards { mesh, seat, shares, sharing })
    }

    /// How often each element of the model is among the selected ranges.
    fn marks<'a>(
        shape: &Shape,
        ranks: &'a [(Vec<Block>, OwnedShards)],
        choose: impl Fn(&'a OwnedShards, &'a [Block]) -> Vec<ShardRange<'a>>,
    ) -> HashMap<(StateTensor, String), Vec<usize>> {
        let mut marks = HashMap::new();
        for block in shape.blocks() {
            for parameter in &block.parameters {
                for kind in StateTensor::ALL {
                    marks.insert((kind, parameter.name.clone()), vec![0; parameter.len()]);
                }
            }
        }
        for (blocks, holding) in ranks {
            for ShardRange { parameter, kind, range, .. } in choose(holding, blocks) {
                let marks = marks.get_mut(&(kind, parameter.name.clone())).unwrap();
                for part in slices(parameter, range) {
                    for run in part.runs(&parameter.whole) {
                        marks[run.start..run.start + run.len].iter_mut().for_each(|n| *n += 1);
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
            pp in 1usize..4, shares: bool, tiles in 1usize..4,
        ) {
            // Context-parallel ranks belong to the shard group.
            let data = shard * replicas * cp;
            let mesh = Mesh { dp: data / cp, cp, tp, pp: pp.min(layers + 2), shard };
            let shape = model(llama, tied, tp, layers, vocabulary);
            let sharing = if shares { shard } else { 1 };
            let ranks: Vec<_> =
                (0..mesh.ranks()).map(|rank| holding(&shape, (mesh, tiles), sharing, rank)).collect();
            for ((kind, name), marks) in marks(&shape, &ranks, OwnedShards::written) {
                prop_assert!(marks.iter().all(|n| *n == 1), "{kind}/{name}: {marks:?}");
            }
            for ((kind, name), marks) in marks(&shape, &ranks, OwnedShards::all) {
                let each = data / sharing;
                prop_assert!(marks.iter().all(|n| *n >= each), "{kind}/{name}: {marks:?}");
            }
        }
    }

    #[test]
    fn replicas_write_equal_parts() {
        let shape = model(false, true, 1, 3, 13);
        let mesh = Mesh::data(4);
        let all = StateTensor::ALL.len() * shape.parameters();
        for rank in 0..4 {
            let (blocks, holding) = holding(&shape, (mesh, 1), 1, rank);
            let own: usize = holding.written(&blocks).iter().map(|n| n.range.len()).sum();
            assert!(own.abs_diff(all / 4) <= 1, "{own} of {all}");
        }
    }
}
