//! What programs cost on a machine described by a few numbers: good enough to choose between
//! algorithms, not to predict a time.
//!
//! A rank's messages inside its node go one after the other through a link of its own, those to
//! other nodes through its node's, which the node's ranks share. A round is over when what is sent
//! has left and what is received is there, and reduced.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::check::{CheckError, Message, Messages, Problem};
use super::{Blocks, Piece, Program, Step, share};

/// A way for messages.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    /// What a message of no bytes takes.
    pub latency_s: f64,
    /// How fast bytes go.
    pub bytes_per_s: f64,
}

/// A machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    /// Between ranks of a node: each rank's.
    pub inside: Link,
    /// Between nodes: each node's.
    pub between: Link,
    /// How fast a rank reduces and copies.
    pub reduced_bytes_per_s: f64,
    /// The node of each rank; empty: one node.
    pub nodes: Vec<u32>,
}

impl Machine {
    /// Usual numbers: shared memory in the node, 100 Gbit/s between nodes.
    pub fn usual(nodes: Vec<u32>) -> Self {
        Self {
            inside: Link { latency_s: 1e-6, bytes_per_s: 8e9 },
            between: Link { latency_s: 12e-6, bytes_per_s: 12e9 },
            reduced_bytes_per_s: 10e9,
            nodes,
        }
    }

    fn node(&self, rank: u32) -> u32 {
        self.nodes.get(rank as usize).copied().unwrap_or(0)
    }
}

/// What a collective costs.
#[derive(Debug, Clone, PartialEq)]
pub struct Cost {
    /// From the beginning to the end of the last rank.
    pub seconds: f64,
    /// What each rank sends.
    pub bytes_sent: Vec<u64>,
}

/// The bytes of each block when a buffer of so many bytes, of all ranks together, is cut.
pub fn block_sizes(blocks: Blocks, ranks: u32, bytes: usize) -> Vec<u64> {
    let count = blocks.count(ranks);
    (0..count).map(|index| share(bytes, count, index).len() as u64).collect()
}

/// The cost of the programs, one for each rank, with blocks of these sizes in bytes. The error is
/// that of programs that [`super::check::check`] would refuse.
pub fn simulate(
    programs: &[Program],
    sizes: &[u64],
    machine: &Machine,
) -> Result<Cost, CheckError> {
    let messages = Messages::match_all(programs)?;
    Simulation::new(programs, sizes, machine, &messages).all()
}

/// A rank in the simulation.
#[derive(Clone)]
struct Rank {
    round: usize,
    /// When its round began.
    since: f64,
    /// When its own link is free.
    out_free: f64,
    in_free: f64,
    /// When each of its messages was there, by number; of receives only.
    arrived: Vec<Option<f64>>,
    waits: bool,
    bytes: u64,
}

/// When a node's link is free.
#[derive(Clone, Default)]
struct Port {
    out_free: f64,
    in_free: f64,
}

struct Simulation<'a> {
    programs: &'a [Program],
    sizes: &'a [u64],
    machine: &'a Machine,
    messages: &'a Messages,
    ranks: Vec<Rank>,
    ports: Vec<Port>,
    /// Who begins a round when, the earliest first.
    events: BinaryHeap<Reverse<(Time, u32)>>,
}

/// A time that can be sorted.
#[derive(Clone, Copy, PartialEq)]
struct Time(f64);

impl Eq for Time {}

impl PartialOrd for Time {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Time {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl<'a> Simulation<'a> {
    fn new(
        programs: &'a [Program],
        sizes: &'a [u64],
        machine: &'a Machine,
        messages: &'a Messages,
    ) -> Self {
        let count = programs.len() as u32;
        let rank = |rank| Rank {
            round: 0,
            since: 0.0,
            out_free: 0.0,
            in_free: 0.0,
            arrived: vec![None; messages.count(rank)],
            waits: false,
            bytes: 0,
        };
        let nodes = (0..count).map(|rank| machine.node(rank) + 1).max().unwrap_or(1);
        Self {
            programs,
            sizes,
            machine,
            messages,
            ranks: (0..count).map(rank).collect(),
            ports: vec![Port::default(); nodes as usize],
            events: (0..count).map(|rank| Reverse((Time(0.0), rank))).collect(),
        }
    }

