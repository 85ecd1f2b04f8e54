//! State machine of an agent: joins the tree, starts and terminates its node's ranks, forwards
//! messages between parent and children, and terminates its ranks when it loses all ancestors.
//! No I/O.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::time::{Duration, Instant};

use regatta_model::result::RankExit;

use super::bootstrap_document::{JobTimeouts, REJOIN_TIMEOUT};
use super::message::{Downstream, NodeLaunch, RankEvent, Registration, Upstream};
use super::routes::Routes;
use super::tree::Tree;
use crate::lines::{LineMerger, MergedLine};
use crate::signals::is_termination_signal;
use crate::worker_group::{JobEvent, RankControl};

/// An event for an agent.
#[derive(Debug)]
pub enum AgentInput<C> {
    /// The connection to a parent is established.
    Connected(C),
    /// The connection to a parent could not be established.
    ConnectFailed,
    /// A message from a child.
    Upstream(C, Upstream),
    /// A message from the parent.
    Downstream(Downstream),
    /// A connection closed.
    Closed(C, String),
    /// An event of this node's ranks.
    Ranks(JobEvent),
    /// This process received a signal.
    Signal(i32),
    /// Time passed.
    Tick,
}

/// An action of an agent.
#[derive(Debug, PartialEq, Eq)]
pub enum AgentOutput<C> {
    /// Connect to this ancestor, a node or the coordinator.
    Connect(Option<u32>),
    /// Send to the parent.
    Upstream(C, Upstream),
    /// Send to a child.
    Downstream(C, Downstream),
    /// Start these ranks.
    Start(Box<NodeLaunch>),
    /// Apply this command to the ranks.
    Control(RankControl),
    /// Exit.
    Exit,
}

type Outputs<C> = Vec<AgentOutput<C>>;

/// Connection to the parent.
#[derive(Debug)]
enum ParentLink<C> {
    Connecting {
        since: Instant,
        /// When the next attempt is due; `None` while one is in progress.
        retry_at: Option<Instant>,
        failures: u32,
    },
    Connected(C),
}

/// Initial and maximum backoff between connection attempts.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// Time to wait for the direct parent at the start before other ancestors are tried.
const PARENT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time that a line waits for identical lines of other ranks.
const MERGE_WINDOW: Duration = Duration::from_millis(50);
/// Interval of progress reports.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of unacknowledged output bytes to the parent.
pub const WINDOW: u64 = 512 * 1024;

/// The ranks of the last attempt.
#[derive(Debug, Default)]
struct RankLog {
    /// The attempt; `None` before the first.
    attempt: Option<u32>,
    running: bool,
    rank_exits: BTreeMap<u32, RankExit>,
    /// Events that are resent on request.
    events: Vec<RankEvent>,
    kill_at: Option<Instant>,
}

/// State of an agent.
#[derive(Debug)]
pub struct AgentState<C> {
    registration: Registration,
    ancestors: Vec<Option<u32>>,
    timeouts: JobTimeouts,
    parent: ParentLink<C>,
    /// The lost parent and the cause, after a disconnect.
    disconnected: Option<(Option<u32>, String)>,
    /// The ancestor of the last connection attempt.
    target: Option<u32>,
    routes: Routes<C>,
    /// Messages queued until a parent is connected.
    queued: Vec<Upstream>,
    lines: LineMerger,
    /// Unacknowledged output bytes to the parent.
    in_flight: u64,
    /// Credits due to each child.
    credits: HashMap<C, u64>,
    ranks: RankLog,
    last_progress: Option<Instant>,
}

impl<C: Copy + Eq + Hash> AgentState<C> {
    /// An agent that is about to join.
    pub fn new(
        registration: Registration,
        tree: Tree,
        timeouts: JobTimeouts,
        now: Instant,
    ) -> Self {
        let ancestors = tree.ancestors(registration.node);
        Self {
            target: ancestors[0],
            registration,
            ancestors,
            timeouts,
            parent: ParentLink::Connecting { since: now, retry_at: Some(now), failures: 0 },
            disconnected: None,
            routes: Routes::default(),
            queued: Vec::new(),
            lines: LineMerger::new(MERGE_WINDOW),
            in_flight: 0,
            credits: HashMap::new(),
            ranks: RankLog::default(),
            last_progress: None,
        }
    }

