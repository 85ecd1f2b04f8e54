//! Each rank sends to the next and receives from the one before: a part goes once round and is
//! reduced on its way, then goes round again and is kept.
//!
//! Rounds: *n*-1 for half of it, 2(*n*-1) for an all-reduce. Bytes sent: (*n*-1)/*n* of the buffer
//! for each half, which is the least possible. A part's value is made once, in the order of the
//! ring, and then copied: all ranks get the same bits.

use std::ops::Range;

use super::build::{Group, copied, copy, receive, reduce, send};
use super::{Program, Seat, parts, shares};
use crate::schedule::{Place, Round};

pub(super) fn all_reduce(seat: &Seat) -> Option<Program> {
    let ring = Group::all(seat.ranks, seat.rank);
    let mut rounds = reduce_parts(&ring, own, Place::Input, Place::Output, Place::Output);
    rounds.extend(gather_parts(&ring, own, Place::Output));
    shares(seat.ranks, rounds)
}

pub(super) fn reduce_scatter(seat: &Seat) -> Option<Program> {
    let ring = Group::all(seat.ranks, seat.rank);
    parts(reduce_parts(&ring, own, Place::Input, Place::Scratch, Place::Output))
}

pub(super) fn all_gather(seat: &Seat) -> Option<Program> {
    let ring = Group::all(seat.ranks, seat.rank);
    let mut rounds = gather_parts(&ring, own, Place::Input);
    rounds.first_mut()?.push(copy(Place::Input, Place::Output, own(seat.rank)));
    parts(rounds)
}

/// Block *i* is the part of rank *i*.
fn own(at: u32) -> Range<u32> {
    at..at + 1
}

/// Every member gets the reduction of its part in `last`. What it gives is in `given`; others'
/// parts are reduced in `work`, copied there a round before they are needed.
pub(super) fn reduce_parts(
    ring: &Group,
    part: impl Fn(u32) -> Range<u32>,
    given: Place,
    work: Place,
    last: Place,
) -> Vec<Round> {
    let n = ring.size();
    let place = |at: u32| if at == ring.me { last } else { work };
    // What is reduced in round k; in round 0 there is only something to copy.
    let reduced = |k: u32| ring.back(k + 1);
    let prepared = |at: u32| copied(given, place(at), part(at)).into_iter().flatten();
    let mut rounds: Vec<Round> = vec![prepared(reduced(1.min(n - 1))).collect()];
    for k in 1..n {
        let (out, into) = (ring.back(k), reduced(k));
        let from = if k == 1 { given } else { work };
        let mut round = vec![
            send(ring.rank(ring.me + 1), from, part(out)),
            reduce(ring.rank(ring.back(1)), place(into), part(into)),
        ];
        if k + 1 < n {
            round.extend(prepared(reduced(k + 1)));
        }
        rounds.push(round);
    }
    rounds
}

/// All members get all parts in the output. Each has its own in `given`.
pub(super) fn gather_parts(
    ring: &Group,
    part: impl Fn(u32) -> Range<u32>,
    given: Place,
) -> Vec<Round> {
    let round = |k: u32| {
        let from = if k == 0 { given } else { Place::Output };
        vec![
            send(ring.rank(ring.me + 1), from, part(ring.back(k))),
            receive(ring.rank(ring.back(1)), Place::Output, part(ring.back(k + 1))),
        ]
    };
    (0..ring.size() - 1).map(round).collect()
}
