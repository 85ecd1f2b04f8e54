//! Estimates the cost of programs on a machine described by a few parameters (LogGP style):
//! accurate enough to rank algorithms, not to predict times.
//!
//! A rank's intra-node messages are serialized on its own link, inter-node messages on the NIC that
//! the ranks of a node share. A round ends when its sends have left and its receives have arrived
//! and are reduced.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::check::{CheckError, Defect, ScheduledMessage, ScheduledMessages};
use super::programs;
use regatta_comm::CallKind;
use regatta_comm::schedule::{Algorithm, BlockRange, Program, ProgramStep, equal_block};

/// Parameters of a link.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkModel {
    /// Latency of an empty message.
    pub latency_s: f64,
    /// CPU overhead of a rank per message sent or received.
    pub overhead_s: f64,
    /// Bandwidth.
    pub bytes_per_s: f64,
}

/// A machine model.
#[derive(Debug, Clone, PartialEq)]
pub struct MachineModel {
    /// The link of each rank within a node.
    pub intra_node: LinkModel,
    /// The NIC of each node.
    pub inter_node: LinkModel,
    /// Throughput of reductions and copies of a rank.
    pub reduce_bytes_per_s: f64,
    /// The node of each rank; empty if all ranks share one node.
    pub nodes: Vec<u32>,
}

impl MachineModel {
    /// Typical parameters: shared memory within a node, 100 Gbit/s between nodes.
    pub fn typical(nodes: Vec<u32>) -> Self {
        Self {
            intra_node: LinkModel { latency_s: 0.6e-6, overhead_s: 0.2e-6, bytes_per_s: 8e9 },
            inter_node: LinkModel { latency_s: 10e-6, overhead_s: 1e-6, bytes_per_s: 12e9 },
            reduce_bytes_per_s: 10e9,
            nodes,
        }
    }

    fn node(&self, rank: u32) -> u32 {
        self.nodes.get(rank as usize).copied().unwrap_or(0)
    }
}

/// The simulated cost of a collective.
#[derive(Debug, Clone, PartialEq)]
pub struct SimulatedCost {
    /// Time from the start until the last rank has finished.
    pub seconds: f64,
    /// Bytes sent by each rank.
    pub bytes_sent: Vec<u64>,
}

/// The cost of the programs, one per rank, for the given block sizes in bytes. Fails for programs
/// that [`super::check::check`] rejects.
pub fn simulate(
    programs: &[Program],
    sizes: &[u64],
    machine: &MachineModel,
) -> Result<SimulatedCost, CheckError> {
    let messages = ScheduledMessages::match_all(programs)?;
    let count = programs.len() as u32;
    let rank = |rank| SimRank { arrived: vec![None; messages.count(rank)], ..SimRank::default() };
    let simulation = Simulation {
        programs,
        sizes,
        machine,
        messages: &messages,
        ranks: (0..count).map(rank).collect(),
        links: HashMap::new(),
        events: (0..count).map(|rank| Reverse((0f64.to_bits(), rank))).collect(),
    };
    simulation.all()
}

/// Simulation state of a rank.
#[derive(Default)]
struct SimRank {
    round: usize,
    /// Start of the current round.
    since: f64,
    /// Arrival time of each receive, by message index.
    arrived: Vec<Option<f64>>,
    waits: bool,
    bytes: u64,
}

/// A link within a node belongs to a rank, a NIC to a node.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum LinkId {
    Rank(u32),
    Node(u32),
}

/// When each direction of a link is free.
#[derive(Default)]
struct LinkState {
    out_free: f64,
    in_free: f64,
}

struct Simulation<'a> {
    programs: &'a [Program],
    sizes: &'a [u64],
    machine: &'a MachineModel,
    messages: &'a ScheduledMessages,
    ranks: Vec<SimRank>,
    links: HashMap<LinkId, LinkState>,
    /// Round starts, earliest first. Non-negative times are ordered like their bits.
    events: BinaryHeap<Reverse<(u64, u32)>>,
}

