//! Two levels with as many leaders per node as the smallest node has ranks, each for its share of
//! the data: rings within the nodes, then between the leaders of the same share, then within the
//! nodes. All leaders send concurrently, and the inter-node traffic is minimal.
//!
//! Rounds: 2(*l*-1) + 2(*m*-1) with *l* leaders on each of *m* nodes, plus those of ranks without a
//! share. Each block is reduced once and then copied, so all ranks get identical bits.

use super::build::{RankGroup, copy_round, receive, reduce, send};
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
        let leader = node[local % leaders];
        let fold = vec![send(leader, Input, 0..blocks)];
        return equal_blocks(blocks, vec![fold, vec![receive(leader, Output, 0..blocks)]]);
    }
    // Ranks without a share, which this leader serves.
    let followers: Vec<u32> = node.iter().skip(local + leaders).step_by(leaders).copied().collect();
    let mut rounds: Vec<Round> = Vec::new();
    if !followers.is_empty() {
        rounds.extend(copy_round(Input, Output, 0..blocks));
    }
    rounds.extend(followers.iter().map(|&from| vec![reduce(from, Output, 0..blocks)]));
    let source = if followers.is_empty() { Input } else { Output };
    let inside = RankGroup::of(node[..leaders].to_vec(), ctx.rank)?;
    let across = RankGroup::of(nodes.iter().map(|node| node[local]).collect(), ctx.rank)?;
    rounds.extend(rings(&inside, &across, source));
    rounds.push(followers.iter().map(|&to| send(to, Output, 0..blocks)).collect());
    equal_blocks(blocks, rounds)
}

/// The intra-node reduce-scatter, the inter-node all-reduce and the intra-node all-gather.
fn rings(inside: &RankGroup, across: &RankGroup, source: BufferKind) -> Vec<Round> {
    let (out, width) = (Output, across.size());
    let share = |leader: u32| leader * width..(leader + 1) * width;
    let block = |node: u32| share(inside.me).start + node..share(inside.me).start + node + 1;
    let mut rounds = reduce_scatter_blocks(inside, share, source, out, out);
    rounds.extend(reduce_scatter_blocks(across, block, out, out, out));
    rounds.extend(all_gather_blocks(across, block, out));
    rounds.extend(all_gather_blocks(inside, share, out));
    rounds
}
