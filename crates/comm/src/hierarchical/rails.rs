//! All-gather and reduce-scatter in two levels, for nodes with the same number of ranks. The ranks
//! with the same local rank form a rail. Data crosses the network once, on all rails concurrently.

use std::ops::Range;

use super::Hierarchical;
use super::node_layout::NodeLayout;
use super::stage::stage;
use crate::engine::Engine;
use crate::{Call, CallKind, Counts, ReduceOp, Result, reduce_kernel};

/// The blocks of all ranks, ordered by groups of ranks.
pub(super) struct GroupedBlocks {
    /// The ranks in this order, with their element counts.
    ranks: Vec<(u32, usize)>,
    /// Elements of each group.
    pub group_counts: Vec<usize>,
    /// Elements of each rank of the own group.
    pub own: Vec<usize>,
}

impl GroupedBlocks {
    /// Ordered by rail.
    pub fn by_rail(layout: &NodeLayout, counts: &Counts) -> Self {
        let rails = (0..layout.local_ranks.len() as u32).map(|local| layout.rail(local));
        Self::new(rails, layout.local_rank, counts)
    }

    /// Ordered by node.
    pub fn by_node(layout: &NodeLayout, counts: &Counts) -> Self {
        let nodes = (0..layout.nodes).map(|node| layout.ranks_of(node).collect());
        Self::new(nodes, layout.node, counts)
    }

    fn new(groups: impl Iterator<Item = Vec<u32>>, own: u32, counts: &Counts) -> Self {
        let count = |rank: u32| (rank, counts.of(rank as usize));
        let all: Vec<Vec<(u32, usize)>> =
            groups.map(|ranks| ranks.into_iter().map(count).collect()).collect();
        let own = all[own as usize].iter().map(|(_, count)| *count).collect();
        let total = |group: &Vec<(u32, usize)>| group.iter().map(|(_, count)| count).sum();
        Self { group_counts: all.iter().map(total).collect(), own, ranks: all.concat() }
    }

    /// For each rank, the bytes of its block in rank order and in this order.
    fn permutation(
        &self,
        counts: &Counts,
        size: usize,
    ) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
        let mut at = 0;
        self.ranks.iter().map(move |(rank, count)| {
            let (start, bytes) = (counts.offset(*rank as usize) * size, count * size);
            at += bytes;
            (start..start + bytes, at - bytes..at)
        })
    }

    /// The blocks of a call's input in this order.
    pub fn ordered(&self, call: &Call) -> Vec<u8> {
        let input: &[u8] = call.input.unwrap_or(call.output);
        let mut ordered = vec![0; input.len()];
        for (from, to) in self.permutation(&call.counts, call.dtype.size()) {
            ordered[to].copy_from_slice(&input[from]);
        }
        ordered
    }

    /// Writes blocks in this order to a call's output.
    pub fn restore(&self, ordered: &[u8], call: &mut Call) {
        for (to, from) in self.permutation(&call.counts, call.dtype.size()) {
            call.output[to].copy_from_slice(&ordered[from]);
        }
    }
}

/// The elements of one of consecutive blocks.
fn nth_block(counts: &[usize], at: u32) -> Range<usize> {
    let start = counts[..at as usize].iter().sum();
    start..start + counts[at as usize]
}

pub(super) fn bytes(elements: &Range<usize>, size: usize) -> Range<usize> {
    elements.start * size..elements.end * size
}

pub(super) fn per_rank(counts: &[usize]) -> Counts<'_> {
    Counts::PerRank(counts.into())
}

impl Hierarchical {
    /// All-gathers along each rail, then all-gathers the rails within the node.
    pub(super) fn all_gather(&mut self, mut call: Call<'_>) -> Result {
        let (Some(local), Some(rail)) = (&mut self.local, &mut self.rail) else {
            return self.world.run(call);
        };
        let rails = GroupedBlocks::by_rail(&self.layout, &call.counts);
        let own_rail = nth_block(&rails.group_counts, self.layout.local_rank);
        let own_block = nth_block(&rails.own, self.layout.node);
        let (size, of) = (call.dtype.size(), (call.dtype, call.op));
        let mut all = vec![0; call.output.len()];
        let rail_bytes = &mut all[bytes(&own_rail, size)];
        let contribution = call.contribution(self.world.rank() as usize);
        rail_bytes[bytes(&own_block, size)].copy_from_slice(contribution);
        let kind = CallKind::AllGather;
        rail.run(stage(kind, of, 0, per_rank(&rails.own), rail_bytes))?;
        local.run(stage(kind, of, 0, per_rank(&rails.group_counts), &mut all))?;
        rails.restore(&all, &mut call);
        Ok(())
    }

    /// Reduce-scatters the rails within the node, then along each rail.
    pub(super) fn reduce_scatter(&mut self, call: Call<'_>) -> Result {
        let (Some(local), Some(rail)) = (&mut self.local, &mut self.rail) else {
            return self.world.run(call);
        };
        let rails = GroupedBlocks::by_rail(&self.layout, &call.counts);
        let own_rail = nth_block(&rails.group_counts, self.layout.local_rank);
        let own_block = nth_block(&rails.own, self.layout.node);
        // An average is divided once, at the end.
        let op = if call.op == ReduceOp::Average { ReduceOp::Sum } else { call.op };
        let (size, of) = (call.dtype.size(), (call.dtype, op));
        let mut all = rails.ordered(&call);
        let kind = CallKind::ReduceScatter;
        local.run(stage(kind, of, 0, per_rank(&rails.group_counts), &mut all))?;
        let rail_bytes = &mut all[bytes(&own_rail, size)];
        rail.run(stage(kind, of, 0, per_rank(&rails.own), rail_bytes))?;
        let result = &mut rail_bytes[bytes(&own_block, size)];
        reduce_kernel::finalize(call.dtype, call.op, self.layout.ranks() as u32, result);
        let range = call.result_range(self.world.rank() as usize);
        call.output[range].copy_from_slice(result);
        Ok(())
    }
}
