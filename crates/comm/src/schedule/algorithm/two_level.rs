//! Inside the nodes first, then between one leader of each, then inside again: few messages cross
//! the network, and each rank but the leaders talks to its own node only.
//!
//! Rounds: those of a binomial tree in the node, twice, and those of recursive doubling (all-reduce),
//! a binomial tree, or a ring (all-gather) between the leaders. Leaders get the same bits by
//! recursive doubling, and the others copies: all ranks get the same bits.

use std::collections::BTreeMap;
use std::ops::Range;

use super::build::{Group, copy, receive, send};
use super::{Program, Seat, binomial, doubling, parts, shares, whole};
use crate::schedule::{Place, Round};

/// Who is where, as one rank sees it.
struct Levels {
    /// This rank's node, its leader first.
    node: Group,
    /// The leaders, if this rank is one. In the order of `members`.
    leaders: Option<Group>,
    /// The ranks of each node, ascending; first that of the root.
    members: Vec<Vec<u32>>,
}

/// The ranks of each node, in the order of nodes.
pub(super) fn by_node(seat: &Seat) -> Vec<Vec<u32>> {
    let mut nodes: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for rank in 0..seat.ranks {
        let node = seat.nodes.get(rank as usize).copied().unwrap_or(0);
        nodes.entry(node).or_default().push(rank);
    }
    nodes.into_values().collect()
}

impl Levels {
    /// The root leads its node, the first rank every other.
    fn new(seat: &Seat) -> Option<Self> {
        let mut members = by_node(seat);
        let of_root = members.iter().position(|node| node.contains(&seat.root))?;
        members.swap(0, of_root);
        let leader = |node: &[u32]| if node.contains(&seat.root) { seat.root } else { node[0] };
        let leaders = members.iter().map(|node| leader(node)).collect();
        let mut node = members.iter().find(|node| node.contains(&seat.rank))?.clone();
        let first = node.iter().position(|rank| *rank == leader(&node))?;
        node.swap(0, first);
        let node = Group::of(node, seat.rank)?;
        Some(Self { node, leaders: Group::of(leaders, seat.rank), members })
    }

    /// The rounds of a leader between the nodes; none for others.
    fn between(&self, rounds: impl Fn(&Group) -> Vec<Round>) -> Vec<Round> {
        self.leaders.as_ref().map(rounds).unwrap_or_default()
    }
}

pub(super) fn all_reduce(seat: &Seat) -> Option<Program> {
    whole(meet(&Levels::new(seat)?, 0..1))
}

pub(super) fn barrier(seat: &Seat) -> Option<Program> {
    shares(0, meet(&Levels::new(seat)?, 0..0))
}

fn meet(levels: &Levels, blocks: Range<u32>) -> Vec<Round> {
    let mut rounds = binomial::up(&levels.node, Place::Input, Place::Output, blocks.clone());
    rounds.extend(
        levels.between(|leaders| doubling::reduce_all(leaders, Place::Output, blocks.clone())),
    );
    rounds.extend(binomial::down(&levels.node, blocks));
    rounds
}

pub(super) fn reduce(seat: &Seat) -> Option<Program> {
    let levels = Levels::new(seat)?;
    let work = if seat.is_root() { Place::Output } else { Place::Scratch };
    let mut rounds = binomial::up(&levels.node, Place::Input, work, 0..1);
    rounds.extend(levels.between(|leaders| binomial::up(leaders, work, work, 0..1)));
    whole(rounds)
}

pub(super) fn broadcast(seat: &Seat) -> Option<Program> {
    let levels = Levels::new(seat)?;
    let mut rounds = levels.between(|leaders| binomial::down(leaders, 0..1));
    rounds.extend(binomial::down(&levels.node, 0..1));
    whole(rounds)
}

/// The leader collects its node's parts, the leaders pass them round, and each gives all to its
/// node.
pub(super) fn all_gather(seat: &Seat) -> Option<Program> {
    let levels = Levels::new(seat)?;
    let own = seat.rank..seat.rank + 1;
    let leader = levels.node.rank(0);
    let mut rounds = match levels.node.me {
        0 => {
            let others = (1..levels.node.size()).map(|at| levels.node.rank(at));
            let got = others.map(|from| receive(from, Place::Output, from..from + 1));
            vec![got.chain([copy(Place::Input, Place::Output, own)]).collect()]
        }
        _ => vec![vec![send(leader, Place::Input, own)]],
    };
    rounds.extend(levels.between(|leaders| pass_round(leaders, &levels.members)));
    rounds.extend(binomial::down(&levels.node, 0..seat.ranks));
    parts(rounds)
}

/// A ring in which each member's part is the blocks of its node.
fn pass_round(leaders: &Group, members: &[Vec<u32>]) -> Vec<Round> {
    let round = |k: u32| {
        let (to, from) = (leaders.rank(leaders.me + 1), leaders.rank(leaders.back(1)));
        let (out, into) = (leaders.back(k) as usize, leaders.back(k + 1) as usize);
        let sent = runs(&members[out]).map(|blocks| send(to, Place::Output, blocks));
        let got = runs(&members[into]).map(|blocks| receive(from, Place::Output, blocks));
        sent.chain(got).collect()
    };
    (0..leaders.size() - 1).map(round).collect()
}

/// Ascending numbers as runs.
fn runs(ranks: &[u32]) -> impl Iterator<Item = Range<u32>> {
    ranks.chunk_by(|a, b| a + 1 == *b).map(|run| run[0]..run[0] + run.len() as u32)
}