impl Simulation<'_> {
    fn all(mut self) -> Result<SimulatedCost, CheckError> {
        let mut seconds: f64 = 0.0;
        while let Some(Reverse((now, rank))) = self.events.pop() {
            let now = f64::from_bits(now);
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
        let bytes_sent = self.ranks.iter().map(|rank| rank.bytes).collect();
        Ok(SimulatedCost { seconds, bytes_sent })
    }

    fn stuck(&self, rank: u32, round: usize) -> Result<SimulatedCost, CheckError> {
        let mut received =
            self.messages.of_round(rank, round).map(|(_, m)| m).filter(|m| !m.is_send);
        let peer = received.next().map_or(rank, |message| message.peer);
        let peer_round = self.ranks[peer as usize].round;
        Err(CheckError { rank, round, problem: Defect::Deadlock { peer, peer_round } })
    }

    /// A rank starts a round: its sends leave.
    fn begin(&mut self, rank: u32, mut now: f64) {
        let messages = self.messages;
        let round = self.ranks[rank as usize].round;
        self.ranks[rank as usize].since = now;
        let mut woken = Vec::new();
        for (_, message) in messages.of_round(rank, round).filter(|(_, m)| m.is_send) {
            now += self.link(rank, message.peer).overhead_s;
            self.send(rank, message, now);
            woken.push(message.peer);
        }
        self.ranks[rank as usize].waits = true;
        self.end(rank);
        woken.into_iter().for_each(|peer| self.end(peer));
    }

    fn is_intra_node(&self, rank: u32, peer: u32) -> bool {
        self.machine.node(rank) == self.machine.node(peer)
    }

    fn link(&self, rank: u32, peer: u32) -> LinkModel {
        let MachineModel { intra_node, inter_node, .. } = *self.machine;
        if self.is_intra_node(rank, peer) { intra_node } else { inter_node }
    }

    fn send(&mut self, rank: u32, message: ScheduledMessage, now: f64) {
        let read = message.step(&self.programs[rank as usize]).reads();
        let bytes = read.map_or(0, |range| self.length(range));
        let model = self.link(rank, message.peer);
        let time = bytes as f64 / model.bytes_per_s;
        let [ours, theirs] = match self.is_intra_node(rank, message.peer) {
            true => [rank, message.peer].map(LinkId::Rank),
            false => [rank, message.peer].map(|rank| LinkId::Node(self.machine.node(rank))),
        };
        let out_free = &mut self.links.entry(ours).or_default().out_free;
        let start = now.max(*out_free);
        let left = start + time;
        *out_free = left;
        let in_free = &mut self.links.entry(theirs).or_default().in_free;
        let arrived = (start + model.latency_s).max(*in_free) + time;
        *in_free = arrived;
        let me = &mut self.ranks[rank as usize];
        me.since = me.since.max(left);
        me.bytes += bytes;
        self.ranks[message.peer as usize].arrived[message.other as usize] = Some(arrived);
    }

    /// Ends a rank's round if all its receives have arrived.
    fn end(&mut self, rank: u32) {
        let me = &self.ranks[rank as usize];
        if !me.waits {
            return;
        }
        let received = self.messages.of_round(rank, me.round).filter(|(_, m)| !m.is_send);
        let mut arrival = received.map(|(number, _)| me.arrived[number as usize]);
        let Some(last) = arrival.try_fold(me.since, |last, at| Some(last.max(at?))) else {
            return;
        };
        let end = last + self.work(rank, me.round);
        let me = &mut self.ranks[rank as usize];
        me.round += 1;
        me.waits = false;
        self.events.push(Reverse((end.to_bits(), rank)));
    }

    /// CPU time of the receives, reductions and copies of a round.
    fn work(&self, rank: u32, round: usize) -> f64 {
        let worked = |r: &BlockRange| self.length(r) as f64 / self.machine.reduce_bytes_per_s;
        let steps = self.programs[rank as usize].rounds[round].iter();
        let times = steps.map(|step| match step {
            ProgramStep::Send { .. } => 0.0,
            ProgramStep::Receive { from, into, reduce } => {
                self.link(rank, *from).overhead_s + if *reduce { worked(into) } else { 0.0 }
            }
            ProgramStep::Copy { to, .. } => worked(to),
        });
        times.sum()
    }

    fn length(&self, range: &BlockRange) -> u64 {
        let sizes = self.sizes.iter().skip(range.blocks.start as usize);
        sizes.take(range.blocks.len()).sum()
    }
}

/// The cost of a collective on a buffer of `bytes` bytes, over all ranks.
pub fn cost(kind: CallKind, by: Algorithm, bytes: usize, nodes: &[u32]) -> SimulatedCost {
    let ranks = nodes.len() as u32;
    let programs = programs(kind, by, ranks, 0, nodes).unwrap();
    let count = programs[0].blocks.count(ranks);
    let size = |index| equal_block(bytes, count, index).len() as u64;
    let sizes: Vec<u64> = (0..count).map(size).collect();
    simulate(&programs, &sizes, &MachineModel::typical(nodes.to_vec())).unwrap()
}

