//! A communicator of two ranks: a service thread sets up and closes its connections, a progress thread
//! transfers messages, as in NCCL.

use std::ffi::c_int;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use regatta_plugin_abi::SYSTEM_ERROR;
use regatta_plugin_abi::net::MAX_REQUESTS;
use regatta_testbed::Random;

use crate::arena::Arena;
use crate::link::{Driver, Link};
use crate::plan::{Amount, Pattern, Plan, shuffle};
use crate::plugin::{HandleBytes, Object, Plugin, messages};

/// Time without progress that is taken for a hang.
pub const HANG: Duration = Duration::from_secs(60);

/// How a communicator ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Everything is transferred.
    Complete,
    /// After this many steps, with requests in flight.
    Abort(u64),
    /// With an error of every connection, which must come.
    Errors,
}

/// What happens once this many bytes are transferred.
pub struct Milestone<'a> {
    pub bytes: u64,
    pub action: Box<dyn FnOnce() + Send + 'a>,
}

/// A communicator of one rank.
pub struct Comm<'a> {
    pub plugin: &'a Plugin,
    pub pattern: &'a Pattern,
    /// Where ranks exchange handles.
    pub folder: &'a Path,
    pub id: u64,
    pub rank: u64,
    pub seed: u64,
    /// Connections in each direction.
    pub connections: u64,
    /// What each connection transfers.
    pub amount: Amount,
    pub end: End,
}

/// Waits for something, up to the time of a hang.
pub struct Patience(Instant);

impl Patience {
    pub fn new() -> Self {
        Self(Instant::now())
    }

    /// Something has happened.
    pub fn renew(&mut self) {
        self.0 = Instant::now();
    }

    /// Yields, or panics.
    #[track_caller]
    pub fn wait(&self, what: impl Fn() -> String) {
        assert!(self.0.elapsed() < HANG, "hang: {}; log: {:?}", what(), messages());
        std::thread::yield_now();
    }
}

/// Writes a file that other processes see as a whole.
pub fn publish(path: &Path, bytes: &[u8]) {
    let partial = path.with_extension(format!("partial-{}", std::process::id()));
    std::fs::write(&partial, bytes).unwrap();
    std::fs::rename(&partial, path).unwrap();
}

