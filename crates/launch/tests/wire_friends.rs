//! Connections over loopback between processes of one job: their beginnings and ends.

#![allow(clippy::unwrap_used)]

#[path = "wire/support.rs"]
mod support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use regatta_launch::net::Why;
use regatta_wire::link::{LONGEST, Link, LinkError, Role, Step, Timing};
use support::{PATIENT, Side, World, secret, until};

/// A friend by hand, ready; the test reads and writes its socket.
fn by_hand(world: &mut World) -> (Link, TcpStream) {
    let now = Instant::now();
    let mut link = Link::new(Role::Caller, &secret('a'), [7; 32], PATIENT, now);
    let mut stream = TcpStream::connect(world.address).unwrap();
    pass_on(&mut link, &mut stream);
    let (mut answer, mut steps) = ([0; 74], Vec::new());
    stream.set_nonblocking(true).unwrap();
    until("it is answered", || {
        world.turn();
        matches!(stream.peek(&mut answer), Ok(74))
    });
    stream.set_nonblocking(false).unwrap();
    stream.read_exact(&mut answer).unwrap();
    link.receive(&answer, now, &mut steps).unwrap();
    assert_eq!(steps, [Step::Ready]);
    pass_on(&mut link, &mut stream);
    until("the server knows it", || {
        world.turn();
        world.server.ready.len() == 2
    });
    (link, stream)
}

fn pass_on(link: &mut Link, stream: &mut TcpStream) {
    stream.write_all(link.pending()).unwrap();
    link.sent(link.pending().len());
}

/// A friend sends many frames and is gone before they are read.
fn frames_before_the_end(unread: bool) {
    let mut world = World::new(PATIENT);
    let (mut link, mut stream) = by_hand(&mut world);
    let conn = world.server.ready[1].0;
    if unread {
        assert!(world.server.net.send(conn, b"never read"));
        world.turn();
    }
    for n in 0..1000u32 {
        link.send(&n.to_be_bytes());
    }
    pass_on(&mut link, &mut stream);
    drop(stream);
    // The server writes before it reads.
    assert!(world.server.net.send(conn, b"to nobody"));
    until("the end is told", || {
        world.turn();
        !world.server.closed.is_empty()
    });
    assert!(matches!(world.server.closed[..], [(gone, Why::Ended)] if gone == conn));
    let numbers: Vec<_> = (0..1000u32).map(|n| (conn, n.to_be_bytes().to_vec())).collect();
    assert_eq!(world.server.frames, numbers);
    world.check_honest();
}

#[test]
fn all_that_came_before_an_orderly_end_is_told() {
    frames_before_the_end(false);
}

#[test]
fn all_that_came_before_a_reset_is_told() {
    frames_before_the_end(true);
}

#[test]
fn who_does_not_read_makes_a_backlog_and_no_trouble() {
    let mut world = World::new(PATIENT);
    let mut friend = Side::new(secret('a'), PATIENT);
    friend.net.connect(world.address);
    until("it is ready", || {
        friend.turn();
        world.turn();
        world.server.ready.len() == 2
    });
    let lazy = world.server.ready[1].0;
    let payload = vec![3; 1 << 20];
    for _ in 0..64 {
        assert!(world.server.net.send(lazy, &payload));
        world.check_honest();
    }
    assert!(world.server.net.backlog(lazy) > 16 << 20);
    assert!(!world.server.net.send(lazy, &vec![0; LONGEST + 1]), "too long");
    until("it reads after all", || {
        friend.turn();
        world.turn();
        friend.frames.len() == 64
    });
    assert_eq!(world.server.net.backlog(lazy), 0);
    assert!(friend.frames.iter().all(|(_, got)| *got == payload));
}

#[test]
fn closing_sends_what_is_queued_and_tells_us_nothing() {
    let mut world = World::new(PATIENT);
    let conn = world.server.ready[0].0;
    let payload = vec![3; 1 << 20];
    for _ in 0..4 {
        world.server.net.send(conn, &payload);
    }
    // What the other side says meanwhile must not reset the connection.
    world.client.net.send(world.call, b"meanwhile");
    world.server.net.close(conn);
    assert!(!world.server.net.send(conn, b"too late"));
    assert_eq!(world.server.net.closing(), 1);
    until("it is closed", || {
        world.turn();
        !world.client.closed.is_empty() && world.server.net.closing() == 0
    });
    assert_eq!(world.client.frames.len(), 4);
    assert!(matches!(world.client.closed[..], [(_, Why::Ended)]));
    assert!(world.server.closed.is_empty() && world.server.frames.is_empty());
}

#[test]
fn closing_does_not_wait_for_who_does_not_read() {
    let mut world = World::new(PATIENT);
    let conn = world.server.ready[0].0;
    world.server.net.send(conn, &vec![3; LONGEST]);
    world.server.net.close(conn);
    until("it is given up", || {
        world.server.turn();
        world.server.net.closing() == 0
    });
    assert!(world.server.closed.is_empty());
}

#[test]
fn aborting_is_at_once() {
    let mut world = World::new(PATIENT);
    world.server.net.abort(world.server.ready[0].0);
    until("the other side hears it", || {
        world.turn();
        !world.client.closed.is_empty()
    });
    assert!(world.server.closed.is_empty());
}

#[test]
fn where_nobody_listens_is_told() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    // The kernel refuses the second at once.
    for address in [free, "255.255.255.255:9".parse().unwrap()] {
        let mut side = Side::new(secret('a'), PATIENT);
        let (call, dropped) = (side.net.connect(address), side.net.connect(address));
        side.net.abort(dropped);
        until("it is told", || {
            side.turn();
            !side.closed.is_empty()
        });
        side.turn();
        assert!(matches!(&side.closed[..], [(conn, Why::Unreachable(_))] if *conn == call));
    }
}

#[test]
fn a_silent_friend_is_lost() {
    let quick = Timing {
        beat: Duration::from_millis(20),
        lost_after: Duration::from_millis(300),
        ..PATIENT
    };
    let mut world = World::new(quick);
    let mut frozen = Side::new(secret('a'), quick);
    frozen.net.connect(world.address);
    until("it is ready", || {
        frozen.turn();
        world.turn();
        world.server.ready.len() == 2
    });
    // It is not driven any more: its socket is open, but no beat comes.
    let lost = world.server.ready[1].0;
    until("it is lost", || {
        world.turn();
        world
            .server
            .closed
            .iter()
            .any(|(conn, why)| *conn == lost && matches!(why, Why::Link(LinkError::Silent { .. })))
    });
}

#[test]
fn a_port_is_free_after_the_end() {
    let mut world = World::new(PATIENT);
    world.check_honest();
    let address = world.address;
    // The side that closes first is left with the port in TIME_WAIT.
    drop(world.server);
    let mut again = Side::new(secret('a'), PATIENT);
    assert_eq!(again.net.listen(address).unwrap().1, address);
    assert!(again.net.listen(address).is_err(), "it is not shared");
}

#[test]
fn a_wake_ends_a_wait_also_when_it_came_before() {
    let hour = Duration::from_secs(3600);
    let mut side = Side::new(secret('a'), Timing { handshake: hour, beat: hour, lost_after: hour });
    let waker = side.net.waker();
    side.turn();
    for _ in 0..3 {
        let elsewhere = waker.clone();
        std::thread::spawn(move || (0..1000).for_each(|_| elsewhere.wake())).join().unwrap();
        let start = Instant::now();
        side.net.poll(Duration::from_secs(50), &mut Vec::new()).unwrap();
        assert!(start.elapsed() < Duration::from_secs(40), "it waited");
    }
}
