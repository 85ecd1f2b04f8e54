//! Diagnoses a network from the pairwise measurements: slow nodes, ranks and links.
//!
//! Inter-node and intra-node links are diagnosed separately because their speeds differ. With
//! several ranks per node, nodes are diagnosed first, then ranks relative to their nodes.

mod finding;
mod grouping;
pub(in crate::pairs) mod messages;
mod slow_links;
#[cfg(test)]
mod tests;

pub use finding::{FaultLocation, FaultSubject, LinkScope, Observed, PairFinding, SlowDirection};

use grouping::Grouping;
use regatta_model::bench::{PairEndpoint, PairMatrices, PairMatrix};
use slow_links::SlowLinks;

/// More slow links than this, and than half the endpoints, reflect the topology.
const MAX_SINGLE_LINKS: usize = 3;

/// A link is slow with a bandwidth below this fraction of the expectation, or with a latency above this
/// multiple of it.
const SLOW_BANDWIDTH: f64 = 0.7;
const SLOW_LATENCY: f64 = 2.0;

/// The findings, the worst first and topology effects last. Malformed matrices have none.
pub fn diagnose(pairs: &PairMatrices) -> Vec<PairFinding> {
    if pairs.inconsistency().is_some() {
        return Vec::new();
    }
    let of_latency = speeds(&pairs.latency_us);
    let mut findings = Vec::new();
    for scope in [LinkScope::InterNode, LinkScope::IntraNode] {
        let bandwidth = slow(&pairs.endpoints, &pairs.bandwidth, scope, SLOW_BANDWIDTH);
        let latency = slow(&pairs.endpoints, &of_latency, scope, 1.0 / SLOW_LATENCY);
        findings.extend(merge_findings(bandwidth, latency.into_iter().map(as_latency).collect()));
    }
    let is_network = |f: &PairFinding| matches!(f.subject, FaultSubject::Network { .. });
    findings.sort_by(|a, b| b.severity().total_cmp(&a.severity()));
    findings.sort_by_key(is_network);
    findings
}

/// Pairs to measure again before the diagnosis: those slower than they should be. The lower endpoint
/// comes first.
pub fn suspects(pairs: &PairMatrices) -> Vec<(usize, usize)> {
    if pairs.inconsistency().is_some() {
        return Vec::new();
    }
    let mut found = std::collections::BTreeSet::new();
    for scope in [LinkScope::InterNode, LinkScope::IntraNode] {
        let kinds = [
            (pairs.bandwidth.clone(), SLOW_BANDWIDTH),
            (speeds(&pairs.latency_us), 1.0 / SLOW_LATENCY),
        ];
        for (matrix, bound) in kinds {
            let matrix = grouping::within(&pairs.endpoints, &matrix, scope);
            let cells = slow_links::cells_below(&matrix, bound);
            found.extend(cells.into_iter().map(|(i, j)| (i.min(j), i.max(j))));
        }
    }
    found.into_iter().collect()
}

/// Latencies as speeds.
fn speeds(latency_us: &PairMatrix) -> PairMatrix {
    let speed = |latency: &Option<f64>| latency.filter(|us| *us > 0.0).map(|us| 1.0 / us);
    latency_us.iter().map(|row| row.iter().map(speed).collect()).collect()
}

/// Findings of one matrix of speeds in one scope, reported as bandwidths.
fn slow(
    ends: &[PairEndpoint],
    matrix: &PairMatrix,
    scope: LinkScope,
    bound: f64,
) -> Vec<PairFinding> {
    let measured = grouping::within(ends, matrix, scope);
    let mut left = measured.clone();
    let mut findings = Vec::new();
    for grouping in grouping::groupings(ends, scope) {
        let found = slow_links::find(&grouping.median_matrix(&left), bound);
        let speeds = LevelSpeeds {
            measured: grouping.median_matrix(&measured),
            left: grouping.median_matrix(&left),
            counts: grouping.counts(&measured),
        };
        grouping.divide_out(&found.explained, &mut left);
        findings.extend(to_findings(&grouping, &found, &speeds, scope));
    }
    findings
}

/// Row and column of a matrix.
type Cell = (usize, usize);

