//! An engine for some of the ranks.

use std::sync::Arc;

use crate::background::Engine;
use crate::blame::Waits;
use crate::error::Peer;
use crate::{Call, CommError};

/// An engine, and the ranks of the whole that it is for.
pub struct Part<E> {
    pub engine: E,
    pub members: Vec<u32>,
}

impl<E: Engine> Part<E> {
    pub fn run(&mut self, call: Call<'_>) -> Result<(), CommError> {
        self.engine.run(call).map_err(|error| renamed(error, &self.members))
    }

    /// Whom it waits for, as the whole numbers them.
    pub fn waits(&self) -> Waits {
        let (own, members) = (self.engine.waits(), self.members.clone());
        let of = move |(rank, waited)| Some((*members.get(rank as usize)?, waited));
        Arc::new(move || own().into_iter().filter_map(&of).collect())
    }
}

/// An error of an engine for these ranks of the whole, as that numbers them.
pub fn renamed(error: CommError, members: &[u32]) -> CommError {
    let of = |peer: Peer| {
        let known = members.get(peer.rank as usize).filter(|_| !peer.is_outside());
        Peer { rank: known.copied().unwrap_or(peer.rank), ..peer }
    };
    match error {
        CommError::Lost { peer, why, call } => CommError::Lost { peer: of(peer), why, call },
        CommError::Disagree { sequence, ours_by, ours, theirs_by, theirs } => {
            let (ours_by, theirs_by) = (of(ours_by), of(theirs_by));
            CommError::Disagree { sequence, ours_by, ours, theirs_by, theirs }
        }
        CommError::Late { call, seconds, missing } => {
            CommError::Late { call, seconds, missing: missing.into_iter().map(of).collect() }
        }
        CommError::Path { from, to, why, call } => {
            CommError::Path { from: of(from), to: of(to), why, call }
        }
        CommError::Unmatched { from, to, dtype, sent, expected } => {
            CommError::Unmatched { from: of(from), to: of(to), dtype, sent, expected }
        }
        CommError::Aborted { by, why } => CommError::Aborted { by: of(by), why },
        other => other,
    }
}
