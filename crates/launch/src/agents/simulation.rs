//! Simulation of agents and a coordinator on a faulty network, in virtual time.
//!
//! As with TCP, the messages of one connection keep their order, and those of different connections
//! have none. A broken connection loses messages in flight, and its two ends notice at different
//! times.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use regatta_model::MemoryPolicy;
use regatta_model::result::RankExit;

use super::agent_state::{AgentInput, AgentOutput, AgentState, WINDOW};
use super::bootstrap_document::{JobTimeouts, REJOIN_TIMEOUT};
use super::message::{Downstream, NodeLaunch, RankLaunch, Registration, Upstream, decode, encode};
use super::node_table::{NodeTable, TableInput, TableOutput};
use super::tree::Tree;
use crate::cpu_binding::Binding;
use crate::lines::MergedLine;
use crate::supervisor::{JobLimits, Supervisor, SupervisorInput};
use crate::worker_group::{JobEvent, RankControl};

type ConnId = u32;
const GRACE: Duration = Duration::from_secs(10);
/// Exit of a rank that was never started.
const NEVER_STARTED: RankExit = RankExit::Exit(127);
/// An agent looks for another ancestor after its parent has given up: in the worst case, all do so
/// one after the other.
const EXIT_TIMEOUT: Duration = Duration::from_secs(100);

/// Deterministic random numbers (xorshift).
struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % bound.max(1)
    }
}

/// One end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Endpoint {
    Root,
    Node(u32),
}

enum Packet {
    Bytes(Vec<u8>),
    Closed,
}

struct SimConn {
    lower: u32,
    upper: Endpoint,
    up: VecDeque<Packet>,
    down: VecDeque<Packet>,
    broken: bool,
}

/// The actual ranks of a node.
#[derive(Default)]
struct Ranks {
    running: BTreeSet<u32>,
    ignores_term: bool,
}

struct SimNode {
    agent: Option<AgentState<ConnId>>,
    ranks: Ranks,
    partitioned: bool,
    /// Whether the agent exited by itself.
    exited: bool,
}

struct Simulation {
    rng: Rng,
    now: Instant,
    nodes: Vec<SimNode>,
    conns: HashMap<ConnId, SimConn>,
    next: ConnId,
    /// The coordinator, while it is alive.
    root: Option<(NodeTable<ConnId>, Supervisor)>,
    actual_exits: BTreeMap<u32, RankExit>,
    /// Number of frames that each rank sent; their payload is their number and padding.
    frames_sent: BTreeMap<u32, u32>,
    /// Numbers of the frames that arrived before the end, of each rank.
    frames_received: BTreeMap<u32, Vec<u32>>,
    /// Number of lines that each rank wrote; their text is their number.
    lines_written: BTreeMap<u32, u32>,
    /// Numbers of the lines that arrived before the end, of each rank.
    lines_received: BTreeMap<u32, Vec<u32>>,
    /// Ranks whose exit was reported before their last line.
    early_exits: Vec<u32>,
    finished_count: usize,
    ranks_per_node: u32,
    faults_injected: bool,
}

impl Simulation {
    fn new(nodes: u32, fan_out: u32, ranks_per_node: u32, seed: u64) -> Self {
        let now = Instant::now();
        let tree = Tree { nodes, fan_out };
        let join = Duration::from_secs(60);
        let timeouts = JobTimeouts { grace: GRACE, join, lost_after: REJOIN_TIMEOUT };
        let sim_node = |node| {
            let registration = Registration { node, machine: String::new(), port: None };
            let agent = Some(AgentState::new(registration, tree, timeouts, now));
            SimNode { agent, ranks: Ranks::default(), partitioned: false, exited: false }
        };
        let hosts: Vec<String> = (0..nodes).map(|n| format!("n{n}")).collect();
        let limits = JobLimits { signal_grace: Some(GRACE), ..JobLimits::new(GRACE) };
        let supervisor = Supervisor::new(nodes * ranks_per_node, limits, now);
        Self {
            rng: Rng(seed | 1),
            now,
            nodes: (0..nodes).map(sim_node).collect(),
            conns: HashMap::new(),
            next: 0,
            root: Some((NodeTable::new(&hosts, REJOIN_TIMEOUT), supervisor)),
            actual_exits: BTreeMap::new(),
            frames_sent: BTreeMap::new(),
            frames_received: BTreeMap::new(),
            lines_written: BTreeMap::new(),
            lines_received: BTreeMap::new(),
            early_exits: Vec::new(),
            finished_count: 0,
            ranks_per_node,
            faults_injected: false,
        }
    }

