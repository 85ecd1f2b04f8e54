//! Ranks that are processes, harmed while they work: every other rank is told what happened, in
//! bounded time and all the same, nothing is left behind, and another communicator can be joined.
//!
//! What is done is chosen by a seed. `REGATTA_CHAOS_CASES` says how many cases are run, and
//! `REGATTA_CHAOS_SEED` where they begin; `cargo xtask chaos --comm` sets them.

#![allow(clippy::unwrap_used, reason = "a test's own functions may panic as it may")]

mod case;
mod check;
mod harm;
#[path = "../tcp/meeting.rs"]
mod meeting;
mod play;
mod rank;
#[path = "../tcp/seeded.rs"]
mod seeded;
mod words;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use regatta_testbed::{Cluster, cluster_or_skip, or_skip};

use case::{Case, Place};

/// The number that a variable of the environment holds.
fn number(variable: &str, default: u64) -> u64 {
    let set = std::env::var(variable).ok();
    set.map_or(default, |text| text.parse().unwrap_or_else(|e| panic!("{variable}={text}: {e}")))
}

/// Plays cases, some at a time, and tells of all that did not end as they must.
fn play_all(
    place: Place,
    cases: u64,
    at_once: usize,
    cluster: &(dyn Fn() -> Option<Cluster> + Sync),
) {
    let first = number("REGATTA_CHAOS_SEED", 1);
    let (next, failures) = (AtomicU64::new(first), Mutex::new(Vec::new()));
    let times = Mutex::new(BTreeMap::<String, u64>::new());
    let work = || {
        let cluster = cluster();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first + cases {
                return;
            }
            let case = Case::new(seed, place);
            match play::play(&case, cluster.as_ref()) {
                Ok(took_ms) => {
                    let mut times = times.lock().unwrap();
                    let longest = times.entry(name(&case)).or_default();
                    *longest = took_ms.max(*longest);
                }
                Err(why) => {
                    eprintln!(
                        "{case:?}\n{why}\ncargo xtask chaos --comm --cases 1 --seed {seed}\n"
                    );
                    failures.lock().unwrap().push(seed);
                }
            }
        }
    };
    std::thread::scope(|scope| (0..at_once).for_each(|_| drop(scope.spawn(work))));
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} of {cases} cases failed: {failures:?}", failures.len());
    println!(
        "{cases} cases from seed {first}, {place:?}: all ended as they must: {}\n\
         milliseconds until the last had its error: {:?}",
        tally(first, cases, place),
        times.into_inner().unwrap()
    );
}

/// What befalls a case, without whom.
fn name(case: &Case) -> String {
    let fault = format!("{:?}", case.fault);
    fault.split_whitespace().next().unwrap_or_default().to_owned()
}

/// How many cases there were of each way to connect and of each fault.
fn tally(first: u64, cases: u64, place: Place) -> String {
    let mut counts = BTreeMap::<String, u64>::new();
    for case in (first..first + cases).map(|seed| Case::new(seed, place)) {
        for what in [format!("{:?}", case.by), name(&case)] {
            *counts.entry(what).or_default() += 1;
        }
    }
    counts.iter().map(|(what, count)| format!("{what} {count} ")).collect()
}

#[test]
fn every_fault_on_one_machine() {
    let cases = number("REGATTA_CHAOS_CASES", 24);
    play_all(Place::Machine, cases, 4, &|| None);
}

#[test]
fn every_fault_of_a_network() {
    let builder = Cluster::builder().nodes(4).cpus(2).slurm(false);
    if or_skip(&builder.missing()).is_none() {
        return;
    }
    let cases = number("REGATTA_CHAOS_CASES", 60).div_ceil(10);
    play_all(Place::Network, cases, 2, &|| cluster_or_skip(&builder));
}
