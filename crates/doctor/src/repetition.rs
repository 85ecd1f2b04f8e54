//! Repeats measurements with a bad result. A rate that was low once and is usual the second time was
//! disturbed; one that is low twice is the node's.

use std::collections::BTreeSet;

use crate::facts::{NodeFacts, Peer, Rate};
use crate::request::NodeTests;
use crate::{Check, JobFacts, Verdict, judge};

/// Checks by measurement.
const MEASURED: [Check; 3] = [Check::Bandwidth, Check::Speed, Check::FileSystemSpeed];

/// The tests that are to be repeated, if any.
pub fn tests_to_repeat(facts: &JobFacts, tests: &NodeTests) -> Option<NodeTests> {
    let skip: BTreeSet<Check> = Check::all().filter(|check| !MEASURED.contains(check)).collect();
    let diagnosis = judge(facts, &skip);
    let is_bad = |check: Check| {
        diagnosis.checks.iter().any(|c| c.check == check && c.verdict >= Verdict::Warn)
    };
    let (network, speed) = (is_bad(Check::Bandwidth), is_bad(Check::Speed));
    let repeat = network || speed || is_bad(Check::FileSystemSpeed);
    repeat.then(|| NodeTests {
        network: tests.network && network,
        speed: tests.speed && speed,
        ..tests.clone()
    })
}

/// The facts with the better of two measurements.
pub fn better_of(mut facts: JobFacts, again: &JobFacts) -> JobFacts {
    for node in &mut facts.nodes {
        if let Some(again) = again.nodes.iter().find(|other| other.host == node.host) {
            improve(node, again);
        }
    }
    facts
}

fn improve(node: &mut NodeFacts, again: &NodeFacts) {
    for rate in &mut node.rates {
        let same = |other: &&Rate| (other.test, other.gpu) == (rate.test, rate.gpu);
        if let Some(other) = again.rates.iter().find(same) {
            rate.best = rate.best.max(other.best);
            rate.sustained = rate.sustained.max(other.sustained);
        }
    }
    for peer in &mut node.peers {
        let same = |other: &&Peer| (&other.host, &other.nic) == (&peer.host, &peer.nic);
        let Some(other) = again.peers.iter().find(same) else { continue };
        let both = |one: (f64, f64), other: (f64, f64)| (one.0.max(other.0), one.1.max(other.1));
        peer.bandwidth = better(peer.bandwidth, other.bandwidth, both);
    }
    for file_system in &mut node.file_systems {
        let other = again.file_systems.iter().find(|other| other.path == file_system.path);
        let Some(other) = other else { continue };
        file_system.write_rate = better(file_system.write_rate, other.write_rate, f64::max);
        file_system.sync_seconds = better(file_system.sync_seconds, other.sync_seconds, f64::min);
    }
}

/// The better of two values, or the known one.
fn better<T>(one: Option<T>, other: Option<T>, of: impl Fn(T, T) -> T) -> Option<T> {
    match (one, other) {
        (Some(one), Some(other)) => Some(of(one, other)),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests {
    use crate::facts::RateTest;

    use super::*;

    fn job(rates: &[f64]) -> JobFacts {
        let rate = |best| Rate { test: RateTest::Gemm, gpu: None, best, sustained: best };
        let node = |(at, best): (usize, &f64)| NodeFacts {
            host: format!("n{at}"),
            rates: vec![rate(*best)],
            ..NodeFacts::default()
        };
        JobFacts { nodes: rates.iter().enumerate().map(node).collect(), ..JobFacts::default() }
    }

    fn tests() -> NodeTests {
        NodeTests { work_dir: "/".into(), paths: Vec::new(), network: true, speed: true }
    }

    #[test]
    fn only_bad_measurements_are_repeated() {
        assert!(tests_to_repeat(&job(&[10.0, 10.0, 9.5]), &tests()).is_none());
        let again = tests_to_repeat(&job(&[10.0, 10.0, 2.0]), &tests()).unwrap();
        assert!(again.speed && !again.network);
    }

    #[test]
    fn a_disturbed_node_recovers_and_a_slow_one_does_not() {
        let first = job(&[10.0, 3.0, 2.0]);
        let facts = better_of(first, &job(&[5.0, 9.8, 2.1]));
        let rates: Vec<f64> = facts.nodes.iter().map(|node| node.rates[0].best).collect();
        assert_eq!(rates, [10.0, 9.8, 2.1]);
    }
}
