//! Which numbers of the model a rank has, and which of them it writes: all ranks together write each
//! once. No I/O.

use std::ops::Range;

use crate::checkpoint::Kind;
use crate::step::Engine;
use regatta_predict::mesh::{Mesh, Seat};
use regatta_predict::shape::{Block, Parameter, Share, TABLE};

/// What a rank has of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holding {
    /// How ranks are laid out.
    pub mesh: Mesh,
    /// Where this one sits.
    pub seat: Seat,
    /// Its share of the numbers of each block; none of a block that it does not have.
    pub shares: Vec<Range<usize>>,
    /// Among how many ranks a block is shared.
    pub sharing: usize,
}

/// Some of a rank's numbers of a parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Numbers<'a> {
    /// The block's number.
    pub block: usize,
    /// The parameter.
    pub parameter: &'a Parameter,
    /// What is meant of it: parameters or moments.
    pub kind: Kind,
    /// From where to where in the parameter, as this rank has it.
    pub range: Range<usize>,
}

impl Numbers<'_> {
    /// Where they begin in the block.
    pub fn start(&self) -> usize {
        self.parameter.start + self.range.start
    }
}

impl Holding {
    /// What this rank has.
    pub fn of(engine: &Engine) -> Self {
        let (state, groups) = (&engine.state, &engine.groups);
        let mut shares = vec![0..0; state.shares.len()];
        for block in state.held() {
            shares[block] = state.shares[block].clone();
        }
        Self { mesh: groups.mesh, seat: groups.seat, shares, sharing: state.sharing }
    }

    /// Which of the ranks it is that have the same share of the same blocks.
    pub fn copy(&self) -> Share {
        let Self { mesh, seat, sharing, .. } = self;
        Share { rank: seat.data_rank(mesh) / sharing, ranks: mesh.data_ranks() / sharing }
    }

