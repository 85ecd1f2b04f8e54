//! The coordinator's table of nodes: their connection state and their ranks. No I/O.

use std::collections::BTreeSet;
use std::hash::Hash;
use std::time::{Duration, Instant};

use regatta_model::CpuSet;

use super::message::{Downstream, NodeLaunch, RankEvent, Registration, Upstream};
use super::routes::Routes;
use crate::worker_group::JobEvent;

/// An event for the coordinator.
#[derive(Debug)]
pub enum TableInput<C> {
    /// A message from a child.
    Upstream(C, Upstream),
    /// A connection closed.
    Closed(C, String),
    /// A connection closed because the network of this host is down.
    NetworkDown(C, String),
    /// Time passed.
    Tick,
}

/// An action of the coordinator.
#[derive(Debug, PartialEq, Eq)]
pub enum TableOutput<C> {
    /// Send to a child.
    Downstream(C, Downstream),
    /// Report to the job.
    Event(JobEvent),
}

type Outputs<C> = Vec<TableOutput<C>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NodeState {
    Unregistered,
    Connected,
    /// Disconnected since this time; the agent may still reconnect.
    Disconnected(Instant),
    Lost,
}

#[derive(Debug)]
struct NodeEntry {
    host: String,
    state: NodeState,
    registration: Option<Registration>,
    /// Its ranks in this attempt.
    ranks: Vec<u32>,
    /// Ranks whose exit was reported.
    exited: BTreeSet<u32>,
    /// Whether all its ranks are finished.
    finished: bool,
}

/// The nodes of a job.
#[derive(Debug)]
pub struct NodeTable<C> {
    nodes: Vec<NodeEntry>,
    routes: Routes<C>,
    attempt: u32,
    /// Whether an attempt is in progress.
    running: bool,
    /// Nodes that the attempt waits for.
    pending: BTreeSet<u32>,
    rejoin_timeout: Duration,
}

impl<C: Copy + Eq + Hash> NodeTable<C> {
    /// A table of unregistered nodes.
    pub fn new(hosts: &[String], rejoin_timeout: Duration) -> Self {
        let node = |host: &String| NodeEntry {
            host: host.clone(),
            state: NodeState::Unregistered,
            registration: None,
            ranks: Vec::new(),
            exited: BTreeSet::new(),
            finished: true,
        };
        Self {
            nodes: hosts.iter().map(node).collect(),
            routes: Routes::default(),
            attempt: 0,
            running: false,
            pending: BTreeSet::new(),
            rejoin_timeout,
        }
    }

    /// Nodes that are not registered or not connected.
    pub fn missing(&self) -> Vec<u32> {
        self.indices(|n| n.state != NodeState::Connected || n.registration.is_none())
    }

    fn indices(&self, matches: impl Fn(&NodeEntry) -> bool) -> Vec<u32> {
        let nodes = self.nodes.iter().enumerate();
        nodes.filter(|(_, n)| matches(n)).map(|(i, _)| i as u32).collect()
    }

    /// Registration of a node.
    pub fn registration(&self, node: u32) -> Option<&Registration> {
        self.nodes.get(node as usize)?.registration.as_ref()
    }

    /// Starts an attempt on connected nodes.
    pub fn start(&mut self, attempt: u32, launches: Vec<(u32, NodeLaunch)>) -> Vec<TableOutput<C>> {
        self.attempt = attempt;
        self.running = true;
        for (i, node) in self.nodes.iter_mut().enumerate() {
            (node.ranks, node.finished) = (Vec::new(), true);
            node.exited.clear();
            if !matches!(node.state, NodeState::Disconnected(_)) {
                self.pending.remove(&(i as u32));
            }
        }
        let mut out = Vec::new();
        for (node, launch) in launches {
            let ranks = launch.ranks.iter().map(|r| r.rank).collect();
            if let Some(entry) = self.nodes.get_mut(node as usize) {
                (entry.ranks, entry.finished) = (ranks, false);
            }
            self.update_pending(node);
            match self.routes.next_hop(node) {
                Some(conn) => {
                    let launch = Box::new(launch);
                    out.push(TableOutput::Downstream(conn, Downstream::Start { node, launch }));
                }
                // It was lost just now and does not know of its ranks.
                None => self.give_up(node, &mut out),
            }
        }
        self.check_finished(&mut out);
        out
    }

    /// Records a rank event on behalf of a node that cannot report it.
    pub fn record(&mut self, node: u32, attempt: u32, event: RankEvent) -> Vec<TableOutput<C>> {
        let mut out = Vec::new();
        if attempt == self.attempt {
            self.on_rank_event(node, event, &mut out);
            self.check_finished(&mut out);
        }
        out
    }

