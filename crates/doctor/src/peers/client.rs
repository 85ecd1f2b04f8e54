//! Tests the connections of this node.

use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use regatta_wire::secret::Secret;

use super::connect::connect_from;
use super::protocol::{self, Command, MAX_TRANSFER};
use super::server::{BLOCK, now, prepare, receive, send};
use super::{PeerLimits, PeerTable, schedule};
use crate::facts::Peer;

/// Connections tested at the same time.
const PARALLEL: usize = 8;
/// Exchanges of the time; the one with the shortest round trip counts.
const EXCHANGES: usize = 8;
/// Time between two attempts to connect.
const RETRY: Duration = Duration::from_millis(50);
/// Bytes of the first transfer; the next ones grow until one takes long enough.
const FIRST_TRANSFER: u64 = 64 << 10;
/// Duration of a transfer that is long enough.
const TRANSFER_TIME: Duration = Duration::from_millis(20);
/// Transfers in each direction, of which the fastest counts.
const TRANSFERS: usize = 10;

/// A test of one node, with its time limits.
struct Test<'a> {
    table: &'a PeerTable,
    own: usize,
    secret: &'a Secret,
    limits: PeerLimits,
    /// When nodes that do not listen yet are given up.
    retry_until: Instant,
    deadline: Instant,
}

/// A connection to test.
struct Route<'a> {
    target: usize,
    nic: &'a str,
    from: IpAddr,
    to: IpAddr,
}

/// Tests all connections of a node; bandwidths last, one after the other.
pub(super) fn test_all(
    table: &PeerTable,
    own: usize,
    secret: &Secret,
    limits: PeerLimits,
    deadline: Instant,
) -> Vec<Peer> {
    let retry_until = Instant::now() + limits.start;
    let test = Test { table, own, secret, limits, retry_until, deadline };
    let routes = test.routes();
    let tested = in_parallel(&routes, |route| test.test(route));
    let (mut peers, mut connections): (Vec<Peer>, Vec<Option<Connection>>) =
        tested.into_iter().unzip();
    for ((route, peer), connection) in routes.iter().zip(&mut peers).zip(&mut connections) {
        test.measure(route, peer, connection);
    }
    // Over every connection: a node that one network does not reach need not wait either.
    for connection in connections.iter_mut().flatten() {
        let _ = protocol::write_command(&mut connection.stream, Command::End);
    }
    peers
}

impl<'a> Test<'a> {
    fn routes(&self) -> Vec<Route<'a>> {
        let targets = schedule::targets(self.own, self.table.nodes.len()).into_iter();
        let of_target = |target: usize| {
            let routes = self.table.routes(self.own, target).into_iter();
            routes.map(move |(nic, from, to)| Route {
                target,
                nic,
                from: from.address,
                to: to.address,
            })
        };
        targets.flat_map(of_target).collect()
    }

    /// Connects, and measures round trips and the clock.
    fn test(&self, route: &Route<'_>) -> (Peer, Option<Connection>) {
        let mut peer = Peer {
            node: route.target as u32,
            host: self.table.nodes[route.target].host.clone(),
            nic: route.nic.to_owned(),
            address: route.to,
            round_trip: None,
            clock_offset: None,
            bandwidth: None,
            error: None,
        };
        let connection = self.connect(route).and_then(|mut connection| {
            let (round_trip, clock_offset) = connection.exchange_times()?;
            peer.round_trip = Some(round_trip);
            peer.clock_offset = Some(clock_offset);
            Ok(connection)
        });
        if let Err(error) = &connection {
            peer.error = Some(self.describe(error));
        }
        (peer, connection.ok())
    }

    /// Tries the other node's ports until it answers: it may start later.
    fn connect(&self, route: &Route<'_>) -> io::Result<Connection> {
        loop {
            let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
            for &port in &self.table.ports {
                match self.connect_to(route, SocketAddr::new(route.to, port)) {
                    Ok(connection) => return Ok(connection),
                    Err(error) => last = error,
                }
                if !may_listen_later(&last) {
                    return Err(last);
                }
            }
            if Instant::now() >= self.retry_until {
                return Err(last);
            }
            std::thread::sleep(RETRY);
        }
    }

    fn connect_to(&self, route: &Route<'_>, to: SocketAddr) -> io::Result<Connection> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        let mut stream = connect_from(route.from, to, self.limits.answer.min(left))?;
        prepare(&stream, self.limits.answer)?;
        protocol::connect(&mut stream, self.secret, self.own as u32, route.target as u32)?;
        Ok(Connection { stream, block: vec![0; BLOCK] })
    }

    /// Measures the bandwidth of a connection if this node has to.
    fn measure(&self, route: &Route<'_>, peer: &mut Peer, connection: &mut Option<Connection>) {
        let Some(open) = connection else { return };
        if !schedule::measures_bandwidth(self.own, route.target, self.table.nodes.len()) {
            return;
        }
        match open.bandwidth() {
            Ok(bandwidth) => peer.bandwidth = Some(bandwidth),
            Err(error) => {
                peer.error = Some(format!("transfer: {}", self.describe(&error)));
                *connection = None;
            }
        }
    }

    fn describe(&self, error: &io::Error) -> String {
        match error.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
                format!("timed out after {} s", self.limits.answer.as_secs())
            }
            _ => error.to_string(),
        }
    }
}

