//! Gather and scatter in two levels. Where all nodes have the same number of ranks they go by columns,
//! as an all-gather does: through all ranks of the root's node at a time. Else the parts of a node go
//! through its first rank.

use super::Host;
use super::columns::{Columns, bytes, each, moves};
use super::layout::Layout;
use super::two_level::leaders;
use crate::background::Engine;
use crate::{Call, CommError, Counts, Kind};

/// No more than this goes through first ranks, who may not have the memory: they are not the root.
const THROUGH_FIRST: usize = 64 << 20;

/// The parts of all ranks, node by node.
struct Nodes {
    /// The ranks in this order, and how many elements each has.
    ranks: Vec<(u32, usize)>,
    /// The elements of each node.
    each: Vec<usize>,
    /// The elements of each rank of this node.
    own: Vec<usize>,
}

impl Nodes {
    fn new(layout: &Layout, counts: &Counts<'_>) -> Self {
        let count = |rank: u32| (rank, counts.of(rank as usize));
        let node = |node| layout.ranks_of(node).map(count).collect::<Vec<_>>();
        let all: Vec<Vec<(u32, usize)>> = (0..layout.nodes).map(node).collect();
        let own = all[layout.node as usize].iter().map(|(_, count)| *count).collect();
        let elements = |node: &Vec<(u32, usize)>| node.iter().map(|(_, count)| count).sum();
        Self { each: all.iter().map(elements).collect(), own, ranks: all.concat() }
    }

    /// All of it to one rank of this node, as counts of its ranks.
    fn to(&self, place: usize) -> Vec<usize> {
        let mut counts = vec![0; self.own.len()];
        counts[place] = self.each.iter().sum();
        counts
    }
}

/// A part of a gather or scatter: the same, not in place.
fn part<'a>(
    kind: Kind,
    whole: &Call<'_>,
    root: u32,
    counts: &'a [usize],
    input: &'a [u8],
    output: &'a mut [u8],
) -> Call<'a> {
    let (dtype, op) = (whole.dtype, whole.op);
    Call { kind, dtype, op, root, tag: 0, counts: each(counts), input: Some(input), output }
}

impl Host {
    pub(super) fn gather(&mut self, call: Call<'_>) -> Result<(), CommError> {
        match self.layout.even {
            true => self.gather_columns(call),
            false if self.fits_first(&call) => self.gather_nodes(call),
            false => self.world.run(call),
        }
    }

    pub(super) fn scatter(&mut self, call: Call<'_>) -> Result<(), CommError> {
        match self.layout.even {
            true => self.scatter_columns(call),
            false if self.fits_first(&call) => self.scatter_nodes(call),
            false => self.world.run(call),
        }
    }

    fn fits_first(&self, call: &Call<'_>) -> bool {
        call.counts.total(self.layout.ranks()) * call.dtype.size() <= THROUGH_FIRST
    }

    /// Where this rank's part is in what the root has.
    fn own_part(&self, call: &Call<'_>) -> std::ops::Range<usize> {
        let rank = self.world.rank() as usize;
        let start = call.counts.offset(rank);
        bytes(&(start..start + call.counts.of(rank)), call.dtype.size())
    }

    /// What this rank gives to a gather.
    fn given<'a>(&self, call: &'a Call<'_>) -> &'a [u8] {
        let is_root = self.world.rank() == call.root;
        match call.input {
            Some(input) => input,
            None if is_root => &call.output[self.own_part(call)],
            None => call.output,
        }
    }

    /// Each column gathers its parts on the root's node, and the root gathers the columns.
    fn gather_columns(&mut self, call: Call<'_>) -> Result<(), CommError> {
        let (node, place) = self.layout.place(call.root);
        let columns = Columns::new(&self.layout, &call.counts);
        let (size, is_root) = (call.dtype.size(), self.world.rank() == call.root);
        let given = self.given(&call);
        let (here, kind) = (self.layout.node == node, Kind::Gather);
        let (Some(local), Some(across)) = (&mut self.local, &mut self.across) else {
            return Ok(());
        };
        let mut column = vec![0; if here { columns.column.len() * size } else { 0 }];
        across.run(part(kind, &call, node, &columns.own, given, &mut column))?;
        if !here {
            return Ok(());
        }
        let mut all = vec![0; if is_root { call.output.len() } else { 0 }];
        local.run(part(kind, &call, place, &columns.heights, &column, &mut all))?;
        if is_root {
            for (place, from) in moves(&columns.ranks, &call.counts, size) {
                call.output[place].copy_from_slice(&all[from]);
            }
        }
        Ok(())
    }

