//! A sub-communicator whose errors name ranks by their global rank, which is the one users know.

use std::sync::Arc;

use crate::Result;
use crate::call::Call;
use crate::collectives::Collectives;
use crate::comm::{Comm, Pending, delegate_queries};
use crate::event::Event;
use crate::owned_call::OwnedCall;

/// A communicator whose errors use the ranks of another one.
pub struct TranslatedComm {
    inner: Arc<dyn Comm>,
    /// The translated rank of each member.
    ranks: Arc<[u32]>,
}

impl TranslatedComm {
    /// Exchanges the translated rank of every member. Collective.
    pub fn new(inner: Arc<dyn Comm>, rank: u32) -> Result<Self> {
        let own = rank.to_le_bytes();
        let mut all = vec![0u8; own.len() * inner.size() as usize];
        inner.all_gather(&own, &mut all)?;
        let ranks = all.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        Ok(Self { inner, ranks })
    }

    fn translate<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| error.translate_ranks(&self.ranks))
    }
}

impl Comm for TranslatedComm {
    delegate_queries!();

    fn run(&self, call: Call<'_>) -> Result {
        self.translate(self.inner.run(call))
    }

    fn run_group(&self, calls: Vec<Call<'_>>) -> Result {
        self.translate(self.inner.run_group(calls))
    }

    fn run_owned(&self, calls: &mut [OwnedCall], times: u32) -> Result {
        self.translate(self.inner.run_owned(calls, times))
    }

    fn enqueue(&self, calls: Vec<OwnedCall>, after: &[Event]) -> Pending {
        self.inner.enqueue(calls, after).translate_ranks(self.ranks.clone())
    }

    fn split(&self, colour: Option<u32>, key: i64) -> Result<Option<Box<dyn Comm>>> {
        let Some(split) = self.translate(self.inner.split(colour, key))? else { return Ok(None) };
        let own = self.ranks.get(self.rank() as usize).copied().unwrap_or_default();
        Ok(Some(Box::new(Self::new(Arc::from(split), own)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Peer;
    use crate::{CommError, ReduceOp, in_process};

    #[test]
    fn errors_name_global_ranks() {
        std::thread::scope(|scope| {
            for world in in_process::world(4) {
                scope.spawn(move || {
                    let colour = world.rank() % 2;
                    let split = world.split(Some(colour), 0).unwrap().unwrap();
                    let split = TranslatedComm::new(Arc::from(split), world.rank()).unwrap();
                    world.barrier().unwrap();
                    match world.rank() {
                        1 => {
                            let error = split.all_reduce(&mut [1f32], ReduceOp::Sum).unwrap_err();
                            assert!(error.to_string().starts_with("rank 3 on "), "{error}");
                        }
                        3 => split.abort("no more"),
                        _ => {}
                    }
                    world.barrier().unwrap();
                });
            }
        });
    }

    #[test]
    fn a_global_rank_is_not_translated() {
        let lost = |peer| {
            let (why, call) = ("reset".to_owned(), "barrier".to_owned());
            CommError::RankLost { peer, why, call }
        };
        for (peer, rank) in [(Peer::new(1, "node1"), 6), (Peer::global(1, "node1"), 1)] {
            let text = lost(peer).translate_ranks(&[4, 6]).to_string();
            assert_eq!(text, format!("rank {rank} on node1 was lost during barrier: reset"));
        }
    }
}