/// Whether the other node may start later: its port is closed, or another process listens on it.
/// Lost packets and missing routes mean the same for all ports, now and later.
fn may_listen_later(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, ConnectionReset, InvalidData, UnexpectedEof};
    matches!(error.kind(), ConnectionRefused | ConnectionReset | InvalidData | UnexpectedEof)
}

/// An open connection to another node.
struct Connection {
    stream: std::net::TcpStream,
    block: Vec<u8>,
}

impl Connection {
    /// The shortest round trip, and the other clock minus this one, in seconds.
    fn exchange_times(&mut self) -> io::Result<(f64, f64)> {
        let mut best = (f64::INFINITY, 0.0);
        for _ in 0..EXCHANGES {
            let (start, own) = (Instant::now(), now());
            protocol::write_command(&mut self.stream, Command::Time)?;
            let mut bytes = [0; 8];
            self.stream.read_exact(&mut bytes)?;
            let round_trip = start.elapsed().as_secs_f64();
            let offset = (i128::from(u64::from_le_bytes(bytes)) - i128::from(own)) as f64 / 1e9;
            if round_trip < best.0 {
                best = (round_trip, offset - round_trip / 2.0);
            }
        }
        Ok(best)
    }

    /// The best rates to and from the other node, in bytes per second.
    fn bandwidth(&mut self) -> io::Result<(f64, f64)> {
        Ok((self.best_rate(Command::Receive)?, self.best_rate(Command::Send)?))
    }

    fn best_rate(&mut self, command: fn(u64) -> Command) -> io::Result<f64> {
        let mut bytes = FIRST_TRANSFER;
        let mut elapsed = self.transfer(command(bytes))?;
        while elapsed < TRANSFER_TIME && bytes < MAX_TRANSFER {
            bytes = (bytes * 4).min(MAX_TRANSFER);
            elapsed = self.transfer(command(bytes))?;
        }
        for _ in 1..TRANSFERS {
            elapsed = elapsed.min(self.transfer(command(bytes))?);
        }
        Ok(bytes as f64 / elapsed.as_secs_f64().max(1e-9))
    }

    fn transfer(&mut self, command: Command) -> io::Result<Duration> {
        let start = Instant::now();
        protocol::write_command(&mut self.stream, command)?;
        match command {
            Command::Receive(bytes) => {
                send(&mut self.stream, bytes, &self.block)?;
                self.stream.read_exact(&mut [0])?;
            }
            Command::Send(bytes) => receive(&mut self.stream, bytes, &mut self.block)?,
            Command::Time | Command::End => {}
        }
        Ok(start.elapsed())
    }
}

/// Applies `work` to all items, some at a time, and returns the results in their order.
fn in_parallel<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::with_capacity(items.len()));
    std::thread::scope(|scope| {
        for _ in 0..PARALLEL.min(items.len()) {
            scope.spawn(|| {
                while let Some((at, item)) = {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    items.get(at).map(|item| (at, item))
                } {
                    let result = work(item);
                    results.lock().unwrap_or_else(PoisonError::into_inner).push((at, result));
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}
