//! Connections over loopback, and what strangers may do to them while an honest pair talks on.

#![allow(clippy::unwrap_used)]

#[path = "wire/support.rs"]
mod support;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Duration;

use regatta_launch::net::Why;
use regatta_wire::link::{LinkError, Timing};
use support::{PATIENT, Side, World, allow_files, secret, until};

const MAGIC: &[u8] = b"REGATTA\n";
const HELLO: usize = 8 + 2 + 32;

fn hello(version: u8) -> Vec<u8> {
    [MAGIC, &[0, version], &[5; 32]].concat()
}

#[test]
fn an_honest_pair_talks() {
    let mut world = World::new(PATIENT);
    world.check_honest();
    assert_eq!(world.server.net.refusals(), []);
    assert!(matches!(world.server.ready[..], [(_, Some(_), _)]));
    assert!(matches!(world.client.ready[..], [(_, None, peer)] if peer == world.address));
}

#[test]
fn a_wrong_secret_is_refused_and_both_say_so() {
    let mut world = World::new(PATIENT);
    let mut other = Side::new(secret('b'), PATIENT);
    let call = other.net.connect(world.address);
    other.net.send(call, b"let me in");
    until("both sides report it", || {
        other.turn();
        world.turn();
        !other.closed.is_empty() && world.refused() > 0
    });
    assert!(matches!(other.closed[..], [(_, Why::Link(LinkError::WrongSecret))]));
    assert_eq!(world.server.ready.len(), 1, "only the honest one");
    let refusals = world.server.net.refusals();
    assert_eq!(refusals.len(), 1);
    assert!(refusals[0].why.contains("secret"), "{refusals:?}");
    world.check_honest();
}

#[test]
fn a_listener_with_a_wrong_secret_learns_nothing() {
    let mut world = World::new(PATIENT);
    let trap = TcpListener::bind("127.0.0.1:0").unwrap();
    let call = world.client.net.connect(trap.local_addr().unwrap());
    world.client.net.send(call, b"for friends alone");
    world.turn();
    let (mut stream, _) = trap.accept().unwrap();
    stream.write_all(&[&hello(1)[..], &[7; 32]].concat()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    until("the caller gives up", || {
        world.turn();
        !world.client.closed.is_empty() && world.client.net.closing() == 0
    });
    assert!(matches!(world.client.closed[..], [(_, Why::Link(LinkError::WrongSecret))]));
    let mut heard = Vec::new();
    stream.read_to_end(&mut heard).unwrap();
    assert_eq!(heard[HELLO..], [0; 32], "after the hello there is no proof, and no frame");
    world.check_honest();
}

#[test]
fn another_version_is_told() {
    let mut world = World::new(PATIENT);
    let mut stream = TcpStream::connect(world.address).unwrap();
    stream.write_all(&hello(9)).unwrap();
    until("it is refused", || {
        world.turn();
        world.refused() > 0
    });
    // What follows a hello of another version may come late; it must not reset the connection.
    stream.write_all(&[1; 1000]).unwrap();
    let mut answer = Vec::new();
    stream.shutdown(Shutdown::Write).unwrap();
    until("the answer is sent", || {
        world.turn();
        world.server.net.closing() == 0
    });
    stream.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, [MAGIC, &[0, 1]].concat());
    let why = &world.server.net.refusals()[0].why;
    assert!(why.contains("version 9") && why.contains("same regatta"), "{why}");
    world.check_honest();
}

#[test]
fn garbage_is_refused_and_told_once() {
    let mut world = World::new(PATIENT);
    for told in [1, 0, 0] {
        let before = world.refused();
        let mut stream = TcpStream::connect(world.address).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        until("it is refused", || {
            world.turn();
            world.refused() > before
        });
        assert_eq!(world.server.net.refusals().len(), told);
    }
    assert_eq!(world.server.net.all_refusals()[0].count, 3);
    world.check_honest();
}

#[test]
fn a_sender_of_one_byte_now_and_then_is_given_up() {
    let mut world = World::new(Timing { handshake: Duration::from_millis(300), ..PATIENT });
    let mut stream = TcpStream::connect(world.address).unwrap();
    let mut bytes = hello(1).into_iter();
    until("it is refused", || {
        if bytes.len() > 2 {
            // Fails once it is refused.
            let _ = stream.write_all(&[bytes.next().unwrap()]);
        }
        world.check_honest();
        std::thread::sleep(Duration::from_millis(20));
        world.refused() > 0
    });
    let why = &world.server.net.refusals()[0].why;
    assert!(why.contains("in time"), "{why}");
    assert_eq!(stream.read(&mut [0; 100]).unwrap_or(0), 0, "nothing was told");
}

#[test]
fn a_flood_of_silent_connections_leaves_room_for_honest_ones() {
    let flood = (allow_files(8000) as usize / 2).min(3000);
    let mut world = World::new(PATIENT);
    let mut friends = Side::new(secret('a'), PATIENT);
    let mut held = Vec::new();
    let mut calls = 0;
    for n in 0..flood {
        held.push(TcpStream::connect(world.address).unwrap());
        if n % 50 == 0 {
            friends.net.connect(world.address);
            calls += 1;
        }
        if n % 5 == 0 {
            friends.turn();
            world.turn();
        }
    }
    until("all honest ones are in", || {
        friends.turn();
        world.turn();
        friends.ready.len() == calls && world.server.ready.len() == calls + 1
    });
    assert!(friends.closed.is_empty() && world.server.closed.is_empty());
    assert!(world.refused() >= flood as u64 / 2, "the oldest had to go: {}", world.refused());
    assert_eq!(world.server.net.refusals().len(), 1);
    world.check_honest();
}

#[test]
fn a_flood_from_another_thread_does_not_disturb() {
    let mut world = World::new(PATIENT);
    let address = world.address;
    let junk = std::thread::spawn(move || {
        for n in 0..4000 {
            let mut stream = TcpStream::connect(address).unwrap();
            // Fails where it is refused half-way.
            let _ = match n % 4 {
                0 => Ok(()),
                1 => stream.write_all(&[n as u8; 200]),
                2 => stream.write_all(&hello(1)),
                _ => stream.write_all(&[&hello(1)[..], &[9; 5000]].concat()),
            };
        }
    });
    until("all are refused", || {
        world.check_honest();
        world.refused() == 4000
    });
    junk.join().unwrap();
    assert!(world.server.net.refusals().len() <= 4, "each reason once");
}

#[test]
fn a_stranger_that_half_closes_is_refused() {
    let mut world = World::new(PATIENT);
    let mut stream = TcpStream::connect(world.address).unwrap();
    stream.write_all(&hello(1)).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    until("it is refused", || {
        world.turn();
        world.refused() > 0
    });
    assert_eq!(world.server.ready.len(), 1);
    world.check_honest();
}

#[test]
fn a_listener_that_says_nothing_is_given_up() {
    let trap = TcpListener::bind("127.0.0.1:0").unwrap();
    let quick = Timing { handshake: Duration::from_millis(100), ..PATIENT };
    let mut side = Side::new(secret('a'), quick);
    side.net.connect(trap.local_addr().unwrap());
    until("it is told", || {
        side.turn();
        !side.closed.is_empty()
    });
    assert!(matches!(side.closed[..], [(_, Why::Link(LinkError::Slow))]));
}