    /// Sends a message to all agents.
    pub fn broadcast(&self, message: &Downstream) -> Vec<TableOutput<C>> {
        let send = |conn| TableOutput::Downstream(conn, message.clone());
        self.routes.children().map(send).collect()
    }

    /// Handles an event and returns the actions to carry out.
    pub fn handle(&mut self, input: TableInput<C>, now: Instant) -> Vec<TableOutput<C>> {
        let mut out = Vec::new();
        match input {
            TableInput::Upstream(conn, message) => self.on_upstream(conn, message, now, &mut out),
            TableInput::Closed(conn, why) => self.on_closed(conn, &why, true, now, &mut out),
            TableInput::NetworkDown(conn, why) => self.on_closed(conn, &why, false, now, &mut out),
            TableInput::Tick => self.on_tick(now, &mut out),
        }
        self.check_finished(&mut out);
        out
    }

    /// A connection closed; `blame_node` if its node is the cause.
    fn on_closed(
        &mut self,
        conn: C,
        why: &str,
        blame_node: bool,
        now: Instant,
        out: &mut Outputs<C>,
    ) {
        if let Some(lost) = self.routes.close(conn) {
            self.on_disconnected(lost.peer, &lost.descendants, why, blame_node, now, out);
        }
    }

    fn on_upstream(&mut self, conn: C, message: Upstream, now: Instant, out: &mut Outputs<C>) {
        let cost = message.cost();
        if cost > 0 {
            out.push(TableOutput::Downstream(conn, Downstream::Credit(cost)));
        }
        match message {
            Upstream::Register(registration) => self.on_register(conn, registration),
            Upstream::Reconnected { node, lost_parent, why } => {
                self.on_reconnected(conn, node, lost_parent, &why, out);
            }
            Upstream::Disconnected { node, why, descendants } => {
                self.routes.withdraw(conn, node.iter().chain(&descendants).copied());
                self.on_disconnected(node, &descendants, &why, true, now, out);
            }
            // An agent that reconnects after the end of the attempt resends its events, which would
            // count as those of the next attempt.
            Upstream::RankEvent { node, attempt, event } => {
                if self.running && attempt == self.attempt {
                    self.on_rank_event(node, event, out);
                }
            }
            Upstream::Lines(lines) => {
                let event = |line| TableOutput::Event(JobEvent::Line(line));
                out.extend(lines.into_iter().map(event));
            }
            Upstream::Frame { attempt, rank, bytes } => {
                if attempt == self.attempt {
                    out.push(TableOutput::Event(JobEvent::Frame { rank, bytes }));
                }
            }
            Upstream::Event(event) => out.push(TableOutput::Event(event)),
        }
    }

    fn on_register(&mut self, conn: C, registration: Registration) {
        let node = registration.node;
        let Some(entry) = self.nodes.get_mut(node as usize) else { return };
        entry.registration = Some(registration);
        self.set_connected(conn, node);
    }

    /// Marks a node as connected. A lost node stays lost: it is no longer waited for.
    fn set_connected(&mut self, conn: C, node: u32) {
        self.routes.learn(conn, node);
        if let Some(entry) = self.nodes.get_mut(node as usize)
            && entry.state != NodeState::Lost
        {
            entry.state = NodeState::Connected;
        }
        self.update_pending(node);
    }

    /// A node lost its parent and found another. It terminates its ranks, because it could not know
    /// the state of the job meanwhile. The failure is attributed to the lost parent.
    fn on_reconnected(
        &mut self,
        conn: C,
        node: u32,
        lost_parent: Option<u32>,
        why: &str,
        out: &mut Outputs<C>,
    ) {
        let Some(entry) = self.nodes.get(node as usize) else { return };
        let (register, finished) = (entry.registration.is_none(), entry.finished);
        self.set_connected(conn, node);
        let resend = Downstream::Resend { node, register, attempt: self.attempt };
        out.push(TableOutput::Downstream(conn, resend));
        if finished {
            return;
        }
        let name = |n: u32| self.nodes.get(n as usize).map_or("?", |n| n.host.as_str());
        let parent = lost_parent.map_or("the coordinator", name);
        let why = format!("{} lost its connection to {parent}: {why}", name(node));
        self.report_lost(lost_parent.unwrap_or(node), node, why, out);
    }

