//! Faults that are put into random matrices are named, and nothing else is.

use super::*;
use proptest::prelude::*;

/// Numbers from 0.9 to 1.1, by a seed.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        0.9 + 0.2 * (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Nodes of `per_node` ranks each, with noise and no faults.
fn healthy(nodes: usize, per_node: usize, seed: u64) -> Pairs {
    let n = nodes * per_node;
    let host = |at: usize| format!("n{}", at / per_node);
    let ends: Vec<PairEnd> = (0..n).map(|at| PairEnd { rank: at as u32, host: host(at) }).collect();
    let mut noise = Noise(seed);
    let mut matrix = |between: f64, inside: f64| -> Matrix {
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
    Pairs { ends, bytes: 1, bandwidth, latency_us, latency_median_us: median, ..Pairs::default() }
}

/// Multiplies the bandwidth of what a rank sends and receives.
fn throttle(pairs: &mut Pairs, end: usize, sending: f64, receiving: f64) {
    for other in (0..pairs.ends.len()).filter(|other| *other != end) {
        change(&mut pairs.bandwidth[end][other], sending);
        change(&mut pairs.bandwidth[other][end], receiving);
    }
}

fn change(cell: &mut Option<f64>, by: f64) {
    *cell = cell.map(|figure| figure * by);
}

/// What was found, in few words: `n3 Both`, `n1>n2 Sending`.
fn names(pairs: &Pairs) -> Vec<String> {
    let mut names: Vec<String> = judge(pairs, &Bounds::default()).iter().map(name).collect();
    names.sort();
    names
}

fn name(finding: &Finding) -> String {
    let place = |place: &Place| match place {
        Place::Node { host, .. } => host.clone(),
        Place::Rank { rank, host } => format!("{host}.{rank}"),
    };
    let subject = match (&finding.subject, finding.way) {
        (Subject::Place(it), _) => place(it),
        (Subject::Link { from, to }, Way::Both) => {
            let mut both = [place(from), place(to)];
            both.sort();
            both.join("=")
        }
        (Subject::Link { from, to }, _) => format!("{}>{}", place(from), place(to)),
        (Subject::Network { .. }, _) => "network".to_owned(),
    };
    format!("{subject} {:?}", finding.way)
}

fn sorted(mut names: Vec<String>) -> Vec<String> {
    names.sort();
    names
}

/// How a node is throttled: the parts that are left of what it sends and receives, and the word.
fn throttles() -> impl Strategy<Value = (f64, f64, &'static str)> {
    (0.1f64..0.55, 0usize..3).prop_map(|(part, way)| match way {
        0 => (part, part, "Both"),
        1 => (part, 1.0, "Sending"),
        _ => (1.0, part, "Receiving"),
    })
}

proptest! {
    // Large matrices take their time where nothing is optimised.
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn nothing_is_found_where_nothing_is_wrong(
        nodes in 1usize..65, per_node in 1usize..4, seed: u64,
    ) {
        let per_node = if nodes > 20 { 1 } else { per_node };
        prop_assert_eq!(names(&healthy(nodes, per_node, seed)), Vec::<String>::new());
    }

    #[test]
    fn a_throttled_node_is_named_with_its_way(
        (nodes, slow) in (3usize..65).prop_flat_map(|n| (Just(n), 0..n)),
        (sending, receiving, way) in throttles(), seed: u64,
    ) {
        let mut pairs = healthy(nodes, 1, seed);
        throttle(&mut pairs, slow, sending, receiving);
        prop_assert_eq!(names(&pairs), [format!("n{slow} {way}")]);
    }

    #[test]
    fn a_slow_link_is_named_with_its_way(
        (nodes, from, to) in (3usize..65).prop_flat_map(|n| (Just(n), 0..n, 0..n)),
        part in 0.05f64..0.55, both: bool, seed: u64,
    ) {
        prop_assume!(from != to);
        let mut pairs = healthy(nodes, 1, seed);
        change(&mut pairs.bandwidth[from][to], part);
        let name = if both {
            change(&mut pairs.bandwidth[to][from], part);
            format!("{} Both", sorted(vec![format!("n{from}"), format!("n{to}")]).join("="))
        } else {
            format!("n{from}>n{to} Sending")
        };
        prop_assert_eq!(names(&pairs), [name]);
    }

    /// The link may touch the node: then it is slower still.
    #[test]
    fn both_faults_in_one_matrix_are_told_apart(
        (nodes, slow, from, to) in (4usize..65).prop_flat_map(|n| (Just(n), 0..n, 0..n, 0..n)),
        (sending, receiving, way) in throttles(), part in 0.05f64..0.5, both: bool, seed: u64,
    ) {
        prop_assume!(from != to);
        let mut pairs = healthy(nodes, 1, seed);
        throttle(&mut pairs, slow, sending, receiving);
        change(&mut pairs.bandwidth[from][to], part);
        let link = if both {
            change(&mut pairs.bandwidth[to][from], part);
            format!("{} Both", sorted(vec![format!("n{from}"), format!("n{to}")]).join("="))
        } else {
            format!("n{from}>n{to} Sending")
        };
        prop_assert_eq!(names(&pairs), sorted(vec![format!("n{slow} {way}"), link]));
    }

    #[test]
    fn late_nodes_and_links_are_named_once_with_what_else_is_slow(
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
    fn of_several_ranks_a_node_the_rank_or_the_node_is_named(
        (nodes, slow) in (3usize..9).prop_flat_map(|n| (Just(n), 0..n)),
        per_node in 2usize..5, (sending, receiving, way) in throttles(), one: bool, seed: u64,
    ) {
        let mut pairs = healthy(nodes, per_node, seed);
        let inside = pairs.bandwidth.clone();
        let first = slow * per_node;
        for rank in first..first + if one { 1 } else { per_node } {
            throttle(&mut pairs, rank, sending, receiving);
        }
        // What ranks of a node say to each other does not go through its interface.
        let node = first..first + per_node;
        for (row, was) in pairs.bandwidth.iter_mut().zip(&inside).skip(first).take(per_node) {
            row[node.clone()].copy_from_slice(&was[node.clone()]);
        }
        let name = if one { format!("n{slow}.{first} {way}") } else { format!("n{slow} {way}") };
        prop_assert_eq!(names(&pairs), [name]);
    }

    #[test]
    fn nothing_that_is_measured_makes_it_panic(
        figures in prop::collection::vec(prop::option::of(prop::num::f64::ANY), 36), hosts in 1usize..7,
    ) {
        let ends =
            (0..6).map(|at| PairEnd { rank: at as u32, host: format!("n{}", at % hosts) }).collect();
        let matrix: Matrix = figures.chunks(6).map(<[_]>::to_vec).collect();
        let pairs = Pairs {
            ends,
            bandwidth: matrix.clone(),
            latency_us: matrix.clone(),
            latency_median_us: matrix,
            ..Pairs::default()
        };
        for finding in judge(&pairs, &Bounds::default()) {
            prop_assert!(!finding.to_string().is_empty());
        }
    }
}

#[test]
fn all_that_is_slow_is_worth_another_look() {
    let mut pairs = healthy(5, 1, 5);
    assert_eq!(suspects(&pairs, &Bounds::default()), []);
    change(&mut pairs.bandwidth[3][1], 0.5);
    change(&mut pairs.latency_us[0][4], 3.0);
    assert_eq!(suspects(&pairs, &Bounds::default()), [(0, 4), (1, 3)]);
    pairs.ends.pop();
    assert_eq!(suspects(&pairs, &Bounds::default()), []);
}

#[test]
fn the_worst_comes_first_with_figures_and_what_to_look_at() {
    let mut pairs = healthy(6, 1, 7);
    for row in &mut pairs.bandwidth {
        row.iter_mut().flatten().for_each(|figure| *figure = 10.0);
    }
    throttle(&mut pairs, 4, 0.25, 0.25);
    change(&mut pairs.bandwidth[1][2], 0.4);
    let told: Vec<String> =
        judge(&pairs, &Bounds::default()).iter().map(ToString::to_string).collect();
    assert_eq!(told.len(), 2, "{told:#?}");
    let node = "n4 (rank 4) is slow: 2.50 GB/s, 25 % of the 10.0 GB/s to be expected; look at its \
                network interface";
    assert!(told[0].starts_with(node), "{}", told[0]);
    let link = "from n1 (rank 1) to n2 (rank 2) it is slow, and not on the way back: 4.00 GB/s, 40 % \
                of the 10.0 GB/s to be expected; look at the switches";
    assert!(told[1].starts_with(link), "{}", told[1]);
}

#[test]
fn of_two_or_three_it_is_said_what_cannot_be_told() {
    let mut two = healthy(2, 1, 3);
    change(&mut two.bandwidth[0][1], 0.3);
    let told = judge(&two, &Bounds::default());
    assert_eq!((told.len(), told[0].told_apart), (1, false));
    let words = told[0].to_string();
    assert!(words.contains("n0 (rank 0) or n1 (rank 1) or what is between"), "{words}");

    let mut three = healthy(3, 1, 3);
    throttle(&mut three, 1, 0.3, 0.3);
    let told = judge(&three, &Bounds::default());
    assert_eq!((told.len(), told[0].told_apart), (1, false));
    let words = told[0].to_string();
    assert!(words.starts_with("n1 (rank 1) is slow") && words.contains("of three"), "{words}");
}

#[test]
fn a_network_of_two_speeds_is_no_list_of_faults() {
    let mut pairs = healthy(12, 1, 9);
    for i in 0..12 {
        for j in (0..12).filter(|j| i % 3 != j % 3 && (i + j) % 2 == 0) {
            change(&mut pairs.bandwidth[i][j], 0.5);
        }
    }
    assert_eq!(names(&pairs), ["network Both"]);
    let words = judge(&pairs, &Bounds::default())[0].to_string();
    assert!(words.starts_with("24 of 66 links between nodes are slower"), "{words}");
}

#[test]
fn a_slow_rank_of_a_slow_node_has_figures_that_were_measured() {
    let mut pairs = healthy(5, 4, 11);
    for row in &mut pairs.bandwidth {
        row.iter_mut().flatten().for_each(|figure| *figure = 10.0);
    }
    for rank in 4..8 {
        throttle(&mut pairs, rank, 0.5, 1.0);
    }
    throttle(&mut pairs, 6, 0.4, 1.0);
    let between: Vec<Finding> = judge(&pairs, &Bounds::default())
        .into_iter()
        .filter(|finding| finding.scope == Scope::Between)
        .collect();
    let figures: Vec<(String, Figure)> =
        between.iter().map(|finding| (name(finding), finding.bandwidth.unwrap())).collect();
    assert_eq!(figures[0], ("n1 Sending".to_owned(), Figure { value: 5.0, expected: 10.0 }));
    let (who, figure) = &figures[1];
    assert_eq!((who.as_str(), figures.len()), ("n1.6 Sending", 2));
    assert!(
        (figure.value - 2.0).abs() < 1e-9 && (figure.expected - 5.0).abs() < 1e-9,
        "{figure:?}"
    );
}
