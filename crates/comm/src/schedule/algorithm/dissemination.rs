//! In round *k* each rank passes on to the rank 2^*k* before it what it has: after ⌈log₂ *n*⌉ rounds
//! all have all, for any number of ranks. Backwards in time the same ways gather up reductions.
//!
//! Bytes sent: (*n*-1)/*n* of the buffer for each half, as a ring. A part's value is made once, up a
//! tree that the program fixes, and then copied: all ranks get the same bits.

use super::build::{around, copied, copy, receive, reduce as reduced, send};
use super::{Program, Seat, parts, shares};
use crate::schedule::{Place, Round};

pub(super) fn all_reduce(seat: &Seat) -> Option<Program> {
    let mut rounds = reduce(seat, Place::Output);
    rounds.extend(gather(seat));
    shares(seat.ranks, rounds)
}

pub(super) fn reduce_scatter(seat: &Seat) -> Option<Program> {
    let mut rounds = reduce(seat, Place::Scratch);
    rounds.extend(copied(Place::Scratch, Place::Output, seat.rank..seat.rank + 1));
    parts(rounds)
}

pub(super) fn all_gather(seat: &Seat) -> Option<Program> {
    let mut rounds = vec![vec![copy(Place::Input, Place::Output, seat.rank..seat.rank + 1)]];
    rounds.extend(gather(seat));
    parts(rounds)
}

pub(super) fn barrier(seat: &Seat) -> Option<Program> {
    let Seat { ranks, rank, .. } = *seat;
    let round = |step: u32| {
        vec![
            send((rank + ranks - step) % ranks, Place::Output, 0..0),
            receive((rank + step) % ranks, Place::Output, 0..0),
        ]
    };
    shares(0, distances(ranks).map(round).collect())
}

/// 1, 2, 4, … below `ranks`.
fn distances(ranks: u32) -> impl DoubleEndedIterator<Item = u32> {
    (0..ranks.next_power_of_two().ilog2()).map(|k| 1 << k)
}

/// All get all parts; each has its own in the output.
fn gather(seat: &Seat) -> Vec<Round> {
    let Seat { ranks, rank, .. } = *seat;
    let round = |far: u32| {
        // Rank r has the parts r, r+1, … r+far-1 and needs as many again, if there are.
        let length = far.min(ranks - far);
        let (to, from) = ((rank + ranks - far) % ranks, (rank + far) % ranks);
        let sent = around(rank, length, ranks).map(|blocks| send(to, Place::Output, blocks));
        let got = around(from, length, ranks).map(|blocks| receive(from, Place::Output, blocks));
        sent.chain(got).collect()
    };
    distances(ranks).map(round).collect()
}

/// Each gets the reduction of its part in `work`, where others' parts are reduced, too.
fn reduce(seat: &Seat, work: Place) -> Vec<Round> {
    let Seat { ranks, rank, .. } = *seat;
    let round = |far: u32| {
        let length = far.min(ranks - far);
        let (to, from) = ((rank + far) % ranks, (rank + ranks - far) % ranks);
        let sent = around(to, length, ranks).map(|blocks| send(to, work, blocks));
        let got = around(rank, length, ranks).map(|blocks| reduced(from, work, blocks));
        sent.chain(got).collect()
    };
    let first = copied(Place::Input, work, 0..ranks);
    first.into_iter().chain(distances(ranks).rev().map(round)).collect()
}
