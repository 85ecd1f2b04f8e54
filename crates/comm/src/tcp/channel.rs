//! A communicator's way to its ranks over the connections of the process.

mod agree;
mod faults;
mod spin;
mod watch;
mod whole;

use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use super::control::{Fault, Left, MOST_CONNECTIONS, Up, fingerprint};
use super::endpoint::Endpoint;
use super::frame::{Head, Key, STRIPED_FROM, STRIPED_OVER_RAILS};
use super::mesh::{Mesh, Posted, Way};
use crate::background::Abort;
use crate::error::Peer;
use crate::schedule::choose::Table;
use crate::transport::{Landing, Lane, Ticket, Transport};
use crate::{CommError, DType, ReduceOp, Signature};
use spin::Spin;
use watch::Watch;

/// What is posted.
struct Posting {
    ticket: Ticket,
    /// With whom.
    with: u32,
    /// Whether something goes to it, or comes from it.
    way: Way,
    /// Whether it is a message beside collectives.
    message: bool,
}

/// One communicator.
pub struct TcpTransport {
    endpoint: Arc<Endpoint>,
    channel: u64,
    /// The numbers of its ranks in the whole world.
    members: Vec<u32>,
    rank: u32,
    open: Vec<Posting>,
    /// What goes on, in words.
    doing: String,
    /// Whether a collective goes on.
    in_call: bool,
    calls_done: u64,
    /// Messages that were sent, by rank.
    sent: Vec<(u32, u64)>,
    /// Messages that came, by rank.
    received: Vec<(u32, u64)>,
    watch: Watch,
    spin: Spin,
    /// What this rank believes is wrong, unless it is told otherwise until then.
    suspicion: Option<(Instant, CommError)>,
    failed: Option<CommError>,
}

impl TcpTransport {
    /// For these ranks of the world, of which this is the one in the place `rank`.
    pub fn new(endpoint: Arc<Endpoint>, channel: u64, members: Vec<u32>, rank: u32) -> Self {
        endpoint.shared.lock().channels.get(channel);
        let watch = Watch::new(endpoint.desync_after, Instant::now());
        let spin = Spin::new(endpoint.spin);
        Self {
            endpoint,
            channel,
            members,
            rank,
            open: Vec::new(),
            doing: String::new(),
            in_call: false,
            calls_done: 0,
            sent: Vec::new(),
            received: Vec::new(),
            watch,
            spin,
            suspicion: None,
            failed: None,
        }
    }

    /// One that waits at least so long before ranks are late.
    pub fn patient(mut self, at_least: Duration) -> Self {
        self.watch = Watch::new(self.endpoint.desync_after.max(at_least), Instant::now());
        self
    }

    /// A communicator for some of its ranks.
    pub fn child(&self, channel: u64, members: Vec<u32>, rank: u32) -> Self {
        Self::new(self.endpoint.clone(), channel, members, rank)
    }

    /// What tells the communicator of a colour from all others, after the call that split this one:
    /// all its ranks come to the same number, and no others do.
    pub fn child_channel(&self, colour: u32) -> u64 {
        let numbers = [self.channel, self.calls_done, colour.into()];
        fingerprint(numbers.into_iter().flat_map(u64::to_le_bytes))
    }

    /// A communicator for all its ranks, of which none needs to be told.
    pub fn twin(&self) -> Self {
        const TWIN: u64 = 1 << 32;
        let numbers = [self.channel, self.calls_done, TWIN];
        let channel = fingerprint(numbers.into_iter().flat_map(u64::to_le_bytes));
        self.child(channel, self.members.clone(), self.rank)
    }

    /// How its messages go, in words.
    pub fn carried(&self) -> &str {
        self.endpoint.carried.get().map_or("TCP", String::as_str)
    }

    /// The numbers of its ranks in the whole world.
    pub fn members(&self) -> &[u32] {
        &self.members
    }

    /// By which algorithms all ranks do their collectives.
    pub fn algorithms(&self) -> Arc<Table> {
        self.endpoint.algorithms.clone()
    }

    /// A number for the node of each of its ranks.
    pub fn nodes(&self) -> Vec<u64> {
        let node = |global: &u32| self.endpoint.members.get(*global as usize).map(|m| m.node);
        self.members.iter().map(|global| node(global).unwrap_or_default()).collect()
    }

    /// Its name for a rank of the world, and where that is.
    fn peer(&self, global: u32) -> Peer {
        let known = self.members.iter().position(|&m| m == global);
        let host = self.endpoint.members.get(global as usize).map(|m| m.host.clone());
        let host = host.unwrap_or_else(|| "?".to_owned());
        match known {
            Some(at) => Peer { rank: at as u32, host },
            // It is none of these ranks.
            None => Peer::outside(global, &host),
        }
    }

