//! All-to-all in two levels, for blocks so short that the number of messages dominates and nodes with
//! the same number of ranks: each rank first collects from its node what is destined for its rail,
//! then all blocks of a node for a rank cross the network as one message.
//!
//! Long blocks are sent directly: few are for this node, and staging would copy all of them twice.
//! So are calls with per-pair counts, which one engine for all ranks compares before any data moves.

use super::Hierarchical;
use super::stage::stage;
use crate::engine::Engine;
use crate::{Call, Counts, Result};

/// Copying a longer block takes longer than a message.
const MAX_STAGED_BLOCK_BYTES: usize = 16 << 10;

impl Hierarchical {
    pub(super) fn all_to_all(&mut self, call: Call<'_>) -> Result {
        let (nodes, members) = (self.layout.nodes as usize, self.layout.local_ranks.len());
        let (Counts::Equal(count), true, Some(local), Some(rail)) =
            (&call.counts, self.layout.uniform, &mut self.local, &mut self.rail)
        else {
            return self.world.run(call);
        };
        let (count, block) = (*count, count * call.dtype.size());
        if block > MAX_STAGED_BLOCK_BYTES {
            return self.world.run(call);
        }
        let of = (call.dtype, call.op);
        let at = |index: usize| index * block..(index + 1) * block;
        let rails: Vec<Vec<u32>> =
            (0..members as u32).map(|local_rank| self.layout.rail(local_rank)).collect();
        let coords =
            || (0..members).flat_map(|local_rank| (0..nodes).map(move |node| (node, local_rank)));
        let input: &[u8] = call.input.unwrap_or(call.output);
        let mut by_rail = vec![0; input.len()];
        for (node, local_rank) in coords() {
            let rank = rails[local_rank][node] as usize;
            by_rail[at(local_rank * nodes + node)].copy_from_slice(&input[at(rank)]);
        }
        local.run(stage(call.kind, of, 0, Counts::Equal(nodes * count), &mut by_rail))?;
        let mut by_node = vec![0; input.len()];
        for (node, local_rank) in coords() {
            by_node[at(node * members + local_rank)]
                .copy_from_slice(&by_rail[at(local_rank * nodes + node)]);
        }
        rail.run(stage(call.kind, of, 0, Counts::Equal(members * count), &mut by_node))?;
        for (node, local_rank) in coords() {
            let rank = rails[local_rank][node] as usize;
            call.output[at(rank)].copy_from_slice(&by_node[at(node * members + local_rank)]);
        }
        Ok(())
    }
}