fn sent(kind: CallKind, by: Algorithm, ranks: u32, bytes: usize) -> Vec<u64> {
    cost(kind, by, bytes, &vec![0; ranks as usize]).bytes_sent
}

#[test]
fn bytes_sent_match_the_textbook_formulas() {
    use Algorithm::*;
    use CallKind::*;
    for n in [2u32, 3, 8, 13, 64, 100] {
        let (part, others) = (480, u64::from(n - 1));
        let bytes = part * u64::from(n);
        // Bytes sent by each rank.
        let each = [
            (AllReduce, Ring, 2 * others * part),
            (ReduceScatter, Ring, others * part),
            (AllGather, Ring, others * part),
            (AllReduce, Dissemination, 2 * others * part),
            (ReduceScatter, Dissemination, others * part),
            (AllToAll, Pairwise, others * part),
            (AllToAll, Direct, others * part),
            (AllReduce, RecursiveDoubling, u64::from(n.ilog2()) * bytes),
            (AllReduce, HalvingDoubling, 2 * others * part),
        ];
        let folds = |by| [RecursiveDoubling, HalvingDoubling].contains(&by);
        for (kind, by, expected) in each {
            if n.is_power_of_two() || !folds(by) {
                assert_eq!(sent(kind, by, n, bytes as usize), vec![expected; n as usize]);
            }
        }
        // Bytes sent by all ranks.
        let trees = [BinomialTree, DoubleBinaryTree].into_iter().flat_map(|tree| {
            let twice = (AllReduce, tree, 2 * others * bytes);
            [(Broadcast, tree, others * bytes), (Reduce, tree, others * bytes), twice]
        });
        for (kind, by, expected) in trees.chain([(Gather, Direct, others * part)]) {
            let total = sent(kind, by, n, bytes as usize).into_iter().sum::<u64>();
            assert_eq!(total, expected, "{kind} by {by}, {n} ranks");
        }
    }
}

#[test]
fn double_binary_tree_balances_the_load() {
    for n in [3, 8, 13, 64] {
        let most = |kind| {
            let sent = sent(kind, Algorithm::DoubleBinaryTree, n, 8000);
            sent.into_iter().max().unwrap()
        };
        assert!(most(CallKind::Broadcast) <= 8000);
        assert!(most(CallKind::AllReduce) <= 16000);
    }
}

#[test]
fn ring_wins_for_large_and_recursive_doubling_for_small_buffers() {
    let nodes: Vec<u32> = (0..16).collect();
    let seconds = |by, bytes| cost(CallKind::AllReduce, by, bytes, &nodes).seconds;
    let (ring, doubling) = (Algorithm::Ring, Algorithm::RecursiveDoubling);
    assert!(seconds(ring, 64) > 3.0 * seconds(doubling, 64));
    assert!(seconds(ring, 64 << 20) < 0.6 * seconds(doubling, 64 << 20));
}

#[test]
fn two_level_algorithms_beat_flat_ones_on_several_nodes() {
    let nodes: Vec<u32> = (0..64).map(|rank| rank % 8).collect();
    let seconds = |by, bytes| cost(CallKind::AllReduce, by, bytes, &nodes).seconds;
    let (small, large) = (1 << 14, 64 << 20);
    assert!(seconds(Algorithm::TwoLevel, small) < seconds(Algorithm::RecursiveDoubling, small));
    assert!(seconds(Algorithm::MultiLeader, large) < seconds(Algorithm::Ring, large));
}

#[test]
fn single_message_costs_latency_overhead_and_bandwidth() {
    let nodes = [0, 1];
    let machine = MachineModel::typical(nodes.to_vec());
    let got = cost(CallKind::Broadcast, Algorithm::BinomialTree, 12_000_000, &nodes);
    let expected = machine.inter_node.latency_s + 2.0 * machine.inter_node.overhead_s + 1e-3;
    assert!((got.seconds - expected).abs() < 1e-9, "{got:?}");
    assert_eq!(got.bytes_sent, [12_000_000, 0]);
}

#[test]
fn deadlocks_are_rejected() {
    // Both receive before they send.
    let mut programs = programs(CallKind::AllGather, Algorithm::Ring, 2, 0, &[]).unwrap();
    for program in &mut programs {
        let steps = program.rounds.pop().unwrap();
        program.rounds = steps.into_iter().rev().map(|step| vec![step]).collect();
    }
    let sizes = [8; 2];
    assert!(simulate(&programs, &sizes, &MachineModel::typical(Vec::new())).is_err());
}
