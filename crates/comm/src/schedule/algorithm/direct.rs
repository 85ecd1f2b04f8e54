//! Everybody sends straight to whom it is for: all at once, or one partner after the other. Nothing
//! is reduced, and nothing is sent twice.

use super::build::{copy, receive, send};
use super::{Program, Seat, parts};
use crate::schedule::{Place, Step};

/// In round *k* each sends to the rank *k* after it: one message comes and one goes at a time.
pub(super) fn pairwise(seat: &Seat) -> Option<Program> {
    let Seat { ranks, rank, .. } = *seat;
    let mut rounds = vec![vec![copy(Place::Input, Place::Output, rank..rank + 1)]];
    rounds.extend((1..ranks).map(|k| exchange(seat, k).to_vec()));
    parts(rounds)
}

/// The same in one round. Everybody begins with another, so that none is overrun.
pub(super) fn all_to_all(seat: &Seat) -> Option<Program> {
    let Seat { ranks, rank, .. } = *seat;
    let own = copy(Place::Input, Place::Output, rank..rank + 1);
    parts(vec![std::iter::once(own).chain((1..ranks).flat_map(|k| exchange(seat, k))).collect()])
}

fn exchange(seat: &Seat, k: u32) -> [Step; 2] {
    let Seat { ranks, rank, .. } = *seat;
    let (to, from) = ((rank + k) % ranks, (rank + ranks - k) % ranks);
    [send(to, Place::Input, to..to + 1), receive(from, Place::Output, from..from + 1)]
}

pub(super) fn all_gather(seat: &Seat) -> Option<Program> {
    let Seat { ranks, rank, .. } = *seat;
    let peers = (1..ranks).flat_map(|k| {
        let (to, from) = ((rank + k) % ranks, (rank + ranks - k) % ranks);
        [send(to, Place::Input, rank..rank + 1), receive(from, Place::Output, from..from + 1)]
    });
    let own = copy(Place::Input, Place::Output, rank..rank + 1);
    parts(vec![std::iter::once(own).chain(peers).collect()])
}

pub(super) fn gather(seat: &Seat) -> Option<Program> {
    let Seat { ranks, rank, root, .. } = *seat;
    let own = rank..rank + 1;
    if !seat.is_root() {
        return parts(vec![vec![send(root, Place::Input, own)]]);
    }
    let others = (0..ranks).filter(|&from| from != root);
    let got = others.map(|from| receive(from, Place::Output, from..from + 1));
    let own = copy(Place::Input, Place::Output, own);
    parts(vec![std::iter::once(own).chain(got).collect()])
}

pub(super) fn scatter(seat: &Seat) -> Option<Program> {
    let Seat { ranks, rank, root, .. } = *seat;
    let own = rank..rank + 1;
    if !seat.is_root() {
        return parts(vec![vec![receive(root, Place::Output, own)]]);
    }
    let others = (0..ranks).filter(|&to| to != root);
    let given = others.map(|to| send(to, Place::Input, to..to + 1));
    let own = copy(Place::Input, Place::Output, own);
    parts(vec![std::iter::once(own).chain(given).collect()])
}
