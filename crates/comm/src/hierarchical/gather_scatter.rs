//! Gather and scatter in two levels, for blocks so short that the number of messages dominates. With
//! the same number of ranks on all nodes they use rails, through all ranks of the root's node
//! concurrently; otherwise the blocks of a node go through its leader.
//!
//! Longer blocks are sent directly, because staging costs at least two copies.

use super::Hierarchical;
use super::node_layout::NodeLayout;
use super::rails::{Rails, block_permutation, per_rank};
use super::two_level::leaders;
use crate::engine::Engine;
use crate::{Call, CallKind, Counts, DType, Result};

/// Copying a longer block (on average) takes longer than a message.
const MAX_STAGED_BLOCK_BYTES: usize = 4 << 10;

/// The blocks of all ranks, ordered by node.
struct NodeBlocks {
    /// The ranks in this order, with their element counts.
    ranks: Vec<(u32, usize)>,
    /// Elements of each node.
    node_counts: Vec<usize>,
    /// Elements of each rank of this node.
    own: Vec<usize>,
}

impl NodeBlocks {
    fn new(layout: &NodeLayout, counts: &Counts) -> Self {
        let count = |rank: u32| (rank, counts.of(rank as usize));
        let node = |node| layout.ranks_of(node).map(count).collect::<Vec<_>>();
        let all: Vec<Vec<(u32, usize)>> = (0..layout.nodes).map(node).collect();
        let own = all[layout.node as usize].iter().map(|(_, count)| *count).collect();
        let elements = |node: &Vec<(u32, usize)>| node.iter().map(|(_, count)| count).sum();
        Self { node_counts: all.iter().map(elements).collect(), own, ranks: all.concat() }
    }

    /// Counts per local rank that give all elements to one of them.
    fn all_to(&self, local_rank: usize) -> Vec<usize> {
        let mut counts = vec![0; self.own.len()];
        counts[local_rank] = self.node_counts.iter().sum();
        counts
    }
}

/// Runs one stage of a gather or scatter with these arguments and returns its output; the input if
/// this rank does not take part.
fn run_stage<E: Engine>(
    group: Option<&mut E>,
    (kind, dtype): (CallKind, DType),
    (root, counts): (u32, &[usize]),
    input: Vec<u8>,
    output_bytes: usize,
) -> Result<Vec<u8>> {
    let Some(group) = group else { return Ok(input) };
    let mut output = vec![0; output_bytes];
    let call = Call::new(kind, dtype, per_rank(counts), &mut output);
    group.run(Call { root, input: Some(&input), ..call })?;
    Ok(output)
}

impl Hierarchical {
    pub(super) fn gather(&mut self, call: Call<'_>) -> Result {
        match (self.is_short(&call), self.layout.uniform) {
            (true, true) => self.gather_by_rails(call),
            (true, false) => self.gather_by_leaders(call),
            (false, _) => self.world.run(call),
        }
    }

    pub(super) fn scatter(&mut self, call: Call<'_>) -> Result {
        match (self.is_short(&call), self.layout.uniform) {
            (true, true) => self.scatter_by_rails(call),
            (true, false) => self.scatter_by_leaders(call),
            (false, _) => self.world.run(call),
        }
    }

    fn is_short(&self, call: &Call) -> bool {
        let ranks = self.layout.ranks();
        call.counts.total(ranks) * call.dtype.size() <= MAX_STAGED_BLOCK_BYTES * ranks
    }

    /// Gathers each rail on the root's node, then gathers the rails at the root.
    fn gather_by_rails(&mut self, call: Call<'_>) -> Result {
        let (node, local_rank) = self.layout.coords(call.root);
        let rails = Rails::new(&self.layout, &call.counts);
        let (size, is_root) = (call.dtype.size(), self.world.rank() == call.root);
        let (on_root_node, of) = (self.layout.node == node, (CallKind::Gather, call.dtype));
        let length = |bytes: usize, wanted| if wanted { bytes } else { 0 };
        let own = call.contribution(self.world.rank() as usize).to_vec();
        let rail_bytes = length(rails.rail.len() * size, on_root_node);
        let rail = run_stage(self.rail.as_mut(), of, (node, &rails.own), own, rail_bytes)?;
        if !on_root_node {
            return Ok(());
        }
        let (counts, bytes) = (&rails.rail_counts, length(call.output.len(), is_root));
        let all = run_stage(self.local.as_mut(), of, (local_rank, counts), rail, bytes)?;
        if is_root {
            unpermute(&call.counts, &rails.ranks, size, &all, call.output);
        }
        Ok(())
    }

