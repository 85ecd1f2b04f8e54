//! Ranks that are connected by TCP do what every communicator must, and never hang.

#![allow(clippy::unwrap_used, reason = "a test's own functions may panic as it may")]

mod suite;

use std::time::Duration;

use regatta_comm::background::Background;
use regatta_comm::join::{Settings, join, listen};
use regatta_wire::secret::Secret;

/// Settings for all ranks of a world on this machine.
fn settings(size: u32) -> Vec<Settings> {
    let secret = Secret::generate().unwrap();
    let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = listener.local_addr().unwrap().port();
    let rank = |rank| Settings {
        host: format!("node{rank}"),
        join_within: Duration::from_secs(20),
        ..Settings::new(rank, size, "127.0.0.1", port, secret.clone())
    };
    let mut all: Vec<Settings> = (0..size).map(rank).collect();
    all[0].listener = Some(listener);
    all
}

fn joined(all: Vec<Settings>) -> Vec<Background> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = all.into_iter().map(|s| scope.spawn(|| join(s))).collect();
        threads.into_iter().map(|t| t.join().unwrap().unwrap()).collect()
    })
}

fn world(size: u32) -> Vec<Background> {
    joined(settings(size))
}

#[test]
fn every_collective_gives_what_the_reference_gives() {
    suite::every_kind(&[1, 2, 3, 4], &[0, 1, 7, 100], world);
}

#[test]
fn special_ones_too() {
    suite::special(world);
}
