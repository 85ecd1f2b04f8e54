//! In round *k* partners 2^*k* apart swap all that they have reduced, so that both have it. For
//! other numbers than powers of two, some give what they have to a neighbour first.
//!
//! Rounds: log₂ *n*, and two more if some stay out. Bytes sent: the whole buffer in each. Partners
//! reduce the same two values, one as a∘b, the other as b∘a, which are the same bits for every
//! reduction there is, save for which of two not-a-numbers it is: all ranks get the same bits.

use std::ops::Range;

use super::build::{Group, copied, receive, reduce, send};
use super::fold::{Fold, Role};
use super::{Program, Seat, whole};
use crate::schedule::{Place, Round};

pub(super) fn all_reduce(seat: &Seat) -> Option<Program> {
    whole(reduce_all(&Group::all(seat.ranks, seat.rank), Place::Input, 0..1))
}

/// All members get the reduction of what they have in `given`, in the output.
pub(super) fn reduce_all(group: &Group, given: Place, blocks: Range<u32>) -> Vec<Round> {
    let fold = Fold::new(group);
    let (index, also_for) = match fold.role() {
        Role::Works { index, also_for } => (index, also_for),
        Role::Out(worker) => {
            let gives = vec![send(worker, given, blocks.clone())];
            return vec![gives, vec![receive(worker, Place::Output, blocks)]];
        }
    };
    let mut rounds: Vec<Round> = Vec::new();
    rounds.extend(copied(given, Place::Output, blocks.clone()));
    rounds.extend(also_for.map(|rank| vec![reduce(rank, Place::Output, blocks.clone())]));
    for k in 0..fold.workers().ilog2() {
        let partner = fold.worker(index ^ (1 << k));
        // What is sent must stay as it is while the partner's is reduced with it.
        rounds.extend(copied(Place::Output, Place::Scratch, blocks.clone()));
        rounds.push(vec![
            send(partner, Place::Scratch, blocks.clone()),
            reduce(partner, Place::Output, blocks.clone()),
        ]);
    }
    rounds.extend(also_for.map(|rank| vec![send(rank, Place::Output, blocks)]));
    rounds
}
