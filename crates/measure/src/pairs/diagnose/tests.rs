//! Injects faults into random matrices; exactly these must be found.

use super::*;
use proptest::prelude::*;

/// Pseudo-random factors from 0.9 to 1.1.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        0.9 + 0.2 * (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Nodes with `per_node` ranks each, with noise and without faults.
fn healthy(nodes: usize, per_node: usize, seed: u64) -> PairMatrices {
    let n = nodes * per_node;
    let host = |at: usize| format!("n{}", at / per_node);
    let ends: Vec<PairEndpoint> =
        (0..n).map(|at| PairEndpoint { rank: at as u32, host: host(at) }).collect();
    let mut noise = Noise(seed);
    let mut matrix = |between: f64, inside: f64| -> PairMatrix {
        let mut cell = |i: usize, j: usize| {
            let base = if host(i) == host(j) { inside } else { between };
            (i != j).then(|| base * noise.next())
        };
        (0..n).map(|i| (0..n).map(|j| cell(i, j)).collect()).collect()
    };
    let bandwidth = matrix(12.0, 80.0);
    let (latency, median) = (matrix(3.0, 0.4), matrix(3.3, 0.5));
    let both_ways = |i: usize| (0..n).map(|j| latency[i.min(j)][i.max(j)]).collect();
    let latency_us = (0..n).map(both_ways).collect();
    PairMatrices {
        endpoints: ends,
        bytes: 1,
        bandwidth,
        latency_us,
        latency_median_us: median,
        ..PairMatrices::default()
    }
}

/// Scales the bandwidth of a rank's sends and receives.
fn throttle(pairs: &mut PairMatrices, end: usize, sending: f64, receiving: f64) {
    for other in (0..pairs.endpoints.len()).filter(|other| *other != end) {
        change(&mut pairs.bandwidth[end][other], sending);
        change(&mut pairs.bandwidth[other][end], receiving);
    }
}

fn change(cell: &mut Option<f64>, by: f64) {
    *cell = cell.map(|value| value * by);
}

/// Slows down a link, in one direction or both. Returns the name of the finding.
fn throttle_link(
    pairs: &mut PairMatrices,
    (from, to): (usize, usize),
    fraction: f64,
    both: bool,
) -> String {
    change(&mut pairs.bandwidth[from][to], fraction);
    if !both {
        return format!("n{from}>n{to} Send");
    }
    change(&mut pairs.bandwidth[to][from], fraction);
    format!("{} Both", sorted(vec![format!("n{from}"), format!("n{to}")]).join("="))
}

/// Short names of the findings: `n3 Both`, `n1>n2 Send`.
fn names(pairs: &PairMatrices) -> Vec<String> {
    sorted(findings(pairs).iter().map(name).collect())
}

fn findings(pairs: &PairMatrices) -> Vec<PairFinding> {
    diagnose(pairs)
}

/// A network in which all links have the same bandwidth.
fn uniform(nodes: usize, per_node: usize, seed: u64) -> PairMatrices {
    let mut pairs = healthy(nodes, per_node, seed);
    pairs.bandwidth.iter_mut().flatten().flatten().for_each(|value| *value = 10.0);
    pairs
}

fn name(finding: &PairFinding) -> String {
    let location = |location: &FaultLocation| match location {
        FaultLocation::Node { host, .. } => host.clone(),
        FaultLocation::Rank { rank, host } => format!("{host}.{rank}"),
    };
    let subject = match (&finding.subject, finding.direction) {
        (FaultSubject::Endpoint(it), _) => location(it),
        (FaultSubject::Link { from, to }, SlowDirection::Both) => {
            sorted(vec![location(from), location(to)]).join("=")
        }
        (FaultSubject::Link { from, to }, _) => format!("{}>{}", location(from), location(to)),
        (FaultSubject::Network { .. }, _) => "network".to_owned(),
    };
    format!("{subject} {:?}", finding.direction)
}

fn sorted(mut names: Vec<String>) -> Vec<String> {
    names.sort();
    names
}

/// Remaining fractions of a throttled node's sends and receives, and the direction's name.
fn throttles() -> impl Strategy<Value = (f64, f64, &'static str)> {
    (0.1f64..0.55, 0usize..3).prop_map(|(fraction, direction)| match direction {
        0 => (fraction, fraction, "Both"),
        1 => (fraction, 1.0, "Send"),
        _ => (1.0, fraction, "Recv"),
    })
}