    /// Delivers a random message or advances the time.
    fn step(&mut self) {
        let up = self.conns.iter().filter(|(_, link)| !link.up.is_empty());
        let down = self.conns.iter().filter(|(_, link)| !link.down.is_empty());
        let busy = up.map(|(&conn, _)| (conn, true)).chain(down.map(|(&conn, _)| (conn, false)));
        let mut busy: Vec<(ConnId, bool)> = busy.collect();
        busy.sort_unstable();
        if busy.is_empty() || self.rng.below(8) == 0 {
            let time = Duration::from_millis(self.rng.below(400) as u64);
            return self.advance_time(time);
        }
        let (conn, up) = busy[self.rng.below(busy.len())];
        let Some(link) = self.conns.get_mut(&conn) else { return };
        let packet = if up { link.up.pop_front() } else { link.down.pop_front() };
        let (lower, upper) = (link.lower, link.upper);
        match (packet, up) {
            (None, _) => {}
            (Some(Packet::Bytes(bytes)), true) => self.deliver_upstream(upper, conn, &bytes),
            (Some(Packet::Bytes(bytes)), false) => {
                let down = decode::<Downstream>(&bytes).unwrap();
                let agent = &self.nodes[lower as usize].agent;
                if agent.as_ref().and_then(AgentState::parent_conn) == Some(conn) {
                    self.step_agent(lower, AgentInput::Downstream(down));
                }
            }
            (Some(Packet::Closed), true) => self.deliver_close(upper, conn),
            (Some(Packet::Closed), false) => self.deliver_close(Endpoint::Node(lower), conn),
        }
    }

    fn deliver_upstream(&mut self, at: Endpoint, conn: ConnId, bytes: &[u8]) {
        let up = decode::<Upstream>(bytes).unwrap();
        match at {
            Endpoint::Node(node) => self.step_agent(node, AgentInput::Upstream(conn, up)),
            Endpoint::Root => self.step_root(TableInput::Upstream(conn, up)),
        }
    }

    fn deliver_close(&mut self, at: Endpoint, conn: ConnId) {
        let why = "broke".to_owned();
        match at {
            Endpoint::Node(node) => self.step_agent(node, AgentInput::Closed(conn, why)),
            Endpoint::Root => self.step_root(TableInput::Closed(conn, why)),
        }
    }

    fn advance_time(&mut self, time: Duration) {
        self.now += time;
        for node in 0..self.nodes.len() as u32 {
            self.step_agent(node, AgentInput::Tick);
        }
        self.step_root(TableInput::Tick);
        self.supervise(SupervisorInput::Tick);
    }

    fn step_agent(&mut self, node: u32, input: AgentInput<ConnId>) {
        let Some(agent) = &mut self.nodes[node as usize].agent else { return };
        for output in agent.handle(input, self.now) {
            self.apply_agent_output(node, output);
        }
    }

    fn apply_agent_output(&mut self, node: u32, output: AgentOutput<ConnId>) {
        match output {
            AgentOutput::Connect(parent) => self.connect(node, parent),
            AgentOutput::Upstream(conn, up) => self.send(conn, true, encode(&up).unwrap()),
            AgentOutput::Downstream(conn, down) => self.send_down(conn, &down),
            AgentOutput::Start(launch) => {
                let ranks = launch.ranks.iter().map(|r| r.rank).collect();
                let ignores_term = self.rng.below(4) == 0;
                self.nodes[node as usize].ranks = Ranks { running: ranks, ignores_term };
            }
            AgentOutput::Control(control) => self.control(node, control),
            AgentOutput::Exit => {
                self.nodes[node as usize].exited = true;
                self.stop_agent(node, true);
            }
        }
    }

    fn control(&mut self, node: u32, control: RankControl) {
        let sim_node = &self.nodes[node as usize];
        let exit = match control {
            RankControl::Signal(signal) | RankControl::Terminate(signal)
                if !sim_node.ranks.ignores_term =>
            {
                RankExit::Signal(signal)
            }
            RankControl::Kill => RankExit::Signal(9),
            _ => return,
        };
        for rank in sim_node.ranks.running.clone() {
            self.exit_rank(node, rank, exit);
        }
    }

    /// A rank sends a frame; the agent reads it unless the window is full.
    fn send_frame(&mut self, node: u32, rank: u32) {
        let agent = &self.nodes[node as usize].agent;
        if agent.as_ref().is_none_or(|agent| agent.is_window_full()) {
            return;
        }
        let number = self.frames_sent.entry(rank).or_default();
        let mut bytes = number.to_be_bytes().to_vec();
        *number += 1;
        let padding = if self.rng.below(50) == 0 { WINDOW as usize / 2 } else { 10 };
        bytes.resize(4 + padding, 0);
        self.step_agent(node, AgentInput::Ranks(JobEvent::Frame { rank, bytes }));
    }

