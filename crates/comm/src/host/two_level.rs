//! Collectives in two levels: inside the node, across, inside again.

use std::ops::Range;

use super::Host;
use super::part::Part;
use crate::background::Engine;
use crate::schedule::share;
use crate::tcp::TcpEngine;
use crate::{Call, CommError, Counts, DType, Kind, ReduceOp, kernel};

/// From this many bytes of a rank's share on, shares are worth their rounds.
const WORTH_SHARING: usize = 16 << 10;

/// A part of a collective, in place.
pub(super) fn part<'a>(
    kind: Kind,
    (dtype, op): (DType, ReduceOp),
    root: u32,
    counts: Counts<'a>,
    output: &'a mut [u8],
) -> Call<'a> {
    Call { kind, dtype, op, root, tag: 0, counts, input: None, output }
}

impl Host {
    pub(super) fn two_level(&mut self, call: Call<'_>) -> Result<(), CommError> {
        // A rank that is alone on its node takes part as the others do.
        match (self.local.as_mut(), self.layout.nodes, call.kind) {
            (Some(local), 1, _) => local.run(call),
            _ if self.layout.is_flat() => self.world.run(call),
            (_, _, Kind::AllReduce) => self.all_reduce(call),
            (_, _, Kind::Reduce) => self.reduce(call),
            (_, _, Kind::Broadcast) => self.broadcast(call),
            (_, _, Kind::Barrier) => self.barrier(),
            (_, _, Kind::AllGather) if self.layout.even => self.all_gather(call),
            (_, _, Kind::ReduceScatter) if self.layout.even => self.reduce_scatter(call),
            (_, _, Kind::Gather) => self.gather(call),
            (_, _, Kind::Scatter) => self.scatter(call),
            (_, _, Kind::AllToAll) => self.all_to_all(call),
            _ => self.world.run(call),
        }
    }

    fn all_reduce(&mut self, call: Call<'_>) -> Result<(), CommError> {
        let (dtype, op, output) = (call.dtype, call.op, call.output);
        if let Some(input) = call.input {
            output.copy_from_slice(input);
        }
        // An average is divided once, at the end.
        let of = (dtype, if op == ReduceOp::Average { ReduceOp::Sum } else { op });
        let share = output.len() / self.layout.members.len();
        match self.layout.even && share >= WORTH_SHARING {
            true => self.by_shares(of, output)?,
            false => self.by_leaders(of, output)?,
        }
        kernel::finish(dtype, op, self.layout.ranks() as u32, output);
        Ok(())
    }

    fn by_shares(&mut self, of: (DType, ReduceOp), data: &mut [u8]) -> Result<(), CommError> {
        let (Some(local), Some(across)) = (&mut self.local, &mut self.across) else {
            return Ok(());
        };
        let (size, ranks) = (of.0.size(), self.layout.members.len());
        let elements = data.len() / size;
        let range = |rank: usize| share(elements, ranks as u32, rank as u32);
        let counts: Vec<usize> = (0..ranks).map(|rank| range(rank).len()).collect();
        let each = || Counts::Each(counts.as_slice().into());
        local.run(part(Kind::ReduceScatter, of, 0, each(), data))?;
        let own: Range<usize> = range(self.layout.local as usize);
        let own = &mut data[own.start * size..own.end * size];
        let count = Counts::Equal(own.len() / size);
        across.run(part(Kind::AllReduce, of, 0, count, own))?;
        local.run(part(Kind::AllGather, of, 0, each(), data))
    }

    fn by_leaders(&mut self, of: (DType, ReduceOp), data: &mut [u8]) -> Result<(), CommError> {
        let count = || Counts::Equal(data.len() / of.0.size());
        let count = (count(), count(), count());
        if let Some(local) = &mut self.local {
            local.run(part(Kind::Reduce, of, 0, count.0, data))?;
        }
        if let Some(leaders) = leaders(&mut self.across, self.layout.local) {
            leaders.run(part(Kind::AllReduce, of, 0, count.1, data))?;
        }
        match &mut self.local {
            Some(local) => local.run(part(Kind::Broadcast, of, 0, count.2, data)),
            None => Ok(()),
        }
    }

    /// To the first of each node, across to the root's node, and there to the root. Only the root's
    /// data changes.
    fn reduce(&mut self, call: Call<'_>) -> Result<(), CommError> {
        let (node, place) = self.layout.place(call.root);
        let of = (call.dtype, if call.op == ReduceOp::Average { ReduceOp::Sum } else { call.op });
        let count = || call.counts.clone();
        let mut data = call.input.unwrap_or(call.output).to_vec();
        if let Some(local) = &mut self.local {
            local.run(part(Kind::Reduce, of, 0, count(), &mut data))?;
        }
        if let Some(leaders) = leaders(&mut self.across, self.layout.local) {
            leaders.run(part(Kind::Reduce, of, node, count(), &mut data))?;
        }
        if let Some(local) = self.local.as_mut().filter(|_| self.layout.node == node && place != 0)
        {
            local.run(part(Kind::Broadcast, of, 0, count(), &mut data))?;
        }
        if self.world.rank() == call.root {
            kernel::finish(call.dtype, call.op, self.layout.ranks() as u32, &mut data);
            call.output.copy_from_slice(&data);
        }
        Ok(())
    }

    /// Inside the root's node, across between the first of each, inside the others.
    fn broadcast(&mut self, call: Call<'_>) -> Result<(), CommError> {
        let (node, place) = self.layout.place(call.root);
        let of = (call.dtype, call.op);
        let here = self.layout.node == node;
        if let Some(local) = self.local.as_mut().filter(|_| here) {
            local.run(part(Kind::Broadcast, of, place, call.counts.clone(), call.output))?;
        }
        if let Some(leaders) = leaders(&mut self.across, self.layout.local) {
            leaders.run(part(Kind::Broadcast, of, node, call.counts.clone(), call.output))?;
        }
        match self.local.as_mut().filter(|_| !here) {
            Some(local) => local.run(part(Kind::Broadcast, of, 0, call.counts, call.output)),
            None => Ok(()),
        }
    }

    fn barrier(&mut self) -> Result<(), CommError> {
        let meet = || part(Kind::Barrier, (DType::U8, ReduceOp::Sum), 0, Counts::Equal(0), &mut []);
        if let Some(local) = &mut self.local {
            local.run(meet())?;
        }
        if let Some(leaders) = leaders(&mut self.across, self.layout.local) {
            leaders.run(meet())?;
        }
        match &mut self.local {
            Some(local) => local.run(meet()),
            None => Ok(()),
        }
    }
}

/// The first ranks of the nodes, for one who is one of them.
pub(super) fn leaders(
    across: &mut Option<Part<TcpEngine>>,
    local: u32,
) -> Option<&mut Part<TcpEngine>> {
    across.as_mut().filter(|_| local == 0)
}
