//! Collectives in two levels: intra-node, inter-node, intra-node.

use super::rails::bytes;
use super::stage::stage;
use super::{Hierarchical, Rail};

use crate::CallKind::{
    AllGather, AllReduce, AllToAll, Barrier, Broadcast, Gather, Reduce, ReduceScatter, Scatter,
};
use crate::schedule::equal_block;

use crate::engine::Engine;
use crate::{Call, Counts, DType, ReduceOp, Result, reduce_kernel};

/// Minimum shard size per rank for which sharding is worth its extra rounds.
const MIN_SHARD_BYTES: usize = 16 << 10;

impl Hierarchical {
    pub(super) fn two_level(&mut self, call: Call<'_>) -> Result {
        // A rank that is alone on its node participates like the others.
        match call.kind {
            _ if self.layout.is_one_rank_per_node() => self.world.run(call),
            AllReduce => self.all_reduce(call),
            Reduce => self.reduce(call),
            Broadcast => self.broadcast(call),
            Barrier => self.barrier(),
            AllGather if self.layout.uniform => self.all_gather(call),
            ReduceScatter if self.layout.uniform => self.reduce_scatter(call),
            Gather | Scatter if !self.is_short(&call) => self.world.run(call),
            Gather if self.layout.uniform => self.gather_by_rails(call),
            Gather => self.gather_by_leaders(call),
            Scatter if self.layout.uniform => self.scatter_by_rails(call),
            Scatter => self.scatter_by_leaders(call),
            AllToAll => self.all_to_all(call),
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
        if self.layout.uniform && share >= MIN_SHARD_BYTES {
            self.reduce_by_shards(of, output)?;
        } else {
            self.reduce_by_leaders(of, output)?;
        }
        reduce_kernel::finalize(dtype, op, self.layout.ranks() as u32, output);
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
        local.run(stage(ReduceScatter, of, 0, each(), data))?;
        let own = bytes(&range(self.layout.local_rank as usize), size);
        let count = Counts::Equal(own.len() / size);
        rail.run(stage(AllReduce, of, 0, count, &mut data[own]))?;
        local.run(stage(AllGather, of, 0, each(), data))
    }

    fn reduce_by_leaders(&mut self, of: (DType, ReduceOp), data: &mut [u8]) -> Result {
        let elements = data.len() / of.0.size();
        let count = || Counts::Equal(elements);
        self.within_node(stage(Reduce, of, 0, count(), data))?;
        self.between_leaders(stage(AllReduce, of, 0, count(), data))?;
        self.within_node(stage(Broadcast, of, 0, count(), data))
    }

    /// To the leader of each node, to the leader of the root's node, to the root. Only the root's
    /// data changes.
    fn reduce(&mut self, call: Call<'_>) -> Result {
        let (node, local_rank) = self.layout.coords(call.root);
        let of = (call.dtype, if call.op == ReduceOp::Average { ReduceOp::Sum } else { call.op });
        let count = || call.counts.clone();
        let mut data = call.input.unwrap_or(call.output).to_vec();
        self.within_node(stage(Reduce, of, 0, count(), &mut data))?;
        self.between_leaders(stage(Reduce, of, node, count(), &mut data))?;
        if self.layout.node == node && local_rank != 0 {
            self.within_node(stage(Broadcast, of, 0, count(), &mut data))?;
        }
        if self.world.rank() == call.root {
            reduce_kernel::finalize(call.dtype, call.op, self.layout.ranks() as u32, &mut data);
            call.output.copy_from_slice(&data);
        }
        Ok(())
    }

    /// Within the root's node, between the leaders, within the other nodes.
    fn broadcast(&mut self, call: Call<'_>) -> Result {
        let (node, local_rank) = self.layout.coords(call.root);
        let (of, data) = ((call.dtype, call.op), call.output);
        let count = || call.counts.clone();
        if self.layout.node == node {
            self.within_node(stage(Broadcast, of, local_rank, count(), data))?;
        }
        self.between_leaders(stage(Broadcast, of, node, count(), data))?;
        if self.layout.node != node {
            self.within_node(stage(Broadcast, of, 0, count(), data))?;
        }
        Ok(())
    }

    fn barrier(&mut self) -> Result {
        let (of, none) = ((DType::U8, ReduceOp::Sum), || Counts::Equal(0));
        self.within_node(stage(Barrier, of, 0, none(), &mut []))?;
        self.between_leaders(stage(Barrier, of, 0, none(), &mut []))?;
        self.within_node(stage(Barrier, of, 0, none(), &mut []))
    }

    /// One stage on the ranks of this node, if there are several.
    fn within_node(&mut self, stage: Call<'_>) -> Result {
        self.local.as_mut().map_or(Ok(()), |local| local.run(stage))
    }

    /// One stage between the leaders of the nodes, if this rank is one.
    fn between_leaders(&mut self, stage: Call<'_>) -> Result {
        let leaders = leaders(&mut self.rail, self.layout.local_rank);
        leaders.map_or(Ok(()), |leaders| leaders.run(stage))
    }
}

/// The leaders' engine, if this rank is a leader.
pub(super) fn leaders(rail: &mut Option<Rail>, local_rank: u32) -> Option<&mut Rail> {
    rail.as_mut().filter(|_| local_rank == 0)
}