proptest! {
    // Large matrices are slow in unoptimised builds.
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn a_healthy_network_has_no_findings(
        nodes in 1usize..65, per_node in 1usize..4, seed: u64,
    ) {
        let per_node = if nodes > 20 { 1 } else { per_node };
        prop_assert_eq!(names(&healthy(nodes, per_node, seed)), Vec::<String>::new());
    }

    #[test]
    fn a_throttled_node_is_found_with_its_direction(
        (nodes, slow) in (3usize..65).prop_flat_map(|n| (Just(n), 0..n)),
        (sending, receiving, direction) in throttles(), seed: u64,
    ) {
        let mut pairs = healthy(nodes, 1, seed);
        throttle(&mut pairs, slow, sending, receiving);
        prop_assert_eq!(names(&pairs), [format!("n{slow} {direction}")]);
    }

    #[test]
    fn a_slow_link_is_found_with_its_direction(
        (nodes, from, to) in (3usize..65).prop_flat_map(|n| (Just(n), 0..n, 0..n)),
        fraction in 0.05f64..0.55, both: bool, seed: u64,
    ) {
        prop_assume!(from != to);
        let mut pairs = healthy(nodes, 1, seed);
        let name = throttle_link(&mut pairs, (from, to), fraction, both);
        prop_assert_eq!(names(&pairs), [name]);
    }

    /// The link may belong to the node; then it is slower still.
    #[test]
    fn a_slow_node_and_a_slow_link_are_told_apart(
        (nodes, slow, from, to) in (4usize..65).prop_flat_map(|n| (Just(n), 0..n, 0..n, 0..n)),
        (sending, receiving, direction) in throttles(), fraction in 0.05f64..0.5, both: bool, seed: u64,
    ) {
        prop_assume!(from != to);
        let mut pairs = healthy(nodes, 1, seed);
        throttle(&mut pairs, slow, sending, receiving);
        let link = throttle_link(&mut pairs, (from, to), fraction, both);
        prop_assert_eq!(names(&pairs), sorted(vec![format!("n{slow} {direction}"), link]));
    }

    #[test]
    fn high_latency_and_low_bandwidth_of_a_node_are_one_finding(
        (nodes, slow, from, to) in (4usize..65).prop_flat_map(|n| (Just(n), 0..n, 0..n, 0..n)),
        times in 3f64..20.0, too_narrow: bool, seed: u64,
    ) {
        prop_assume!(from != to);
        let mut pairs = healthy(nodes, 1, seed);
        for other in (0..nodes).filter(|other| *other != slow) {
            change(&mut pairs.latency_us[slow][other], times);
            change(&mut pairs.latency_us[other][slow], times);
        }
        if too_narrow {
            throttle(&mut pairs, slow, 0.4, 0.4);
        }
        change(&mut pairs.latency_us[from][to], times);
        change(&mut pairs.latency_us[to][from], times);
        let link = sorted(vec![format!("n{from}"), format!("n{to}")]).join("=");
        prop_assert_eq!(names(&pairs), sorted(vec![format!("n{slow} Both"), link + " Both"]));
    }

    #[test]
    fn a_slow_rank_is_told_apart_from_a_slow_node(
        (nodes, slow) in (3usize..9).prop_flat_map(|n| (Just(n), 0..n)),
        per_node in 2usize..5, (sending, receiving, direction) in throttles(), one: bool, seed: u64,
    ) {
        let mut pairs = healthy(nodes, per_node, seed);
        let inside = pairs.bandwidth.clone();
        let first = slow * per_node;
        for rank in first..first + if one { 1 } else { per_node } {
            throttle(&mut pairs, rank, sending, receiving);
        }
        // Traffic between ranks of a node does not use its NIC.
        let node = first..first + per_node;
        for (row, was) in pairs.bandwidth.iter_mut().zip(&inside).skip(first).take(per_node) {
            row[node.clone()].copy_from_slice(&was[node.clone()]);
        }
        let name = if one { format!("n{slow}.{first} {direction}") } else { format!("n{slow} {direction}") };
        prop_assert_eq!(names(&pairs), [name]);
    }

    #[test]
    fn diagnose_never_panics(
        values in prop::collection::vec(prop::option::of(prop::num::f64::ANY), 36), hosts in 1usize..7,
    ) {
        let ends =
            (0..6).map(|at| PairEndpoint { rank: at as u32, host: format!("n{}", at % hosts) }).collect();
        let matrix: PairMatrix = values.chunks(6).map(<[_]>::to_vec).collect();
        let pairs = PairMatrices {
            endpoints: ends,
            bandwidth: matrix.clone(),
            latency_us: matrix.clone(),
            latency_median_us: matrix,
            ..PairMatrices::default()
        };
        for finding in findings(&pairs) {
            prop_assert!(!finding.to_string().is_empty());
        }
    }
}