    fn global(&self, rank: u32) -> u32 {
        self.members.get(rank as usize).copied().unwrap_or(u32::MAX)
    }

    /// The number in the world of one that an error names.
    fn global_of(&self, peer: &Peer) -> u32 {
        if peer.is_outside() { peer.rank } else { self.global(peer.rank) }
    }

    fn me(&self) -> u32 {
        self.endpoint.rank
    }

    /// After an error there is nothing but that error.
    fn usable(&self) -> Result<(), CommError> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    fn fail(&mut self, error: CommError) -> CommError {
        self.failed.get_or_insert(error).clone()
    }

    /// The connections for a message of this length.
    fn connect(&mut self, to: u32, length: usize) -> Result<u8, CommError> {
        // Several networks are worth more connections than several of one.
        let rails = self.endpoint.bind.len().min(usize::from(MOST_CONNECTIONS)) as u8;
        let lanes = match length {
            _ if length >= STRIPED_FROM => self.endpoint.connections.max(rails).max(1),
            _ if length >= STRIPED_OVER_RAILS => rails.max(1),
            _ => 1,
        };
        let mesh = self.endpoint.shared.lock();
        if mesh.fabric.is_some() {
            return Ok(1);
        }
        let have = mesh.lanes_to(to);
        let broken = mesh.broken.contains_key(&(to, Way::Out));
        drop(mesh);
        if have < usize::from(lanes) && !broken {
            let over = || self.verdict(&self.endpoint.shared.lock());
            if let Err(why) = self.endpoint.connect(to, lanes, &|| over().is_some()) {
                // It was given up, perhaps, which says nothing about the path.
                if let Some(error) = over() {
                    return Err(self.fail(error));
                }
                self.suspect(to, Way::Out, why);
                self.endpoint.shared.lock().broken.entry((to, Way::Out)).or_default();
            }
        }
        Ok(lanes)
    }

    /// A message is sent or received, beside collectives.
    fn note(&mut self, lane: Lane, mesh: &Mesh) {
        if let Lane::Tag(tag) = lane {
            self.doing = format!("a message with tag {tag}");
            let moved = mesh.channels.peek(self.channel).map_or(0, |channel| channel.moved);
            self.watch.reset(moved, Instant::now());
        }
    }

    /// Posts a receive, by what a transport promises.
    fn receive(
        &mut self,
        from: u32,
        lane: Lane,
        into: *mut [u8],
        landing: Landing,
        with: Option<*const u8>,
    ) -> Result<Ticket, CommError> {
        self.usable()?;
        let from = self.global(from);
        let shared = self.endpoint.shared.clone();
        let mut mesh = shared.lock();
        self.note(lane, &mesh);
        let channel = mesh.channels.get(self.channel);
        let what = channel.what;
        let key = Key::new(self.channel, lane, self.calls_done + 1);
        if !key.tagged {
            channel.traffic.awaited.push(from);
        }
        let (start, length) = (into.cast::<u8>(), into.len());
        let posted = Posted { key, what, ticket: Ticket(0), start, length, landing, with };
        let ticket = mesh.receive(from, posted);
        shared.stir(&mesh);
        self.open.push(Posting { ticket, with: from, way: Way::In, message: key.tagged });
        Ok(ticket)
    }

    /// Takes what is done.
    fn take_done(&mut self, mesh: &mut Mesh, done: &mut Vec<Ticket>, now: Instant) -> bool {
        mesh.take_done(self.channel, done);
        if done.is_empty() {
            return false;
        }
        let channel = mesh.channels.get(self.channel);
        let (came, traffic) = (&mut self.received, &mut channel.traffic);
        self.open.retain(|posting| {
            let is_done = done.contains(&posting.ticket);
            match (is_done && posting.way == Way::In, posting.message) {
                (true, true) => count(came, posting.with),
                (true, false) => {
                    count(&mut traffic.came, posting.with);
                    let of = traffic.awaited.iter().position(|from| *from == posting.with);
                    of.map(|at| traffic.awaited.swap_remove(at));
                }
                _ => {}
            }
            !is_done
        });
        self.watch.reset(channel.moved, now);
        channel.waits = None;
        // Whoever was late has come.
        if let Some((_, CommError::Late { .. })) = self.suspicion {
            self.suspicion = None;
        }
        true
    }
}

fn count(counts: &mut Vec<(u32, u64)>, of: u32) {
    match counts.iter_mut().find(|(rank, _)| *rank == of) {
        Some((_, count)) => *count += 1,
        None => counts.push((of, 1)),
    }
}

