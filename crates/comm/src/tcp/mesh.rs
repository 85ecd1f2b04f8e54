//! All connections of this process with other ranks, shared by its communicators. Whoever waits
//! moves the bytes of all; one of those who wait sleeps on the connections, the others on it.

mod channels;
mod hooks;
mod incoming;
mod outgoing;
mod pass;
mod reader;
mod silence;
mod target;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::TcpStream;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::control::{Fault, Left};
use super::frame::Head;
use crate::fabric::{Carrier, GRACE, SHORT_GRACE};
use crate::transport::Ticket;
pub use channels::{Channels, Trouble};
pub use hooks::Hook;
use incoming::Incoming;
pub use incoming::fits;
use outgoing::Outgoing;
use silence::unheard;
pub use target::Posted;

/// What other ranks told.
#[derive(Default)]
pub struct News {
    /// Which communicator is over, or all in which a lost rank is.
    pub faults: Vec<(Option<u64>, Fault)>,
    /// Who has left what.
    pub left: HashMap<(u64, u32), Left>,
    /// Where all are there and agree.
    pub clear: HashSet<u64>,
}

/// To a rank, or from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// To it.
    Out,
    /// From it.
    In,
}

/// How much is kept of a rank's messages that nobody has asked for yet, before others come first.
const KEEP: usize = 256 << 20;

/// All connections.
#[derive(Default)]
pub struct Mesh {
    outgoing: BTreeMap<u32, Outgoing>,
    incoming: BTreeMap<u32, Incoming>,
    /// Connections that broke, and how.
    pub broken: BTreeMap<(u32, Way), String>,
    pub channels: Channels,
    pub news: News,
    /// Carries messages instead of the connections, if ranks agreed on it.
    pub fabric: Option<Carrier>,
    sleeper: bool,
    followers: usize,
    tickets: u64,
    keep: usize,
    /// How often in a row ranks of which much is kept were not read, for others moved.
    put_off: u32,
}

/// A mesh for several threads.
pub struct Shared {
    mesh: Mutex<Mesh>,
    moved: Condvar,
    wake: OwnedFd,
    hooks: Mutex<Vec<Hook>>,
}

impl Mesh {
    /// One that keeps so much of a rank's messages that nobody has asked for, while there is
    /// something else to do.
    pub fn new(keep: usize) -> Self {
        Self { keep, ..Self::default() }
    }

    /// How many connections there are to a rank.
    pub fn lanes_to(&self, rank: u32) -> usize {
        self.outgoing.get(&rank).map_or(0, Outgoing::lanes)
    }

    pub fn add_outgoing(&mut self, rank: u32, stream: Arc<TcpStream>) {
        self.outgoing.entry(rank).or_default().add(stream);
    }

    /// If the rank has made a connection, messages to it can go back over it: one that carries both
    /// ways needs fewer packets, for what was received is told along with what is sent. Gives how
    /// many connections there are to it.
    pub fn adopt(&mut self, rank: u32) -> usize {
        let theirs = self.incoming.get(&rank).and_then(Incoming::theirs);
        if let Some(stream) = theirs.filter(|_| self.lanes_to(rank) == 0) {
            self.add_outgoing(rank, stream);
        }
        self.lanes_to(rank)
    }

    fn ticket(&mut self) -> Ticket {
        self.tickets += 1;
        Ticket(self.tickets)
    }

    /// Posts a message, and writes of it what goes at once.
    pub fn send(&mut self, to: u32, head: Head, bytes: *const [u8]) -> Ticket {
        let ticket = self.ticket();
        if let Some(fabric) = &mut self.fabric {
            fabric.send(to, head, ticket, bytes.cast(), &mut self.channels);
            return ticket;
        }
        let outgoing = self.outgoing.entry(to).or_default();
        outgoing.push(head, ticket, bytes.cast(), bytes.len());
        if let Err(error) = outgoing.write(&mut self.channels) {
            self.broke(to, Way::Out, std::io::Error::from(error).to_string());
        }
        ticket
    }

    /// Posts a receive; its ticket is made here.
    pub fn receive(&mut self, from: u32, mut posted: Posted) -> Ticket {
        posted.ticket = self.ticket();
        if let Some(fabric) = &mut self.fabric {
            fabric.receive(from, posted, &mut self.channels);
            return posted.ticket;
        }
        self.incoming.entry(from).or_default().post(posted, &mut self.channels);
        posted.ticket
    }

    /// What waits for it waits on; who waits sees that it is broken.
    fn broke(&mut self, rank: u32, way: Way, why: String) {
        self.channels.news = true;
        self.broken.entry((rank, way)).or_insert(why);
        match way {
            Way::Out => drop(self.outgoing.remove(&rank)),
            Way::In => {
                if let Some(incoming) = self.incoming.get_mut(&rank) {
                    incoming.hang_up();
                }
            }
        }
    }

    /// How long what was sent to a rank has not been acknowledged by its kernel, if that is so.
    pub fn unheard(&self, rank: u32) -> Option<Duration> {
        let out = self.outgoing.get(&rank).into_iter().flat_map(Outgoing::streams);
        let into = self.incoming.get(&rank).into_iter().flat_map(Incoming::streams);
        out.chain(into).filter_map(|stream| unheard(stream)).max()
    }

    /// Closes all connections.
    pub fn hang_up(&mut self) {
        self.outgoing.clear();
        self.incoming.clear();
    }

    /// What is done since the last time.
    pub fn take_done(&mut self, channel: u64, done: &mut Vec<Ticket>) {
        done.append(&mut self.channels.get(channel).done);
    }

