//! What is wrong with a network, by what every pair of ranks measured: nodes, ranks and links that
//! are slow, by name.
//!
//! Ways between nodes and ways inside of them are judged apart, for they are of different speeds.
//! Between nodes of several ranks, the nodes are judged first and then the ranks, by what their
//! nodes leave them.

mod faults;
mod finding;
mod level;
#[cfg(test)]
mod tests;
pub(in crate::pairs) mod words;

pub use finding::{Figure, Finding, Place, Scope, Subject, Way};

use faults::Faults;
use level::Level;
use regatta_model::bench::{Matrix, PairEnd, Pairs};

/// More slow links than these, and than half as many as there are ends, are no faults of single
/// links.
const MOST_LINKS: usize = 3;

/// From where on something is slow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bounds {
    /// A bandwidth below this part of what is to be expected.
    pub bandwidth: f64,
    /// A latency above this many times what is to be expected.
    pub latency: f64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { bandwidth: 0.7, latency: 2.0 }
    }
}

/// What stands out, the worst first; what is no fault of somebody last. Matrices that are no squares of the ends say nothing.
pub fn judge(pairs: &Pairs, bounds: &Bounds) -> Vec<Finding> {
    if pairs.fault().is_some() {
        return Vec::new();
    }
    let of_latency = speeds(&pairs.latency_us);
    let mut findings = Vec::new();
    for scope in [Scope::Between, Scope::Inside] {
        let bandwidth = slow(&pairs.ends, &pairs.bandwidth, scope, bounds.bandwidth);
        let latency = slow(&pairs.ends, &of_latency, scope, 1.0 / bounds.latency);
        findings.extend(merged(bandwidth, latency.into_iter().map(as_latency).collect()));
    }
    let nobody = |finding: &Finding| matches!(finding.subject, Subject::Network { .. });
    findings.sort_by(|a, b| {
        nobody(a).cmp(&nobody(b)).then_with(|| b.severity().total_cmp(&a.severity()))
    });
    findings
}

/// Pairs that are worth to be measured again before they are judged: those of which anything is
/// slower than the bounds. The lower end comes first.
pub fn suspects(pairs: &Pairs, bounds: &Bounds) -> Vec<(usize, usize)> {
    if pairs.fault().is_some() {
        return Vec::new();
    }
    let mut found = std::collections::BTreeSet::new();
    for scope in [Scope::Between, Scope::Inside] {
        let kinds = [
            (pairs.bandwidth.clone(), bounds.bandwidth),
            (speeds(&pairs.latency_us), 1.0 / bounds.latency),
        ];
        for (matrix, bound) in kinds {
            let cells = faults::below(&level::within(&pairs.ends, &matrix, scope), bound);
            found.extend(cells.into_iter().map(|(i, j)| (i.min(j), i.max(j))));
        }
    }
    found.into_iter().collect()
}

/// Latencies as speeds.
fn speeds(latency_us: &Matrix) -> Matrix {
    let speed = |latency: &Option<f64>| latency.filter(|us| *us > 0.0).map(|us| 1.0 / us);
    latency_us.iter().map(|row| row.iter().map(speed).collect()).collect()
}

/// What is slow by one matrix of speeds, in one scope; the speeds are told as bandwidths.
fn slow(ends: &[PairEnd], speeds: &Matrix, scope: Scope, bound: f64) -> Vec<Finding> {
    let measured = level::within(ends, speeds, scope);
    let mut left = measured.clone();
    let mut findings = Vec::new();
    for level in level::levels(ends, scope) {
        let faults = faults::find(&level.gather(&left), bound);
        let before = Before {
            measured: level.gather(&measured),
            left: level.gather(&left),
            counts: level.counts(&measured),
        };
        level.spread(&faults.explained, &mut left);
        findings.extend(told(&level, &faults, &before, scope));
    }
    findings
}

