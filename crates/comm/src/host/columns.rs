//! All-gather and reduce-scatter in two levels, where all nodes have the same number of ranks: those
//! with the same place on each node are a column. What a node needs from another crosses the network
//! once, through all its ranks at a time.

use std::ops::Range;

use super::Host;
use super::layout::Layout;
use super::two_level::part;
use crate::background::Engine;
use crate::{Call, CommError, Counts, Kind, ReduceOp, kernel};

/// The parts of all ranks, column by column.
pub(super) struct Columns {
    /// The ranks in this order, and how many elements each has.
    pub ranks: Vec<(u32, usize)>,
    /// The elements of each column.
    pub heights: Vec<usize>,
    /// The elements of each rank of the own column.
    pub own: Vec<usize>,
    /// Where the own column is, in elements.
    pub column: Range<usize>,
    /// Where this rank's part is in it.
    part: Range<usize>,
}

impl Columns {
    pub fn new(layout: &Layout, counts: &Counts<'_>) -> Self {
        let count = |rank: &u32| (*rank, counts.of(*rank as usize));
        let column = |local: u32| layout.column(local).iter().map(count).collect::<Vec<_>>();
        let all: Vec<Vec<(u32, usize)>> = (0..layout.members.len() as u32).map(column).collect();
        let height = |column: &Vec<(u32, usize)>| column.iter().map(|(_, count)| count).sum();
        let heights: Vec<usize> = all.iter().map(height).collect();
        let local = layout.local as usize;
        let own: Vec<usize> = all[local].iter().map(|(_, count)| *count).collect();
        let start: usize = heights[..local].iter().sum();
        let before: usize = own[..layout.node as usize].iter().sum();
        Self {
            column: start..start + heights[local],
            part: before..before + own[layout.node as usize],
            ranks: all.concat(),
            heights,
            own,
        }
    }
}

/// For each rank, where its part is in the order of ranks, and where in this one.
pub(super) fn moves(
    ranks: &[(u32, usize)],
    counts: &Counts<'_>,
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

pub(super) fn each(counts: &[usize]) -> Counts<'_> {
    Counts::Each(counts.into())
}

impl Host {
    /// Each column gathers its parts across, then the columns are gathered inside.
    pub(super) fn all_gather(&mut self, call: Call<'_>) -> Result<(), CommError> {
        let (Some(local), Some(across)) = (&mut self.local, &mut self.across) else {
            return self.world.run(call);
        };
        let columns = Columns::new(&self.layout, &call.counts);
        let (size, of) = (call.dtype.size(), (call.dtype, call.op));
        let mut all = vec![0; call.output.len()];
        let column = &mut all[bytes(&columns.column, size)];
        let own = call.counts.offset(self.world.rank() as usize) * size;
        let length = columns.part.len() * size;
        let given = call.input.unwrap_or_else(|| &call.output[own..own + length]);
        column[bytes(&columns.part, size)].copy_from_slice(given);
        across.run(part(Kind::AllGather, of, 0, each(&columns.own), column))?;
        local.run(part(Kind::AllGather, of, 0, each(&columns.heights), &mut all))?;
        for (place, from) in moves(&columns.ranks, &call.counts, size) {
            call.output[place].copy_from_slice(&all[from]);
        }
        Ok(())
    }

    /// Each column is reduced inside, then its parts are reduced across.
    pub(super) fn reduce_scatter(&mut self, call: Call<'_>) -> Result<(), CommError> {
        let (Some(local), Some(across)) = (&mut self.local, &mut self.across) else {
            return self.world.run(call);
        };
        let columns = Columns::new(&self.layout, &call.counts);
        // An average is divided once, at the end.
        let op = if call.op == ReduceOp::Average { ReduceOp::Sum } else { call.op };
        let (size, of) = (call.dtype.size(), (call.dtype, op));
        let given = call.input.unwrap_or(call.output);
        let mut all = vec![0; given.len()];
        for (place, to) in moves(&columns.ranks, &call.counts, size) {
            all[to].copy_from_slice(&given[place]);
        }
        local.run(part(Kind::ReduceScatter, of, 0, each(&columns.heights), &mut all))?;
        let column = &mut all[bytes(&columns.column, size)];
        across.run(part(Kind::ReduceScatter, of, 0, each(&columns.own), column))?;
        let result = &mut column[bytes(&columns.part, size)];
        kernel::finish(call.dtype, call.op, self.layout.ranks() as u32, result);
        let own = call.counts.offset(self.world.rank() as usize) * size;
        let start = if call.input.is_some() { 0 } else { own };
        call.output[start..start + result.len()].copy_from_slice(result);
        Ok(())
    }
}
