//! Unauthenticated peers on loopback must not disturb an authenticated connection.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Duration;

use regatta_wire::link::{LinkError, PROTOCOL_VERSION, Timing};
use regatta_wire::reactor::CloseReason;

use crate::support::{NO_TIMEOUT, Peer, ReactorPair, secret, set_file_limit, wait_until};

const MAGIC: &[u8] = b"REGATTA\n";
const HELLO: usize = 8 + 2 + 32;

fn hello(version: u16) -> Vec<u8> {
    [MAGIC, &version.to_be_bytes(), &[5; 32]].concat()
}

#[test]
fn peers_with_the_same_secret_connect() {
    let mut pair = ReactorPair::new(NO_TIMEOUT);
    pair.assert_still_connected();
    assert_eq!(pair.server.net.refusals(), []);
    assert!(matches!(pair.server.ready[..], [(_, Some(_), _)]));
    assert!(matches!(pair.client.ready[..], [(_, None, peer)] if peer == pair.address));
}

#[test]
fn wrong_secret_is_refused_and_reported_by_both_sides() {
    let mut pair = ReactorPair::new(NO_TIMEOUT);
    let mut other = Peer::new(secret('b'), NO_TIMEOUT);
    let conn = other.net.connect(pair.address);
    other.net.send(conn, b"unauthenticated");
    pair.wait_with(&mut other, "both sides report the failure", |pair, other| {
        !other.closed.is_empty() && pair.refused() > 0
    });
    assert!(matches!(other.closed[..], [(_, CloseReason::Link(LinkError::AuthenticationFailed))]));
    assert_eq!(pair.server.ready.len(), 1, "only the authenticated one");
    let refusals = pair.server.net.refusals();
    assert_eq!(refusals.len(), 1);
    assert!(refusals[0].why.contains("secret"), "{refusals:?}");
    pair.assert_still_connected();
}

