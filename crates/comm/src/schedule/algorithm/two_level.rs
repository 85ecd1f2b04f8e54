//! Intra-node, then between one leader per node, then intra-node again. Few messages cross the
//! network, and only leaders communicate with other nodes.
//!
//! Rounds: twice a binomial tree within the node, plus recursive doubling (all-reduce), a binomial
//! tree, or a ring (all-gather) between the leaders. Leaders get identical bits by recursive
//! doubling and the other ranks get copies, so all ranks get identical bits.

use std::collections::BTreeMap;
use std::ops::Range;

use super::build::{RankGroup, copy, receive, send};
use super::ring::all_gather_blocks;
use super::{Program, RankContext, binomial, equal_blocks, per_rank_blocks, recursive_doubling};
use crate::schedule::BufferKind::{Input, Output, Scratch};
use crate::schedule::Round;

/// The two levels from one rank's perspective.
struct Levels {
    /// The ranks of this node, leader first.
    node: RankGroup,
    /// The leaders in the order of `members`, if this rank is one.
    leaders: Option<RankGroup>,
    /// The ranks of each node, ascending; the root's node first.
    members: Vec<Vec<u32>>,
}

/// The ranks of each node, in node order.
pub(super) fn by_node(ctx: &RankContext) -> Vec<Vec<u32>> {
    let mut nodes: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for rank in 0..ctx.ranks {
        let node = ctx.nodes.get(rank as usize).copied().unwrap_or(0);
        nodes.entry(node).or_default().push(rank);
    }
    nodes.into_values().collect()
}

impl Levels {
    /// The root leads its node; the first rank leads every other node.
    fn new(ctx: &RankContext) -> Option<Self> {
        let mut members = by_node(ctx);
        let of_root = members.iter().position(|node| node.contains(&ctx.root))?;
        members.swap(0, of_root);
        let leader = |node: &[u32]| if node.contains(&ctx.root) { ctx.root } else { node[0] };
        let leaders = members.iter().map(|node| leader(node)).collect();
        let mut node = members.iter().find(|node| node.contains(&ctx.rank))?.clone();
        let first = node.iter().position(|rank| *rank == leader(&node))?;
        node.swap(0, first);
        let node = RankGroup::of(node, ctx.rank)?;
        Some(Self { node, leaders: RankGroup::of(leaders, ctx.rank), members })
    }

    /// A leader's inter-node rounds; empty for other ranks.
    fn between_leaders(&self, rounds: impl Fn(&RankGroup) -> Vec<Round>) -> Vec<Round> {
        self.leaders.as_ref().map(rounds).unwrap_or_default()
    }
}

pub(super) fn all_reduce(ctx: &RankContext) -> Option<Program> {
    equal_blocks(1, all_reduce_rounds(&Levels::new(ctx)?, 0..1))
}

pub(super) fn barrier(ctx: &RankContext) -> Option<Program> {
    equal_blocks(0, all_reduce_rounds(&Levels::new(ctx)?, 0..0))
}

fn all_reduce_rounds(levels: &Levels, blocks: Range<u32>) -> Vec<Round> {
    let mut rounds = binomial::reduce_to_root(&levels.node, Input, Output, blocks.clone());
    rounds.extend(levels.between_leaders(|leaders| {
        recursive_doubling::reduce_all(leaders, Output, blocks.clone())
    }));
    rounds.extend(binomial::broadcast_from_root(&levels.node, blocks));
    rounds
}

pub(super) fn reduce(ctx: &RankContext) -> Option<Program> {
    let levels = Levels::new(ctx)?;
    let work = if ctx.is_root() { Output } else { Scratch };
    let mut rounds = binomial::reduce_to_root(&levels.node, Input, work, 0..1);
    let between = |leaders: &RankGroup| binomial::reduce_to_root(leaders, work, work, 0..1);
    rounds.extend(levels.between_leaders(between));
    equal_blocks(1, rounds)
}

pub(super) fn broadcast(ctx: &RankContext) -> Option<Program> {
    let levels = Levels::new(ctx)?;
    let mut rounds = levels.between_leaders(|leaders| binomial::broadcast_from_root(leaders, 0..1));
    rounds.extend(binomial::broadcast_from_root(&levels.node, 0..1));
    equal_blocks(1, rounds)
}

/// Leaders gather their node's blocks, all-gather along a ring and broadcast within their node.
pub(super) fn all_gather(ctx: &RankContext) -> Option<Program> {
    let levels = Levels::new(ctx)?;
    let mut rounds = match levels.node.me {
        0 => {
            let others = (1..levels.node.size()).map(|at| levels.node.rank(at));
            let received = others.map(|from| receive(from, Output, from..from + 1));
            vec![received.chain([copy(Input, Output, ctx.own())]).collect()]
        }
        _ => vec![vec![send(levels.node.rank(0), Input, ctx.own())]],
    };
    // Each leader's part is the blocks of its node.
    rounds.extend(levels.between_leaders(|leaders| {
        all_gather_blocks(leaders, |node| runs(&levels.members[node as usize]), Output)
    }));
    rounds.extend(binomial::broadcast_from_root(&levels.node, 0..ctx.ranks));
    per_rank_blocks(rounds)
}

/// Ascending ranks as contiguous ranges.
fn runs(ranks: &[u32]) -> impl Iterator<Item = Range<u32>> {
    ranks.chunk_by(|a, b| a + 1 == *b).map(|run| run[0]..run[0] + run.len() as u32)
}
