//! Establishment and termination of authenticated connections on loopback.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use regatta_wire::link::{Link, LinkError, LinkEvent, MAX_FRAME_LEN, Role, Timing};
use regatta_wire::reactor::CloseReason;

use crate::support::{NO_TIMEOUT, Peer, ReactorPair, secret};

/// An authenticated peer whose socket the test reads and writes itself.
fn raw_peer(pair: &mut ReactorPair) -> (Link, TcpStream) {
    let now = Instant::now();
    let mut link = Link::new(Role::Initiator, &secret('a'), [7; 32], NO_TIMEOUT, now);
    let mut stream = TcpStream::connect(pair.address).unwrap();
    write_pending(&mut link, &mut stream);
    let (mut reply, mut events) = ([0; 74], Vec::new());
    stream.set_nonblocking(true).unwrap();
    pair.wait_until("the reply arrives", |_| matches!(stream.peek(&mut reply), Ok(74)));
    stream.set_nonblocking(false).unwrap();
    stream.read_exact(&mut reply).unwrap();
    link.receive(&reply, now, &mut events).unwrap();
    assert_eq!(events, [LinkEvent::Ready]);
    write_pending(&mut link, &mut stream);
    pair.wait_until("the server has authenticated the peer", |pair| pair.server.ready.len() == 2);
    (link, stream)
}

fn write_pending(link: &mut Link, stream: &mut TcpStream) {
    stream.write_all(link.pending()).unwrap();
    link.advance(link.pending().len());
}

/// A peer sends many frames and closes before they are read.
fn frames_before_close_are_delivered(unread: bool) {
    let mut pair = ReactorPair::new(NO_TIMEOUT);
    let (mut link, mut stream) = raw_peer(&mut pair);
    let conn = pair.server.ready[1].0;
    if unread {
        assert!(pair.server.net.send(conn, b"never read"));
        pair.poll();
    }
    for n in 0..1000u32 {
        link.send(&n.to_be_bytes());
    }
    write_pending(&mut link, &mut stream);
    drop(stream);
    // The server writes before it reads.
    assert!(pair.server.net.send(conn, b"after close"));
    pair.wait_until("the close is reported", |pair| !pair.server.closed.is_empty());
    assert!(matches!(pair.server.closed[..], [(id, CloseReason::PeerClosed)] if id == conn));
    let frames: Vec<_> = (0..1000u32).map(|n| (conn, n.to_be_bytes().to_vec())).collect();
    assert_eq!(pair.server.frames, frames);
    pair.assert_still_connected();
}

#[test]
fn frames_before_an_orderly_close_are_delivered() {
    frames_before_close_are_delivered(false);
}

#[test]
fn frames_before_a_reset_are_delivered() {
    frames_before_close_are_delivered(true);
}

#[test]
fn slow_reader_builds_a_backlog_without_blocking_others() {
    let mut pair = ReactorPair::new(NO_TIMEOUT);
    let (mut peer, slow) = pair.connect_peer(NO_TIMEOUT);
    let payload = vec![3; 1 << 20];
    for _ in 0..64 {
        assert!(pair.server.net.send(slow, &payload));
        pair.assert_still_connected();
    }
    assert!(pair.server.net.backlog(slow) > 16 << 20);
    assert!(!pair.server.net.send(slow, &vec![0; MAX_FRAME_LEN + 1]), "too long");
    pair.wait_with(&mut peer, "all is received", |_, peer| peer.frames.len() == 64);
    assert_eq!(pair.server.net.backlog(slow), 0);
    assert!(peer.frames.iter().all(|(_, got)| *got == payload));
}