    /// Handles an event and returns the actions to carry out.
    pub fn handle(&mut self, input: AgentInput<C>, now: Instant) -> Vec<AgentOutput<C>> {
        let mut out = Vec::new();
        match input {
            AgentInput::Connected(conn) => self.on_connected(conn, &mut out),
            AgentInput::ConnectFailed => self.on_connect_failed(now),
            AgentInput::Upstream(conn, message) => self.on_upstream(conn, message, now, &mut out),
            AgentInput::Downstream(message) => self.on_downstream(message, now, &mut out),
            AgentInput::Closed(conn, why) => self.on_closed(conn, why, now, &mut out),
            AgentInput::Ranks(event) => self.on_rank_event(event, now, &mut out),
            AgentInput::Signal(signal) => self.on_signal(signal, now, &mut out),
            AgentInput::Tick => self.on_tick(now, &mut out),
        }
        out
    }

    /// Whether the output of ranks must pause because the window is full.
    pub fn is_window_full(&self) -> bool {
        self.parent_conn().is_some() && self.in_flight >= WINDOW
    }

    /// Index of this node.
    pub fn node(&self) -> u32 {
        self.registration.node
    }

    /// Whether a parent was ever connected.
    pub fn has_joined(&self) -> bool {
        self.disconnected.is_some() || self.parent_conn().is_some()
    }

    /// The connection to the parent.
    pub fn parent_conn(&self) -> Option<C> {
        match self.parent {
            ParentLink::Connected(conn) => Some(conn),
            ParentLink::Connecting { .. } => None,
        }
    }

    fn on_connected(&mut self, conn: C, out: &mut Outputs<C>) {
        self.parent = ParentLink::Connected(conn);
        self.in_flight = 0;
        match self.disconnected.take() {
            None => self.send(Upstream::Register(self.registration.clone()), out),
            Some((lost_parent, why)) => {
                let nodes: Vec<u32> = self.routes.nodes().collect();
                for node in std::iter::once(self.registration.node).chain(nodes) {
                    self.send(Upstream::Reconnected { node, lost_parent, why: why.clone() }, out);
                }
            }
        }
        for message in std::mem::take(&mut self.queued) {
            self.send(message, out);
        }
    }

    fn on_connect_failed(&mut self, now: Instant) {
        if let ParentLink::Connecting { retry_at, failures, .. } = &mut self.parent {
            *failures += 1;
            let backoff = BACKOFF.0.saturating_mul(1 << (*failures).min(10)).min(BACKOFF.1);
            *retry_at = Some(now + backoff);
        }
    }

    /// The ancestor to try next: at the start the parent, which may take a while to come up; then
    /// all ancestors in turn. A lost parent comes last: the others are more likely to respond.
    fn next_target(&self, since: Instant, failures: u32, now: Instant) -> Option<u32> {
        let joining = now.saturating_duration_since(since) < PARENT_TIMEOUT;
        let first = match &self.disconnected {
            None if joining => return self.ancestors[0],
            None => 0,
            Some((lost, _)) => self.ancestors.iter().position(|a| a == lost).map_or(0, |at| at + 1),
        };
        self.ancestors[(first + failures as usize) % self.ancestors.len()]
    }

    /// Timeout of one connection attempt: a host that is down does not refuse it.
    pub fn connect_timeout(&self) -> Duration {
        if self.disconnected.is_some() { REJOIN_TIMEOUT / 4 } else { PARENT_TIMEOUT / 2 }
    }

    fn on_upstream(&mut self, conn: C, message: Upstream, now: Instant, out: &mut Outputs<C>) {
        *self.credits.entry(conn).or_default() += message.cost();
        match &message {
            Upstream::Register(Registration { node, .. }) | Upstream::Reconnected { node, .. } => {
                self.routes.learn(conn, *node);
            }
            Upstream::Disconnected { node, descendants, .. } => {
                self.routes.withdraw(conn, node.iter().chain(descendants).copied());
            }
            _ => {}
        }
        match message {
            Upstream::Lines(lines) => {
                lines.into_iter().for_each(|line| self.push_line(line, now, out));
            }
            Upstream::Event(JobEvent::Progress) => self.on_progress(now, out),
            other => self.send(other, out),
        }
        self.flush_credits(out);
    }