    /// A rank writes lines, which other ranks write too.
    fn write_lines(&mut self, node: u32, rank: u32) {
        for _ in 0..self.rng.below(4) {
            let number = self.lines_written.entry(rank).or_default();
            let line = MergedLine::of(rank, false, number.to_string());
            *number += 1;
            self.step_agent(node, AgentInput::Ranks(JobEvent::Line(line)));
        }
    }

    fn exit_rank(&mut self, node: u32, rank: u32, exit: RankExit) {
        let ranks = &mut self.nodes[node as usize].ranks;
        if !ranks.running.remove(&rank) {
            return;
        }
        let finished = ranks.running.is_empty();
        self.actual_exits.insert(rank, exit);
        self.step_agent(node, AgentInput::Ranks(JobEvent::Exited(rank, exit)));
        if finished {
            self.step_agent(node, AgentInput::Ranks(JobEvent::Finished));
        }
    }

    /// Whether an endpoint is alive and not partitioned.
    fn is_reachable(&self, end: Endpoint) -> bool {
        match end {
            Endpoint::Root => self.root.is_some(),
            Endpoint::Node(node) => {
                let sim_node = &self.nodes[node as usize];
                sim_node.agent.is_some() && !sim_node.partitioned
            }
        }
    }

    fn connect(&mut self, node: u32, parent: Option<u32>) {
        let upper = match parent {
            None => Endpoint::Root,
            Some(node) => Endpoint::Node(node),
        };
        if !self.is_reachable(upper) || !self.is_reachable(Endpoint::Node(node)) {
            return self.step_agent(node, AgentInput::ConnectFailed);
        }
        self.next += 1;
        let (up, down) = (VecDeque::new(), VecDeque::new());
        let link = SimConn { lower: node, upper, up, down, broken: false };
        self.conns.insert(self.next, link);
        self.step_agent(node, AgentInput::Connected(self.next));
    }

    fn send(&mut self, conn: ConnId, up: bool, bytes: Vec<u8>) {
        let Some(link) = self.conns.get_mut(&conn) else { return };
        let queue = if up { &mut link.up } else { &mut link.down };
        // Messages to a broken connection are lost.
        if !link.broken {
            queue.push_back(Packet::Bytes(bytes));
        }
    }

    /// Breaks a connection. Unless `graceful`, it loses messages in flight.
    fn break_conn(&mut self, conn: ConnId, graceful: bool) {
        let kept = (self.rng.below(3), self.rng.below(3));
        let kept = if graceful { (usize::MAX, usize::MAX) } else { kept };
        let Some(link) = self.conns.get_mut(&conn) else { return };
        if std::mem::replace(&mut link.broken, true) {
            return;
        }
        for (queue, kept) in [(&mut link.up, kept.0), (&mut link.down, kept.1)] {
            queue.truncate(kept);
            queue.push_back(Packet::Closed);
        }
    }

    fn conns_of(&self, end: Endpoint) -> Vec<ConnId> {
        let touches = |c: &SimConn| c.upper == end || Endpoint::Node(c.lower) == end;
        let mut found: Vec<ConnId> =
            self.conns.iter().filter(|(_, w)| touches(w)).map(|(c, _)| *c).collect();
        found.sort_unstable();
        found
    }

    /// Stops an agent and kills its ranks.
    fn stop_agent(&mut self, node: u32, graceful: bool) {
        let sim_node = &mut self.nodes[node as usize];
        sim_node.agent = None;
        for rank in std::mem::take(&mut sim_node.ranks.running) {
            self.actual_exits.insert(rank, RankExit::Signal(9));
        }
        self.break_conns_of(Endpoint::Node(node), graceful);
    }

    fn break_conns_of(&mut self, end: Endpoint, graceful: bool) {
        self.conns_of(end).into_iter().for_each(|conn| self.break_conn(conn, graceful));
    }

    fn step_root(&mut self, input: TableInput<ConnId>) {
        let Some((table, _)) = &mut self.root else { return };
        let outputs = table.handle(input, self.now);
        self.apply_outputs(outputs);
    }

    fn apply_outputs(&mut self, outputs: Vec<TableOutput<ConnId>>) {
        for output in outputs {
            match output {
                TableOutput::Downstream(conn, down) => self.send_down(conn, &down),
                TableOutput::Event(event) => self.on_job_event(event),
            }
        }
    }

    fn send_down(&mut self, conn: ConnId, message: &Downstream) {
        self.send(conn, false, encode(message).unwrap());
    }

