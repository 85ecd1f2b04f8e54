//! In round *k* partners at distance 2^*k* exchange their partial results. If *n* is not a power of
//! two, some ranks first fold their data into a neighbour.
//!
//! Rounds: log₂ *n*, plus two with folding. Bytes sent: the whole buffer per round. Partners
//! compute a∘b and b∘a, which are bit-identical for every supported reduction except for the
//! payload of NaNs: all ranks get identical bits.

use std::ops::Range;

use super::build::{RankGroup, copy_round, receive, reduce, send};
use super::power_of_two::{FoldRole, PowerOfTwoFold};
use super::{Program, RankContext, one_block};
use crate::schedule::BufferKind::{self, Input, Output, Scratch};
use crate::schedule::Round;

pub(super) fn all_reduce(ctx: &RankContext) -> Option<Program> {
    one_block(reduce_all(&RankGroup::all(ctx.ranks, ctx.rank), Input, 0..1))
}

/// All-reduces the members' `source` buffers into their outputs.
pub(super) fn reduce_all(group: &RankGroup, source: BufferKind, blocks: Range<u32>) -> Vec<Round> {
    let fold = PowerOfTwoFold::new(group);
    let (index, folded_rank) = match fold.role() {
        FoldRole::Active { index, folded_rank } => (index, folded_rank),
        FoldRole::Folded(worker) => {
            let fold = vec![send(worker, source, blocks.clone())];
            return vec![fold, vec![receive(worker, Output, blocks)]];
        }
    };
    let mut rounds: Vec<Round> = Vec::new();
    rounds.extend(copy_round(source, Output, blocks.clone()));
    rounds.extend(folded_rank.map(|rank| vec![reduce(rank, Output, blocks.clone())]));
    for k in 0..fold.workers().ilog2() {
        let partner = fold.worker(index ^ (1 << k));
        // The send buffer must stay unchanged while the partner's data is reduced into the output.
        rounds.extend(copy_round(Output, Scratch, blocks.clone()));
        rounds.push(vec![
            send(partner, Scratch, blocks.clone()),
            reduce(partner, Output, blocks.clone()),
        ]);
    }
    rounds.extend(folded_rank.map(|rank| vec![send(rank, Output, blocks)]));
    rounds
}