#[test]
fn suspects_are_all_slow_pairs() {
    let mut pairs = healthy(5, 1, 5);
    assert_eq!(suspects(&pairs), []);
    change(&mut pairs.bandwidth[3][1], 0.5);
    change(&mut pairs.latency_us[0][4], 3.0);
    assert_eq!(suspects(&pairs), [(0, 4), (1, 3)]);
    pairs.endpoints.pop();
    assert_eq!(suspects(&pairs), []);
}

#[test]
fn findings_are_sorted_by_severity_and_have_values_and_hints() {
    let mut pairs = uniform(6, 1, 7);
    throttle(&mut pairs, 4, 0.25, 0.25);
    change(&mut pairs.bandwidth[1][2], 0.4);
    let findings: Vec<String> = findings(&pairs).iter().map(ToString::to_string).collect();
    let expected = [
        "n4 (rank 4) is slow: 2.50 GB/s, 25 % of the expected 10.0 GB/s; check its NIC and cable",
        "the link from n1 (rank 1) to n2 (rank 2) is slow in this direction only: 4.00 GB/s, 40 % of \
         the expected 10.0 GB/s; check the switches",
    ];
    assert_eq!(findings.len(), expected.len(), "{findings:#?}");
    for (finding, expected) in findings.iter().zip(expected) {
        assert!(finding.starts_with(expected), "{finding}");
    }
}

#[test]
fn ambiguous_faults_are_reported_as_such() {
    let ambiguous = |pairs: &PairMatrices| {
        let findings = findings(pairs);
        assert_eq!((findings.len(), findings[0].conclusive), (1, false));
        findings[0].to_string()
    };
    let mut two = healthy(2, 1, 3);
    change(&mut two.bandwidth[0][1], 0.3);
    let text = ambiguous(&two);
    assert!(text.contains("n0 (rank 0), n1 (rank 1) or the link"), "{text}");

    let mut three = healthy(3, 1, 3);
    throttle(&mut three, 1, 0.3, 0.3);
    let text = ambiguous(&three);
    assert!(text.starts_with("n1 (rank 1) is slow") && text.contains("three"), "{text}");
}

#[test]
fn a_two_level_topology_is_one_finding() {
    let mut pairs = healthy(12, 1, 9);
    for i in 0..12 {
        for j in (0..12).filter(|j| i % 3 != j % 3 && (i + j) % 2 == 0) {
            change(&mut pairs.bandwidth[i][j], 0.5);
        }
    }
    assert_eq!(names(&pairs), ["network Both"]);
    let text = findings(&pairs)[0].to_string();
    assert!(text.starts_with("24 of 66 inter-node links are slower"), "{text}");
}

#[test]
fn a_slow_rank_of_a_slow_node_reports_measured_values() {
    let mut pairs = uniform(5, 4, 11);
    for rank in 4..8 {
        throttle(&mut pairs, rank, 0.5, 1.0);
    }
    throttle(&mut pairs, 6, 0.4, 1.0);
    let mut findings = findings(&pairs);
    findings.retain(|finding| finding.scope == LinkScope::InterNode);
    let names: Vec<String> = findings.iter().map(name).collect();
    assert_eq!(names, ["n1 Send", "n1.6 Send"]);
    let [node, rank] = [0, 1].map(|at| findings[at].bandwidth.unwrap());
    assert_eq!(node, Observed { value: 5.0, expected: 10.0 });
    assert!((rank.value - 2.0).abs() < 1e-9 && (rank.expected - 5.0).abs() < 1e-9, "{rank:?}");
}
