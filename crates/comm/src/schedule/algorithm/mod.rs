//! Collective algorithms: each maps a rank to its program.
//!
//! Every program fixes the order of its reductions, so results do not depend on timing. All ranks
//! get bit-identical results; each file explains why.

mod binomial;
mod build;
mod direct;
mod dissemination;
mod double_binary_tree;
mod halving_doubling;
mod multi_leader;
mod power_of_two;
mod recursive_doubling;
mod ring;
mod two_level;

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::{Blocks, BufferKind, Program, Round};
use crate::CallKind;
use crate::enum_names::enum_names;
use build::{copy_round, reversed};

/// A collective algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Algorithm {
    /// Neighbour exchange along a ring: minimal bytes, most rounds.
    Ring,
    /// Pairwise exchange at doubling distances: fewest rounds.
    RecursiveDoubling,
    /// Recursive halving, then recursive doubling (Rabenseifner): few rounds, few bytes.
    HalvingDoubling,
    /// Like halving-doubling, but around a ring, for any number of ranks.
    Dissemination,
    /// Binomial tree.
    BinomialTree,
    /// Two trees, each for half of the data; inner nodes of one are leaves of the other.
    DoubleBinaryTree,
    /// Intra-node, then between one leader per node, then intra-node.
    TwoLevel,
    /// Two-level with several leaders per node, each for its share of the data.
    MultiLeader,
    /// One peer at a time.
    Pairwise,
    /// All peers at once.
    Direct,
}

impl Algorithm {
    /// Whether the algorithm implements this collective.
    pub fn does(self, kind: CallKind) -> bool {
        builder(kind, self).is_some()
    }
}

enum_names!(Algorithm, "All algorithms.",
    Ring "ring", RecursiveDoubling "recursive-doubling", HalvingDoubling "halving-doubling",
    Dissemination "dissemination", BinomialTree "binomial-tree",
    DoubleBinaryTree "double-binary-tree", TwoLevel "two-level", MultiLeader "multi-leader",
    Pairwise "pairwise", Direct "direct");

/// The rank that a program is built for.
struct RankContext<'a> {
    ranks: u32,
    rank: u32,
    root: u32,
    /// The node of each rank; empty if all ranks share one node.
    nodes: &'a [u32],
}

impl RankContext<'_> {
    fn is_root(&self) -> bool {
        self.rank == self.root
    }

    /// The block that belongs to this rank.
    fn own(&self) -> Range<u32> {
        self.rank..self.rank + 1
    }

    /// The rank `distance` after this one.
    fn after(&self, distance: u32) -> u32 {
        (self.rank + distance) % self.ranks
    }

    /// The rank `distance` before this one.
    fn before(&self, distance: u32) -> u32 {
        (self.rank + self.ranks - distance) % self.ranks
    }
}

/// Builds the program of one of at least two ranks.
type Builder = fn(&RankContext) -> Option<Program>;

/// The program of one rank. `nodes` has the node of each rank; empty means a single node. `None` if
/// the algorithm does not implement the collective or the rank is out of range.
pub fn program(
    kind: CallKind,
    algorithm: Algorithm,
    ranks: u32,
    rank: u32,
    root: u32,
    nodes: &[u32],
) -> Option<Program> {
    let build = builder(kind, algorithm)?;
    if rank >= ranks || root >= ranks || !(nodes.is_empty() || nodes.len() == ranks as usize) {
        return None;
    }
    if ranks == 1 {
        return Some(single_rank_program(kind));
    }
    let mut program = build(&RankContext { ranks, rank, root, nodes })?;
    program.rounds.retain(|round| !round.is_empty());
    Some(program)
}

fn builder(kind: CallKind, algorithm: Algorithm) -> Option<Builder> {
    use Algorithm::*;
    use CallKind::*;
    Some(match (algorithm, kind) {
        (Ring, AllReduce) => ring::all_reduce,
        (Ring, ReduceScatter) => ring::reduce_scatter,
        (Ring, AllGather) => ring::all_gather,
        (RecursiveDoubling, AllReduce) => recursive_doubling::all_reduce,
        (RecursiveDoubling, AllGather) => dissemination::all_gather,
        (RecursiveDoubling, Barrier) => dissemination::barrier,
        (HalvingDoubling, AllReduce) => halving_doubling::all_reduce,
        (Dissemination, AllReduce) => dissemination::all_reduce,
        (Dissemination, ReduceScatter) => dissemination::reduce_scatter,
        (Dissemination, AllGather) => dissemination::all_gather,
        (Dissemination, Barrier) => dissemination::barrier,
        (BinomialTree, AllReduce) => binomial::all_reduce,
        (BinomialTree, Reduce) => binomial::reduce,
        (BinomialTree, Broadcast) => binomial::broadcast,
        (BinomialTree, Gather) => binomial::gather,
        (BinomialTree, Scatter) => |ctx| binomial::gather(ctx).map(reversed),
        (BinomialTree, Barrier) => binomial::barrier,
        (DoubleBinaryTree, AllReduce) => double_binary_tree::all_reduce,
        (DoubleBinaryTree, Reduce) => double_binary_tree::reduce,
        (DoubleBinaryTree, Broadcast) => double_binary_tree::broadcast,
        (TwoLevel, AllReduce) => two_level::all_reduce,
        (TwoLevel, Reduce) => two_level::reduce,
        (TwoLevel, Broadcast) => two_level::broadcast,
        (TwoLevel, AllGather) => two_level::all_gather,
        (TwoLevel, Barrier) => two_level::barrier,
        (MultiLeader, AllReduce) => multi_leader::all_reduce,
        (Pairwise, AllToAll) => direct::pairwise,
        (Direct, AllToAll) => direct::all_to_all,
        (Direct, AllGather) => direct::all_gather,
        (Direct, Gather) => direct::gather,
        (Direct, Scatter) => |ctx| direct::gather(ctx).map(reversed),
        _ => return None,
    })
}

/// The program of a communicator with a single rank.
fn single_rank_program(kind: CallKind) -> Program {
    let blocks = match kind {
        CallKind::Barrier => Blocks::Equal(0),
        CallKind::AllReduce | CallKind::Reduce | CallKind::Broadcast => Blocks::Equal(1),
        _ => Blocks::PerRank,
    };
    let idle = matches!(kind, CallKind::Barrier | CallKind::Broadcast);
    let copy = if idle { None } else { copy_round(BufferKind::Input, BufferKind::Output, 0..1) };
    Program { blocks, rounds: copy.into_iter().collect() }
}

fn equal_blocks(shares: u32, rounds: Vec<Round>) -> Option<Program> {
    Some(Program { blocks: Blocks::Equal(shares), rounds })
}

fn per_rank_blocks(rounds: Vec<Round>) -> Option<Program> {
    Some(Program { blocks: Blocks::PerRank, rounds })
}