    fn on_downstream(&mut self, message: Downstream, now: Instant, out: &mut Outputs<C>) {
        match message {
            Downstream::Start { node, launch } if node == self.registration.node => {
                let attempt = Some(launch.attempt);
                self.ranks = RankLog { attempt, running: true, ..RankLog::default() };
                out.push(AgentOutput::Start(launch));
            }
            Downstream::Resend { node, register, attempt } if node == self.registration.node => {
                self.resend(register, attempt, out);
            }
            Downstream::Start { node, .. } | Downstream::Resend { node, .. } => {
                let next_hop = self.routes.next_hop(node);
                out.extend(next_hop.map(|conn| AgentOutput::Downstream(conn, message)));
            }
            Downstream::Broadcast(control) => self.broadcast(control, now, out),
            Downstream::Credit(bytes) => {
                self.in_flight = self.in_flight.saturating_sub(bytes);
                self.flush_credits(out);
            }
            Downstream::Shutdown => {
                let shutdown = |conn| AgentOutput::Downstream(conn, Downstream::Shutdown);
                out.extend(self.routes.children().map(shutdown));
                out.push(AgentOutput::Exit);
            }
        }
    }

    /// Applies a command to this node's ranks and forwards it to the children. `Terminate` starts the
    /// grace period, which ends in a kill even without a parent.
    fn broadcast(&mut self, control: RankControl, now: Instant, out: &mut Outputs<C>) {
        let forward = |conn| AgentOutput::Downstream(conn, Downstream::Broadcast(control));
        out.extend(self.routes.children().map(forward));
        if !self.ranks.running {
            return;
        }
        if matches!(control, RankControl::Terminate(_)) {
            self.ranks.kill_at.get_or_insert(now + self.timeouts.grace);
        }
        out.push(AgentOutput::Control(control));
    }

    fn resend(&mut self, register: bool, attempt: u32, out: &mut Outputs<C>) {
        if register {
            self.send(Upstream::Register(self.registration.clone()), out);
        }
        if self.ranks.attempt == Some(attempt) {
            for event in self.ranks.events.clone() {
                self.send_rank_event(attempt, event, out);
            }
        } else {
            // The start command was lost: this attempt has no ranks here.
            self.send_rank_event(attempt, RankEvent::Finished(BTreeMap::new()), out);
        }
    }

    fn on_closed(&mut self, conn: C, why: String, now: Instant, out: &mut Outputs<C>) {
        if self.parent_conn() == Some(conn) {
            self.disconnected = Some((self.target, why));
            self.parent = ParentLink::Connecting { since: now, retry_at: Some(now), failures: 0 };
            self.broadcast(RankControl::Terminate(libc::SIGTERM), now, out);
            return;
        }
        self.credits.remove(&conn);
        if let Some(lost) = self.routes.close(conn) {
            let (node, descendants) = (lost.peer, lost.descendants);
            self.send(Upstream::Disconnected { node, why, descendants }, out);
        }
    }

    fn on_rank_event(&mut self, event: JobEvent, now: Instant, out: &mut Outputs<C>) {
        match event {
            JobEvent::Line(line) => {
                self.on_progress(now, out);
                self.push_line(line, now, out);
            }
            JobEvent::Frame { rank, bytes } => {
                self.on_progress(now, out);
                let attempt = self.ranks.attempt.unwrap_or_default();
                self.send(Upstream::Frame { attempt, rank, bytes }, out);
            }
            JobEvent::Progress => self.on_progress(now, out),
            JobEvent::Output { .. } | JobEvent::Warning(_) | JobEvent::RunFolderUnseen(_) => {
                self.send(Upstream::Event(event), out);
            }
            JobEvent::Finished => {
                self.ranks.running = false;
                self.ranks.kill_at = None;
                let exits = std::mem::take(&mut self.ranks.rank_exits);
                self.record(RankEvent::Finished(exits), out);
            }
            JobEvent::Started { .. } | JobEvent::RankStates(_) => {
                let attempt = self.ranks.attempt.unwrap_or_default();
                self.send_rank_event(attempt, RankEvent::Job(event), out);
            }
            event => {
                if let JobEvent::Exited(rank, exit) = event {
                    self.ranks.rank_exits.insert(rank, exit);
                }
                self.record(RankEvent::Job(event), out);
            }
        }
    }