/// The speeds of a level, and what was left of them for it to judge.
struct Before {
    measured: Matrix,
    left: Matrix,
    /// How many figures each is of.
    counts: Vec<Vec<usize>>,
}

impl Before {
    /// What levels before have left of these cells' speeds to be expected, as a part.
    fn part(&self, cells: &[(usize, usize)]) -> f64 {
        let part = |(i, j): &(usize, usize)| Some(self.measured[*i][*j]? / self.left[*i][*j]?);
        faults::upper_median(cells.iter().filter_map(part).collect()).unwrap_or(1.0)
    }

    /// How many ways from one rank to another these cells are.
    fn ways(&self, cells: &[(usize, usize)]) -> usize {
        cells.iter().map(|(i, j)| self.counts[*i][*j]).sum()
    }
}

/// Faults of a matrix in the names of its level.
fn told(level: &Level, faults: &Faults, before: &Before, scope: Scope) -> Vec<Finding> {
    let n = level.places.len();
    let finding = |subject, way, expected: f64, part: f64, ways, told_apart| Finding {
        subject,
        way,
        scope,
        bandwidth: Some(Figure { value: part * expected, expected }),
        latency_us: None,
        ways,
        told_apart,
    };
    let end = |slow: &faults::SlowEnd| {
        let place = Subject::Place(level.places[slow.end].clone());
        let cells = slow.cells(n);
        let expected = faults.usual * before.part(&cells);
        finding(place, slow.way, expected, slow.level, before.ways(&cells), n > 3)
    };
    let link = |slow: &faults::SlowLink| {
        let (from, to) = (level.places[slow.from].clone(), level.places[slow.to].clone());
        let (subject, cells) = (Subject::Link { from, to }, slow.cells());
        let expected = faults.usual * slow.allowed * before.part(&cells);
        finding(subject, slow.way, expected, slow.level, before.ways(&cells), n > 2)
    };
    let ends = faults.ends.iter().map(end);
    let worst = faults.links.iter().min_by(|a, b| a.level.total_cmp(&b.level));
    let (slow, of) = (faults.links.len(), level.links(scope));
    let Some(worst) = worst.filter(|_| slow > MOST_LINKS.max(n / 2)) else {
        return ends.chain(faults.links.iter().map(link)).collect();
    };
    let (from, to) = (level.places[worst.from].clone(), level.places[worst.to].clone());
    let parts = faults.links.iter().map(|link| link.level).collect();
    let typical = faults::upper_median(parts).unwrap_or(1.0);
    let network = Subject::Network { slow, of, from, to };
    let cells: Vec<(usize, usize)> = faults.links.iter().flat_map(|link| link.cells()).collect();
    let ways = before.ways(&cells);
    ends.chain([finding(network, Way::Both, faults.usual, typical, ways, true)]).collect()
}

/// What was told as a speed, as a latency: the reciprocal.
fn as_latency(mut finding: Finding) -> Finding {
    let turned = |f: Figure| Figure { value: 1.0 / f.value, expected: 1.0 / f.expected };
    finding.latency_us = finding.bandwidth.take().map(turned);
    finding
}

/// What is slow by both is one finding. There and back cannot be told apart by latencies, so that
/// the bandwidth says which way.
fn merged(mut findings: Vec<Finding>, latencies: Vec<Finding>) -> Vec<Finding> {
    for latency in latencies {
        match findings.iter_mut().find(|finding| same(&finding.subject, &latency.subject)) {
            Some(finding) => finding.latency_us = latency.latency_us,
            None => findings.push(latency),
        }
    }
    findings
}

/// Whether two findings are of the same thing, whichever way a link is named in.
fn same(one: &Subject, other: &Subject) -> bool {
    match (one, other) {
        (Subject::Link { from: a, to: b }, Subject::Link { from: c, to: d }) => {
            (a, b) == (c, d) || (a, b) == (d, c)
        }
        (Subject::Network { .. }, Subject::Network { .. }) => true,
        _ => one == other,
    }
}
