//! An engine for some of the ranks.

use std::sync::Arc;

use crate::background::Engine;
use crate::blame::Waits;
use crate::error::Peer;
use crate::{Call, CommError};

/// An engine, and the ranks of the whole that it is for.
pub struct Part {
    pub engine: Box<dyn Engine>,
    pub members: Vec<u32>,
}

impl Part {
    pub fn run(&mut self, call: Call<'_>) -> Result<(), CommError> {
        self.engine.run(call).map_err(|error| self.renamed(error))
    }

    pub fn run_group(&mut self, calls: Vec<Call<'_>>) -> Result<(), CommError> {
        self.engine.run_group(calls).map_err(|error| self.renamed(error))
    }

    /// Whom it waits for, as the whole numbers them.
    pub fn waits(&self) -> Waits {
        let (own, members) = (self.engine.waits(), self.members.clone());
        let of = move |(rank, waited)| Some((*members.get(rank as usize)?, waited));
        Arc::new(move || own().into_iter().filter_map(&of).collect())
    }

    /// An error with ranks as the whole numbers them.
    fn renamed(&self, error: CommError) -> CommError {
        let of = |peer: Peer| {
            let known = self.members.get(peer.rank as usize).filter(|_| !peer.is_outside());
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
            CommError::Aborted { by, why } => CommError::Aborted { by: of(by), why },
            other => other,
        }
    }
}
