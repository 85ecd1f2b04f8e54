//! The simplest right program for each collective.

use crate::schedule::{Blocks, Piece, Place, Program, Round, Step};
use crate::{Call, Kind};

/// What a rank does in a collective.
pub fn program(call: &Call<'_>, rank: u32, ranks: u32) -> Program {
    let ring = Ring { rank, ranks };
    let placed = call.input.is_none();
    let whole = matches!(call.kind, Kind::AllReduce);
    let one = matches!(call.kind, Kind::Reduce | Kind::Broadcast);
    let rounds = match call.kind {
        Kind::AllReduce => ring.all_reduce(placed),
        Kind::ReduceScatter => ring.reduce_scatter(placed),
        Kind::AllGather => ring.all_gather(placed),
        Kind::Broadcast => ring.broadcast(call.root),
        Kind::Reduce => ring.reduce(call.root, placed),
        Kind::Gather => ring.gather(call.root, placed),
        Kind::Scatter => ring.scatter(call.root, placed),
        Kind::AllToAll => ring.all_to_all(placed),
        Kind::Barrier => ring.barrier(),
        Kind::Send | Kind::Receive => Vec::new(),
    };
    let blocks = match (whole, one) {
        (true, _) => Blocks::Shares(ranks),
        (_, true) => Blocks::Shares(1),
        _ => Blocks::Parts,
    };
    Program { blocks, rounds }
}

/// A rank among the others, as if they stood in a ring.
struct Ring {
    rank: u32,
    ranks: u32,
}

fn piece(place: Place, block: u32) -> Piece {
    Piece { place, blocks: block..block + 1 }
}

fn send(to: u32, what: Piece) -> Step {
    Step::Send { to, what }
}

fn receive(from: u32, into: Piece, reduce: bool) -> Step {
    Step::Receive { from, into, reduce }
}

fn copy(from: Piece, to: Piece) -> Step {
    Step::Copy { from, to }
}

impl Ring {
    /// The rank so many places on.
    fn on(&self, places: u32) -> u32 {
        (self.rank + places % self.ranks) % self.ranks
    }

    /// The rank so many places back.
    fn back(&self, places: u32) -> u32 {
        (self.rank + self.ranks - places % self.ranks) % self.ranks
    }

    fn all(&self, place: Place) -> Piece {
        Piece { place, blocks: 0..self.ranks }
    }

    /// Round after round a block goes on from rank to rank, first the one `first` places back.
    fn around(&self, place: Place, first: u32, reduce: bool) -> Vec<Round> {
        let round = |i: u32| {
            let (out, into) = (self.back(first + i), self.back(first + i + 1));
            vec![
                send(self.on(1), piece(place, out)),
                receive(self.back(1), piece(place, into), reduce),
            ]
        };
        (0..self.ranks - 1).map(round).collect()
    }

    fn all_reduce(&self, placed: bool) -> Vec<Round> {
        let mut rounds = Vec::new();
        if !placed {
            rounds.push(vec![copy(self.all(Place::Input), self.all(Place::Output))]);
        }
        rounds.extend(self.around(Place::Output, 0, true));
        // The share that is now whole here is the next rank's.
        rounds.extend(self.around(Place::Output, self.ranks - 1, false));
        rounds
    }

    fn reduce_scatter(&self, placed: bool) -> Vec<Round> {
        if placed {
            return self.around(Place::Output, 1, true);
        }
        let mut rounds = vec![vec![copy(self.all(Place::Input), self.all(Place::Scratch))]];
        rounds.extend(self.around(Place::Scratch, 1, true));
        rounds.push(vec![copy(piece(Place::Scratch, self.rank), piece(Place::Output, self.rank))]);
        rounds
    }

    /// A rank's own part to where it belongs.
    fn own(&self, placed: bool) -> Round {
        let own = copy(piece(Place::Input, self.rank), piece(Place::Output, self.rank));
        if placed { Vec::new() } else { vec![own] }
    }

    fn all_gather(&self, placed: bool) -> Vec<Round> {
        let mut rounds = vec![self.own(placed)];
        rounds.extend(self.around(Place::Output, 0, false));
        rounds
    }

    /// The ranks below and above in a binomial tree: rank 0 of it is the root.
    fn tree(&self, root: u32) -> (Option<u32>, Vec<u32>) {
        let place = (self.rank + self.ranks - root) % self.ranks;
        let real = |place: u32| (place + root) % self.ranks;
        let reach =
            if place == 0 { self.ranks.next_power_of_two() } else { place & place.wrapping_neg() };
        let above = (place != 0).then(|| real(place - reach));
        let powers = (0..32).map(|bit| 1u32 << bit).take_while(|&step| step < reach);
        let below = powers.map(|step| place + step).filter(|&p| p < self.ranks).map(real);
        (above, below.collect())
    }

    fn broadcast(&self, root: u32) -> Vec<Round> {
        let (above, below) = self.tree(root);
        let down = below.into_iter().rev().map(|to| send(to, piece(Place::Output, 0))).collect();
        let from_above = above.map(|from| vec![receive(from, piece(Place::Output, 0), false)]);
        from_above.into_iter().chain([down]).collect()
    }

    fn reduce(&self, root: u32, placed: bool) -> Vec<Round> {
        let (above, below) = self.tree(root);
        let here = if self.rank == root { Place::Output } else { Place::Scratch };
        let mut rounds = Vec::new();
        if here == Place::Scratch || !placed {
            rounds.push(vec![copy(piece(Place::Input, 0), piece(here, 0))]);
        }
        rounds.extend(below.into_iter().map(|from| vec![receive(from, piece(here, 0), true)]));
        rounds.extend(above.map(|to| vec![send(to, piece(here, 0))]));
        rounds
    }

    fn gather(&self, root: u32, placed: bool) -> Vec<Round> {
        if self.rank != root {
            return vec![vec![send(root, piece(Place::Input, self.rank))]];
        }
        let mut round = self.own(placed);
        let others = (1..self.ranks).map(|i| self.on(i));
        round.extend(others.map(|from| receive(from, piece(Place::Output, from), false)));
        vec![round]
    }

    fn scatter(&self, root: u32, placed: bool) -> Vec<Round> {
        if self.rank != root {
            return vec![vec![receive(root, piece(Place::Output, self.rank), false)]];
        }
        let mut round = self.own(placed);
        let others = (1..self.ranks).map(|i| self.on(i));
        round.extend(others.map(|to| send(to, piece(Place::Input, to))));
        vec![round]
    }

    fn all_to_all(&self, placed: bool) -> Vec<Round> {
        let from = if placed { Place::Scratch } else { Place::Input };
        let mut rounds = Vec::new();
        if placed {
            rounds.push(vec![copy(self.all(Place::Output), self.all(Place::Scratch))]);
        } else {
            rounds.push(self.own(false));
        }
        rounds.extend((1..self.ranks).map(|i| {
            let (to, back) = (self.on(i), self.back(i));
            vec![send(to, piece(from, to)), receive(back, piece(Place::Output, back), false)]
        }));
        rounds
    }

    /// After so many rounds each has heard, through others, from twice as many.
    fn barrier(&self) -> Vec<Round> {
        let nothing = || Piece { place: Place::Output, blocks: 0..0 };
        let steps = (0..32).map(|bit| 1u32 << bit).take_while(|&step| step < self.ranks);
        let round =
            |step| vec![send(self.on(step), nothing()), receive(self.back(step), nothing(), false)];
        steps.map(round).collect()
    }
}
