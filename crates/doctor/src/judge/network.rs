//! Connections between the nodes: reachability, bandwidth, clocks.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use regatta_model::units::{format_si_unit, format_time, pluralize};

use super::blame::{Blame, Edge, blame};
use super::findings::upper_median;
use crate::diagnosis::{Check, CheckResult, Finding, Verdict};
use crate::facts::{JobFacts, NodeFacts, Peer};

/// Share of the usual bandwidth below which a node is slow, and far too slow. A TCP stream shares
/// cores and links with others, so that rates of healthy nodes differ.
const SLOW: f64 = 0.4;
const FAR_TOO_SLOW: f64 = 0.25;
/// The same for a single pair of nodes that are fast otherwise: one stream may have met other traffic.
const SLOW_PAIR: f64 = 0.2;
const FAR_TOO_SLOW_PAIR: f64 = 0.1;
const SLOW_FIX: &str = "check speed and error counters of the link (`ethtool`, `ibstat`, `cxi_stat`) \
                        and other traffic; exclude the node";
/// Clock skew in seconds that makes logs of different nodes hard to compare, and that makes
/// credentials invalid.
const SKEW: f64 = 0.1;
const LARGE_SKEW: f64 = 60.0;

const ONE_NODE: &str = "one node";
const NO_ADDRESS: &str =
    "the fabric NICs have no IPv4 addresses: test it with `regatta bench send-recv --pairs`";

/// The tests of one network: indices of the two nodes, and the result.
type Tests<'a> = Vec<(usize, usize, &'a Peer)>;

/// The tests by the name of the NIC.
fn by_nic(facts: &JobFacts) -> BTreeMap<&str, Tests<'_>> {
    let index: HashMap<&str, usize> =
        facts.nodes.iter().enumerate().map(|(at, node)| (node.host.as_str(), at)).collect();
    let mut tests: BTreeMap<&str, Tests<'_>> = BTreeMap::new();
    for (own, node) in facts.nodes.iter().enumerate() {
        for peer in &node.peers {
            // A node that did not report was tested, too, but is judged by that.
            let Some(&other) = index.get(peer.host.as_str()) else { continue };
            tests.entry(&peer.nic).or_default().push((own, other, peer));
        }
    }
    tests
}

/// Why there is nothing to judge.
fn skipped(check: Check, facts: &JobFacts) -> CheckResult {
    CheckResult::skipped(check, if facts.nodes.len() < 2 { ONE_NODE } else { NO_ADDRESS })
}

fn host(nodes: &[NodeFacts], at: usize) -> &str {
    nodes.get(at).map_or("?", |node| node.host.as_str())
}

pub(super) fn reachability(facts: &JobFacts) -> CheckResult {
    let by_nic = by_nic(facts);
    if by_nic.is_empty() {
        return skipped(Check::Reachability, facts);
    }
    let mut findings = Vec::new();
    for (nic, tests) in &by_nic {
        let edge =
            |&(a, b, peer): &(usize, usize, &Peer)| Edge { a, b, is_bad: peer.error.is_some() };
        let Blame { nodes, pairs } = blame(&tests.iter().map(edge).collect::<Vec<_>>());
        for (node, bad, all) in nodes {
            let reason = format!(
                "{bad} of {} over {nic} failed: {}",
                pluralize(all, "connection"),
                first_error(tests, |a, b| a == node || b == node)
            );
            findings.push(unreachable(host(&facts.nodes, node), reason));
        }
        for (a, b) in pairs {
            let error = first_error(tests, |x, y| (x, y) == (a, b) || (x, y) == (b, a));
            let reason = format!(
                "no connection from {} over {nic}, although both reach other nodes: {error}",
                host(&facts.nodes, a)
            );
            findings.push(unreachable(host(&facts.nodes, b), reason));
        }
    }
    let count = by_nic.values().map(Vec::len).sum::<usize>();
    let nics: Vec<&str> = by_nic.keys().copied().collect();
    let summary = format!("{} over {}", pluralize(count, "connection"), nics.join(", "));
    CheckResult::new(Check::Reachability, summary, findings)
}

fn unreachable(host: &str, reason: String) -> Finding {
    let fix = "check link, address, routes and firewall of the NIC (`ip address`, `ip route`); \
               exclude the node";
    Finding::of(Verdict::Fail, host, reason, fix)
}

fn first_error(tests: &Tests<'_>, of: impl Fn(usize, usize) -> bool) -> String {
    let mut errors =
        tests.iter().filter(|(a, b, _)| of(*a, *b)).filter_map(|(.., p)| p.error.clone());
    errors.next().unwrap_or_default()
}

pub(super) fn bandwidth(facts: &JobFacts) -> CheckResult {
    let mut findings = Vec::new();
    let mut summaries = Vec::new();
    for (nic, tests) in by_nic(facts) {
        let rate = |(a, b, peer): (usize, usize, &Peer)| {
            peer.bandwidth.map(|(to, from)| (a, b, to.min(from)))
        };
        let rates: Vec<(usize, usize, f64)> = tests.into_iter().filter_map(rate).collect();
        let Some(usual) = usual_rate(&rates) else { continue };
        summaries.push(format!("{nic} {}", format_si_unit(usual, "B/s")));
        findings.extend(slow_nodes(facts, nic, &rates, usual));
    }
    match summaries.is_empty() {
        true => skipped(Check::Bandwidth, facts),
        false => {
            let summary = format!("{} between nodes (TCP)", summaries.join(", "));
            CheckResult::new(Check::Bandwidth, summary, findings)
        }
    }
}