    fn on_job_event(&mut self, event: JobEvent) {
        match event {
            JobEvent::Exited(rank, exit) => {
                let received = self.lines_received.get(&rank).map_or(0, Vec::len);
                if received as u32 != self.lines_written.get(&rank).copied().unwrap_or(0) {
                    self.early_exits.push(rank);
                }
                self.supervise(SupervisorInput::Exited(rank, exit));
            }
            JobEvent::Line(MergedLine { text, ranks, .. }) if self.finished_count == 0 => {
                let number = text.parse().unwrap();
                for rank in ranks {
                    self.lines_received.entry(rank).or_default().push(number);
                }
            }
            JobEvent::ConnectionLost { rank, .. } => {
                self.supervise(SupervisorInput::ConnectionLost(rank))
            }
            JobEvent::StartFailed { rank, .. } => {
                self.supervise(SupervisorInput::Exited(rank, NEVER_STARTED))
            }
            JobEvent::NodeLost { ranks, .. } => {
                let lost = |rank| SupervisorInput::Exited(rank, RankExit::NodeLost);
                ranks.into_iter().map(lost).for_each(|input| self.supervise(input));
            }
            JobEvent::Finished => self.finished_count += 1,
            JobEvent::Frame { rank, bytes } if self.finished_count == 0 => {
                let number = u32::from_be_bytes(bytes[..4].try_into().unwrap());
                self.frames_received.entry(rank).or_default().push(number);
            }
            _ => {}
        }
    }

    fn supervise(&mut self, input: SupervisorInput) {
        let Some((_, supervisor)) = &mut self.root else { return };
        let actions = supervisor.handle(input, self.now);
        self.apply_actions(actions);
    }

    fn apply_actions(&mut self, actions: Vec<RankControl>) {
        for control in actions {
            let Some((table, _)) = &self.root else { return };
            let outputs = table.broadcast(&Downstream::Broadcast(control));
            self.apply_outputs(outputs);
        }
    }

    fn start_ranks(&mut self) {
        let ranks_per_node = self.ranks_per_node;
        let rank = |rank| RankLaunch {
            rank,
            command: None,
            env: Vec::new(),
            binding: Binding::new(&Default::default(), &MemoryPolicy::Default),
        };
        let launch = |node: u32| NodeLaunch {
            ranks: (node * ranks_per_node..(node + 1) * ranks_per_node).map(rank).collect(),
            ..NodeLaunch::default()
        };
        let all = (0..self.nodes.len() as u32).map(|n| (n, launch(n))).collect();
        if let Some((table, _)) = &mut self.root {
            let outputs = table.start(0, all);
            self.apply_outputs(outputs);
        }
    }

    /// Injects a random fault.
    fn inject_fault(&mut self) {
        let node = self.rng.below(self.nodes.len()) as u32;
        self.faults_injected = true;
        match self.rng.below(6) {
            0 => self.stop_agent(node, false),
            1 => {
                self.nodes[node as usize].partitioned = true;
                self.break_conns_of(Endpoint::Node(node), false);
            }
            2 => self.nodes[node as usize].partitioned = false,
            3 => {
                let running = self.nodes[node as usize].ranks.running.first().copied();
                running.into_iter().for_each(|r| self.exit_rank(node, r, RankExit::Exit(3)));
            }
            _ => {
                let conns = self.conns_of(Endpoint::Node(node));
                if !conns.is_empty() {
                    let conn = conns[self.rng.below(conns.len())];
                    self.break_conn(conn, false);
                }
            }
        }
    }

    fn all_registered(&self) -> bool {
        self.root.as_ref().is_some_and(|(table, _)| table.missing().is_empty())
    }

    /// Steps until a condition holds; false if it does not within `limit` of virtual time.
    fn run_until(&mut self, limit: Duration, condition: impl Fn(&Self) -> bool) -> bool {
        let deadline = self.now + limit;
        while !condition(self) {
            if self.now >= deadline {
                return false;
            }
            self.step();
        }
        true
    }

    fn let_ranks_exit(&mut self) {
        for node in 0..self.nodes.len() as u32 {
            for rank in self.nodes[node as usize].ranks.running.clone() {
                self.send_frame(node, rank);
                self.write_lines(node, rank);
                if self.rng.below(3) == 0 {
                    self.exit_rank(node, rank, RankExit::Exit(0));
                }
            }
        }
    }

    /// Whether every line arrived once, in order and before the exit of its rank.
    fn has_all_lines(&self) -> bool {
        let complete = |(rank, &written): (&u32, &u32)| {
            let received = self.lines_received.get(rank).into_iter().flatten();
            received.copied().eq(0..written)
        };
        self.early_exits.is_empty() && self.lines_written.iter().all(complete)
    }

    fn is_quiescent(&self) -> bool {
        self.nodes.iter().all(|s| s.agent.is_none() && s.ranks.running.is_empty())
    }
}

#[path = "simulation_tests.rs"]
mod tests;