impl Transport for TcpTransport {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn ranks(&self) -> u32 {
        self.members.len() as u32
    }

    fn peers(&self) -> Vec<Peer> {
        self.members.iter().map(|global| self.peer(*global)).collect()
    }

    fn begin(&mut self, signature: Signature) -> Result<(), CommError> {
        self.usable()?;
        self.doing = signature.to_string();
        self.in_call = true;
        let shared = self.endpoint.shared.clone();
        let mut mesh = shared.lock();
        let channel = mesh.channels.get(self.channel);
        channel.begin(signature.into());
        self.watch.reset(channel.moved, Instant::now());
        self.hear(&mesh)?;
        drop(mesh);
        if self.endpoint.debug { self.agree() } else { Ok(()) }
    }

    fn end(&mut self) {
        self.in_call = false;
        self.calls_done += 1;
    }

    unsafe fn post_send(
        &mut self,
        to: u32,
        lane: Lane,
        bytes: *const [u8],
    ) -> Result<Ticket, CommError> {
        self.usable()?;
        let to = self.global(to);
        let stripes = self.connect(to, bytes.len())?;
        let shared = self.endpoint.shared.clone();
        let mut mesh = shared.lock();
        self.note(lane, &mesh);
        let channel = mesh.channels.get(self.channel);
        let what = channel.what;
        let key = Key::new(self.channel, lane, self.calls_done + 1);
        if !key.tagged {
            count(&mut channel.traffic.sent, to);
        }
        let head = Head { key, length: bytes.len() as u64, what, stripes };
        let ticket = mesh.send(to, head, bytes);
        shared.stir(&mesh);
        self.open.push(Posting { ticket, with: to, way: Way::Out, message: key.tagged });
        if key.tagged {
            count(&mut self.sent, to);
        }
        Ok(ticket)
    }

    unsafe fn post_receive(
        &mut self,
        from: u32,
        lane: Lane,
        into: *mut [u8],
        landing: Landing,
    ) -> Result<Ticket, CommError> {
        self.receive(from, lane, into, landing, None)
    }

    unsafe fn post_reduce(
        &mut self,
        from: u32,
        lane: Lane,
        into: *mut [u8],
        with: *const [u8],
        dtype: DType,
        op: ReduceOp,
    ) -> Result<Ticket, CommError> {
        if with.len() != into.len() {
            let what = format!("{} bytes are reduced with {}", into.len(), with.len());
            return Err(CommError::Shape { call: "receive", what });
        }
        self.receive(from, lane, into, Landing::Reduce(dtype, op), Some(with.cast()))
    }

    fn progress(&mut self, timeout: Duration, done: &mut Vec<Ticket>) -> Result<(), CommError> {
        self.usable()?;
        let endpoint = self.endpoint.clone();
        let shared = &endpoint.shared;
        let start = Instant::now();
        let mut now = start;
        let mut mesh: MutexGuard<'_, Mesh> = shared.lock();
        loop {
            mesh.pass();
            if self.take_done(&mut mesh, done, now) {
                shared.share(&mut mesh);
                self.spin.waited(now - start);
                return Ok(());
            }
            let next = match self.check(&mut mesh, now) {
                Ok(next) => next,
                Err(error) => {
                    shared.share(&mut mesh);
                    return Err(error);
                }
            };
            let until = next.min(start + timeout);
            if now >= start + timeout {
                shared.share(&mut mesh);
                return Ok(());
            }
            mesh = match now < start + self.spin.budget() {
                true => shared.look_again(mesh),
                false => shared.sleep(mesh, until.saturating_duration_since(now)),
            };
            now = Instant::now();
        }
    }

    fn cancel(&mut self) {
        self.endpoint.shared.lock().cancel(self.channel);
        self.open.clear();
    }

    fn abort(&self) -> Abort {
        let (shared, control) = (self.endpoint.shared.clone(), self.endpoint.control.clone());
        let (channel, rank) = (self.channel, self.endpoint.rank);
        Arc::new(move |why| {
            let fault = Fault::Aborted { rank, why: why.to_owned() };
            control.tell(Up::Report { channel, fault: fault.clone() });
            shared.fault(Some(channel), fault);
        })
    }
}

/// A rank that is no more must not be waited for. After an error the others have heard of that.
impl Drop for TcpTransport {
    fn drop(&mut self) {
        self.endpoint.shared.hooks().retain(|hook| hook.channel != self.channel);
        self.endpoint.shared.lock().close(self.channel);
        if self.failed.is_none() {
            let messages = std::mem::take(&mut self.sent);
            let left = Left { channel: self.channel, calls: self.calls_done, messages };
            self.endpoint.control.tell(Up::Left(left));
        }
    }
}