#[test]
fn server_with_a_wrong_secret_receives_no_proof_and_no_frame() {
    let mut pair = ReactorPair::new(NO_TIMEOUT);
    let fake_server = TcpListener::bind("127.0.0.1:0").unwrap();
    let conn = pair.client.net.connect(fake_server.local_addr().unwrap());
    pair.client.net.send(conn, b"confidential");
    pair.poll();
    let (mut stream, _) = fake_server.accept().unwrap();
    stream.write_all(&[&hello(PROTOCOL_VERSION)[..], &[7; 32]].concat()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    pair.wait_until("the client gives up", |pair| {
        !pair.client.closed.is_empty() && pair.client.net.closing() == 0
    });
    let closed = &pair.client.closed[..];
    assert!(matches!(closed, [(_, CloseReason::Link(LinkError::AuthenticationFailed))]));
    let mut received = Vec::new();
    stream.read_to_end(&mut received).unwrap();
    assert_eq!(received[HELLO..], [0; 32], "a rejection instead of a proof, and no frame");
    pair.assert_still_connected();
}

#[test]
fn version_mismatch_is_reported_to_the_peer() {
    let mut pair = ReactorPair::new(NO_TIMEOUT);
    let mut stream = TcpStream::connect(pair.address).unwrap();
    stream.write_all(&hello(9)).unwrap();
    pair.wait_until("it is refused", |pair| pair.refused() > 0);
    // Data after the hello must not reset the connection before the reply is read.
    stream.write_all(&[1; 1000]).unwrap();
    let mut reply = Vec::new();
    stream.shutdown(Shutdown::Write).unwrap();
    pair.wait_until("the reply is sent", |pair| pair.server.net.closing() == 0);
    stream.read_to_end(&mut reply).unwrap();
    assert_eq!(reply, [MAGIC, &PROTOCOL_VERSION.to_be_bytes()].concat());
    let why = &pair.server.net.refusals()[0].why;
    assert!(why.contains("version 9") && why.contains("same regatta"), "{why}");
    pair.assert_still_connected();
}

#[test]
fn bad_magic_is_refused_and_reported_once() {
    let mut pair = ReactorPair::new(NO_TIMEOUT);
    for reported in [1, 0, 0] {
        let before = pair.refused();
        let mut stream = TcpStream::connect(pair.address).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        pair.wait_until("it is refused", |pair| pair.refused() > before);
        assert_eq!(pair.server.net.refusals().len(), reported);
    }
    assert_eq!(pair.server.net.all_refusals()[0].count, 3);
    pair.assert_still_connected();
}

#[test]
fn slow_handshake_is_refused() {
    let mut pair = ReactorPair::new(Timing { handshake: Duration::from_millis(300), ..NO_TIMEOUT });
    let mut stream = TcpStream::connect(pair.address).unwrap();
    let mut bytes = hello(PROTOCOL_VERSION).into_iter();
    wait_until("it is refused", || {
        if bytes.len() > 2 {
            // Fails once it is refused.
            let _ = stream.write_all(&[bytes.next().unwrap()]);
        }
        pair.assert_still_connected();
        std::thread::sleep(Duration::from_millis(20));
        pair.refused() > 0
    });
    let why = &pair.server.net.refusals()[0].why;
    assert!(why.contains("timed out"), "{why}");
    assert_eq!(stream.read(&mut [0; 100]).unwrap_or(0), 0, "no reply");
}

#[test]
fn flood_of_silent_connections_does_not_block_authenticated_ones() {
    let flood = (set_file_limit(8000) as usize / 2).min(3000);
    let mut pair = ReactorPair::new(NO_TIMEOUT);
    let mut peers = Peer::new(secret('a'), NO_TIMEOUT);
    let mut silent = Vec::new();
    let mut calls = 0;
    for n in 0..flood {
        silent.push(TcpStream::connect(pair.address).unwrap());
        if n % 50 == 0 {
            peers.net.connect(pair.address);
            calls += 1;
        }
        if n % 5 == 0 {
            peers.poll();
            pair.poll();
        }
    }
    pair.wait_with(&mut peers, "all peers are authenticated", |pair, peers| {
        peers.ready.len() == calls && pair.server.ready.len() == calls + 1
    });
    assert!(peers.closed.is_empty() && pair.server.closed.is_empty());
    assert!(pair.refused() >= flood as u64 / 2, "the oldest are evicted: {}", pair.refused());
    assert_eq!(pair.server.net.refusals().len(), 1);
    pair.assert_still_connected();
}

#[test]
fn flood_of_junk_does_not_disturb_an_authenticated_connection() {
    let mut pair = ReactorPair::new(NO_TIMEOUT);
    let address = pair.address;
    let junk = std::thread::spawn(move || {
        for n in 0..4000 {
            let mut stream = TcpStream::connect(address).unwrap();
            // Fails if it is refused before all is written.
            let _ = match n % 4 {
                0 => Ok(()),
                1 => stream.write_all(&[n as u8; 200]),
                2 => stream.write_all(&hello(PROTOCOL_VERSION)),
                _ => stream.write_all(&[&hello(PROTOCOL_VERSION)[..], &[9; 5000]].concat()),
            };
        }
    });
    wait_until("all junk connections are refused", || {
        pair.assert_still_connected();
        pair.refused() == 4000
    });
    junk.join().unwrap();
    assert!(pair.server.net.refusals().len() <= 4, "each reason is reported once");
}

#[test]
fn half_closed_handshake_is_refused() {
    let mut pair = ReactorPair::new(NO_TIMEOUT);
    let mut stream = TcpStream::connect(pair.address).unwrap();
    stream.write_all(&hello(PROTOCOL_VERSION)).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    pair.wait_until("it is refused", |pair| pair.refused() > 0);
    assert_eq!(pair.server.ready.len(), 1);
    pair.assert_still_connected();
}

#[test]
fn client_times_out_on_a_silent_server() {
    let fake_server = TcpListener::bind("127.0.0.1:0").unwrap();
    let short = Timing { handshake: Duration::from_millis(100), ..NO_TIMEOUT };
    let mut client = Peer::new(secret('a'), short);
    client.net.connect(fake_server.local_addr().unwrap());
    client.wait_until("the timeout is reported", |client| !client.closed.is_empty());
    assert!(matches!(client.closed[..], [(_, CloseReason::Link(LinkError::HandshakeTimeout))]));
}
