//! As many connections as one process may have, and one more. Alone in its process, for the limit
//! on files is the process's.

#![allow(clippy::unwrap_used)]

#[path = "wire/support.rs"]
mod support;

use std::collections::HashMap;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use support::{PATIENT, Side, World, allow_files, secret, until};

/// One net has many listeners with one port, and both ends of every connection, as when many agents
/// are imitated in one process.
fn a_crowd_is_served(files: u64) {
    let calls = (files as usize - 200).min(4400) / 2;
    let mut side = Side::new(secret('a'), PATIENT);
    let (_, first) = side.net.listen("127.0.1.1:0".parse().unwrap()).unwrap();
    let mut addresses = vec![first];
    for n in 2..=100u8 {
        let address = SocketAddr::from(([127, 0, 1, n], first.port()));
        side.net.listen(address).unwrap();
        addresses.push(address);
    }
    let mut numbers = HashMap::new();
    for n in 0..calls {
        let call = side.net.connect(addresses[n % addresses.len()]);
        assert!(side.net.send(call, &n.to_be_bytes()));
        numbers.insert(call, n);
    }
    until("each has sent its number", || {
        side.turn();
        side.frames.len() == calls
    });
    assert!(side.closed.is_empty() && side.net.refusals().is_empty());
    assert_eq!(side.ready.len(), 2 * calls);

    // And back.
    for (conn, number) in std::mem::take(&mut side.frames) {
        assert!(side.net.send(conn, &number));
    }
    until("each has its number again", || {
        side.turn();
        side.frames.len() == calls
    });
    for (conn, number) in side.frames {
        assert_eq!(number, numbers[&conn].to_be_bytes());
    }
}

fn without_files_it_goes_on(free: usize) {
    let mut world = World::new(PATIENT);
    // Connections that wait in the kernel, more than there will be files for.
    let callers: Vec<TcpStream> =
        (0..free * 2).map(|_| TcpStream::connect(world.address).unwrap()).collect();
    let used = std::fs::read_dir("/proc/self/fd").unwrap().count();
    allow_files((used + free) as u64);
    let mut friend = Side::new(secret('a'), PATIENT);
    let start = Instant::now();
    until("no file is left, and strangers have to go", || {
        world.check_honest();
        world.refused() > 2
    });
    assert!(start.elapsed() >= Duration::from_millis(200), "it rests in between");
    drop(callers);
    friend.net.connect(world.address);
    until("a friend comes in after all", || {
        if friend.closed.pop().is_some() {
            friend.net.connect(world.address);
        }
        friend.turn();
        world.check_honest();
        world.server.ready.len() == 2
    });
    assert!(world.server.closed.is_empty());
}

#[test]
fn a_crowd_is_served_and_one_too_many_does_no_harm() {
    let files = allow_files(20_000);
    a_crowd_is_served(files);
    without_files_it_goes_on(40);
}