    fn all(mut self) -> Result<Cost, CheckError> {
        let mut seconds: f64 = 0.0;
        while let Some(Reverse((Time(now), rank))) = self.events.pop() {
            seconds = seconds.max(now);
            if self.ranks[rank as usize].round < self.programs[rank as usize].rounds.len() {
                self.begin(rank, now);
            }
        }
        for (rank, (state, program)) in self.ranks.iter().zip(self.programs).enumerate() {
            if state.round < program.rounds.len() {
                return self.stuck(rank as u32, state.round);
            }
        }
        Ok(Cost { seconds, bytes_sent: self.ranks.iter().map(|rank| rank.bytes).collect() })
    }

    fn stuck(&self, rank: u32, round: usize) -> Result<Cost, CheckError> {
        let mut received = self.messages.of_round(rank, round).map(|(_, m)| m).filter(|m| !m.sends);
        let peer = received.next().map_or(rank, |message| message.peer);
        let there = self.ranks[peer as usize].round;
        Err(CheckError { rank, round, problem: Problem::Stuck { peer, there } })
    }

    /// A rank begins a round: what it sends goes on its way.
    fn begin(&mut self, rank: u32, now: f64) {
        let messages = self.messages;
        let round = self.ranks[rank as usize].round;
        self.ranks[rank as usize].since = now;
        let mut woken = Vec::new();
        for (_, message) in messages.of_round(rank, round).filter(|(_, m)| m.sends) {
            self.send(rank, message, now);
            woken.push(message.peer);
        }
        self.ranks[rank as usize].waits = true;
        self.end(rank);
        woken.into_iter().for_each(|peer| self.end(peer));
    }

    fn send(&mut self, rank: u32, message: Message, now: f64) {
        let bytes = self.bytes(rank, message);
        let (here, there) = (self.machine.node(rank), self.machine.node(message.peer));
        let link = if here == there { self.machine.inside } else { self.machine.between };
        let time = bytes as f64 / link.bytes_per_s;
        let out_free = match here == there {
            true => &mut self.ranks[rank as usize].out_free,
            false => &mut self.ports[here as usize].out_free,
        };
        let start = now.max(*out_free);
        *out_free = start + time;
        let in_free = match here == there {
            true => &mut self.ranks[message.peer as usize].in_free,
            false => &mut self.ports[there as usize].in_free,
        };
        let arrived = (start + link.latency_s).max(*in_free) + time;
        *in_free = arrived;
        let left = start + time;
        self.ranks[rank as usize].since = self.ranks[rank as usize].since.max(left);
        self.ranks[rank as usize].bytes += bytes;
        self.ranks[message.peer as usize].arrived[message.other as usize] = Some(arrived);
    }

    /// A rank's round ends, if everything is there that it waits for.
    fn end(&mut self, rank: u32) {
        let me = &self.ranks[rank as usize];
        if !me.waits {
            return;
        }
        let received = self.messages.of_round(rank, me.round).filter(|(_, m)| !m.sends);
        let mut arrival = received.map(|(number, _)| me.arrived[number as usize]);
        let Some(last) = arrival.try_fold(me.since, |last, at| Some(last.max(at?))) else {
            return;
        };
        let end = last + self.work(rank, me.round);
        let me = &mut self.ranks[rank as usize];
        me.round += 1;
        me.waits = false;
        self.events.push(Reverse((Time(end), rank)));
    }

    /// What reductions and copies of a round take.
    fn work(&self, rank: u32, round: usize) -> f64 {
        let steps = &self.programs[rank as usize].rounds[round];
        let worked = steps.iter().map(|step| match step {
            Step::Receive { into, reduce: true, .. } => self.length(into),
            Step::Copy { to, .. } => self.length(to),
            _ => 0,
        });
        worked.sum::<u64>() as f64 / self.machine.reduced_bytes_per_s
    }

    fn bytes(&self, rank: u32, message: Message) -> u64 {
        let round = &self.programs[rank as usize].rounds[message.round as usize];
        round[message.step as usize].reads().map_or(0, |piece| self.length(piece))
    }

    fn length(&self, piece: &Piece) -> u64 {
        let sizes = self.sizes.iter().skip(piece.blocks.start as usize);
        sizes.take(piece.blocks.len()).sum()
    }
}