    /// All numbers that it has.
    pub fn all<'a>(&self, blocks: &'a [Block]) -> Vec<Numbers<'a>> {
        self.chosen(blocks, |_, _| true)
    }

    /// Those that it writes. Of several ranks that have the same, each writes as many.
    pub fn written<'a>(&self, blocks: &'a [Block]) -> Vec<Numbers<'a>> {
        let mut all = self.chosen(blocks, |block, which| self.is_first(block, which, blocks));
        let count = all.iter().map(|numbers| numbers.range.len()).sum();
        let own = self.copy().of(count);
        let mut before = 0;
        for Numbers { range, .. } in &mut all {
            let clip = |place: usize| place.clamp(before, before + range.len()) - before;
            let (from, to) = (clip(own.start), clip(own.end));
            before += range.len();
            *range = range.start + from..range.start + to;
        }
        all.retain(|numbers| !numbers.range.is_empty());
        all
    }

    /// Whether a parameter is this stage's and this tensor rank's to write.
    fn is_first(&self, block: usize, which: usize, blocks: &[Block]) -> bool {
        let parameter = &blocks[block].parameters[which];
        // The last stage has a tied table again, which the first one writes.
        let again = parameter.name == TABLE && self.seat.pp > 0;
        // What a tensor group's ranks all have, they write in turn.
        let shared = parameter.len() < parameter.whole.iter().product();
        !again && (shared || (block + which) % self.mesh.tp == self.seat.tp)
    }

    fn chosen<'a>(
        &self,
        blocks: &'a [Block],
        is_chosen: impl Fn(usize, usize) -> bool,
    ) -> Vec<Numbers<'a>> {
        let mut all = Vec::new();
        for kind in Kind::ALL {
            for (block, share) in self.shares.iter().enumerate() {
                for (which, parameter) in blocks[block].parameters.iter().enumerate() {
                    let clip = |place: usize| {
                        place.clamp(share.start, share.end).max(parameter.start) - parameter.start
                    };
                    let here = parameter.range();
                    let range = clip(here.start)..clip(here.end);
                    if !range.is_empty() && is_chosen(block, which) {
                        all.push(Numbers { block, parameter, kind, range });
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

    use super::super::place::parts;
    use super::*;
    use crate::model::Model;
    use regatta_predict::shape::Family;
    use regatta_predict::shape::Shape;
    use regatta_predict::testing::shape;

    /// A model that divides among so many tensor ranks.
    fn model(llama: bool, tied: bool, tp: usize, layers: usize, vocabulary: usize) -> Shape {
        let mut shape = shape(if llama { Family::Llama } else { Family::Gpt2 });
        (shape.vocabulary, shape.layers, shape.tied) = (vocabulary, layers, tied);
        (shape.kv_heads, shape.heads) = (tp, tp * if llama { 2 } else { 1 });
        (shape.width, shape.feed_forward) = (shape.heads * 2, tp * 3);
        shape
    }

    /// What a rank has, and its blocks. Stages have blocks in order, and the last one a tied table.
    fn holding(
        shape: &Shape,
        (mesh, tiles): (Mesh, usize),
        sharing: usize,
        rank: usize,
    ) -> (Vec<Block>, Holding) {
        let seat = mesh.seat(rank);
        let model = Model::tiled(shape.clone(), seat.tensor_share(&mesh), tiles);
        let Model { mut blocks, users, .. } = model;
        let last = seat.pp == mesh.pp - 1;
        let again = shape.tied && last && seat.pp > 0;
        if again {
            blocks[0].parameters.retain(|parameter| parameter.name == TABLE);
        }
        let own = Share { rank: seat.pp, ranks: mesh.pp }.of(shape.layers + 2);
        let share = Share { rank: seat.data_rank(&mesh) % sharing, ranks: sharing };
        let of = |(number, block): (usize, &Block)| {
            let padded = block.room().next_multiple_of(sharing);
            let has = own.contains(&users[number]) || again && users[number] == 0;
            if has { share.of(padded) } else { 0..0 }
        };
        let shares = blocks.iter().enumerate().map(of).collect();
        (blocks, Holding { mesh, seat, shares, sharing })
    }

    /// How often each number of the model is among those that ranks choose.
    fn marks<'a>(
        shape: &Shape,
        ranks: &'a [(Vec<Block>, Holding)],
        choose: impl Fn(&'a Holding, &'a [Block]) -> Vec<Numbers<'a>>,
    ) -> HashMap<(Kind, String), Vec<usize>> {
        let mut marks = HashMap::new();
        for block in shape.blocks() {
            for parameter in &block.parameters {
                for kind in Kind::ALL {
                    marks.insert((kind, parameter.name.clone()), vec![0; parameter.len()]);
                }
            }
        }
        for (blocks, holding) in ranks {
            for Numbers { parameter, kind, range, .. } in choose(holding, blocks) {
                let marks = marks.get_mut(&(kind, parameter.name.clone())).unwrap();
                for part in parts(parameter, range) {
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
        fn all_ranks_write_every_number_once(
            llama: bool, tied: bool, layers in 1usize..4, vocabulary in 5usize..20,
            tp in 1usize..5, cp in 1usize..3, shard in 1usize..4, replicas in 1usize..4,
            pp in 1usize..4, shares: bool, tiles in 1usize..4,
        ) {
            // Context ranks are among those that share state.
            let data = shard * replicas * cp;
            let mesh = Mesh { dp: data / cp, cp, tp, pp: pp.min(layers + 2), shard };
            let shape = model(llama, tied, tp, layers, vocabulary);
            let sharing = if shares { shard } else { 1 };
            let ranks: Vec<_> =
                (0..mesh.ranks()).map(|rank| holding(&shape, (mesh, tiles), sharing, rank)).collect();
            for ((kind, name), marks) in marks(&shape, &ranks, Holding::written) {
                prop_assert!(marks.iter().all(|n| *n == 1), "{kind}/{name}: {marks:?}");
            }
            for ((kind, name), marks) in marks(&shape, &ranks, Holding::all) {
                let each = data / sharing;
                prop_assert!(marks.iter().all(|n| *n >= each), "{kind}/{name}: {marks:?}");
            }
        }
    }

    #[test]
    fn copies_write_as_much_as_each_other() {
        let shape = model(false, true, 1, 3, 13);
        let mesh = Mesh::data(4);
        let all = Kind::ALL.len() * shape.parameters();
        for rank in 0..4 {
            let (blocks, holding) = holding(&shape, (mesh, 1), 1, rank);
            let own: usize = holding.written(&blocks).iter().map(|n| n.range.len()).sum();
            assert!(own.abs_diff(all / 4) <= 1, "{own} of {all}");
        }
    }
}
