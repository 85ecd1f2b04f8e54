//! A transport between threads that completes operations in random order. Buffers are read and
//! written as late as possible, so that an access to a borrowed buffer yields wrong results.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use regatta_comm::engine::AbortFn;
use regatta_comm::error::Peer;
use regatta_comm::transport::{MatchKey, RecvAction, RequestId, Transport};
use regatta_comm::{Result, Signature, reduce_kernel};
use regatta_testbed::Random;

/// No operation takes this long unless there is a deadlock.
const DEADLOCK_TIMEOUT: Duration = Duration::from_secs(30);

/// Messages in flight, by sender and receiver.
type InFlight = HashMap<(u32, u32), VecDeque<Vec<u8>>>;

#[derive(Default)]
struct Network {
    in_flight: Mutex<InFlight>,
    moved: Condvar,
}

enum Posted {
    Send(*const [u8]),
    Receive(*mut [u8], RecvAction),
}

pub struct ShuffledTransport {
    rank: u32,
    ranks: u32,
    network: Arc<Network>,
    pending: Vec<(RequestId, u32, Posted)>,
    next_request: u64,
    rng: Random,
}

// SAFETY: borrowed buffers are only accessed by the thread that owns the transport.
unsafe impl Send for ShuffledTransport {}

pub fn world(ranks: u32, seed: u64) -> Vec<ShuffledTransport> {
    let network = Arc::new(Network::default());
    let rank = |rank| {
        let (network, rng) = (network.clone(), Random::new(seed ^ (u64::from(rank) << 32)));
        ShuffledTransport { rank, ranks, network, pending: Vec::new(), next_request: 0, rng }
    };
    (0..ranks).map(rank).collect()
}

impl ShuffledTransport {
    fn post(&mut self, peer: u32, posted: Posted) -> RequestId {
        self.next_request += 1;
        self.pending.push((RequestId(self.next_request), peer, posted));
        RequestId(self.next_request)
    }

    /// The operations that can complete: the first to and from each rank.
    fn ready(&self, in_flight: &InFlight) -> Vec<usize> {
        let first = |at: &usize| {
            let (_, with, posted) = &self.pending[*at];
            let sends = matches!(posted, Posted::Send(_));
            let same = |(_, other, posted): &(RequestId, u32, Posted)| {
                other == with && matches!(posted, Posted::Send(_)) == sends
            };
            let arrived = in_flight.get(&(*with, self.rank)).is_some_and(|queue| !queue.is_empty());
            (sends || arrived) && !self.pending[..*at].iter().any(same)
        };
        (0..self.pending.len()).filter(first).collect()
    }
}

/// # Safety
/// The buffers of the operation must be valid.
unsafe fn deliver(posted: &Posted, received: &[u8]) {
    // SAFETY: the buffers are borrowed by the operation and not accessed otherwise.
    unsafe {
        match *posted {
            Posted::Receive(into, RecvAction::Copy) => (*into).copy_from_slice(received),
            Posted::Receive(into, RecvAction::Reduce(dtype, op)) => {
                assert_eq!(into.len(), received.len());
                reduce_kernel::reduce(dtype, op, &mut *into, received);
            }
            Posted::Receive(into, RecvAction::ReduceInto(dtype, op, with)) => {
                assert_eq!((into.len(), with.len()), (received.len(), received.len()));
                reduce_kernel::reduce_pair(dtype, op, &mut *into, &*with, received);
            }
            Posted::Send(_) => {}
        }
    }
}

impl Transport for ShuffledTransport {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn peers(&self) -> Vec<Peer> {
        (0..self.ranks).map(|rank| Peer::new(rank, "here")).collect()
    }

    fn begin(&mut self, _: Signature) -> Result {
        Ok(())
    }

    fn end(&mut self) {
        assert!(self.pending.is_empty());
    }

    unsafe fn post_send(&mut self, to: u32, _: MatchKey, bytes: *const [u8]) -> Result<RequestId> {
        Ok(self.post(to, Posted::Send(bytes)))
    }

    unsafe fn post_receive(
        &mut self,
        from: u32,
        _: MatchKey,
        into: *mut [u8],
        action: RecvAction,
    ) -> Result<RequestId> {
        Ok(self.post(from, Posted::Receive(into, action)))
    }

    fn progress(&mut self, timeout: Duration, done: &mut Vec<RequestId>) -> Result {
        let network = self.network.clone();
        let mut in_flight = network.in_flight.lock().unwrap();
        let mut ready = self.ready(&in_flight);
        if ready.is_empty() && !timeout.is_zero() {
            let (held, slept) = network
                .moved
                .wait_timeout_while(in_flight, DEADLOCK_TIMEOUT, |in_flight| {
                    self.ready(in_flight).is_empty()
                })
                .unwrap();
            assert!(!slept.timed_out(), "rank {} is deadlocked", self.rank);
            in_flight = held;
            ready = self.ready(&in_flight);
        }
        if ready.is_empty() {
            return Ok(());
        }
        let at = self.rng.pick(&ready);
        let (request, with, posted) = self.pending.remove(at);
        if let Posted::Send(bytes) = posted {
            // SAFETY: the buffer is borrowed until the request completes.
            let bytes = unsafe { (*bytes).to_vec() };
            in_flight.entry((self.rank, with)).or_default().push_back(bytes);
            network.moved.notify_all();
        } else {
            let received =
                in_flight.get_mut(&(with, self.rank)).and_then(VecDeque::pop_front).unwrap();
            drop(in_flight);
            // SAFETY: as above.
            unsafe { deliver(&posted, &received) };
        }
        done.push(request);
        Ok(())
    }

    fn cancel(&mut self) {
        self.pending.clear();
    }

    fn abort_fn(&self) -> AbortFn {
        Arc::new(|why| panic!("given up: {why}"))
    }
}