    /// Sends an event, and again on request.
    fn record(&mut self, event: RankEvent, out: &mut Outputs<C>) {
        self.ranks.events.push(event.clone());
        self.send_rank_event(self.ranks.attempt.unwrap_or_default(), event, out);
    }

    fn on_signal(&mut self, signal: i32, now: Instant, out: &mut Outputs<C>) {
        if self.parent_conn().is_some() {
            return self.send(Upstream::Event(JobEvent::Signal(signal)), out);
        }
        // Without a coordinator the agent decides.
        self.broadcast(RankControl::Signal(signal), now, out);
        if is_termination_signal(signal) && !self.ranks.running {
            out.push(AgentOutput::Exit);
        }
    }

    fn on_tick(&mut self, now: Instant, out: &mut Outputs<C>) {
        if !self.is_window_full() && self.parent_conn().is_some() {
            let ready = self.lines.take_ready(now);
            self.send_lines(ready, out);
        }
        if self.ranks.running && self.ranks.kill_at.is_some_and(|at| now >= at) {
            out.push(AgentOutput::Control(RankControl::Kill));
        }
        let ParentLink::Connecting { since, retry_at, failures } = self.parent else { return };
        let rejoining = self.disconnected.is_some();
        let limit = if rejoining { REJOIN_TIMEOUT } else { self.timeouts.join };
        if now.saturating_duration_since(since) >= limit && !self.ranks.running {
            out.push(AgentOutput::Exit);
        } else if retry_at.is_some_and(|at| now >= at) {
            self.target = self.next_target(since, failures, now);
            self.parent = ParentLink::Connecting { since, retry_at: None, failures };
            out.push(AgentOutput::Connect(self.target));
        }
    }

    /// Adds a line to those that wait for identical ones. A full merger is flushed even if the window
    /// is full, which exceeds it by at most the windows of the children.
    fn push_line(&mut self, line: MergedLine, now: Instant, out: &mut Outputs<C>) {
        self.lines.push(line, now);
        if self.lines.is_full() {
            self.flush_lines(out);
        }
    }

    fn flush_lines(&mut self, out: &mut Outputs<C>) {
        let all = self.lines.finish();
        self.send_lines(all, out);
    }

    fn send_lines(&mut self, lines: Vec<MergedLine>, out: &mut Outputs<C>) {
        if !lines.is_empty() {
            self.send(Upstream::Lines(lines), out);
        }
    }

    fn on_progress(&mut self, now: Instant, out: &mut Outputs<C>) {
        let recent = |last: Instant| now.saturating_duration_since(last) < PROGRESS_INTERVAL;
        if !self.last_progress.is_some_and(recent) {
            self.last_progress = Some(now);
            self.send(Upstream::Event(JobEvent::Progress), out);
        }
    }

    fn send_rank_event(&mut self, attempt: u32, event: RankEvent, out: &mut Outputs<C>) {
        self.send(Upstream::RankEvent { node: self.registration.node, attempt, event }, out);
    }

    /// Sends a message to the parent, or queues it until there is one. Without a parent the attempt
    /// has failed: the merger keeps the last lines; other output, frames and progress are dropped.
    fn send(&mut self, message: Upstream, out: &mut Outputs<C>) {
        if let Some(conn) = self.parent_conn() {
            if message.ends_output() {
                self.flush_lines(out);
            }
            self.in_flight += message.cost();
            out.push(AgentOutput::Upstream(conn, message));
        } else if message.cost() == 0 && message != Upstream::Event(JobEvent::Progress) {
            self.queued.push(message);
        }
    }

    /// Grants the children their credits, unless this agent's own window is full.
    fn flush_credits(&mut self, out: &mut Outputs<C>) {
        if self.is_window_full() {
            return;
        }
        for (&conn, bytes) in self.credits.iter_mut().filter(|(_, bytes)| **bytes > 0) {
            let credit = Downstream::Credit(std::mem::take(bytes));
            out.push(AgentOutput::Downstream(conn, credit));
        }
    }
}

#[cfg(test)]
#[path = "agent_state_tests.rs"]
mod tests;
