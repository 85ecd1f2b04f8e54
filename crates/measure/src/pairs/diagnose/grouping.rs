//! Groups ranks for the diagnosis: by node, or one by one.

use regatta_model::bench::{PairEndpoint, PairMatrix};

use super::slow_links::upper_median;
use super::{FaultLocation, LinkScope};
use crate::pairs::schedule::ranks_by_node;

/// Locations with their rows and columns of the matrix.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Grouping {
    pub locations: Vec<FaultLocation>,
    members: Vec<Vec<usize>>,
}

/// The groupings diagnosed in a scope, one after the other.
pub(super) fn groupings(ends: &[PairEndpoint], scope: LinkScope) -> Vec<Grouping> {
    let nodes = nodes(ends);
    let single = nodes.locations.len() == ends.len();
    match scope {
        LinkScope::InterNode if nodes.locations.len() < 2 => Vec::new(),
        LinkScope::InterNode if single => vec![nodes],
        LinkScope::InterNode => vec![nodes, ranks(ends)],
        LinkScope::IntraNode if single => Vec::new(),
        LinkScope::IntraNode => vec![ranks(ends)],
    }
}

/// The matrix restricted to a scope.
pub(super) fn within(ends: &[PairEndpoint], speeds: &PairMatrix, scope: LinkScope) -> PairMatrix {
    let is_in = |i: usize, j: usize| {
        let inside = ends[i].host == ends[j].host;
        i != j && inside == (scope == LinkScope::IntraNode)
    };
    let cell = |i: usize, j: usize| speeds[i][j].filter(|s| is_in(i, j) && s.is_finite());
    let n = ends.len();
    (0..n).map(|i| (0..n).map(|j| cell(i, j)).collect()).collect()
}

fn nodes(ends: &[PairEndpoint]) -> Grouping {
    let hosts: Vec<&str> = ends.iter().map(|end| end.host.as_str()).collect();
    let members = ranks_by_node(&hosts);
    let location = |own: &Vec<usize>| {
        let ranks = own.iter().map(|at| ends[*at].rank).collect();
        FaultLocation::Node { host: hosts[own[0]].to_owned(), ranks }
    };
    Grouping { locations: members.iter().map(location).collect(), members }
}

fn ranks(ends: &[PairEndpoint]) -> Grouping {
    let location =
        |end: &PairEndpoint| FaultLocation::Rank { rank: end.rank, host: end.host.clone() };
    let members = (0..ends.len()).map(|at| vec![at]).collect();
    Grouping { locations: ends.iter().map(location).collect(), members }
}

impl Grouping {
    /// Matrix between locations: the median of their cells, so that one slow rank does not make its
    /// node slow.
    pub fn median_matrix(&self, speeds: &PairMatrix) -> PairMatrix {
        self.map_cells(speeds, upper_median)
    }

    /// Number of cells behind each cell of [`Grouping::median_matrix`].
    pub fn counts(&self, speeds: &PairMatrix) -> Vec<Vec<usize>> {
        self.map_cells(speeds, |cells| cells.len())
    }

    /// Applies a function to the measured cells between each two locations.
    fn map_cells<T>(&self, speeds: &PairMatrix, of: fn(Vec<f64>) -> T) -> Vec<Vec<T>> {
        let between = |from: &Vec<usize>, to: &Vec<usize>| {
            let cells = from.iter().flat_map(|i| to.iter().map(move |j| (*i, *j)));
            of(cells.filter_map(|(i, j)| speeds[i][j]).collect())
        };
        let row = |from| self.members.iter().map(|to| between(from, to)).collect();
        self.members.iter().map(row).collect()
    }

    /// Divides the speeds by what faults explain, so that healthy ranks of a slow node look like
    /// all others.
    pub fn divide_out(&self, explained: &[Vec<f64>], speeds: &mut PairMatrix) {
        for (from, row) in self.members.iter().zip(explained) {
            for (to, fraction) in self.members.iter().zip(row) {
                for (i, j) in from.iter().flat_map(|i| to.iter().map(move |j| (*i, *j))) {
                    speeds[i][j] = speeds[i][j].map(|speed| speed / fraction);
                }
            }
        }
    }

    /// Number of links between locations in a scope.
    pub fn links(&self, scope: LinkScope) -> usize {
        let intra_node = scope == LinkScope::IntraNode;
        let is_in = |a: &FaultLocation, b: &FaultLocation| (a.host() == b.host()) == intra_node;
        let later = |(at, a): (usize, &FaultLocation)| {
            self.locations[at + 1..].iter().filter(|b| is_in(a, b)).count()
        };
        self.locations.iter().enumerate().map(later).sum()
    }
}