    /// The root scatters the rails within its node, then each rail scatters its blocks.
    fn scatter_by_rails(&mut self, call: Call<'_>) -> Result {
        let (node, local_rank) = self.layout.coords(call.root);
        let rails = Rails::new(&self.layout, &call.counts);
        let of = (CallKind::Scatter, call.dtype);
        let mut all = self.scattered(&call, &rails.ranks);
        if self.layout.node == node {
            let (counts, bytes) = (&rails.rail_counts, rails.rail.len() * call.dtype.size());
            all = run_stage(self.local.as_mut(), of, (local_rank, counts), all, bytes)?;
        }
        let own = call.own_block(self.world.rank() as usize).len();
        let block = run_stage(self.rail.as_mut(), of, (node, &rails.own), all, own)?;
        let result = call.result_range(self.world.rank() as usize);
        call.output[result].copy_from_slice(&block);
        Ok(())
    }

    /// To the leader of each node, to the leader of the root's node, to the root.
    fn gather_by_leaders(&mut self, call: Call<'_>) -> Result {
        let (node, local_rank) = self.layout.coords(call.root);
        let nodes = NodeBlocks::new(&self.layout, &call.counts);
        let (size, own_local) = (call.dtype.size(), self.layout.local_rank);
        let (on_root_node, is_root) = (self.layout.node == node, self.world.rank() == call.root);
        let length = |counts: &[usize], wanted| if wanted { counts.iter().sum() } else { 0 } * size;
        let of = (CallKind::Gather, call.dtype);
        let (own, each) = (&nodes.own, &nodes.node_counts);
        let all = call.contribution(self.world.rank() as usize).to_vec();
        let bytes = length(own, own_local == 0);
        let all = run_stage(self.local.as_mut(), of, (0, own), all, bytes)?;
        let leaders = leaders(&mut self.rail, own_local);
        let mut all = run_stage(leaders, of, (node, each), all, length(each, on_root_node))?;
        if on_root_node && local_rank != 0 {
            let (of, counts) = ((CallKind::Scatter, call.dtype), nodes.all_to(local_rank as usize));
            let bytes = length(each, is_root);
            all = run_stage(self.local.as_mut(), of, (0, &counts), all, bytes)?;
        }
        if is_root {
            unpermute(&call.counts, &nodes.ranks, size, &all, call.output);
        }
        Ok(())
    }

    /// To the leader of the root's node, to the leader of each node, to its ranks.
    fn scatter_by_leaders(&mut self, call: Call<'_>) -> Result {
        let (node, local_rank) = self.layout.coords(call.root);
        let nodes = NodeBlocks::new(&self.layout, &call.counts);
        let (size, own_local) = (call.dtype.size(), self.layout.local_rank);
        let length = |counts: &[usize], wanted| if wanted { counts.iter().sum() } else { 0 } * size;
        let of = (CallKind::Scatter, call.dtype);
        let (own, each) = (&nodes.own, &nodes.node_counts);
        let all = self.scattered(&call, &nodes.ranks);
        let forwards = self.layout.node == node && local_rank != 0;
        let local = self.local.as_mut().filter(|_| forwards);
        let (counts, bytes) = (nodes.all_to(0), length(each, own_local == 0));
        let all = run_stage(local, of, (local_rank, &counts), all, bytes)?;
        let leaders = leaders(&mut self.rail, own_local);
        let all = run_stage(leaders, of, (node, each), all, length(own, true))?;
        let block = call.own_block(self.world.rank() as usize).len();
        let all = run_stage(self.local.as_mut(), of, (0, own), all, block)?;
        let result = call.result_range(self.world.rank() as usize);
        call.output[result].copy_from_slice(&all);
        Ok(())
    }

    /// The root's input of a scatter, in this order of ranks; empty on other ranks.
    fn scattered(&self, call: &Call, ranks: &[(u32, usize)]) -> Vec<u8> {
        if self.world.rank() != call.root {
            return Vec::new();
        }
        let input: &[u8] = call.input.unwrap_or(call.output);
        let mut all = vec![0; input.len()];
        for (from, to) in block_permutation(ranks, &call.counts, call.dtype.size()) {
            all[to].copy_from_slice(&input[from]);
        }
        all
    }
}

/// Copies blocks in this order of ranks to their positions in rank order.
fn unpermute(counts: &Counts, ranks: &[(u32, usize)], size: usize, from: &[u8], to: &mut [u8]) {
    for (target, source) in block_permutation(ranks, counts, size) {
        to[target].copy_from_slice(&from[source]);
    }
}
