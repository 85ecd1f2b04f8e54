//! A communicator of some ranks whose errors name them by their numbers among all: whoever reads
//! them knows no others.

use std::sync::Arc;

use crate::buffer::Buffer;
use crate::call::Call;
use crate::collectives::Collectives;
use crate::comm::{Comm, Pending};
use crate::error::{CommError, Peer};
use crate::owned::OwnedCall;

/// A communicator whose errors name ranks by their numbers in another one.
pub struct Named {
    inner: Arc<dyn Comm>,
    /// Those numbers, in this one's order.
    numbers: Arc<[u32]>,
}

impl Named {
    /// Some ranks, each of which tells its number among all. All of them call this.
    pub fn new(inner: Arc<dyn Comm>, number: u32) -> Result<Self, CommError> {
        let own = number.to_le_bytes();
        let mut all = vec![0u8; own.len() * inner.size() as usize];
        inner.all_gather(&own, &mut all)?;
        let numbers = all.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        Ok(Self { inner, numbers })
    }

    fn name<T>(&self, result: Result<T, CommError>) -> Result<T, CommError> {
        result.map_err(|error| error.renumbered(&self.numbers))
    }
}

impl Comm for Named {
    fn rank(&self) -> u32 {
        self.inner.rank()
    }

    fn size(&self) -> u32 {
        self.inner.size()
    }

    fn peer(&self, rank: u32) -> Peer {
        self.inner.peer(rank)
    }

    fn run(&self, call: Call<'_>) -> Result<(), CommError> {
        self.name(self.inner.run(call))
    }

    fn run_group(&self, calls: Vec<Call<'_>>) -> Result<(), CommError> {
        self.name(self.inner.run_group(calls))
    }

    fn run_owned(&self, call: &mut OwnedCall, times: u32) -> Result<(), CommError> {
        self.name(self.inner.run_owned(call, times))
    }

    fn run_messages(&self, messages: &mut [OwnedCall], times: u32) -> Result<(), CommError> {
        self.name(self.inner.run_messages(messages, times))
    }

    fn start(&self, call: OwnedCall) -> Pending {
        self.inner.start(call).renumbered(self.numbers.clone())
    }

    fn split(&self, colour: Option<u32>, key: i64) -> Result<Option<Box<dyn Comm>>, CommError> {
        let Some(part) = self.name(self.inner.split(colour, key))? else { return Ok(None) };
        let own = self.numbers.get(self.rank() as usize).copied().unwrap_or_default();
        Ok(Some(Box::new(Self::new(Arc::from(part), own)?)))
    }

    fn buffer(&self, bytes: usize) -> Buffer {
        self.inner.buffer(bytes)
    }

    fn device_buffer(&self, bytes: usize) -> Result<Buffer, CommError> {
        self.inner.device_buffer(bytes)
    }

    fn abort(&self, why: &str) {
        self.inner.abort(why);
    }

    fn is_over(&self) -> bool {
        self.inner.is_over()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ReduceOp, fake};

    #[test]
    fn errors_name_ranks_by_their_numbers_among_all() {
        std::thread::scope(|scope| {
            for world in fake::world(4) {
                scope.spawn(move || {
                    let odd = world.rank() % 2;
                    let part = world.split(Some(odd), 0).unwrap().unwrap();
                    let part = Named::new(Arc::from(part), world.rank()).unwrap();
                    world.barrier().unwrap();
                    match world.rank() {
                        1 => {
                            let error = part.all_reduce(&mut [1f32], ReduceOp::Sum).unwrap_err();
                            assert!(error.to_string().starts_with("rank 3 on "), "{error}");
                        }
                        3 => part.abort("no more"),
                        _ => {}
                    }
                    world.barrier().unwrap();
                });
            }
        });
    }

    #[test]
    fn a_rank_outside_has_its_number_already() {
        let lost =
            |peer| CommError::Lost { peer, why: "it is".to_owned(), call: "this".to_owned() };
        let within = Peer { rank: 1, host: "here".to_owned() };
        let text = |peer| lost(peer).renumbered(&[4, 6]).to_string();
        assert_eq!(text(within), "rank 6 on here is gone (it is) during this");
        assert_eq!(text(Peer::outside(1, "here")), "rank 1 on here is gone (it is) during this");
    }
}
