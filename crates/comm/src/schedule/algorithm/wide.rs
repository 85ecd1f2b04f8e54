//! Two levels with as many leaders in a node as the smallest node has ranks, each for its share:
//! rings inside the nodes, then between the leaders of the same share, then inside again. So all
//! ranks send at once, and the bytes that cross the network are the fewest possible.
//!
//! Rounds: 2(*l*-1) + 2(*m*-1), with *l* leaders in each of *m* nodes, and those in which ranks that lead
//! nothing give and get. A block's value is made once and then copied: all ranks get the same bits.

use super::build::{Group, copied, receive, reduce, send};
use super::ring::{gather_parts, reduce_parts};
use super::two_level::by_node;
use super::{Program, Seat, shares};
use crate::schedule::{Place, Round};

pub(super) fn all_reduce(seat: &Seat) -> Option<Program> {
    let nodes = by_node(seat);
    let leaders = nodes.iter().map(Vec::len).min()?;
    let node = nodes.iter().find(|node| node.contains(&seat.rank))?;
    let local = node.iter().position(|&rank| rank == seat.rank)?;
    let blocks = (leaders * nodes.len()) as u32;
    if local >= leaders {
        let leader = node[local % leaders];
        let given = vec![send(leader, Place::Input, 0..blocks)];
        return shares(blocks, vec![given, vec![receive(leader, Place::Output, 0..blocks)]]);
    }
    // Those that lead nothing and give to this one.
    let followers: Vec<u32> = node.iter().skip(local + leaders).step_by(leaders).copied().collect();
    let mut rounds: Vec<Round> = Vec::new();
    if !followers.is_empty() {
        rounds.extend(copied(Place::Input, Place::Output, 0..blocks));
    }
    rounds.extend(followers.iter().map(|&from| vec![reduce(from, Place::Output, 0..blocks)]));
    let given = if followers.is_empty() { Place::Input } else { Place::Output };
    let inside = Group::of(node[..leaders].to_vec(), seat.rank)?;
    let across = Group::of(nodes.iter().map(|node| node[local]).collect(), seat.rank)?;
    rounds.extend(rings(&inside, &across, given));
    rounds.push(followers.iter().map(|&to| send(to, Place::Output, 0..blocks)).collect());
    shares(blocks, rounds)
}

/// The ring inside halves the work until the ring across is done.
fn rings(inside: &Group, across: &Group, given: Place) -> Vec<Round> {
    let (out, width) = (Place::Output, across.size());
    let share = |leader: u32| leader * width..(leader + 1) * width;
    let block = |node: u32| share(inside.me).start + node..share(inside.me).start + node + 1;
    let mut rounds = reduce_parts(inside, share, given, out, out);
    rounds.extend(reduce_parts(across, block, out, out, out));
    rounds.extend(gather_parts(across, block, out));
    rounds.extend(gather_parts(inside, share, out));
    rounds
}
