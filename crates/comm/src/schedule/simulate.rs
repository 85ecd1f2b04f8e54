//! What programs cost on a machine described by a few numbers: good enough to choose between
//! algorithms, not to predict a time.
//!
//! A rank's messages inside its node go one after the other through a link of its own, those to
//! other nodes through its node's, which the node's ranks share. A round is over when what is sent
//! has left and what is received is there, and reduced.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::check::{CheckError, Message, Messages, Problem};
use super::{Blocks, Piece, Program, Step, share};

/// A way for messages.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    /// How long a message of no bytes is on its way.
    pub latency_s: f64,
    /// What it takes of a rank's own time to send one, and to receive one.
    pub message_s: f64,
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
            inside: Link { latency_s: 0.6e-6, message_s: 0.2e-6, bytes_per_s: 8e9 },
            between: Link { latency_s: 10e-6, message_s: 1e-6, bytes_per_s: 12e9 },
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
#[derive(Default)]
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
    ports: HashMap<u32, Port>,
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
        Self {
            programs,
            sizes,
            machine,
            messages,
            ranks: (0..count).map(rank).collect(),
            ports: HashMap::new(),
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
    fn begin(&mut self, rank: u32, mut now: f64) {
        let messages = self.messages;
        let round = self.ranks[rank as usize].round;
        self.ranks[rank as usize].since = now;
        let mut woken = Vec::new();
        for (_, message) in messages.of_round(rank, round).filter(|(_, m)| m.sends) {
            now += self.link(rank, message.peer).message_s;
            self.send(rank, message, now);
            woken.push(message.peer);
        }
        self.ranks[rank as usize].waits = true;
        self.end(rank);
        woken.into_iter().for_each(|peer| self.end(peer));
    }

    fn link(&self, rank: u32, peer: u32) -> Link {
        let inside = self.machine.node(rank) == self.machine.node(peer);
        if inside { self.machine.inside } else { self.machine.between }
    }

    fn send(&mut self, rank: u32, message: Message, now: f64) {
        let bytes = self.bytes(rank, message);
        let (here, there) = (self.machine.node(rank), self.machine.node(message.peer));
        let link = self.link(rank, message.peer);
        let time = bytes as f64 / link.bytes_per_s;
        let out_free = match here == there {
            true => &mut self.ranks[rank as usize].out_free,
            false => &mut self.ports.entry(here).or_default().out_free,
        };
        let start = now.max(*out_free);
        *out_free = start + time;
        let in_free = match here == there {
            true => &mut self.ranks[message.peer as usize].in_free,
            false => &mut self.ports.entry(there).or_default().in_free,
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

    /// What receives, reductions and copies of a round take of the rank's time.
    fn work(&self, rank: u32, round: usize) -> f64 {
        let worked = |piece: &Piece| self.length(piece) as f64 / self.machine.reduced_bytes_per_s;
        let steps = self.programs[rank as usize].rounds[round].iter();
        let times = steps.map(|step| match step {
            Step::Send { .. } => 0.0,
            Step::Receive { from, into, reduce } => {
                self.link(rank, *from).message_s + if *reduce { worked(into) } else { 0.0 }
            }
            Step::Copy { to, .. } => worked(to),
        });
        times.sum()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;
    use crate::schedule::algorithm::{Algorithm, programs};

    fn cost(kind: Kind, by: Algorithm, bytes: usize, nodes: &[u32]) -> Cost {
        let ranks = nodes.len() as u32;
        let programs = programs(kind, by, ranks, 0, nodes).unwrap();
        let sizes = block_sizes(programs[0].blocks, ranks, bytes);
        simulate(&programs, &sizes, &Machine::usual(nodes.to_vec())).unwrap()
    }

    fn sent(kind: Kind, by: Algorithm, ranks: u32, bytes: usize) -> Vec<u64> {
        cost(kind, by, bytes, &vec![0; ranks as usize]).bytes_sent
    }

    #[test]
    fn bytes_are_those_of_the_books() {
        for n in [2u32, 3, 8, 13, 64, 100] {
            let bytes = 480 * n as usize;
            let part = 480;
            let others = u64::from(n - 1);
            let all = |each: u64| vec![each; n as usize];
            let ring = |kind| sent(kind, Algorithm::Ring, n, bytes);
            assert_eq!(ring(Kind::AllReduce), all(2 * others * part));
            assert_eq!(ring(Kind::ReduceScatter), all(others * part));
            assert_eq!(ring(Kind::AllGather), all(others * part));
            let round = |kind| sent(kind, Algorithm::Dissemination, n, bytes);
            assert_eq!(round(Kind::AllReduce), all(2 * others * part));
            assert_eq!(round(Kind::ReduceScatter), all(others * part));
            assert_eq!(sent(Kind::AllToAll, Algorithm::Pairwise, n, bytes), all(others * part));
            assert_eq!(sent(Kind::AllToAll, Algorithm::Direct, n, bytes), all(others * part));
            for tree in [Algorithm::BinomialTree, Algorithm::DoubleBinaryTree] {
                let total = |kind| sent(kind, tree, n, bytes).iter().sum::<u64>();
                assert_eq!(total(Kind::Broadcast), others * bytes as u64);
                assert_eq!(total(Kind::Reduce), others * bytes as u64);
                assert_eq!(total(Kind::AllReduce), 2 * others * bytes as u64);
            }
            let direct = sent(Kind::Gather, Algorithm::Direct, n, bytes);
            assert_eq!(direct.iter().sum::<u64>(), others * part);
        }
        for n in [2u32, 8, 64] {
            let all = |each: u64| vec![each; n as usize];
            let bytes = 480 * u64::from(n);
            let doubling = sent(Kind::AllReduce, Algorithm::RecursiveDoubling, n, bytes as usize);
            assert_eq!(doubling, all(u64::from(n.ilog2()) * bytes));
            let halving = sent(Kind::AllReduce, Algorithm::HalvingDoubling, n, bytes as usize);
            assert_eq!(halving, all(2 * u64::from(n - 1) * 480));
        }
    }

    #[test]
    fn a_double_tree_spreads_the_load() {
        for n in [3, 8, 13, 64] {
            let most = |kind| {
                let sent = sent(kind, Algorithm::DoubleBinaryTree, n, 8000);
                sent.into_iter().max().unwrap()
            };
            assert!(most(Kind::Broadcast) <= 8000);
            assert!(most(Kind::AllReduce) <= 16000);
        }
    }

    #[test]
    fn rings_are_for_large_buffers_and_doubling_is_for_small_ones() {
        let nodes: Vec<u32> = (0..16).collect();
        let seconds = |by, bytes| cost(Kind::AllReduce, by, bytes, &nodes).seconds;
        let (ring, doubling) = (Algorithm::Ring, Algorithm::RecursiveDoubling);
        assert!(seconds(ring, 64) > 3.0 * seconds(doubling, 64));
        assert!(seconds(ring, 64 << 20) < 0.6 * seconds(doubling, 64 << 20));
    }

    #[test]
    fn nodes_are_worth_to_be_known() {
        let nodes: Vec<u32> = (0..64).map(|rank| rank % 8).collect();
        let seconds = |by, bytes| cost(Kind::AllReduce, by, bytes, &nodes).seconds;
        assert!(
            seconds(Algorithm::TwoLevel, 1 << 14) < seconds(Algorithm::RecursiveDoubling, 1 << 14)
        );
        let large = 64 << 20;
        assert!(seconds(Algorithm::TwoLevelWide, large) < seconds(Algorithm::Ring, large));
    }

    #[test]
    fn one_message_takes_what_the_link_takes() {
        let nodes = [0, 1];
        let machine = Machine::usual(nodes.to_vec());
        let got = cost(Kind::Broadcast, Algorithm::BinomialTree, 12_000_000, &nodes);
        let right = machine.between.latency_s + 2.0 * machine.between.message_s + 1e-3;
        assert!((got.seconds - right).abs() < 1e-9, "{got:?}");
        assert_eq!(got.bytes_sent, [12_000_000, 0]);
    }

    #[test]
    fn programs_that_hang_are_refused() {
        // Both receive before they send.
        let mut programs = programs(Kind::AllGather, Algorithm::Ring, 2, 0, &[]).unwrap();
        for program in &mut programs {
            let steps = program.rounds.pop().unwrap();
            program.rounds = steps.into_iter().rev().map(|step| vec![step]).collect();
        }
        let sizes = [8; 2];
        assert!(simulate(&programs, &sizes, &Machine::usual(Vec::new())).is_err());
    }
}