    /// Reports a failure of the first rank on `node`, or on `fallback` if it has none.
    fn report_lost(&self, node: u32, fallback: u32, why: String, out: &mut Outputs<C>) {
        let first = |n: u32| self.nodes.get(n as usize).and_then(|n| n.ranks.first());
        if let Some(&rank) = first(node).or_else(|| first(fallback)) {
            out.push(TableOutput::Event(JobEvent::ConnectionLost { rank, why }));
        }
    }

    fn on_disconnected(
        &mut self,
        node: Option<u32>,
        descendants: &[u32],
        why: &str,
        blame_node: bool,
        now: Instant,
        out: &mut Outputs<C>,
    ) {
        for &disconnected in node.iter().chain(descendants) {
            if let Some(entry) = self.nodes.get_mut(disconnected as usize)
                && entry.state == NodeState::Connected
            {
                entry.state = NodeState::Disconnected(now);
            }
            self.update_pending(disconnected);
        }
        let Some(entry) = node.and_then(|n| self.nodes.get(n as usize)) else { return };
        let host = &entry.host;
        if !entry.finished {
            let ranks: CpuSet = entry.ranks.iter().map(|&r| r as usize).collect();
            let noun = if entry.ranks.len() == 1 { "rank" } else { "ranks" };
            let why = match blame_node {
                true => format!("lost {host} with {noun} {ranks}: {why}"),
                false => format!("{why}, among them {host} with {noun} {ranks}"),
            };
            self.report_lost(node.unwrap_or_default(), 0, why, out);
        } else if self.running {
            let text = format!("lost {host}, which runs no rank: {why}");
            out.push(TableOutput::Event(JobEvent::Warning(text)));
        }
    }

    fn on_rank_event(&mut self, node: u32, event: RankEvent, out: &mut Outputs<C>) {
        let Some(entry) = self.nodes.get_mut(node as usize) else { return };
        let event = match event {
            RankEvent::Job(JobEvent::StartFailed { rank, why }) => {
                entry.exited.insert(rank);
                JobEvent::StartFailed { rank, why: format!("{}: {why}", entry.host) }
            }
            RankEvent::Job(JobEvent::Exited(rank, _)) if !entry.exited.insert(rank) => return,
            RankEvent::Job(event) => event,
            RankEvent::Finished(rank_exits) => {
                entry.finished = true;
                let exits = rank_exits.into_iter();
                let unreported = exits.filter(|(rank, _)| entry.exited.insert(*rank));
                let exited = |(rank, exit)| TableOutput::Event(JobEvent::Exited(rank, exit));
                out.extend(unreported.map(exited));
                // Ranks that the node never started.
                let why = format!("{}: the start command did not reach the node", entry.host);
                let unstarted = entry.ranks.iter().filter(|rank| entry.exited.insert(**rank));
                let failed = |&rank: &u32| JobEvent::StartFailed { rank, why: why.clone() };
                out.extend(unstarted.map(failed).map(TableOutput::Event));
                return self.update_pending(node);
            }
        };
        out.push(TableOutput::Event(event));
    }

    fn on_tick(&mut self, now: Instant, out: &mut Outputs<C>) {
        let expired = |since| now.saturating_duration_since(since) >= self.rejoin_timeout;
        let is_lost = |state| matches!(state, NodeState::Disconnected(since) if expired(since));
        let lost = self.indices(|node| is_lost(node.state));
        for node in lost {
            self.give_up(node, out);
        }
    }

    /// Declares a node lost.
    fn give_up(&mut self, node: u32, out: &mut Outputs<C>) {
        let Some(entry) = self.nodes.get_mut(node as usize) else { return };
        entry.state = NodeState::Lost;
        let ranks = if entry.finished { Vec::new() } else { entry.ranks.clone() };
        entry.finished = true;
        self.update_pending(node);
        if self.running {
            out.push(TableOutput::Event(JobEvent::NodeLost { node, ranks }));
        }
    }

    /// An attempt waits for a node until its ranks are finished and, if it is disconnected, until
    /// it reconnects or is lost.
    fn update_pending(&mut self, node: u32) {
        let Some(entry) = self.nodes.get(node as usize) else { return };
        match !entry.finished || matches!(entry.state, NodeState::Disconnected(_)) {
            true => self.pending.insert(node),
            false => self.pending.remove(&node),
        };
    }

    /// Reports the end of the attempt once.
    fn check_finished(&mut self, out: &mut Outputs<C>) {
        if self.running && self.pending.is_empty() {
            self.running = false;
            out.push(TableOutput::Event(JobEvent::Finished));
        }
    }
}

#[cfg(test)]
#[path = "node_table_tests.rs"]
mod tests;