    /// The connections on which something is waited for.
    fn waiting(&self) -> Vec<(Arc<TcpStream>, PollFlags)> {
        let out = self.outgoing.values().flat_map(Outgoing::waiting);
        let into = self.incoming.values().flat_map(Incoming::waiting);
        let out = out.map(|stream| (stream.clone(), PollFlags::OUT));
        out.chain(into.map(|stream| (stream.clone(), PollFlags::IN))).collect()
    }

    /// Gives all memory of a communicator back.
    pub fn cancel(&mut self, channel: u64) {
        if let Some(fabric) = &mut self.fabric {
            let lost = |(_, fault): &(_, Fault)| matches!(fault, Fault::Lost { .. });
            let hopeless = self.news.faults.iter().any(lost);
            let grace = if hopeless { SHORT_GRACE } else { GRACE };
            fabric.cancel(channel, grace, &mut self.channels);
        }
        self.outgoing.values_mut().for_each(|outgoing| outgoing.cancel(channel));
        self.incoming.values_mut().for_each(|incoming| incoming.cancel(channel));
        self.channels.get(channel).done.clear();
    }

    /// A communicator is no more: what still comes for it is thrown away.
    pub fn close(&mut self, channel: u64) {
        self.cancel(channel);
        if let Some(fabric) = &mut self.fabric {
            fabric.close(channel, &mut self.channels);
        }
        self.incoming.values_mut().for_each(|incoming| incoming.close(channel));
        self.channels.open.remove(&channel);
        self.channels.closed.insert(channel);
    }
}

impl Shared {
    pub fn new() -> std::io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let mesh = Mutex::new(Mesh::new(KEEP));
        Ok(Self { mesh, moved: Condvar::new(), wake, hooks: Mutex::default() })
    }

    pub fn lock(&self) -> MutexGuard<'_, Mesh> {
        self.mesh.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection from a rank was made.
    pub fn add_incoming(&self, rank: u32, index: u8, stream: TcpStream) {
        let mut mesh = self.lock();
        mesh.incoming.entry(rank).or_default().add(index.into(), stream);
        self.stir(&mesh);
    }

    /// The first connection to a rank was made. If there is one from it, too, both sides should use
    /// the same; `theirs` says that it is that one. They may differ, for messages of a rank all come
    /// over the connection that it chose.
    pub fn dialled(&self, rank: u32, stream: TcpStream, theirs: bool) {
        let mut mesh = self.lock();
        let stream = Arc::new(stream);
        mesh.incoming.entry(rank).or_default().add_own(stream.clone());
        if !theirs || mesh.adopt(rank) == 0 {
            mesh.add_outgoing(rank, stream);
        }
        self.stir(&mesh);
    }

    /// Something was told: all who wait look at it.
    pub fn tell(&self, change: impl FnOnce(&mut Mesh)) {
        let mut mesh = self.lock();
        change(&mut mesh);
        self.stir(&mesh);
        self.moved.notify_all();
    }

    /// The one who sleeps on the connections must look at them again.
    pub fn stir(&self, mesh: &Mesh) {
        if mesh.sleeper {
            // It fails only if it is full, and then it is heard already.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }

    /// What was done for others, they should see.
    pub fn share(&self, mesh: &mut Mesh) {
        if std::mem::take(&mut mesh.channels.news) && mesh.followers > 0 {
            self.moved.notify_all();
        }
    }

    /// Lets others have the mesh for a moment.
    pub fn look_again<'a>(&'a self, mut mesh: MutexGuard<'a, Mesh>) -> MutexGuard<'a, Mesh> {
        self.share(&mut mesh);
        drop(mesh);
        std::hint::spin_loop();
        self.lock()
    }

    /// Sleeps until something may have changed, at most so long.
    pub fn sleep<'a>(
        &'a self,
        mut mesh: MutexGuard<'a, Mesh>,
        most: Duration,
    ) -> MutexGuard<'a, Mesh> {
        self.share(&mut mesh);
        if mesh.sleeper {
            mesh.followers += 1;
            let slept = self.moved.wait_timeout(mesh, most);
            let mut mesh = slept.unwrap_or_else(PoisonError::into_inner).0;
            mesh.followers -= 1;
            return mesh;
        }
        mesh.sleeper = true;
        let streams = mesh.waiting();
        let rest = mesh.fabric.as_mut().map(Carrier::rest);
        drop(mesh);
        let most = rest.map_or(most, |rest| most.min(rest.most));
        // SAFETY: its queue stays open while somebody waits for messages.
        let fabric = rest.and_then(|rest| Some(unsafe { BorrowedFd::borrow_raw(rest.fd?) }));
        let mut polled = vec![PollFd::new(&self.wake, PollFlags::IN)];
        polled.extend(streams.iter().map(|(stream, flags)| PollFd::new(stream, *flags)));
        polled.extend(fabric.as_ref().map(|fabric| PollFd::new(fabric, PollFlags::IN)));
        let timeout =
            Timespec { tv_sec: most.as_secs() as i64, tv_nsec: i64::from(most.subsec_nanos()) };
        if most.is_zero() {
            std::thread::yield_now();
        }
        // A signal or a timeout: the caller looks at the time anyway.
        let _ = poll(&mut polled, Some(&timeout));
        if !polled[0].revents().is_empty() {
            let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
        }
        let mut mesh = self.lock();
        mesh.sleeper = false;
        // One of the others may have to take over.
        if mesh.followers > 0 {
            self.moved.notify_all();
        }
        mesh
    }
}