impl Comm<'_> {
    /// Runs the communicator. Returns its memory, which the plug-in has given back.
    pub fn run(&self, milestone: Option<Milestone>) -> Vec<Arena> {
        let mut random = Random::new(self.seed ^ self.id << 8 ^ self.rank << 16);
        let mut links = self.connect(&mut random);
        for link in &mut links {
            let (start, length) = (link.arena.start(), link.arena.len());
            link.registration = self.plugin.reg_mr(link.comm, start, length).unwrap();
        }
        let comms: Vec<Object> = links.iter().map(|link| link.comm).collect();
        let driver_random = Random::new(random.below(u64::MAX));
        let links = std::thread::scope(|scope| {
            let progress = scope.spawn(|| self.progress(links, milestone, driver_random));
            self.register_meanwhile(&comms, &mut random);
            progress.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        self.close(links, &mut random)
    }

    /// The NIC of a connection, at both ends.
    fn device(&self, connection: u64) -> c_int {
        (connection % self.plugin.devices().unwrap() as u64) as c_int
    }

    fn handle_path(&self, from: u64, connection: u64) -> PathBuf {
        self.folder.join(format!("handle-{}-{from}-{connection}", self.id))
    }

    /// Listens, connects and accepts, all connections at once.
    fn connect(&self, random: &mut Random) -> Vec<Link> {
        let peer = 1 - self.rank;
        let mut waiting = Vec::new();
        for connection in 0..self.connections {
            let (listener, handle) = self.plugin.listen(self.device(connection)).unwrap();
            publish(&self.handle_path(peer, connection), &handle);
            waiting.push(Waiting { connection, end: Endpoint::Listener(listener) });
            waiting.push(Waiting { connection, end: Endpoint::Handle(None) });
        }
        let (mut links, mut patience) = (Vec::new(), Patience::new());
        while !waiting.is_empty() {
            shuffle(random, &mut waiting);
            let before = waiting.len();
            waiting.retain_mut(|one| match self.advance(one) {
                None => true,
                Some(comm) => {
                    links.push(self.link(one, comm, random));
                    false
                }
            });
            match before == waiting.len() {
                true => patience.wait(|| format!("{before} connections of {}", self.id)),
                false => patience.renew(),
            }
        }
        links
    }

    /// Calls `connect` or `accept` once.
    fn advance(&self, waiting: &mut Waiting) -> Option<Object> {
        match &mut waiting.end {
            Endpoint::Listener(listener) => {
                let comm = self.plugin.accept(*listener).unwrap_or_else(|code| self.failed(code));
                comm.inspect(|_| self.plugin.close_listen(*listener).unwrap())
            }
            Endpoint::Handle(handle) => {
                if handle.is_none() {
                    let path = self.handle_path(self.rank, waiting.connection);
                    let bytes = std::fs::read(path).ok()?;
                    *handle = Some(Box::new(bytes.try_into().unwrap()));
                }
                let handle = handle.as_mut()?;
                let device = self.device(waiting.connection);
                self.plugin.connect(device, handle).unwrap_or_else(|code| self.failed(code))
            }
        }
    }

    fn failed(&self, code: i32) -> ! {
        panic!("communicator {}: error {code}: {:?}", self.id, messages());
    }

    fn link(&self, waiting: &Waiting, comm: Object, random: &mut Random) -> Link {
        let is_send = matches!(waiting.end, Endpoint::Handle(_));
        let from = if is_send { self.rank } else { 1 - self.rank };
        let name =
            format!("communicator {}, connection {} of rank {from}", self.id, waiting.connection);
        let number = self.id << 16 | from << 8 | waiting.connection;
        let limit = random.pick(&[1, 3, 8, MAX_REQUESTS, MAX_REQUESTS + 4]);
        let max_recvs = self.plugin.properties(0).unwrap().max_recvs as u32;
        let plan = Plan::new(self.seed, number, self.amount, max_recvs);
        Link::new(name, comm, is_send, plan, limit)
    }

    /// The progress thread.
    fn progress(
        &self,
        mut links: Vec<Link>,
        mut milestone: Option<Milestone>,
        random: Random,
    ) -> Vec<Link> {
        let Self { plugin, pattern, .. } = *self;
        let mut driver = Driver { plugin, pattern, random };
        let (mut patience, mut steps) = (Patience::new(), 0);
        loop {
            shuffle(&mut driver.random, &mut links);
            let (mut is_done, mut has_moved) = (true, false);
            for link in &mut links {
                if link.is_done() {
                    continue;
                }
                (is_done, steps) = (false, steps + 1);
                has_moved |= driver.random.below(16) > 0 && link.step(&mut driver);
                self.check(link);
            }
            let aborts = matches!(self.end, End::Abort(after) if steps >= after);
            if is_done || aborts {
                return links;
            }
            let moved: u64 = links.iter().map(|link| link.moved).sum();
            if let Some(reached) = milestone.take_if(|milestone| moved >= milestone.bytes) {
                (reached.action)();
            }
            match has_moved {
                true => patience.renew(),
                false => patience
                    .wait(|| links.iter().map(Link::describe).collect::<Vec<_>>().join("; ")),
            }
        }
    }

    /// Errors are expected only if the peer ends first.
    fn check(&self, link: &Link) {
        if let Some(code) = link.error {
            let log = messages();
            assert_ne!(self.end, End::Complete, "{}: {code}, log: {log:?}", link.describe());
            assert_eq!(code, SYSTEM_ERROR, "{log:?}");
        }
    }

    /// Registers and deregisters other memory while messages are transferred.
    fn register_meanwhile(&self, comms: &[Object], random: &mut Random) {
        for _ in 0..64 {
            let comm = random.pick(comms);
            let mut memory = vec![0u8; 1 + random.below(100_000) as usize];
            match self.plugin.reg_mr(comm, memory.as_mut_ptr(), memory.len()) {
                Ok(registration) => self.plugin.dereg_mr(comm, registration).unwrap(),
                Err(code) => assert_ne!(self.end, End::Complete, "regMr: {code}"),
            }
            std::thread::yield_now();
        }
    }

    /// Gives the memory back, also with requests in flight, and closes all connections.
    fn close(&self, mut links: Vec<Link>, random: &mut Random) -> Vec<Arena> {
        shuffle(random, &mut links);
        let all_first = random.below(2) == 0;
        if all_first {
            links
                .iter()
                .for_each(|link| self.plugin.dereg_mr(link.comm, link.registration).unwrap());
        }
        let close = |link: Link| {
            if !all_first {
                self.plugin.dereg_mr(link.comm, link.registration).unwrap();
            }
            match link.is_send {
                true => self.plugin.close_send(link.comm).unwrap(),
                false => self.plugin.close_recv(link.comm).unwrap(),
            }
            let mut arena = link.arena;
            arena.reuse();
            arena
        };
        links.into_iter().map(close).collect()
    }
}

/// A connection that is being established.
struct Waiting {
    connection: u64,
    end: Endpoint,
}

enum Endpoint {
    Listener(Object),
    /// The handle of the peer's listener, which stays where it is.
    Handle(Option<Box<HandleBytes>>),
}
