//! Two levels with as many leaders per node as the smallest node has ranks, each for its share of
//! the data: rings within the nodes, then between the leaders of the same share, then within the
//! nodes. All leaders send concurrently, and the inter-node traffic is minimal.
//!
//! Rounds: 2(*l*-1) + 2(*m*-1) with *l* leaders on each of *m* nodes, plus those of ranks without a
//! share. Each block is reduced once and then copied, so all ranks get identical bits.

use super::build::{RankGroup, follow, lead};
use super::ring::{all_gather_blocks, reduce_scatter_blocks};
use super::two_level::by_node;
use super::{Program, RankContext, equal_blocks};
use crate::schedule::BufferKind::{self, Input, Output};
use crate::schedule::Round;

pub(super) fn all_reduce(ctx: &RankContext) -> Option<Program> {
    let nodes = by_node(ctx);
    let leaders = nodes.iter().map(Vec::len).min()?;
    let node = nodes.iter().find(|node| node.contains(&ctx.rank))?;
    let local = node.iter().position(|&rank| rank == ctx.rank)?;
    let blocks = (leaders * nodes.len()) as u32;
    if local >= leaders {
        return equal_blocks(blocks, follow(node[local % leaders], Input, 0..blocks));
    }
    // Ranks without a share, which this leader serves.
    let followers: Vec<u32> = node.iter().skip(local + leaders).step_by(leaders).copied().collect();
    let inside = RankGroup::of(node[..leaders].to_vec(), ctx.rank)?;
    let across = RankGroup::of(nodes.iter().map(|node| node[local]).collect(), ctx.rank)?;
    let active = |source| rings(&inside, &across, source);
    equal_blocks(blocks, lead(&followers, Input, 0..blocks, active))
}

/// The intra-node reduce-scatter, the inter-node all-reduce and the intra-node all-gather.
fn rings(inside: &RankGroup, across: &RankGroup, source: BufferKind) -> Vec<Round> {
    let (out, width) = (Output, across.size());
    let share = |leader: u32| leader * width..(leader + 1) * width;
    let block = |node: u32| {
        let at = inside.me * width + node;
        at..at + 1
    };
    let mut rounds = reduce_scatter_blocks(inside, share, source, out, out);
    rounds.extend(reduce_scatter_blocks(across, block, out, out, out));
    rounds.extend(all_gather_blocks(across, |node| [block(node)], out));
    rounds.extend(all_gather_blocks(inside, |leader| [share(leader)], out));
    rounds
}
