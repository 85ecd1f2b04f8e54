//! A thread beside the collectives: it shows signs of life, takes connections in, and carries what
//! ranks tell rank 0 and it tells them, also while this rank computes.

mod conn;
mod heard;
mod hub;

use std::collections::HashMap;
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mio::{Events, Interest, Poll, Token, Waker};
use regatta_wire::link::{Link, Role, Timing};
use regatta_wire::secret::{Secret, random};
use rustix::process::{Resource, getrlimit};

use super::control::{Up, encode};
use super::dial::Line;
use super::mesh::Shared;
use conn::{Conn, Who};
pub use hub::Hub;

const LISTENER: Token = Token(0);
const WAKER: Token = Token(1);
const FIRST: usize = 2;
/// How often it is looked at the time.
const TICK: Duration = Duration::from_millis(50);
/// How long the last words may take; of a rank 0 to which all came in vain, how long those who
/// come later still hear why.
const FAREWELL: Duration = Duration::from_secs(1);
/// So many may try to prove themselves at once, beside those that are of the job; fewer where this
/// process may not have many files open.
const STRANGERS: u64 = 4096;

fn strangers() -> usize {
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    STRANGERS.min(files / 4) as usize
}

/// How the thread is told something.
#[derive(Clone)]
pub struct Control {
    ups: Sender<Up>,
    waker: Arc<Waker>,
    bye: Arc<Mutex<Receiver<()>>>,
}

impl Control {
    /// Tells rank 0 something. If the thread is gone, nobody needs to know any more.
    pub fn tell(&self, up: Up) {
        let _ = self.ups.send(up);
        let _ = self.waker.wake();
    }

    /// Says that this rank ends, and waits until the others are told.
    pub fn end(&self) {
        self.tell(Up::Bye);
        let bye = self.bye.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = bye.recv_timeout(FAREWELL);
    }
}

/// What this rank is to the others.
pub enum Duty {
    /// Rank 0.
    Hub(Box<Hub>),
    /// Another, and which connection leads to rank 0.
    Spoke {
        /// Its number.
        hub: usize,
        /// Rank 0 has ended well.
        bye: bool,
    },
}

/// The thread's own.
pub struct Keeper {
    poll: Poll,
    listener: mio::net::TcpListener,
    conns: HashMap<usize, Conn>,
    next: usize,
    ups: Receiver<Up>,
    shared: Arc<Shared>,
    secret: Secret,
    timing: Timing,
    duty: Duty,
    /// This rank has ended.
    closing: Option<Instant>,
    /// Hears when all others have been told.
    farewell: Sender<()>,
}

impl Keeper {
    /// For rank 0.
    pub fn hub(
        listener: TcpListener,
        secret: Secret,
        timing: Timing,
        shared: Arc<Shared>,
        hub: Hub,
    ) -> std::io::Result<(Self, Control)> {
        Self::new(listener, secret, timing, shared, Duty::Hub(Box::new(hub)))
    }

    /// For another rank, with its connection to rank 0.
    pub fn spoke(
        listener: TcpListener,
        secret: Secret,
        timing: Timing,
        shared: Arc<Shared>,
        line: Line,
    ) -> std::io::Result<(Self, Control)> {
        let duty = Duty::Spoke { hub: FIRST, bye: false };
        let (mut keeper, control) = Self::new(listener, secret, timing, shared, duty)?;
        keeper.add(mio::net::TcpStream::from_std(line.stream), line.link, Who::Hub)?;
        Ok((keeper, control))
    }

    fn new(
        listener: TcpListener,
        secret: Secret,
        timing: Timing,
        shared: Arc<Shared>,
        duty: Duty,
    ) -> std::io::Result<(Self, Control)> {
        listener.set_nonblocking(true)?;
        let poll = Poll::new()?;
        let mut listener = mio::net::TcpListener::from_std(listener);
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let (sender, ups) = channel();
        let (farewell, bye) = channel();
        let conns = HashMap::new();
        let keeper = Self {
            poll,
            listener,
            conns,
            next: FIRST,
            ups,
            shared,
            secret,
            timing,
            duty,
            closing: None,
            farewell,
        };
        let bye = Arc::new(Mutex::new(bye));
        Ok((keeper, Control { ups: sender, waker, bye }))
    }

    /// Until this rank has ended, and of rank 0 until all have.
    pub fn run(mut self) {
        let mut events = Events::with_capacity(256);
        let mut ticked = Instant::now();
        while !self.is_over() {
            // A signal, or no memory for a moment: time is looked at anyway.
            let _ = self.poll.poll(&mut events, Some(TICK));
            for event in &events {
                match event.token() {
                    LISTENER => self.accept(),
                    WAKER => {}
                    Token(id) => self.serve(id),
                }
            }
            self.hear_own();
            if ticked.elapsed() >= TICK {
                ticked = Instant::now();
                self.tick(ticked);
            }
            self.spread();
            self.flush();
            if self.closing.is_some() && self.is_quiet() {
                let _ = self.farewell.send(());
            }
        }
    }

