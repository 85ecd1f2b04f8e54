//! Which blocks a rank has where, what is in them at the beginning, and what must be at the end: the
//! table at [`crate::schedule`].

use std::ops::Range;

use super::set::Set;
use crate::Kind;
use crate::schedule::Place;

/// What is in a block: the contributions of some ranks to a block of the result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Value {
    pub block: u32,
    pub of: Set,
}

/// One rank of a collective.
#[derive(Clone, Copy)]
pub(super) struct Room {
    pub kind: Kind,
    pub ranks: u32,
    pub rank: u32,
    pub root: u32,
    /// How many blocks a whole buffer has.
    pub blocks: u32,
}

impl Room {
    /// The blocks that the rank has in a place.
    pub fn blocks(&self, place: Place) -> Range<u32> {
        let (all, own, none) = (0..self.blocks, self.rank..self.rank + 1, 0..0);
        let root = self.rank == self.root;
        match (place, self.kind) {
            (_, Kind::Barrier | Kind::Send | Kind::Receive) => none,
            (Place::Scratch, _) => all,
            (Place::Input, Kind::Broadcast) => none,
            (Place::Input, Kind::AllGather | Kind::Gather) => own,
            (Place::Input, Kind::Scatter) if !root => none,
            (Place::Input, _) => all,
            (Place::Output, Kind::ReduceScatter | Kind::Scatter) => own,
            (Place::Output, Kind::Reduce | Kind::Gather) if !root => none,
            (Place::Output, _) => all,
        }
    }

    /// Whether a block of the input is, in place, the same of the output.
    pub fn aliased(&self, block: u32) -> bool {
        self.kind != Kind::AllToAll && self.blocks(Place::Output).contains(&block)
    }

    /// Whether the output has something in it at the beginning.
    pub fn starts_filled(&self) -> bool {
        self.kind == Kind::Broadcast && self.rank == self.root
    }

    /// What the rank contributes.
    pub fn own(&self, block: u32) -> Value {
        Value { block, of: Set::run(self.rank..self.rank + 1) }
    }

    /// What a block of the output must hold at the end.
    pub fn result(&self, block: u32) -> Value {
        let one = |block: u32, rank: u32| Value { block, of: Set::run(rank..rank + 1) };
        match self.kind {
            Kind::Broadcast | Kind::Scatter => one(block, self.root),
            Kind::AllGather | Kind::Gather => one(block, block),
            Kind::AllToAll => one(self.rank, block),
            _ => Value { block, of: Set::run(0..self.ranks) },
        }
    }

    /// Whether a value may be put into a block: it must have the length that belongs there. In the
    /// scratch room of an all-to-all all are thought of as equally long.
    pub fn fits(&self, value: &Value, place: Place, block: u32) -> bool {
        match (self.kind, place) {
            (Kind::AllToAll, Place::Output) => value.block == self.rank && value.of.is_only(block),
            (Kind::AllToAll, _) => true,
            _ => value.block == block,
        }
    }
}
