//! Gather and scatter in two levels, for blocks so short that the number of messages dominates. With
//! the same number of ranks on all nodes they use rails, through all ranks of the root's node
//! concurrently; otherwise the blocks of a node go through its leader.
//!
//! Longer blocks are sent directly, because staging costs at least two copies.

use super::Hierarchical;
use super::node_layout::NodeLayout;
use super::rails::{Rails, block_permutation, bytes, per_rank};
use super::two_level::leaders;
use crate::worker::Engine;
use crate::{Call, CallKind, Counts, Result};

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

/// One stage of a gather or scatter, out of place.
fn stage_call<'a>(
    kind: CallKind,
    call: &Call,
    root: u32,
    counts: &'a [usize],
    input: &'a [u8],
    output: &'a mut [u8],
) -> Call<'a> {
    let stage = Call::new(kind, call.dtype, per_rank(counts), output);
    Call { root, input: Some(input), ..stage }
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

    /// This rank's block in the root's buffer.
    fn own_block(&self, call: &Call) -> std::ops::Range<usize> {
        let rank = self.world.rank() as usize;
        let start = call.counts.offset(rank);
        bytes(&(start..start + call.counts.of(rank)), call.dtype.size())
    }

    /// This rank's contribution to a gather.
    fn contribution<'a>(&self, call: &'a Call) -> &'a [u8] {
        let is_root = self.world.rank() == call.root;
        match call.input {
            Some(input) => input,
            None if is_root => &call.output[self.own_block(call)],
            None => call.output,
        }
    }

    /// Gathers each rail on the root's node, then gathers the rails at the root.
    fn gather_by_rails(&mut self, call: Call<'_>) -> Result {
        let (node, local_rank) = self.layout.coords(call.root);
        let rails = Rails::new(&self.layout, &call.counts);
        let (size, is_root) = (call.dtype.size(), self.world.rank() == call.root);
        let input = self.contribution(&call);
        let (on_root_node, kind) = (self.layout.node == node, CallKind::Gather);
        let (Some(local), Some(rail_engine)) = (&mut self.local, &mut self.rail) else {
            return Ok(());
        };
        let mut rail = vec![0; if on_root_node { rails.rail.len() * size } else { 0 }];
        rail_engine.run(stage_call(kind, &call, node, &rails.own, input, &mut rail))?;
        if !on_root_node {
            return Ok(());
        }
        let mut all = vec![0; if is_root { call.output.len() } else { 0 }];
        local.run(stage_call(kind, &call, local_rank, &rails.rail_counts, &rail, &mut all))?;
        if is_root {
            for (to, from) in block_permutation(&rails.ranks, &call.counts, size) {
                call.output[to].copy_from_slice(&all[from]);
            }
        }
        Ok(())
    }

    /// The root scatters the rails within its node, then each rail scatters its blocks.
    fn scatter_by_rails(&mut self, call: Call<'_>) -> Result {
        let (node, local_rank) = self.layout.coords(call.root);
        let rails = Rails::new(&self.layout, &call.counts);
        let (size, is_root) = (call.dtype.size(), self.world.rank() == call.root);
        let (on_root_node, kind) = (self.layout.node == node, CallKind::Scatter);
        let own = self.own_block(&call);
        let (Some(local), Some(rail_engine)) = (&mut self.local, &mut self.rail) else {
            return Ok(());
        };
        let mut rail = vec![0; if on_root_node { rails.rail.len() * size } else { 0 }];
        if on_root_node {
            let all = if is_root { permuted(&call, &rails.ranks) } else { Vec::new() };
            local.run(stage_call(kind, &call, local_rank, &rails.rail_counts, &all, &mut rail))?;
        }
        let mut block = vec![0; own.len()];
        rail_engine.run(stage_call(kind, &call, node, &rails.own, &rail, &mut block))?;
        self.store_block(call, &block);
        Ok(())
    }

    /// To the leader of each node, to the leader of the root's node, to the root.
    fn gather_by_leaders(&mut self, call: Call<'_>) -> Result {
        let (node, local_rank) = self.layout.coords(call.root);
        let nodes = NodeBlocks::new(&self.layout, &call.counts);
        let (size, is_leader) = (call.dtype.size(), self.layout.local_rank == 0);
        let (on_root_node, kind) = (self.layout.node == node, CallKind::Gather);
        let length = |counts: &[usize], wanted| if wanted { counts.iter().sum() } else { 0 } * size;
        let mut all = self.contribution(&call).to_vec();
        if let Some(local) = &mut self.local {
            let mut gathered = vec![0; length(&nodes.own, is_leader)];
            local.run(stage_call(kind, &call, 0, &nodes.own, &all, &mut gathered))?;
            all = gathered;
        }
        if let Some(leaders) = leaders(&mut self.rail, self.layout.local_rank) {
            let mut gathered = vec![0; length(&nodes.node_counts, on_root_node)];
            leaders.run(stage_call(kind, &call, node, &nodes.node_counts, &all, &mut gathered))?;
            all = gathered;
        }
        let is_root = self.world.rank() == call.root;
        if let Some(local) = self.local.as_mut().filter(|_| on_root_node && local_rank != 0) {
            let (counts, mut forwarded) =
                (nodes.all_to(local_rank as usize), vec![0; length(&nodes.node_counts, is_root)]);
            local.run(stage_call(CallKind::Scatter, &call, 0, &counts, &all, &mut forwarded))?;
            all = forwarded;
        }
        if is_root {
            for (to, from) in block_permutation(&nodes.ranks, &call.counts, size) {
                call.output[to].copy_from_slice(&all[from]);
            }
        }
        Ok(())
    }

    /// To the leader of the root's node, to the leader of each node, to its ranks.
    fn scatter_by_leaders(&mut self, call: Call<'_>) -> Result {
        let (node, local_rank) = self.layout.coords(call.root);
        let nodes = NodeBlocks::new(&self.layout, &call.counts);
        let (size, is_leader) = (call.dtype.size(), self.layout.local_rank == 0);
        let (on_root_node, kind) = (self.layout.node == node, CallKind::Scatter);
        let length = |counts: &[usize], wanted| if wanted { counts.iter().sum() } else { 0 } * size;
        let (is_root, own) = (self.world.rank() == call.root, self.own_block(&call));
        let mut all = if is_root { permuted(&call, &nodes.ranks) } else { Vec::new() };
        if let Some(local) = self.local.as_mut().filter(|_| on_root_node && local_rank != 0) {
            let (counts, mut forwarded) =
                (nodes.all_to(0), vec![0; length(&nodes.node_counts, is_leader)]);
            local.run(stage_call(kind, &call, local_rank, &counts, &all, &mut forwarded))?;
            all = forwarded;
        }
        if let Some(leaders) = leaders(&mut self.rail, self.layout.local_rank) {
            let mut scattered = vec![0; length(&nodes.own, true)];
            leaders.run(stage_call(kind, &call, node, &nodes.node_counts, &all, &mut scattered))?;
            all = scattered;
        }
        if let Some(local) = &mut self.local {
            let mut block = vec![0; own.len()];
            local.run(stage_call(kind, &call, 0, &nodes.own, &all, &mut block))?;
            all = block;
        }
        self.store_block(call, &all);
        Ok(())
    }

    /// Stores this rank's block of a scatter.
    fn store_block(&self, call: Call<'_>, block: &[u8]) {
        let in_place = self.world.rank() == call.root && call.input.is_none();
        let start = if in_place { self.own_block(&call).start } else { 0 };
        call.output[start..start + block.len()].copy_from_slice(block);
    }
}

/// The input of a scatter, in this order of ranks.
fn permuted(call: &Call, ranks: &[(u32, usize)]) -> Vec<u8> {
    let input: &[u8] = call.input.unwrap_or(call.output);
    let mut all = vec![0; input.len()];
    for (from, to) in block_permutation(ranks, &call.counts, call.dtype.size()) {
        all[to].copy_from_slice(&input[from]);
    }
    all
}
