//! The algorithms, each a function from a rank's number to its program.
//!
//! All of them fix in the program in which order what is reduced: the result does not depend on
//! timing, bit for bit. And all ranks get the same bits, as every algorithm's file explains.

mod binomial;
mod build;
mod direct;
mod dissemination;
mod double_tree;
mod doubling;
mod fold;
mod halving;
mod ring;
#[cfg(test)]
mod tests;
mod two_level;
mod wide;

use serde::{Deserialize, Serialize};

use super::{Blocks, Place, Program, Round};
use crate::Kind;
use build::copied;

/// A way to do a collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Algorithm {
    /// Each talks to its two neighbours only: the fewest bytes, the most rounds.
    Ring,
    /// Partners twice as far away in each round swap all they have: the fewest rounds.
    RecursiveDoubling,
    /// Partners swap halves, then halves of these, and back: few rounds, few bytes.
    HalvingDoubling,
    /// As halving and doubling, round a circle: any number of ranks alike.
    Dissemination,
    /// A tree in which the root has the most children.
    BinomialTree,
    /// Two trees, each for half of the data; who works in one is a leaf in the other.
    DoubleBinaryTree,
    /// In the node, between the nodes' leaders, in the node again.
    TwoLevel,
    /// The same with as many leaders in a node as there can be, each for its share.
    TwoLevelWide,
    /// One partner after the other.
    Pairwise,
    /// All with all at once.
    Direct,
}

impl Algorithm {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Ring,
        Self::RecursiveDoubling,
        Self::HalvingDoubling,
        Self::Dissemination,
        Self::BinomialTree,
        Self::DoubleBinaryTree,
        Self::TwoLevel,
        Self::TwoLevelWide,
        Self::Pairwise,
        Self::Direct,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::RecursiveDoubling => "recursive-doubling",
            Self::HalvingDoubling => "halving-doubling",
            Self::Dissemination => "dissemination",
            Self::BinomialTree => "binomial-tree",
            Self::DoubleBinaryTree => "double-binary-tree",
            Self::TwoLevel => "two-level",
            Self::TwoLevelWide => "two-level-wide",
            Self::Pairwise => "pairwise",
            Self::Direct => "direct",
        }
    }

    /// Whether it does this collective.
    pub fn does(self, kind: Kind) -> bool {
        writer(kind, self).is_some()
    }
}

impl std::fmt::Display for Algorithm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// For whom a program is.
struct Seat<'a> {
    ranks: u32,
    rank: u32,
    root: u32,
    /// The node of each rank; empty: one node.
    nodes: &'a [u32],
}

impl Seat<'_> {
    fn is_root(&self) -> bool {
        self.rank == self.root
    }
}

/// Writes a program for one rank of at least two.
type Writer = fn(&Seat) -> Option<Program>;

/// The program of one rank. `nodes` has the node of each rank; if it is empty, all are on one.
/// `None` where the algorithm does not do this collective, or there is no such rank.
pub fn program(
    kind: Kind,
    algorithm: Algorithm,
    ranks: u32,
    rank: u32,
    root: u32,
    nodes: &[u32],
) -> Option<Program> {
    let write = writer(kind, algorithm)?;
    if rank >= ranks || root >= ranks || !(nodes.is_empty() || nodes.len() == ranks as usize) {
        return None;
    }
    if ranks == 1 {
        return Some(alone(kind));
    }
    let mut program = write(&Seat { ranks, rank, root, nodes })?;
    program.rounds.retain(|round| !round.is_empty());
    Some(program)
}

/// The programs of all ranks.
pub fn programs(
    kind: Kind,
    algorithm: Algorithm,
    ranks: u32,
    root: u32,
    nodes: &[u32],
) -> Option<Vec<Program>> {
    (0..ranks).map(|rank| program(kind, algorithm, ranks, rank, root, nodes)).collect()
}

