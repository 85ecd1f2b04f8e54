//! All-gather and reduce-scatter in two levels, for nodes with the same number of ranks. The ranks
//! with the same local rank form a rail. Data crosses the network once, on all rails concurrently.

use std::ops::Range;

use super::Hierarchical;
use super::node_layout::NodeLayout;
use super::stage::stage;
use crate::engine::Engine;
use crate::{Call, CallKind, Counts, ReduceOp, Result, reduce_kernel};

/// The blocks of all ranks, ordered by rail.
pub(super) struct Rails {
    /// The ranks in this order, with their element counts.
    pub ranks: Vec<(u32, usize)>,
    /// Elements of each rail.
    pub rail_counts: Vec<usize>,
    /// Elements of each rank of the own rail.
    pub own: Vec<usize>,
    /// The elements of the own rail.
    pub rail: Range<usize>,
    /// This rank's block within its rail.
    block: Range<usize>,
}

impl Rails {
    pub fn new(layout: &NodeLayout, counts: &Counts) -> Self {
        let count = |rank: &u32| (*rank, counts.of(*rank as usize));
        let rail = |local: u32| layout.rail(local).iter().map(count).collect::<Vec<_>>();
        let all: Vec<Vec<(u32, usize)>> = (0..layout.local_ranks.len() as u32).map(rail).collect();
        let total = |rail: &Vec<(u32, usize)>| rail.iter().map(|(_, count)| count).sum();
        let rail_counts: Vec<usize> = all.iter().map(total).collect();
        let local = layout.local_rank as usize;
        let own: Vec<usize> = all[local].iter().map(|(_, count)| *count).collect();
        let start: usize = rail_counts[..local].iter().sum();
        let before: usize = own[..layout.node as usize].iter().sum();
        Self {
            rail: start..start + rail_counts[local],
            block: before..before + own[layout.node as usize],
            ranks: all.concat(),
            rail_counts,
            own,
        }
    }
}

/// For each rank, the bytes of its block in rank order and in the order of `ranks`.
pub(super) fn block_permutation(
    ranks: &[(u32, usize)],
    counts: &Counts,
    size: usize,
) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
    let mut at = 0;
    ranks.iter().map(move |(rank, count)| {
        let (start, bytes) = (counts.offset(*rank as usize) * size, count * size);
        at += bytes;
        (start..start + bytes, at - bytes..at)
    })
}

pub(super) fn bytes(elements: &Range<usize>, size: usize) -> Range<usize> {
    elements.start * size..elements.end * size
}

pub(super) fn per_rank(counts: &[usize]) -> Counts<'_> {
    Counts::PerRank(counts.into())
}

impl Hierarchical {
    /// All-gathers along each rail, then all-gathers the rails within the node.
    pub(super) fn all_gather(&mut self, call: Call<'_>) -> Result {
        let (Some(local), Some(rail)) = (&mut self.local, &mut self.rail) else {
            return self.world.run(call);
        };
        let rails = Rails::new(&self.layout, &call.counts);
        let (size, of) = (call.dtype.size(), (call.dtype, call.op));
        let mut all = vec![0; call.output.len()];
        let rail_bytes = &mut all[bytes(&rails.rail, size)];
        let contribution = call.contribution(self.world.rank() as usize);
        rail_bytes[bytes(&rails.block, size)].copy_from_slice(contribution);
        let kind = CallKind::AllGather;
        rail.run(stage(kind, of, 0, per_rank(&rails.own), rail_bytes))?;
        local.run(stage(kind, of, 0, per_rank(&rails.rail_counts), &mut all))?;
        for (to, from) in block_permutation(&rails.ranks, &call.counts, size) {
            call.output[to].copy_from_slice(&all[from]);
        }
        Ok(())
    }

    /// Reduce-scatters the rails within the node, then along each rail.
    pub(super) fn reduce_scatter(&mut self, call: Call<'_>) -> Result {
        let (Some(local), Some(rail)) = (&mut self.local, &mut self.rail) else {
            return self.world.run(call);
        };
        let rails = Rails::new(&self.layout, &call.counts);
        // An average is divided once, at the end.
        let op = if call.op == ReduceOp::Average { ReduceOp::Sum } else { call.op };
        let (size, of) = (call.dtype.size(), (call.dtype, op));
        let input = call.input.unwrap_or(call.output);
        let mut all = vec![0; input.len()];
        for (from, to) in block_permutation(&rails.ranks, &call.counts, size) {
            all[to].copy_from_slice(&input[from]);
        }
        let kind = CallKind::ReduceScatter;
        local.run(stage(kind, of, 0, per_rank(&rails.rail_counts), &mut all))?;
        let rail_bytes = &mut all[bytes(&rails.rail, size)];
        rail.run(stage(kind, of, 0, per_rank(&rails.own), rail_bytes))?;
        let result = &mut rail_bytes[bytes(&rails.block, size)];
        reduce_kernel::finalize(call.dtype, call.op, self.layout.ranks() as u32, result);
        let range = call.result_range(self.world.rank() as usize);
        call.output[range].copy_from_slice(result);
        Ok(())
    }
}
