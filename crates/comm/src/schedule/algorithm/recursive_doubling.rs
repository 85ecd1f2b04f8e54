//! In round *k* partners at distance 2^*k* exchange their partial results. If *n* is not a power of
//! two, some ranks first fold their data into a neighbour.
//!
//! Rounds: log₂ *n*, plus two with folding. Bytes sent: the whole buffer per round. Partners
//! compute a∘b and b∘a, which are bit-identical for every supported reduction except for the
//! payload of NaNs: all ranks get identical bits.

use std::ops::Range;

use super::build::{RankGroup, copy_round, reduce, send};
use super::power_of_two::PowerOfTwo;
use super::{Program, RankContext, equal_blocks};
use crate::schedule::BufferKind::{self, Input, Output, Scratch};
use crate::schedule::Round;

pub(super) fn all_reduce(ctx: &RankContext) -> Option<Program> {
    equal_blocks(1, reduce_all(&RankGroup::all(ctx.ranks, ctx.rank), Input, 0..1))
}

/// All-reduces the members' `source` buffers into their outputs.
pub(super) fn reduce_all(group: &RankGroup, source: BufferKind, blocks: Range<u32>) -> Vec<Round> {
    let active = PowerOfTwo::new(group);
    active.all_reduce(source, blocks.clone(), |source| {
        let mut rounds = Vec::from_iter(copy_round(source, Output, blocks.clone()));
        for far in active.distances() {
            let partner = active.rank(active.index ^ far);
            // The send buffer must stay unchanged while the partner's data is reduced into the
            // output.
            rounds.extend(copy_round(Output, Scratch, blocks.clone()));
            rounds.push(vec![
                send(partner, Scratch, blocks.clone()),
                reduce(partner, Output, blocks.clone()),
            ]);
        }
        rounds
    })
}