#[test]
fn close_sends_queued_frames_and_reports_no_event() {
    let mut pair = ReactorPair::new(NO_TIMEOUT);
    let conn = pair.server.ready[0].0;
    let payload = vec![3; 1 << 20];
    for _ in 0..4 {
        pair.server.net.send(conn, &payload);
    }
    // Data from the peer must not reset the connection.
    pair.client.net.send(pair.conn, b"meanwhile");
    pair.server.net.close(conn);
    assert!(!pair.server.net.send(conn, b"too late"));
    assert_eq!(pair.server.net.closing(), 1);
    pair.wait_until("it is closed", |pair| {
        !pair.client.closed.is_empty() && pair.server.net.closing() == 0
    });
    assert_eq!(pair.client.frames.len(), 4);
    assert!(matches!(pair.client.closed[..], [(_, CloseReason::PeerClosed)]));
    assert!(pair.server.closed.is_empty() && pair.server.frames.is_empty());
}

#[test]
fn close_times_out_if_the_peer_does_not_read() {
    let mut pair = ReactorPair::new(NO_TIMEOUT);
    let conn = pair.server.ready[0].0;
    pair.server.net.send(conn, &vec![3; MAX_FRAME_LEN]);
    pair.server.net.close(conn);
    pair.server.wait_until("the close times out", |server| server.net.closing() == 0);
    assert!(pair.server.closed.is_empty());
}

#[test]
fn abort_closes_immediately() {
    let mut pair = ReactorPair::new(NO_TIMEOUT);
    pair.server.net.abort(pair.server.ready[0].0);
    pair.wait_until("the peer notices", |pair| !pair.client.closed.is_empty());
    assert!(pair.server.closed.is_empty());
}

#[test]
fn failed_connect_is_reported() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    // The kernel refuses the second at once.
    for address in [free, "255.255.255.255:9".parse().unwrap()] {
        let mut client = Peer::new(secret('a'), NO_TIMEOUT);
        let (failed, aborted) = (client.net.connect(address), client.net.connect(address));
        client.net.abort(aborted);
        client.wait_until("the failure is reported", |client| !client.closed.is_empty());
        client.poll();
        let [(conn, CloseReason::Unreachable(_))] = client.closed[..] else { panic!("{address}") };
        assert_eq!(conn, failed);
    }
}

#[test]
fn silent_peer_is_lost_after_the_heartbeat_timeout() {
    let (heartbeat, lost_after) = (Duration::from_millis(20), Duration::from_millis(300));
    let short = Timing { heartbeat, lost_after, ..NO_TIMEOUT };
    let mut pair = ReactorPair::new(short);
    // It is no longer polled: its socket stays open, but no heartbeat is sent.
    let (_silent_peer, lost) = pair.connect_peer(short);
    pair.wait_until("it is lost", |pair| {
        pair.server.closed.iter().any(|(conn, why)| {
            *conn == lost && matches!(why, CloseReason::Link(LinkError::HeartbeatTimeout { .. }))
        })
    });
}

#[test]
fn port_can_be_reused_after_close() {
    let mut pair = ReactorPair::new(NO_TIMEOUT);
    pair.assert_still_connected();
    let address = pair.address;
    // The end that closes first leaves the port in TIME_WAIT.
    drop(pair.server);
    let mut again = Peer::new(secret('a'), NO_TIMEOUT);
    assert_eq!(again.net.listen(address).unwrap().1, address);
    assert!(again.net.listen(address).is_err(), "two listeners cannot share a port");
}

#[test]
fn wake_ends_the_current_or_the_next_poll() {
    let hour = Duration::from_secs(3600);
    let mut client =
        Peer::new(secret('a'), Timing { handshake: hour, heartbeat: hour, lost_after: hour });
    let waker = client.net.waker();
    client.poll();
    for _ in 0..3 {
        let waker = waker.clone();
        std::thread::spawn(move || (0..1000).for_each(|_| waker.wake())).join().unwrap();
        let start = Instant::now();
        client.net.poll(Duration::from_secs(50), &mut Vec::new()).unwrap();
        assert!(start.elapsed() < Duration::from_secs(40), "the poll was not woken");
    }
}
