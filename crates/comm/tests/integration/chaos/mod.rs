//! Chaos tests: faults are injected into rank processes. Every other rank must report the fault in
//! bounded time, all must report the same one, nothing may leak, and the survivors must be able to
//! join again.
//!
//! Cases derive from a seed. `REGATTA_CHAOS_CASES` is the number of cases and `REGATTA_CHAOS_SEED` the
//! first seed; `cargo xtask accept comm-chaos` sets both.

mod case;
mod check;
mod failed_ranks;
mod inject;
mod outcome;
mod rank;
mod runner;
mod running_clock;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use regatta_testbed::{Cluster, cluster_or_skip, or_skip};

use case::{ChaosCase, Testbed};

/// The value of an environment variable.
fn number(variable: &str, default: u64) -> u64 {
    let set = std::env::var(variable).ok();
    set.map_or(default, |text| text.parse().unwrap_or_else(|e| panic!("{variable}={text}: {e}")))
}

/// Runs cases, `at_once` in parallel, and reports all failures.
fn run_all(
    testbed: Testbed,
    cases: u64,
    at_once: usize,
    cluster: &(dyn Fn() -> Option<Cluster> + Sync),
) {
    let first = number("REGATTA_CHAOS_SEED", 1);
    let (next, failures) = (AtomicU64::new(first), Mutex::new(Vec::new()));
    // The number of cases and the longest time, by communicator and by fault.
    let passed = Mutex::new(BTreeMap::<String, (u64, u64)>::new());
    let work = || {
        let cluster = cluster();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first + cases {
                return;
            }
            let case = ChaosCase::new(seed, testbed);
            match runner::run(&case, cluster.as_ref()) {
                Ok(took_ms) => {
                    let fault = format!("{:?}", case.fault);
                    let fault = fault.split_whitespace().next().unwrap_or_default().to_owned();
                    for name in [format!("{:?}", case.comm), fault] {
                        let mut passed = passed.lock().unwrap();
                        let (count, longest) = passed.entry(name).or_default();
                        (*count, *longest) = (*count + 1, took_ms.max(*longest));
                    }
                }
                Err(why) => {
                    eprintln!(
                        "{case:?}\n{why}\ncargo xtask accept comm-chaos --cases 1 --seed {seed}\n"
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
        "{cases} cases from seed {first}, {testbed:?}: all passed\n\
         cases, and milliseconds until the last rank had its error: {:?}",
        passed.into_inner().unwrap()
    );
}

#[test]
fn process_faults_on_a_single_host_are_reported() {
    let cases = number("REGATTA_CHAOS_CASES", 24);
    run_all(Testbed::SingleHost, cases, 4, &|| None);
}

#[test]
fn network_faults_on_a_cluster_are_reported() {
    let builder = Cluster::builder().nodes(4).cpus(2).slurm(false);
    if or_skip(&builder.missing()).is_none() {
        return;
    }
    let cases = number("REGATTA_CHAOS_CASES", 60).div_ceil(10);
    run_all(Testbed::Cluster, cases, 2, &|| cluster_or_skip(&builder));
}
