use super::*;
use crate::peers::schedule;

/// A healthy job, with the tests of the schedule.
fn job(nodes: usize) -> JobFacts {
    let host = |at: usize| format!("n{}", at + 1);
    let peer = |own: usize, target: usize| Peer {
        node: target as u32,
        host: host(target),
        nic: "hsn0".to_owned(),
        address: "10.0.0.1".parse().unwrap(),
        round_trip: Some(20e-6),
        clock_offset: Some(1e-5),
        bandwidth: schedule::measures_bandwidth(own, target, nodes).then_some((2e9, 2.1e9)),
        error: None,
    };
    let node = |own: usize| NodeFacts {
        host: host(own),
        peers: schedule::targets(own, nodes).into_iter().map(|target| peer(own, target)).collect(),
        ..NodeFacts::default()
    };
    JobFacts { nodes: (0..nodes).map(node).collect(), ..JobFacts::default() }
}

/// Changes all tests of a node.
fn change(facts: &mut JobFacts, host: &str, change: impl Fn(&mut Peer)) {
    for node in &mut facts.nodes {
        let own = node.host == host;
        node.peers.iter_mut().filter(|peer| own || peer.host == host).for_each(&change);
    }
}

fn hosts(result: &CheckResult) -> Vec<&str> {
    result.findings.iter().flat_map(|f| f.hosts.iter().map(String::as_str)).collect()
}

#[test]
fn healthy_nodes_pass_and_a_single_node_is_skipped() {
    for nodes in [2, 3, 8, 100] {
        for check in [reachability, bandwidth, clocks] {
            let result = check(&job(nodes));
            assert_eq!(result.verdict, Verdict::Pass, "{result:?}");
        }
    }
    for check in [reachability, bandwidth, clocks] {
        assert_eq!(check(&job(1)).verdict, Verdict::Skip);
    }
    assert_eq!(reachability(&job(3)).summary, "3 connections over hsn0");
    assert_eq!(bandwidth(&job(3)).summary, "hsn0 2.00 GB/s between nodes (TCP)");
}

#[test]
fn an_unreachable_node_is_named_in_jobs_of_any_size() {
    for nodes in [3, 8, 100] {
        let mut facts = job(nodes);
        change(&mut facts, "n3", |peer| peer.error = Some("timed out after 3 s".to_owned()));
        let result = reachability(&facts);
        assert_eq!((hosts(&result), result.verdict), (vec!["n3"], Verdict::Fail), "{nodes}");
        assert!(result.findings[0].reason.contains("failed: timed out after 3 s"), "{result:?}");
    }
}

#[test]
fn one_node_of_a_broken_pair_is_named() {
    let mut facts = job(4);
    facts.nodes[0].peers[0].error = Some("refused".to_owned());
    let result = reachability(&facts);
    assert_eq!(hosts(&result), ["n2"]);
    assert!(result.findings[0].reason.starts_with("no connection from n1 over hsn0"), "{result:?}");
}

#[test]
fn a_slow_node_is_named_and_not_its_neighbours() {
    for (rate, verdict) in [(0.6e9, Verdict::Warn), (0.1e9, Verdict::Fail)] {
        for nodes in [3, 4, 9] {
            let mut facts = job(nodes);
            let slow = |peer: &mut Peer| peer.bandwidth = peer.bandwidth.map(|_| (2e9, rate));
            change(&mut facts, "n2", slow);
            let result = bandwidth(&facts);
            assert_eq!((hosts(&result), result.verdict), (vec!["n2"], verdict), "{nodes} {rate}");
        }
    }
}

#[test]
fn a_pair_is_slow_only_far_below_the_usual_rate() {
    for (rate, verdict) in [(0.6e9, Verdict::Pass), (0.3e9, Verdict::Warn), (1e8, Verdict::Fail)] {
        let mut facts = job(4);
        facts.nodes[0].peers[0].bandwidth = Some((rate, 2e9));
        let result = bandwidth(&facts);
        assert_eq!(result.verdict, verdict, "{rate} {result:?}");
    }
}

#[test]
fn a_node_with_one_fast_pair_is_not_slow() {
    let mut facts = job(4);
    facts.nodes[2].peers[0].bandwidth = Some((0.7e9, 0.7e9));
    facts.nodes[1].peers[0].bandwidth = Some((0.7e9, 0.7e9));
    let result = bandwidth(&facts);
    assert_eq!(result.verdict, Verdict::Pass, "{result:?}");
}

#[test]
fn a_slow_node_next_to_an_unreachable_one_is_named() {
    let mut facts = job(4);
    change(&mut facts, "n2", |peer| peer.bandwidth = None);
    change(&mut facts, "n3", |peer| peer.bandwidth = peer.bandwidth.map(|_| (1e8, 1e8)));
    assert_eq!(hosts(&bandwidth(&facts)), ["n3"]);
}

#[test]
fn a_skewed_clock_is_named() {
    for (skew, verdict) in [(2.0, Verdict::Warn), (-300.0, Verdict::Fail)] {
        let mut facts = job(5);
        change(&mut facts, "n4", |peer| peer.clock_offset = Some(skew));
        let result = clocks(&facts);
        assert_eq!((hosts(&result), result.verdict), (vec!["n4"], verdict));
    }
    let mut facts = job(2);
    facts.nodes[0].peers[0].round_trip = Some(1.0);
    facts.nodes[0].peers[0].clock_offset = Some(0.4);
    assert_eq!(clocks(&facts).verdict, Verdict::Pass, "within the error of the measurement");
}
