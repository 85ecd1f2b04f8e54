//! Two sides in one thread. Each test file uses its part of this.
#![allow(dead_code)]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use regatta_launch::net::{ConnId, ListenerId, Net, NetEvent, Why};
use regatta_wire::link::Timing;
use regatta_wire::secret::Secret;

/// Nothing times out, however slow the machine is.
pub const PATIENT: Timing = Timing {
    handshake: Duration::from_secs(120),
    beat: Duration::from_millis(500),
    lost_after: Duration::from_secs(120),
};

pub fn secret(digit: char) -> Secret {
    Secret::from_hex(&String::from(digit).repeat(64)).unwrap()
}

/// Repeats until it is so; a minute is never.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(60), "waited in vain: {what}");
    }
}

/// Sets how many files this process may open, as far as it may; returns how many it is.
pub fn allow_files(wanted: u64) -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls use `limit` alone.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
        limit.rlim_cur = wanted.min(limit.rlim_max);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
    }
    limit.rlim_cur
}

/// A net, and what happened on it so far.
pub struct Side {
    pub net: Net,
    pub ready: Vec<(ConnId, Option<ListenerId>, SocketAddr)>,
    pub frames: Vec<(ConnId, Vec<u8>)>,
    pub closed: Vec<(ConnId, Why)>,
}

impl Side {
    pub fn new(secret: Secret, timing: Timing) -> Self {
        let net = Net::new(secret, timing).unwrap();
        Self { net, ready: Vec::new(), frames: Vec::new(), closed: Vec::new() }
    }

    pub fn turn(&mut self) {
        let mut events = Vec::new();
        self.net.poll(Duration::from_millis(1), &mut events).unwrap();
        for event in events {
            match event {
                NetEvent::Ready { conn, listener, peer } => self.ready.push((conn, listener, peer)),
                NetEvent::Frame { conn, payload } => self.frames.push((conn, payload)),
                NetEvent::Closed { conn, why } => self.closed.push((conn, why)),
            }
        }
    }
}

/// A server and an honest client, connected.
pub struct World {
    pub server: Side,
    pub client: Side,
    pub address: SocketAddr,
    pub call: ConnId,
}

impl World {
    pub fn new(timing: Timing) -> Self {
        let mut server = Side::new(secret('a'), timing);
        let mut client = Side::new(secret('a'), timing);
        let (_, address) = server.net.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let call = client.net.connect(address);
        until("the honest pair is ready", || {
            server.turn();
            client.turn();
            !server.ready.is_empty() && !client.ready.is_empty()
        });
        Self { server, client, address, call }
    }

    pub fn turn(&mut self) {
        self.server.turn();
        self.client.turn();
    }

    /// How many were refused so far.
    pub fn refused(&self) -> u64 {
        self.server.net.all_refusals().iter().map(|refusal| refusal.count).sum()
    }

    /// The honest pair exchanges frames in both directions.
    pub fn check_honest(&mut self) {
        let answer_on = self.server.ready[0].0;
        assert!(self.client.net.send(self.call, b"ping"));
        assert!(self.server.net.send(answer_on, b"pong"));
        until("the honest pair talks", || {
            self.turn();
            let ping = self.server.frames.iter().position(|f| *f == (answer_on, b"ping".to_vec()));
            let pong = self.client.frames.iter().position(|f| *f == (self.call, b"pong".to_vec()));
            let (Some(ping), Some(pong)) = (ping, pong) else { return false };
            self.server.frames.remove(ping);
            self.client.frames.remove(pong);
            true
        });
    }
}
