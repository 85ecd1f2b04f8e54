//! A connected pair of reactors in one thread. Each test file uses some of these helpers.
#![allow(dead_code)]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use regatta_wire::link::Timing;
use regatta_wire::reactor::{CloseReason, ConnId, ListenerId, NetEvent, Reactor};
use regatta_wire::secret::Secret;

/// Timeouts that do not expire even on a slow machine.
pub const NO_TIMEOUT: Timing = Timing {
    handshake: Duration::from_secs(120),
    heartbeat: Duration::from_millis(500),
    lost_after: Duration::from_secs(120),
};

pub fn secret(digit: char) -> Secret {
    Secret::from_hex(&String::from(digit).repeat(64)).unwrap()
}

/// Polls until the condition holds, for up to a minute.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "timed out waiting until {what}");
    }
}

/// Sets the limit on open files, capped by the hard limit; returns the new limit.
pub fn set_file_limit(wanted: u64) -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls use `limit` alone.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
        limit.rlim_cur = wanted.min(limit.rlim_max);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
    }
    limit.rlim_cur
}

/// A reactor and its events so far.
pub struct Peer {
    pub net: Reactor,
    pub ready: Vec<(ConnId, Option<ListenerId>, SocketAddr)>,
    pub frames: Vec<(ConnId, Vec<u8>)>,
    pub closed: Vec<(ConnId, CloseReason)>,
}

impl Peer {
    pub fn new(secret: Secret, timing: Timing) -> Self {
        let net = Reactor::new(secret, timing).unwrap();
        Self { net, ready: Vec::new(), frames: Vec::new(), closed: Vec::new() }
    }

    /// Polls until the condition holds.
    pub fn wait_until(&mut self, what: &str, mut condition: impl FnMut(&Self) -> bool) {
        wait_until(what, || {
            self.poll();
            condition(self)
        });
    }

    pub fn poll(&mut self) {
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

/// A server and an authenticated client.
pub struct ReactorPair {
    pub server: Peer,
    pub client: Peer,
    pub address: SocketAddr,
    pub conn: ConnId,
}

impl ReactorPair {
    pub fn new(timing: Timing) -> Self {
        let mut server = Peer::new(secret('a'), timing);
        let mut client = Peer::new(secret('a'), timing);
        let (_, address) = server.net.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let conn = client.net.connect(address);
        wait_until("the pair is ready", || {
            server.poll();
            client.poll();
            !server.ready.is_empty() && !client.ready.is_empty()
        });
        Self { server, client, address, conn }
    }

    pub fn poll(&mut self) {
        self.server.poll();
        self.client.poll();
    }

    /// Polls until the condition holds.
    pub fn wait_until(&mut self, what: &str, mut condition: impl FnMut(&Self) -> bool) {
        wait_until(what, || {
            self.poll();
            condition(self)
        });
    }

    /// Polls, together with another peer, until the condition holds.
    pub fn wait_with(
        &mut self,
        peer: &mut Peer,
        what: &str,
        mut condition: impl FnMut(&Self, &Peer) -> bool,
    ) {
        self.wait_until(what, |pair| {
            peer.poll();
            condition(pair, peer)
        });
    }

    /// Connects another peer with the same secret; returns it and its connection on the server.
    pub fn connect_peer(&mut self, timing: Timing) -> (Peer, ConnId) {
        let mut peer = Peer::new(secret('a'), timing);
        peer.net.connect(self.address);
        self.wait_with(&mut peer, "the peer is ready", |pair, _| pair.server.ready.len() == 2);
        (peer, self.server.ready[1].0)
    }

    /// Number of refused connections so far.
    pub fn refused(&self) -> u64 {
        self.server.net.all_refusals().iter().map(|refusal| refusal.count).sum()
    }

    /// Exchanges frames in both directions.
    pub fn assert_still_connected(&mut self) {
        let accepted = self.server.ready[0].0;
        assert!(self.client.net.send(self.conn, b"ping"));
        assert!(self.server.net.send(accepted, b"pong"));
        wait_until("both frames arrive", || {
            self.poll();
            let ping = self.server.frames.iter().position(|f| *f == (accepted, b"ping".to_vec()));
            let pong = self.client.frames.iter().position(|f| *f == (self.conn, b"pong".to_vec()));
            let (Some(ping), Some(pong)) = (ping, pong) else { return false };
            self.server.frames.remove(ping);
            self.client.frames.remove(pong);
            true
        });
    }
}
