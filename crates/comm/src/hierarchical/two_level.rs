//! Collectives in two levels: intra-node, inter-node, intra-node.

use std::ops::Range;

use super::Hierarchical;
use super::subgroup::Subgroup;
use crate::schedule::equal_block;
use crate::tcp::TcpEngine;
use crate::worker::Engine;
use crate::{Call, CallKind, Counts, DType, ReduceOp, Result, kernel};

/// Minimum shard size per rank for which sharding is worth its extra rounds.
const MIN_SHARD_BYTES: usize = 16 << 10;

/// One stage of a collective, in place.
pub(super) fn in_place_call<'a>(
    kind: CallKind,
    (dtype, op): (DType, ReduceOp),
    root: u32,
    counts: Counts<'a>,
    output: &'a mut [u8],
) -> Call<'a> {
    Call { op, root, ..Call::new(kind, dtype, counts, output) }
}

impl Hierarchical {
    pub(super) fn two_level(&mut self, call: Call<'_>) -> Result {
        // A rank that is alone on its node participates like the others.
        match (self.local.as_mut(), self.layout.nodes, call.kind) {
            (Some(local), 1, _) => local.run(call),
            _ if self.layout.is_one_rank_per_node() => self.world.run(call),
            (_, _, CallKind::AllReduce) => self.all_reduce(call),
            (_, _, CallKind::Reduce) => self.reduce(call),
            (_, _, CallKind::Broadcast) => self.broadcast(call),
            (_, _, CallKind::Barrier) => self.barrier(),
            (_, _, CallKind::AllGather) if self.layout.uniform => self.all_gather(call),
            (_, _, CallKind::ReduceScatter) if self.layout.uniform => self.reduce_scatter(call),
            (_, _, CallKind::Gather) => self.gather(call),
            (_, _, CallKind::Scatter) => self.scatter(call),
            (_, _, CallKind::AllToAll) => self.all_to_all(call),
            _ => self.world.run(call),
        }
    }

    fn all_reduce(&mut self, call: Call<'_>) -> Result {
        let (dtype, op, output) = (call.dtype, call.op, call.output);
        if let Some(input) = call.input {
            output.copy_from_slice(input);
        }
        // An average is divided once, at the end.
        let of = (dtype, if op == ReduceOp::Average { ReduceOp::Sum } else { op });
        let share = output.len() / self.layout.local_ranks.len();
        match self.layout.uniform && share >= MIN_SHARD_BYTES {
            true => self.reduce_by_shards(of, output)?,
            false => self.reduce_by_leaders(of, output)?,
        }
        kernel::finalize(dtype, op, self.layout.ranks() as u32, output);
        Ok(())
    }

    fn reduce_by_shards(&mut self, of: (DType, ReduceOp), data: &mut [u8]) -> Result {
        let (Some(local), Some(rail)) = (&mut self.local, &mut self.rail) else {
            return Ok(());
        };
        let (size, ranks) = (of.0.size(), self.layout.local_ranks.len());
        let elements = data.len() / size;
        let range = |rank: usize| equal_block(elements, ranks as u32, rank as u32);
        let counts: Vec<usize> = (0..ranks).map(|rank| range(rank).len()).collect();
        let each = || Counts::PerRank(counts.as_slice().into());
        local.run(in_place_call(CallKind::ReduceScatter, of, 0, each(), data))?;
        let own: Range<usize> = range(self.layout.local_rank as usize);
        let own = &mut data[own.start * size..own.end * size];
        let count = Counts::Equal(own.len() / size);
        rail.run(in_place_call(CallKind::AllReduce, of, 0, count, own))?;
        local.run(in_place_call(CallKind::AllGather, of, 0, each(), data))
    }

    fn reduce_by_leaders(&mut self, of: (DType, ReduceOp), data: &mut [u8]) -> Result {
        let count = || Counts::Equal(data.len() / of.0.size());
        let count = (count(), count(), count());
        if let Some(local) = &mut self.local {
            local.run(in_place_call(CallKind::Reduce, of, 0, count.0, data))?;
        }
        if let Some(leaders) = leaders(&mut self.rail, self.layout.local_rank) {
            leaders.run(in_place_call(CallKind::AllReduce, of, 0, count.1, data))?;
        }
        match &mut self.local {
            Some(local) => local.run(in_place_call(CallKind::Broadcast, of, 0, count.2, data)),
            None => Ok(()),
        }
    }

    /// To the leader of each node, to the leader of the root's node, to the root. Only the root's
    /// data changes.
    fn reduce(&mut self, call: Call<'_>) -> Result {
        let (node, local_rank) = self.layout.coords(call.root);
        let of = (call.dtype, if call.op == ReduceOp::Average { ReduceOp::Sum } else { call.op });
        let count = || call.counts.clone();
        let mut data = call.input.unwrap_or(call.output).to_vec();
        if let Some(local) = &mut self.local {
            local.run(in_place_call(CallKind::Reduce, of, 0, count(), &mut data))?;
        }
        if let Some(leaders) = leaders(&mut self.rail, self.layout.local_rank) {
            leaders.run(in_place_call(CallKind::Reduce, of, node, count(), &mut data))?;
        }
        if let Some(local) =
            self.local.as_mut().filter(|_| self.layout.node == node && local_rank != 0)
        {
            local.run(in_place_call(CallKind::Broadcast, of, 0, count(), &mut data))?;
        }
        if self.world.rank() == call.root {
            kernel::finalize(call.dtype, call.op, self.layout.ranks() as u32, &mut data);
            call.output.copy_from_slice(&data);
        }
        Ok(())
    }

    /// Within the root's node, between the leaders, within the other nodes.
    fn broadcast(&mut self, call: Call<'_>) -> Result {
        let (node, local_rank) = self.layout.coords(call.root);
        let of = (call.dtype, call.op);
        let on_root_node = self.layout.node == node;
        if let Some(local) = self.local.as_mut().filter(|_| on_root_node) {
            local.run(in_place_call(
                CallKind::Broadcast,
                of,
                local_rank,
                call.counts.clone(),
                call.output,
            ))?;
        }
        if let Some(leaders) = leaders(&mut self.rail, self.layout.local_rank) {
            leaders.run(in_place_call(
                CallKind::Broadcast,
                of,
                node,
                call.counts.clone(),
                call.output,
            ))?;
        }
        match self.local.as_mut().filter(|_| !on_root_node) {
            Some(local) => {
                local.run(in_place_call(CallKind::Broadcast, of, 0, call.counts, call.output))
            }
            None => Ok(()),
        }
    }

    fn barrier(&mut self) -> Result {
        let barrier = || {
            in_place_call(
                CallKind::Barrier,
                (DType::U8, ReduceOp::Sum),
                0,
                Counts::Equal(0),
                &mut [],
            )
        };
        if let Some(local) = &mut self.local {
            local.run(barrier())?;
        }
        if let Some(leaders) = leaders(&mut self.rail, self.layout.local_rank) {
            leaders.run(barrier())?;
        }
        match &mut self.local {
            Some(local) => local.run(barrier()),
            None => Ok(()),
        }
    }
}

/// The leaders' engine, if this rank is a leader.
pub(super) fn leaders(
    rail: &mut Option<Subgroup<TcpEngine>>,
    local: u32,
) -> Option<&mut Subgroup<TcpEngine>> {
    rail.as_mut().filter(|_| local == 0)
}
