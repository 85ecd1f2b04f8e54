//! The maximum number of connections, and beyond. A test program of its own, because the limit on
//! open files is per process.

#![allow(clippy::unwrap_used)]

#[path = "support/mod.rs"]
mod support;

use std::collections::HashMap;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use support::{NO_TIMEOUT, Peer, ReactorPair, secret, set_file_limit, wait_until};

/// One reactor with many listeners on one port and both ends of every connection, as in a simulation
/// of many agents in one process.
fn thousands_of_connections_work(files: u64) {
    let count = (files as usize - 200).min(4400) / 2;
    let mut reactor = Peer::new(secret('a'), NO_TIMEOUT);
    let (_, first) = reactor.net.listen("127.0.1.1:0".parse().unwrap()).unwrap();
    let mut addresses = vec![first];
    for n in 2..=100u8 {
        let address = SocketAddr::from(([127, 0, 1, n], first.port()));
        reactor.net.listen(address).unwrap();
        addresses.push(address);
    }
    let mut indices = HashMap::new();
    for n in 0..count {
        let conn = reactor.net.connect(addresses[n % addresses.len()]);
        assert!(reactor.net.send(conn, &n.to_be_bytes()));
        indices.insert(conn, n);
    }
    reactor.wait_until("every frame has arrived", |reactor| reactor.frames.len() == count);
    assert!(reactor.closed.is_empty() && reactor.net.refusals().is_empty());
    assert_eq!(reactor.ready.len(), 2 * count);

    for (conn, index) in std::mem::take(&mut reactor.frames) {
        assert!(reactor.net.send(conn, &index));
    }
    reactor.wait_until("every frame has returned", |reactor| reactor.frames.len() == count);
    for (conn, index) in reactor.frames {
        assert_eq!(index, indices[&conn].to_be_bytes());
    }
}

fn exhausted_files_evict_unauthenticated_connections(free: usize) {
    let mut pair = ReactorPair::new(NO_TIMEOUT);
    // More connections in the kernel's backlog than there will be file descriptors.
    let clients: Vec<TcpStream> =
        (0..free * 2).map(|_| TcpStream::connect(pair.address).unwrap()).collect();
    let used = std::fs::read_dir("/proc/self/fd").unwrap().count();
    set_file_limit((used + free) as u64);
    let mut peer = Peer::new(secret('a'), NO_TIMEOUT);
    let start = Instant::now();
    wait_until("files are exhausted and connections are evicted", || {
        pair.assert_still_connected();
        pair.refused() > 2
    });
    assert!(start.elapsed() >= Duration::from_millis(200), "accepting backs off");
    drop(clients);
    peer.net.connect(pair.address);
    wait_until("a peer is accepted", || {
        if peer.closed.pop().is_some() {
            peer.net.connect(pair.address);
        }
        peer.poll();
        pair.assert_still_connected();
        pair.server.ready.len() == 2
    });
    assert!(pair.server.closed.is_empty());
}

#[test]
fn connections_up_to_the_file_limit_and_beyond() {
    let files = set_file_limit(20_000);
    thousands_of_connections_work(files);
    exhausted_files_evict_unauthenticated_connections(40);
}