/// The upper median over the nodes of each node's best rate: a slow node makes the pairs of its
/// neighbours slow as well.
fn usual_rate(rates: &[(usize, usize, f64)]) -> Option<f64> {
    let mut best: BTreeMap<usize, f64> = BTreeMap::new();
    for &(a, b, rate) in rates {
        for node in [a, b] {
            let known = best.entry(node).or_insert(rate);
            *known = known.max(rate);
        }
    }
    upper_median(best.into_values())
}

fn slow_nodes(
    facts: &JobFacts,
    nic: &str,
    rates: &[(usize, usize, f64)],
    usual: f64,
) -> Vec<Finding> {
    let edge = |&(a, b, rate): &(usize, usize, f64)| Edge { a, b, is_bad: rate < SLOW * usual };
    let Blame { nodes, .. } = blame(&rates.iter().map(edge).collect::<Vec<_>>());
    let best = |node: usize| {
        let own = rates.iter().filter(|(a, b, _)| *a == node || *b == node);
        own.map(|(.., rate)| *rate).fold(0.0, f64::max)
    };
    // A single fast pair shows that the node is not slow.
    let nodes: Vec<(usize, f64)> = nodes.into_iter().map(|(node, ..)| (node, best(node))).collect();
    let nodes: Vec<(usize, f64)> =
        nodes.into_iter().filter(|(_, rate)| *rate < SLOW * usual).collect();
    let is_blamed = |node: usize| nodes.iter().any(|(blamed, _)| *blamed == node);
    let slow = |at: usize, rate: f64, far_too_slow: f64, between: &str| {
        let verdict = if rate < far_too_slow * usual { Verdict::Fail } else { Verdict::Warn };
        let [rate, usual] = [rate, usual].map(|rate| format_si_unit(rate, "B/s"));
        let reason = format!("{rate} {between} over {nic}; the usual rate is {usual}");
        Finding::of(verdict, host(&facts.nodes, at), reason, SLOW_FIX)
    };
    let of_nodes = nodes
        .iter()
        .map(|(node, rate)| slow(*node, *rate, FAR_TOO_SLOW, "to and from its neighbours"));
    let is_slow_pair = |(a, b, rate): &&(usize, usize, f64)| {
        *rate < SLOW_PAIR * usual && !is_blamed(*a) && !is_blamed(*b)
    };
    let of_pairs = rates.iter().filter(is_slow_pair).map(|(a, b, rate)| {
        let between = format!("to and from {}", host(&facts.nodes, *a));
        slow(*b, *rate, FAR_TOO_SLOW_PAIR, &between)
    });
    of_nodes.chain(of_pairs).collect()
}

pub(super) fn clocks(facts: &JobFacts) -> CheckResult {
    let by_nic = by_nic(facts);
    let offset = |(a, b, peer): &(usize, usize, &Peer)| {
        // The offset is known up to half a round trip.
        let error = peer.round_trip.unwrap_or(0.0) / 2.0;
        peer.clock_offset.map(|offset| (*a, *b, (offset.abs() - error).max(0.0)))
    };
    let tests: Vec<(usize, usize, f64)> = by_nic.values().flatten().filter_map(offset).collect();
    if tests.is_empty() {
        return skipped(Check::Clocks, facts);
    }
    let edge = |&(a, b, skew): &(usize, usize, f64)| Edge { a, b, is_bad: skew > SKEW };
    let Blame { nodes, pairs } = blame(&tests.iter().map(edge).collect::<Vec<_>>());
    let largest = |of: &dyn Fn(usize, usize) -> bool| {
        tests.iter().filter(|(a, b, _)| of(*a, *b)).map(|(.., skew)| *skew).fold(0.0, f64::max)
    };
    let finding = |at: usize, skew: f64, from: &str| {
        let verdict = if skew > LARGE_SKEW { Verdict::Fail } else { Verdict::Warn };
        let reason = format!("the clock differs by {} from {from}", format_time(skew));
        let fix = "synchronise the clock (`chronyc tracking`); report the node to the site";
        Finding::of(verdict, host(&facts.nodes, at), reason, fix)
    };
    let mut findings: Vec<Finding> = Vec::new();
    for (node, ..) in nodes {
        let skew = largest(&|a, b| a == node || b == node);
        findings.push(finding(node, skew, "the other nodes'"));
    }
    let mut seen = BTreeSet::new();
    for (a, b) in pairs.into_iter().filter(|pair| seen.insert(*pair)) {
        let skew = largest(&|x, y| (x, y) == (a, b));
        findings.push(finding(b, skew, host(&facts.nodes, a)));
    }
    let skew = tests.iter().map(|(.., skew)| *skew).fold(0.0, f64::max);
    let summary = match skew > 0.0 {
        true => format!("skew of at most {}", format_time(skew)),
        false => "no measurable skew".to_owned(),
    };
    CheckResult::new(Check::Clocks, summary, findings)
}

#[cfg(test)]
#[path = "network_tests.rs"]
mod tests;
