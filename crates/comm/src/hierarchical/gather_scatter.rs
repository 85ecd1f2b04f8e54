//! Gather and scatter in two levels, for blocks so short that the number of messages dominates. With
//! the same number of ranks on all nodes they use rails, through all ranks of the root's node
//! concurrently; otherwise the blocks of a node go through its leader.
//!
//! Longer blocks are sent directly, because staging costs at least two copies.

use super::Hierarchical;
use super::rails::{GroupedBlocks, per_rank};
use super::two_level::leaders;
use crate::engine::Engine;
use crate::{Call, CallKind, DType, Result};

/// Copying a longer block (on average) takes longer than a message.
const MAX_STAGED_BLOCK_BYTES: usize = 4 << 10;

/// Counts per local rank that give all elements to one of them.
fn all_to(local_rank: usize, nodes: &GroupedBlocks) -> Vec<usize> {
    let mut counts = vec![0; nodes.own.len()];
    counts[local_rank] = nodes.group_counts.iter().sum();
    counts
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
    /// Whether a gather or scatter in two levels pays off.
    pub(super) fn is_short(&self, call: &Call) -> bool {
        let ranks = self.layout.ranks();
        call.counts.total(ranks) * call.dtype.size() <= MAX_STAGED_BLOCK_BYTES * ranks
    }

    /// Gathers each rail on the root's node, then gathers the rails at the root.
    pub(super) fn gather_by_rails(&mut self, mut call: Call<'_>) -> Result {
        let (node, local_rank) = self.layout.coords(call.root);
        let rails = GroupedBlocks::by_rail(&self.layout, &call.counts);
        let (size, is_root) = (call.dtype.size(), self.world.rank() == call.root);
        let (on_root_node, of) = (self.layout.node == node, (CallKind::Gather, call.dtype));
        let length = |bytes: usize, wanted| if wanted { bytes } else { 0 };
        let own = call.contribution(self.world.rank() as usize).to_vec();
        let rail_bytes = length(rails.own.iter().sum::<usize>() * size, on_root_node);
        let rail = run_stage(self.rail.as_mut(), of, (node, &rails.own), own, rail_bytes)?;
        if !on_root_node {
            return Ok(());
        }
        let (counts, bytes) = (&rails.group_counts, length(call.output.len(), is_root));
        let all = run_stage(self.local.as_mut(), of, (local_rank, counts), rail, bytes)?;
        if is_root {
            rails.restore(&all, &mut call);
        }
        Ok(())
    }

    /// The root scatters the rails within its node, then each rail scatters its blocks.
    pub(super) fn scatter_by_rails(&mut self, call: Call<'_>) -> Result {
        let (node, local_rank) = self.layout.coords(call.root);
        let rails = GroupedBlocks::by_rail(&self.layout, &call.counts);
        let of = (CallKind::Scatter, call.dtype);
        let mut all = self.scattered(&call, &rails);
        if self.layout.node == node {
            let counts = &rails.group_counts;
            let bytes = rails.own.iter().sum::<usize>() * call.dtype.size();
            all = run_stage(self.local.as_mut(), of, (local_rank, counts), all, bytes)?;
        }
        let own = call.own_block(self.world.rank() as usize).len();
        let block = run_stage(self.rail.as_mut(), of, (node, &rails.own), all, own)?;
        let result = call.result_range(self.world.rank() as usize);
        call.output[result].copy_from_slice(&block);
        Ok(())
    }

    /// To the leader of each node, to the leader of the root's node, to the root.
    pub(super) fn gather_by_leaders(&mut self, mut call: Call<'_>) -> Result {
        let (node, local_rank) = self.layout.coords(call.root);
        let nodes = GroupedBlocks::by_node(&self.layout, &call.counts);
        let (size, own_local) = (call.dtype.size(), self.layout.local_rank);
        let (on_root_node, is_root) = (self.layout.node == node, self.world.rank() == call.root);
        let length = |counts: &[usize], wanted| if wanted { counts.iter().sum() } else { 0 } * size;
        let of = (CallKind::Gather, call.dtype);
        let (own, each) = (&nodes.own, &nodes.group_counts);
        let all = call.contribution(self.world.rank() as usize).to_vec();
        let bytes = length(own, own_local == 0);
        let all = run_stage(self.local.as_mut(), of, (0, own), all, bytes)?;
        let leaders = leaders(&mut self.rail, own_local);
        let mut all = run_stage(leaders, of, (node, each), all, length(each, on_root_node))?;
        if on_root_node && local_rank != 0 {
            let (of, counts) =
                ((CallKind::Scatter, call.dtype), all_to(local_rank as usize, &nodes));
            let bytes = length(each, is_root);
            all = run_stage(self.local.as_mut(), of, (0, &counts), all, bytes)?;
        }
        if is_root {
            nodes.restore(&all, &mut call);
        }
        Ok(())
    }

    /// To the leader of the root's node, to the leader of each node, to its ranks.
    pub(super) fn scatter_by_leaders(&mut self, call: Call<'_>) -> Result {
        let (node, local_rank) = self.layout.coords(call.root);
        let nodes = GroupedBlocks::by_node(&self.layout, &call.counts);
        let (size, own_local) = (call.dtype.size(), self.layout.local_rank);
        let length = |counts: &[usize], wanted| if wanted { counts.iter().sum() } else { 0 } * size;
        let of = (CallKind::Scatter, call.dtype);
        let (own, each) = (&nodes.own, &nodes.group_counts);
        let all = self.scattered(&call, &nodes);
        let forwards = self.layout.node == node && local_rank != 0;
        let local = self.local.as_mut().filter(|_| forwards);
        let (counts, bytes) = (all_to(0, &nodes), length(each, own_local == 0));
        let all = run_stage(local, of, (local_rank, &counts), all, bytes)?;
        let leaders = leaders(&mut self.rail, own_local);
        let all = run_stage(leaders, of, (node, each), all, length(own, true))?;
        let block = call.own_block(self.world.rank() as usize).len();
        let all = run_stage(self.local.as_mut(), of, (0, own), all, block)?;
        let result = call.result_range(self.world.rank() as usize);
        call.output[result].copy_from_slice(&all);
        Ok(())
    }

    /// The root's input of a scatter, in the order of these groups; empty on other ranks.
    fn scattered(&self, call: &Call, groups: &GroupedBlocks) -> Vec<u8> {
        if self.world.rank() == call.root { groups.ordered(call) } else { Vec::new() }
    }
}