fn writer(kind: Kind, algorithm: Algorithm) -> Option<Writer> {
    Some(match (algorithm, kind) {
        (Algorithm::Ring, Kind::AllReduce) => ring::all_reduce,
        (Algorithm::Ring, Kind::ReduceScatter) => ring::reduce_scatter,
        (Algorithm::Ring, Kind::AllGather) => ring::all_gather,
        (Algorithm::RecursiveDoubling, Kind::AllReduce) => doubling::all_reduce,
        (Algorithm::RecursiveDoubling, Kind::AllGather) => dissemination::all_gather,
        (Algorithm::RecursiveDoubling, Kind::Barrier) => dissemination::barrier,
        (Algorithm::HalvingDoubling, Kind::AllReduce) => halving::all_reduce,
        (Algorithm::Dissemination, Kind::AllReduce) => dissemination::all_reduce,
        (Algorithm::Dissemination, Kind::ReduceScatter) => dissemination::reduce_scatter,
        (Algorithm::Dissemination, Kind::AllGather) => dissemination::all_gather,
        (Algorithm::Dissemination, Kind::Barrier) => dissemination::barrier,
        (Algorithm::BinomialTree, Kind::AllReduce) => binomial::all_reduce,
        (Algorithm::BinomialTree, Kind::Reduce) => binomial::reduce,
        (Algorithm::BinomialTree, Kind::Broadcast) => binomial::broadcast,
        (Algorithm::BinomialTree, Kind::Gather) => binomial::gather,
        (Algorithm::BinomialTree, Kind::Scatter) => binomial::scatter,
        (Algorithm::BinomialTree, Kind::Barrier) => binomial::barrier,
        (Algorithm::DoubleBinaryTree, Kind::AllReduce) => double_tree::all_reduce,
        (Algorithm::DoubleBinaryTree, Kind::Reduce) => double_tree::reduce,
        (Algorithm::DoubleBinaryTree, Kind::Broadcast) => double_tree::broadcast,
        (Algorithm::TwoLevel, Kind::AllReduce) => two_level::all_reduce,
        (Algorithm::TwoLevel, Kind::Reduce) => two_level::reduce,
        (Algorithm::TwoLevel, Kind::Broadcast) => two_level::broadcast,
        (Algorithm::TwoLevel, Kind::AllGather) => two_level::all_gather,
        (Algorithm::TwoLevel, Kind::Barrier) => two_level::barrier,
        (Algorithm::TwoLevelWide, Kind::AllReduce) => wide::all_reduce,
        (Algorithm::Pairwise, Kind::AllToAll) => direct::pairwise,
        (Algorithm::Direct, Kind::AllToAll) => direct::all_to_all,
        (Algorithm::Direct, Kind::AllGather) => direct::all_gather,
        (Algorithm::Direct, Kind::Gather) => direct::gather,
        (Algorithm::Direct, Kind::Scatter) => direct::scatter,
        _ => return None,
    })
}

/// What a rank does that has no peers.
fn alone(kind: Kind) -> Program {
    let blocks = match kind {
        Kind::Barrier => Blocks::Shares(0),
        Kind::AllReduce | Kind::Reduce | Kind::Broadcast => Blocks::Shares(1),
        _ => Blocks::Parts,
    };
    let idle = matches!(kind, Kind::Barrier | Kind::Broadcast);
    let copy = if idle { None } else { copied(Place::Input, Place::Output, 0..1) };
    Program { blocks, rounds: copy.into_iter().collect() }
}

fn whole(rounds: Vec<Round>) -> Option<Program> {
    Some(Program { blocks: Blocks::Shares(1), rounds })
}

fn shares(shares: u32, rounds: Vec<Round>) -> Option<Program> {
    Some(Program { blocks: Blocks::Shares(shares), rounds })
}

fn parts(rounds: Vec<Round>) -> Option<Program> {
    Some(Program { blocks: Blocks::Parts, rounds })
}
