//! At what level ranks are judged: as nodes, or one by one.

use regatta_model::bench::{Matrix, PairEnd};

use super::faults::upper_median;
use super::{Place, Scope};

/// Places, and which rows and columns of the matrix belong to each.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Level {
    pub places: Vec<Place>,
    members: Vec<Vec<usize>>,
}

/// The levels at which a scope is judged, one after the other.
pub(super) fn levels(ends: &[PairEnd], scope: Scope) -> Vec<Level> {
    let nodes = nodes(ends);
    let single = nodes.places.len() == ends.len();
    match scope {
        Scope::Between if nodes.places.len() < 2 => Vec::new(),
        Scope::Between if single => vec![nodes],
        Scope::Between => vec![nodes, ranks(ends)],
        Scope::Inside if single => Vec::new(),
        Scope::Inside => vec![ranks(ends)],
    }
}

/// The figures of a scope, all others taken out.
pub(super) fn within(ends: &[PairEnd], speeds: &Matrix, scope: Scope) -> Matrix {
    let is_in = |i: usize, j: usize| {
        let inside = ends[i].host == ends[j].host;
        i != j && inside == (scope == Scope::Inside)
    };
    let cell = |i: usize, j: usize| speeds[i][j].filter(|s| is_in(i, j) && s.is_finite());
    let n = ends.len();
    (0..n).map(|i| (0..n).map(|j| cell(i, j)).collect()).collect()
}

fn nodes(ends: &[PairEnd]) -> Level {
    let mut hosts: Vec<&str> = Vec::new();
    let mut members: Vec<Vec<usize>> = Vec::new();
    for (at, end) in ends.iter().enumerate() {
        match hosts.iter().position(|host| *host == end.host) {
            Some(node) => members[node].push(at),
            None => {
                hosts.push(&end.host);
                members.push(vec![at]);
            }
        }
    }
    let place = |(host, own): (&&str, &Vec<usize>)| {
        let ranks = own.iter().map(|at| ends[*at].rank).collect();
        Place::Node { host: (*host).to_owned(), ranks }
    };
    Level { places: hosts.iter().zip(&members).map(place).collect(), members }
}

fn ranks(ends: &[PairEnd]) -> Level {
    let place = |end: &PairEnd| Place::Rank { rank: end.rank, host: end.host.clone() };
    let members = (0..ends.len()).map(|at| vec![at]).collect();
    Level { places: ends.iter().map(place).collect(), members }
}

impl Level {
    /// The matrix between its places: of several figures the median, so that one bad rank is not
    /// its node's fault.
    pub fn gather(&self, speeds: &Matrix) -> Matrix {
        let between = |from: &Vec<usize>, to: &Vec<usize>| {
            let cells = from.iter().flat_map(|i| to.iter().map(move |j| (*i, *j)));
            upper_median(cells.filter_map(|(i, j)| speeds[i][j]).collect())
        };
        let row = |from| self.members.iter().map(|to| between(from, to)).collect();
        self.members.iter().map(row).collect()
    }

    /// How many figures each of [`Level::gather`]'s is of.
    pub fn counts(&self, speeds: &Matrix) -> Vec<Vec<usize>> {
        let between = |from: &Vec<usize>, to: &Vec<usize>| {
            let row = |i: &usize| to.iter().filter(|j| speeds[*i][**j].is_some()).count();
            from.iter().map(row).sum()
        };
        let row = |from| self.members.iter().map(|to| between(from, to)).collect();
        self.members.iter().map(row).collect()
    }

    /// Takes out of the speeds what faults of places explain, so that what is left of a healthy
    /// rank of a slow node is as fast as all others.
    pub fn spread(&self, explained: &[Vec<f64>], speeds: &mut Matrix) {
        for (from, row) in self.members.iter().zip(explained) {
            for (to, part) in self.members.iter().zip(row) {
                for (i, j) in from.iter().flat_map(|i| to.iter().map(move |j| (*i, *j))) {
                    speeds[i][j] = speeds[i][j].map(|speed| speed / part);
                }
            }
        }
    }

    /// How many links there are between its places in a scope.
    pub fn links(&self, scope: Scope) -> usize {
        let inside = |a: &Place, b: &Place| a.host() == b.host();
        let is_in = |a: &Place, b: &Place| inside(a, b) == (scope == Scope::Inside);
        let later =
            |(at, a): (usize, &Place)| self.places[at + 1..].iter().filter(|b| is_in(a, b)).count();
        self.places.iter().enumerate().map(later).sum()
    }
}
