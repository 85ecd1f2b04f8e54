//! Why an operation does not complete, and which ranks the others wait for: the one judgement of a hang.
//!
//! Collectors pass what they know of the ranks: the control plane of a job the answers to its queries,
//! the hang report the status files, the launcher the activity of the processes. No I/O, no clock.
//! [`wording`] has the sentences.

#[cfg(test)]
mod tests;
mod wait_graph;
pub mod wording;

use std::collections::{BTreeMap, BTreeSet};

pub use wait_graph::{Role, Wait, at_fault, explains_delay, reachable, roles, root_causes};

/// How far a rank has got with a collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// It has not called it, or does not answer.
    NotEntered,
    /// It has called it.
    Enqueued,
    /// Its GPU runs it.
    Started,
    /// It has completed it.
    Completed,
}

/// Why a collective does not complete. `C` is a call of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause<C> {
    /// Ranks make different calls with the same number.
    Mismatch {
        /// The number.
        sequence: u64,
        /// The first rank with the call of most ranks; in a tie, with that of the lowest rank.
        majority: (u32, C),
        /// The first rank with another call.
        minority: (u32, C),
    },
    /// These ranks have got no further than this, but others have.
    Behind(BTreeSet<u32>, Stage),
    /// All ranks have got to this stage, and none further.
    Unknown(Stage),
}

/// The cause, from recent calls of ranks by their number, and the stage of each member: another call,
/// also an earlier one, explains why ranks are behind. `same` compares calls.
pub fn judge<C: Copy>(
    calls: &BTreeMap<u64, Vec<(u32, C)>>,
    stages: &BTreeMap<u32, Stage>,
    same: impl Fn(&C, &C) -> bool,
) -> Cause<C> {
    let mismatch = calls.iter().find_map(|(sequence, calls)| mismatch(*sequence, calls, &same));
    mismatch.unwrap_or_else(|| stage(stages))
}

/// Whether ranks made different calls with this number.
fn mismatch<C: Copy>(
    sequence: u64,
    calls: &[(u32, C)],
    same: impl Fn(&C, &C) -> bool,
) -> Option<Cause<C>> {
    // Almost always they did not; counting is quadratic in the ranks.
    if calls.windows(2).all(|pair| same(&pair[0].1, &pair[1].1)) {
        return None;
    }
    let frequency = |(_, one): &&(u32, C)| calls.iter().filter(|(_, call)| same(one, call)).count();
    let majority = *calls.iter().rev().max_by_key(frequency)?;
    let minority = *calls.iter().find(|(_, call)| !same(call, &majority.1))?;
    Some(Cause::Mismatch { sequence, majority, minority })
}

/// The members at the lowest stage, unless all have entered the collective and are equally far.
fn stage<C>(stages: &BTreeMap<u32, Stage>) -> Cause<C> {
    let lowest = stages.values().min().copied().unwrap_or(Stage::Enqueued);
    let ranks = stages.iter().filter(|(_, stage)| **stage == lowest).map(|(rank, _)| *rank);
    let ranks: BTreeSet<u32> = ranks.collect();
    match lowest > Stage::NotEntered && ranks.len() == stages.len() {
        true => Cause::Unknown(lowest),
        false => Cause::Behind(ranks, lowest),
    }
}
