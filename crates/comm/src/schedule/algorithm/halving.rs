//! Partners swap halves of what they work on and reduce one each, until each has a share; then
//! they swap back what is done. This is Rabenseifner's all-reduce. For other numbers than powers
//! of two, some give what they have to a neighbour first.
//!
//! Rounds: 2 log₂ *n*, and two more if some stay out. Bytes sent: 2(*p*-1)/*p* of the buffer, with *p*
//! the power of two; once more for or by those that stay out. A share's value is made once and then
//! copied: all ranks get the same bits.

use std::ops::Range;

use super::build::{Group, copied, receive, reduce, send};
use super::fold::{Fold, Role};
use super::{Program, Seat, shares};
use crate::schedule::{Place, Round};

pub(super) fn all_reduce(seat: &Seat) -> Option<Program> {
    let group = Group::all(seat.ranks, seat.rank);
    let fold = Fold::new(&group);
    let all = 0..fold.workers();
    let rounds = match fold.role() {
        Role::Out(worker) => vec![
            vec![send(worker, Place::Input, all.clone())],
            vec![receive(worker, Place::Output, all.clone())],
        ],
        Role::Works { index, also_for } => {
            let mut rounds: Vec<Round> = Vec::new();
            rounds.extend(copied(Place::Input, Place::Output, all.clone()));
            rounds.extend(also_for.map(|rank| vec![reduce(rank, Place::Output, all.clone())]));
            rounds.extend(worker(&fold, index));
            rounds.extend(also_for.map(|rank| vec![send(rank, Place::Output, all.clone())]));
            rounds
        }
    };
    shares(all.end, rounds)
}

fn worker(fold: &Fold, index: u32) -> Vec<Round> {
    let distances = (0..fold.workers().ilog2()).map(|k| 1 << k);
    let halving = distances.clone().rev().map(|far| {
        let (rank, other) = (fold.worker(index ^ far), index ^ far);
        vec![
            send(rank, Place::Output, run(other, far)),
            reduce(rank, Place::Output, run(index, far)),
        ]
    });
    let doubling = distances.map(|far| {
        let (rank, other) = (fold.worker(index ^ far), index ^ far);
        vec![
            send(rank, Place::Output, run(index, far)),
            receive(rank, Place::Output, run(other, far)),
        ]
    });
    halving.chain(doubling).collect()
}

/// The blocks of which `index` is one, `length` (a power of two) of them.
fn run(index: u32, length: u32) -> Range<u32> {
    let start = index & !(length - 1);
    start..start + length
}
