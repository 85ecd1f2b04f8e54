//! All-to-all in two levels, of blocks so short that what counts is how many messages there are: where
//! all nodes have the same number of ranks, each rank first gets from its node what is for its column,
//! then all of a node's blocks for a rank cross the network as one message.
//!
//! Long blocks go through the network as they are: few of them are for this node, and to bring the
//! rest together would copy all of them twice. So do those with counts for each pair, which only the
//! two ranks know: they are compared before any moves, by one engine that reaches all.

use super::Host;
use super::two_level::part;
use crate::background::Engine;
use crate::{Call, CommError, Counts};

/// Longer blocks are copied for longer than a message takes.
const SHORT_BLOCK: usize = 16 << 10;

impl Host {
    pub(super) fn all_to_all(&mut self, call: Call<'_>) -> Result<(), CommError> {
        let (nodes, members) = (self.layout.nodes as usize, self.layout.members.len());
        let (Counts::Equal(count), true, Some(local), Some(across)) =
            (&call.counts, self.layout.even, &mut self.local, &mut self.across)
        else {
            return self.world.run(call);
        };
        let (count, block) = (*count, count * call.dtype.size());
        if block > SHORT_BLOCK {
            return self.world.run(call);
        }
        let of = (call.dtype, call.op);
        let at = |index: usize| index * block..(index + 1) * block;
        let columns: Vec<Vec<u32>> =
            (0..members as u32).map(|place| self.layout.column(place)).collect();
        let places = || (0..members).flat_map(|place| (0..nodes).map(move |node| (node, place)));
        let given: &[u8] = call.input.unwrap_or(call.output);
        let mut by_column = vec![0; given.len()];
        for (node, place) in places() {
            let rank = columns[place][node] as usize;
            by_column[at(place * nodes + node)].copy_from_slice(&given[at(rank)]);
        }
        local.run(part(call.kind, of, 0, Counts::Equal(nodes * count), &mut by_column))?;
        let mut by_node = vec![0; given.len()];
        for (node, place) in places() {
            by_node[at(node * members + place)]
                .copy_from_slice(&by_column[at(place * nodes + node)]);
        }
        across.run(part(call.kind, of, 0, Counts::Equal(members * count), &mut by_node))?;
        for (node, place) in places() {
            let rank = columns[place][node] as usize;
            call.output[at(rank)].copy_from_slice(&by_node[at(node * members + place)]);
        }
        Ok(())
    }
}