/// Speeds at one grouping level.
struct LevelSpeeds {
    measured: PairMatrix,
    left: PairMatrix,
    /// Number of cells behind each cell.
    counts: Vec<Vec<usize>>,
}

impl LevelSpeeds {
    /// Speed left by the faults of earlier levels, as a fraction.
    fn remaining(&self, cells: &[Cell]) -> f64 {
        let fraction = |(i, j): &Cell| Some(self.measured[*i][*j]? / self.left[*i][*j]?);
        slow_links::upper_median(cells.iter().filter_map(fraction).collect()).unwrap_or(1.0)
    }

    /// Number of directed links behind the cells.
    fn directed_links(&self, cells: &[Cell]) -> usize {
        cells.iter().map(|(i, j)| self.counts[*i][*j]).sum()
    }
}

/// Converts slow endpoints and links to findings.
fn to_findings(
    grouping: &Grouping,
    found: &SlowLinks,
    speeds: &LevelSpeeds,
    scope: LinkScope,
) -> Vec<PairFinding> {
    let n = grouping.locations.len();
    let location = |index: usize| grouping.locations[index].clone();
    let finding = |subject, direction, observed, cells: &[Cell], conclusive| PairFinding {
        subject,
        direction,
        scope,
        bandwidth: Some(observed),
        latency_us: None,
        directed_links: speeds.directed_links(cells),
        conclusive,
    };
    let observed = |level: f64, expected: f64| Observed { value: level * expected, expected };
    let end = |slow: &slow_links::SlowEndpoint| {
        let (subject, cells) = (FaultSubject::Endpoint(location(slow.end)), slow.cells(n));
        let observed = observed(slow.level, found.reference * speeds.remaining(&cells));
        finding(subject, slow.direction, observed, &cells, n > 3)
    };
    let link = |slow: &slow_links::SlowLink| {
        let (from, to) = (location(slow.from), location(slow.to));
        let cells = slow.cells();
        let expected = found.reference * slow.allowed * speeds.remaining(&cells);
        let observed = observed(slow.level, expected);
        finding(FaultSubject::Link { from, to }, slow.direction, observed, &cells, n > 2)
    };
    let ends = found.ends.iter().map(end);
    let worst = found.links.iter().min_by(|a, b| a.level.total_cmp(&b.level));
    let (slow, of) = (found.links.len(), grouping.links(scope));
    let Some(worst) = worst.filter(|_| slow > MAX_SINGLE_LINKS.max(n / 2)) else {
        return ends.chain(found.links.iter().map(link)).collect();
    };
    let levels = found.links.iter().map(|link| link.level).collect();
    let typical = observed(slow_links::upper_median(levels).unwrap_or(1.0), found.reference);
    let (from, to) = (location(worst.from), location(worst.to));
    let cells: Vec<Cell> = found.links.iter().flat_map(|link| link.cells()).collect();
    let network = FaultSubject::Network { slow, of, from, to };
    ends.chain([finding(network, SlowDirection::Both, typical, &cells, true)]).collect()
}

/// Converts speeds back to latencies.
fn as_latency(mut finding: PairFinding) -> PairFinding {
    let inverted = |f: Observed| Observed { value: 1.0 / f.value, expected: 1.0 / f.expected };
    finding.latency_us = finding.bandwidth.take().map(inverted);
    finding
}

/// Merges findings on the same subject. Latency is a round-trip time, so the bandwidth determines
/// the direction.
fn merge_findings(mut findings: Vec<PairFinding>, latencies: Vec<PairFinding>) -> Vec<PairFinding> {
    for latency in latencies {
        match findings.iter_mut().find(|finding| same(&finding.subject, &latency.subject)) {
            Some(finding) => finding.latency_us = latency.latency_us,
            None => findings.push(latency),
        }
    }
    findings
}

/// Whether two subjects are the same, in either direction of a link.
fn same(one: &FaultSubject, other: &FaultSubject) -> bool {
    match (one, other) {
        (FaultSubject::Link { from: a, to: b }, FaultSubject::Link { from: c, to: d }) => {
            (a, b) == (c, d) || (a, b) == (d, c)
        }
        (FaultSubject::Network { .. }, FaultSubject::Network { .. }) => true,
        _ => one == other,
    }
}
