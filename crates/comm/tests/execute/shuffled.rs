//! Messages between threads, moved in an order drawn at random. Bytes are read when a message goes,
//! and written when it comes, both as late as a dice says: who lends memory and touches it too early
//! gets wrong numbers.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use regatta_comm::background::Abort;
use regatta_comm::error::Peer;
use regatta_comm::transport::{Landing, Lane, Ticket, Transport};
use regatta_comm::{CommError, DType, ReduceOp, Signature, kernel};

/// Longer than this nobody waits in a test that goes well.
const STUCK: Duration = Duration::from_secs(30);

#[derive(Default)]
struct Wire {
    /// By sender and receiver.
    mail: Mutex<HashMap<(u32, u32), VecDeque<Vec<u8>>>>,
    moved: Condvar,
}

enum Posted {
    Send(*const [u8]),
    Receive(*mut [u8], Landing),
    Reduce(*mut [u8], *const [u8], DType, ReduceOp),
}

pub struct Shuffled {
    rank: u32,
    ranks: u32,
    wire: Arc<Wire>,
    open: Vec<(Ticket, u32, Posted)>,
    tickets: u64,
    dice: u64,
}

// SAFETY: what is lent is touched by the thread that the transport is on.
unsafe impl Send for Shuffled {}

pub fn world(ranks: u32, seed: u64) -> Vec<Shuffled> {
    let wire = Arc::new(Wire::default());
    let rank = |rank| {
        let (wire, dice) = (wire.clone(), seed ^ (u64::from(rank) << 32));
        Shuffled { rank, ranks, wire, open: Vec::new(), tickets: 0, dice }
    };
    (0..ranks).map(rank).collect()
}

impl Shuffled {
    fn post(&mut self, with: u32, posted: Posted) -> Ticket {
        self.tickets += 1;
        self.open.push((Ticket(self.tickets), with, posted));
        Ticket(self.tickets)
    }

    fn below(&mut self, end: usize) -> usize {
        self.dice = self.dice.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.dice >> 33) as usize % end
    }

    /// What can be moved: the first to and from each rank, if there is something.
    fn possible(&self, mail: &HashMap<(u32, u32), VecDeque<Vec<u8>>>) -> Vec<usize> {
        let first = |at: &usize| {
            let (_, with, posted) = &self.open[*at];
            let sends = matches!(posted, Posted::Send(_));
            let same = |(_, other, posted): &(Ticket, u32, Posted)| {
                other == with && matches!(posted, Posted::Send(_)) == sends
            };
            let come = mail.get(&(*with, self.rank)).is_some_and(|queue| !queue.is_empty());
            (sends || come) && !self.open[..*at].iter().any(same)
        };
        (0..self.open.len()).filter(first).collect()
    }
}

/// # Safety
/// As of the transport's functions: the memory is lent.
unsafe fn land(posted: &Posted, came: &[u8]) {
    // SAFETY: it is lent, and nobody else touches it.
    unsafe {
        match *posted {
            Posted::Receive(into, Landing::Replace) => (*into).copy_from_slice(came),
            Posted::Receive(into, Landing::Reduce(dtype, op)) => {
                assert_eq!(into.len(), came.len());
                kernel::reduce(dtype, op, &mut *into, came);
            }
            Posted::Reduce(into, with, dtype, op) => {
                assert_eq!((into.len(), with.len()), (came.len(), came.len()));
                kernel::reduce_two(dtype, op, &mut *into, &*with, came);
            }
            Posted::Send(_) => {}
        }
    }
}

impl Transport for Shuffled {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn peers(&self) -> Vec<Peer> {
        (0..self.ranks).map(|rank| Peer { rank, host: "here".to_owned() }).collect()
    }

    fn begin(&mut self, _: Signature) -> Result<(), CommError> {
        Ok(())
    }

    fn end(&mut self) {
        assert!(self.open.is_empty());
    }

    unsafe fn post_send(
        &mut self,
        to: u32,
        _: Lane,
        bytes: *const [u8],
    ) -> Result<Ticket, CommError> {
        Ok(self.post(to, Posted::Send(bytes)))
    }

    unsafe fn post_receive(
        &mut self,
        from: u32,
        _: Lane,
        into: *mut [u8],
        landing: Landing,
    ) -> Result<Ticket, CommError> {
        Ok(self.post(from, Posted::Receive(into, landing)))
    }

    unsafe fn post_reduce(
        &mut self,
        from: u32,
        _: Lane,
        into: *mut [u8],
        with: *const [u8],
        dtype: DType,
        op: ReduceOp,
    ) -> Result<Ticket, CommError> {
        Ok(self.post(from, Posted::Reduce(into, with, dtype, op)))
    }

    fn progress(&mut self, timeout: Duration, done: &mut Vec<Ticket>) -> Result<(), CommError> {
        let wire = self.wire.clone();
        let mut mail = wire.mail.lock().unwrap();
        let mut possible = self.possible(&mail);
        if possible.is_empty() && !timeout.is_zero() {
            let (held, slept) = wire
                .moved
                .wait_timeout_while(mail, STUCK, |mail| self.possible(mail).is_empty())
                .unwrap();
            assert!(!slept.timed_out(), "rank {} waits for nothing", self.rank);
            mail = held;
            possible = self.possible(&mail);
        }
        if possible.is_empty() {
            return Ok(());
        }
        let at = possible[self.below(possible.len())];
        let (ticket, with, posted) = self.open.remove(at);
        if let Posted::Send(bytes) = posted {
            // SAFETY: it is lent until the ticket is given back.
            let bytes = unsafe { (*bytes).to_vec() };
            mail.entry((self.rank, with)).or_default().push_back(bytes);
            wire.moved.notify_all();
        } else {
            let came = mail.get_mut(&(with, self.rank)).and_then(VecDeque::pop_front).unwrap();
            drop(mail);
            // SAFETY: as above.
            unsafe { land(&posted, &came) };
        }
        done.push(ticket);
        Ok(())
    }

    fn cancel(&mut self) {
        self.open.clear();
    }

    fn abort(&self) -> Abort {
        Arc::new(|why| panic!("given up: {why}"))
    }
}