    fn is_over(&self) -> bool {
        let Some(since) = self.closing else { return false };
        let quiet = self.is_quiet();
        match &self.duty {
            Duty::Spoke { .. } => quiet || since.elapsed() > FAREWELL,
            Duty::Hub(hub) if hub.has_failed() => since.elapsed() > FAREWELL,
            Duty::Hub(hub) => hub.is_alone() && (quiet || since.elapsed() > FAREWELL),
        }
    }

    /// Whether all that was said is on its way.
    fn is_quiet(&self) -> bool {
        self.conns.values().all(|conn| conn.link.pending().is_empty())
    }

    fn add(
        &mut self,
        mut stream: mio::net::TcpStream,
        link: Link,
        who: Who,
    ) -> std::io::Result<()> {
        let id = self.next;
        self.next += 1;
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.poll.registry().register(&mut stream, Token(id), interest)?;
        self.conns.insert(id, Conn::new(stream, link, who));
        Ok(())
    }

    fn accept(&mut self) {
        loop {
            match self.listener.accept() {
                Ok((stream, from)) => {
                    let Ok(nonce) = random() else { continue };
                    if self.conns.len() > strangers() + self.known() {
                        continue;
                    }
                    let (role, now) = (Role::Listener, Instant::now());
                    let link = Link::new(role, &self.secret, nonce, self.timing, now);
                    // If it cannot be watched it is dropped, and comes again.
                    let _ = self.add(stream, link, Who::Stranger(from.ip()));
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }

    fn known(&self) -> usize {
        match &self.duty {
            Duty::Hub(hub) => hub.known(),
            Duty::Spoke { .. } => 1,
        }
    }

    /// A connection has something to say, or is over.
    fn serve(&mut self, id: usize) {
        let Some(mut conn) = self.conns.remove(&id) else { return };
        let mut frames = Vec::new();
        let end = conn.read(&mut frames, Instant::now());
        let mut keep = true;
        for frame in frames {
            keep = keep && self.frame(id, &mut conn, &frame);
        }
        match end {
            Some(why) if keep => self.ended(conn.who, &why),
            None if keep => {
                self.conns.insert(id, conn);
            }
            _ => {}
        }
    }

    /// What this rank's own communicators say.
    fn hear_own(&mut self) {
        loop {
            let up = match self.ups.try_recv() {
                Ok(up) => up,
                Err(TryRecvError::Empty) => return,
                // All of them are gone without a word: the process panics, or never had one.
                Err(TryRecvError::Disconnected) if self.closing.is_some() => return,
                Err(TryRecvError::Disconnected) => Up::Bye,
            };
            if up == Up::Bye {
                self.closing.get_or_insert_with(Instant::now);
            }
            match &mut self.duty {
                Duty::Hub(hub) => hub.judge.hear(0, up, Instant::now()),
                Duty::Spoke { hub, .. } => {
                    if let Some(conn) = self.conns.get_mut(hub) {
                        conn.link.send(&encode(&up));
                    }
                }
            }
        }
    }

    /// What rank 0 has to say goes to whom it is for: first to the others, for this rank may end
    /// the process when it hears it.
    fn spread(&mut self) {
        while let Duty::Hub(hub) = &mut self.duty {
            let told = hub.take();
            if told.is_empty() {
                return;
            }
            for (conn, down) in told.iter().filter_map(|(to, down)| Some(((*to)?, down))) {
                if let Some(conn) = self.conns.get_mut(&conn) {
                    conn.link.send(&encode(down));
                }
            }
            self.flush();
            for (_, down) in told.into_iter().filter(|(to, _)| to.is_none()) {
                let answer = self.apply(down);
                if let (Duty::Hub(hub), Some(up)) = (&mut self.duty, answer) {
                    hub.judge.hear(0, up, Instant::now());
                }
            }
        }
    }

    fn flush(&mut self) {
        let full = |(id, conn): (&usize, &mut Conn)| match conn.write() {
            Ok(()) => None,
            Err(error) => Some((*id, error.to_string())),
        };
        let broken: Vec<(usize, String)> = self.conns.iter_mut().filter_map(full).collect();
        self.drop_all(broken);
    }

    fn tick(&mut self, now: Instant) {
        let dead = |(id, conn): (&usize, &mut Conn)| match conn.link.tick(now) {
            Ok(()) => None,
            Err(error) => Some((*id, error.to_string())),
        };
        let dead: Vec<(usize, String)> = self.conns.iter_mut().filter_map(dead).collect();
        self.drop_all(dead);
        // It may have been out of descriptors when somebody came.
        self.accept();
        if let Duty::Hub(hub) = &mut self.duty {
            hub.tick(now);
            if hub.has_failed() {
                self.closing.get_or_insert(now);
            }
        }
    }

    fn drop_all(&mut self, which: Vec<(usize, String)>) {
        for (id, why) in which {
            if let Some(conn) = self.conns.remove(&id) {
                self.ended(conn.who, &why);
            }
        }
    }
}
