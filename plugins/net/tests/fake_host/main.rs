//! A fake host drives every exported table as NCCL does, without GPU and NCCL: ranks are processes of their
//! own, each communicator has a service and a progress thread, and schedules are random.
//!
//! `REGATTA_NET_SOAK_GB=4 cargo test -p regatta-net --release -- --ignored soak` transfers gigabytes.

#![allow(clippy::unwrap_used, reason = "a failure is a failed test")]

mod arena;
mod child;
mod comm;
mod config;
mod faults;
mod handshake;
mod hosts;
mod link;
mod plan;
mod plugin;
mod process;

use child::{Scenario, Task};
use plugin::VERSIONS;
use process::{Folder, providers, run_pair, run_single};

/// Bytes of a connection: a run has eight on average, four of each rank.
const BYTES: u64 = 4 << 20;

/// Runs as a process of the other tests.
#[test]
#[ignore = "started by the other tests"]
fn child_process() {
    if let Some(task) = Task::from_env() {
        task.run();
    }
}

/// The task of rank 0. `REGATTA_NET_SEED` selects other schedules.
fn task(scenario: Scenario, version: u32, seed: u64, folder: &Folder) -> Task {
    let offset = std::env::var("REGATTA_NET_SEED").map_or(0, |text| text.parse().unwrap());
    let seed = seed + 1000 * offset;
    Task { scenario, version, seed, rank: 0, bytes: BYTES, folder: folder.path.clone() }
}

/// Runs with every provider at once: most of the time is spent waiting.
fn with_providers(run: impl Fn(&'static str) + Sync) {
    let run = &run;
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            providers().map(|provider| scope.spawn(move || run(provider))).collect();
        for thread in threads {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    });
}

#[test]
fn random_schedules_deliver_every_message() {
    for provider in providers() {
        for (seed, version) in (1..).zip(VERSIONS) {
            let folder = Folder::new();
            run_pair(&task(Scenario::Schedule, version, seed, &folder), provider);
        }
    }
}

#[test]
fn sequence_numbers_wrap_around() {
    let Some(provider) = providers().last() else { return };
    let folder = Folder::new();
    run_pair(&task(Scenario::Wrap, 11, 3, &folder), provider);
}

#[test]
fn ranks_of_one_process_are_connected() {
    for provider in providers().filter(|provider| *provider != "shm") {
        let folder = Folder::new();
        run_single(&task(Scenario::OneProcess, 9, 7, &folder), provider);
    }
}

#[test]
fn aborted_communicators_leave_memory_and_others_alone() {
    with_providers(|provider| {
        for (seed, version) in [(11, 8), (12, 11)] {
            let folder = Folder::new();
            let task = task(Scenario::Abort, version, seed, &folder);
            run_pair(&Task { bytes: BYTES / 2, ..task }, provider);
        }
    });
}

/// The bytes of a soak test.
fn soak_bytes() -> u64 {
    let gigabytes = std::env::var("REGATTA_NET_SOAK_GB").unwrap_or_else(|_| "1".to_owned());
    gigabytes.parse::<u64>().unwrap() << 30
}

#[test]
#[ignore = "transfers gigabytes"]
fn soak() {
    let bytes = soak_bytes();
    for provider in providers() {
        for (seed, version) in (100..).zip(VERSIONS) {
            let folder = Folder::new();
            let task = task(Scenario::Schedule, version, seed, &folder);
            run_pair(&Task { bytes: bytes / 32, ..task }, provider);
        }
    }
}