    /// The root scatters the columns on its node, and each of them its parts.
    fn scatter_columns(&mut self, call: Call<'_>) -> Result<(), CommError> {
        let (node, place) = self.layout.place(call.root);
        let columns = Columns::new(&self.layout, &call.counts);
        let (size, is_root) = (call.dtype.size(), self.world.rank() == call.root);
        let (here, kind) = (self.layout.node == node, Kind::Scatter);
        let own = self.own_part(&call);
        let (Some(local), Some(across)) = (&mut self.local, &mut self.across) else {
            return Ok(());
        };
        let mut column = vec![0; if here { columns.column.len() * size } else { 0 }];
        if here {
            let all = if is_root { ordered(&call, &columns.ranks) } else { Vec::new() };
            local.run(part(kind, &call, place, &columns.heights, &all, &mut column))?;
        }
        let mut got = vec![0; own.len()];
        across.run(part(kind, &call, node, &columns.own, &column, &mut got))?;
        self.get(call, &got);
        Ok(())
    }

    /// To the first of each node, across to the root's node, and there to the root.
    fn gather_nodes(&mut self, call: Call<'_>) -> Result<(), CommError> {
        let (node, place) = self.layout.place(call.root);
        let nodes = Nodes::new(&self.layout, &call.counts);
        let (size, is_first) = (call.dtype.size(), self.layout.local == 0);
        let (here, kind) = (self.layout.node == node, Kind::Gather);
        let length = |counts: &[usize], wanted| if wanted { counts.iter().sum() } else { 0 } * size;
        let mut all = self.given(&call).to_vec();
        if let Some(local) = &mut self.local {
            let mut gathered = vec![0; length(&nodes.own, is_first)];
            local.run(part(kind, &call, 0, &nodes.own, &all, &mut gathered))?;
            all = gathered;
        }
        if let Some(leaders) = leaders(&mut self.across, self.layout.local) {
            let mut gathered = vec![0; length(&nodes.each, here)];
            leaders.run(part(kind, &call, node, &nodes.each, &all, &mut gathered))?;
            all = gathered;
        }
        let is_root = self.world.rank() == call.root;
        if let Some(local) = self.local.as_mut().filter(|_| here && place != 0) {
            let (counts, mut passed) =
                (nodes.to(place as usize), vec![0; length(&nodes.each, is_root)]);
            local.run(part(Kind::Scatter, &call, 0, &counts, &all, &mut passed))?;
            all = passed;
        }
        if is_root {
            for (place, from) in moves(&nodes.ranks, &call.counts, size) {
                call.output[place].copy_from_slice(&all[from]);
            }
        }
        Ok(())
    }

    /// To the first of the root's node, across to that of each, and there to all.
    fn scatter_nodes(&mut self, call: Call<'_>) -> Result<(), CommError> {
        let (node, place) = self.layout.place(call.root);
        let nodes = Nodes::new(&self.layout, &call.counts);
        let (size, is_first) = (call.dtype.size(), self.layout.local == 0);
        let (here, kind) = (self.layout.node == node, Kind::Scatter);
        let length = |counts: &[usize], wanted| if wanted { counts.iter().sum() } else { 0 } * size;
        let (is_root, own) = (self.world.rank() == call.root, self.own_part(&call));
        let mut all = if is_root { ordered(&call, &nodes.ranks) } else { Vec::new() };
        if let Some(local) = self.local.as_mut().filter(|_| here && place != 0) {
            let (counts, mut passed) = (nodes.to(0), vec![0; length(&nodes.each, is_first)]);
            local.run(part(kind, &call, place, &counts, &all, &mut passed))?;
            all = passed;
        }
        if let Some(leaders) = leaders(&mut self.across, self.layout.local) {
            let mut scattered = vec![0; length(&nodes.own, true)];
            leaders.run(part(kind, &call, node, &nodes.each, &all, &mut scattered))?;
            all = scattered;
        }
        if let Some(local) = &mut self.local {
            let mut got = vec![0; own.len()];
            local.run(part(kind, &call, 0, &nodes.own, &all, &mut got))?;
            all = got;
        }
        self.get(call, &all);
        Ok(())
    }

    /// Puts this rank's part of a scatter where it belongs.
    fn get(&self, call: Call<'_>, part: &[u8]) {
        let placed = self.world.rank() == call.root && call.input.is_none();
        let start = if placed { self.own_part(&call).start } else { 0 };
        call.output[start..start + part.len()].copy_from_slice(part);
    }
}

/// What the root of a scatter has, in this order of ranks.
fn ordered(call: &Call<'_>, ranks: &[(u32, usize)]) -> Vec<u8> {
    let given: &[u8] = call.input.unwrap_or(call.output);
    let mut all = vec![0; given.len()];
    for (place, to) in moves(ranks, &call.counts, call.dtype.size()) {
        all[to].copy_from_slice(&given[place]);
    }
    all
}
