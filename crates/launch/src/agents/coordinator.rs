//! The coordinator: communicates with the agents and drives the [`NodeTable`].

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use super::bootstrap_document::{JobTimeouts, REJOIN_TIMEOUT};
use super::message::{Downstream, NodeLaunch, RankEvent, Registration, Upstream, decode, encode};
use super::node_table::{NodeTable, TableInput, TableOutput};
use crate::worker_group::{JobEvent, RankControl, WorkerGroup};
use regatta_wire::clock;
use regatta_wire::reactor::{CloseReason, ConnId, NetEvent, Reactor};
use regatta_wire::secret::Secret;

/// Interval at which a kill is repeated.
const KILL_INTERVAL: Duration = Duration::from_secs(1);
/// Time to send the shutdown message to all agents.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// The agents of a job.
pub struct Coordinator {
    net: Reactor,
    nodes: NodeTable<ConnId>,
    events: VecDeque<JobEvent>,
    output: VecDeque<JobEvent>,
    /// Flow-control credits, granted once the output has been consumed.
    credits: Vec<(ConnId, Downstream)>,
    net_events: Vec<NetEvent>,
    last_kill: Option<Instant>,
    port: u16,
}

impl Coordinator {
    /// Listens for the agents of these hosts.
    pub fn listen(hosts: &[String], secret: Secret, timeouts: JobTimeouts) -> io::Result<Self> {
        let mut net = Reactor::new(secret, timeouts.timing())?;
        let any = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
        let (_, address) = net.listen(any)?;
        Ok(Self {
            net,
            nodes: NodeTable::new(hosts, REJOIN_TIMEOUT),
            events: VecDeque::new(),
            output: VecDeque::new(),
            credits: Vec::new(),
            net_events: Vec::new(),
            last_kill: None,
            port: address.port(),
        })
    }

    /// The port that agents connect to.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Handles network events, waiting for them up to `timeout`.
    pub fn poll(&mut self, timeout: Duration) {
        let mut events = std::mem::take(&mut self.net_events);
        if self.net.poll(timeout, &mut events).is_err() {
            std::thread::sleep(timeout);
        }
        for event in events.drain(..) {
            self.on_net_event(event);
        }
        self.net_events = events;
        for refusal in self.net.refusals() {
            let text = format!("refused a connection from {}: {}", refusal.peer, refusal.why);
            self.events.push_back(JobEvent::Warning(text));
        }
        let outputs = self.nodes.handle(TableInput::Tick, clock::now());
        self.apply(outputs);
    }

    /// Nodes that are not registered or not connected.
    pub fn missing(&self) -> Vec<u32> {
        self.nodes.missing()
    }

    /// Registration of a node.
    pub fn registration(&self, node: u32) -> Option<&Registration> {
        self.nodes.registration(node)
    }

    /// Starts an attempt.
    pub fn start(&mut self, attempt: u32, launches: Vec<(u32, NodeLaunch)>) {
        self.last_kill = None;
        let outputs = self.nodes.start(attempt, launches);
        self.apply(outputs);
    }

    /// Makes all agents exit.
    pub fn shutdown(mut self) {
        let outputs = self.nodes.broadcast(&Downstream::Shutdown);
        self.apply(outputs);
        // On failure the agents notice the lost connection, only later.
        let _ = self.net.shutdown(SHUTDOWN_TIMEOUT);
    }

    fn on_net_event(&mut self, event: NetEvent) {
        let input = match event {
            NetEvent::Ready { .. } => return,
            NetEvent::Frame { conn, payload } => match decode::<Upstream>(&payload) {
                Ok(message) => TableInput::Upstream(conn, message),
                Err(error) => {
                    self.net.abort(conn);
                    TableInput::Closed(conn, error.to_string())
                }
            },
            NetEvent::Closed { conn, why } => match why {
                CloseReason::NetworkDown { .. } => TableInput::NetworkDown(conn, why.to_string()),
                _ => TableInput::Closed(conn, why.to_string()),
            },
        };
        let outputs = self.nodes.handle(input, clock::now());
        self.apply(outputs);
    }

    fn apply(&mut self, outputs: Vec<TableOutput<ConnId>>) {
        for output in outputs {
            match output {
                TableOutput::Event(
                    event @ (JobEvent::Line(_) | JobEvent::Output { .. } | JobEvent::Frame { .. }),
                ) => self.output.push_back(event),
                TableOutput::Event(event) => self.events.push_back(event),
                TableOutput::Downstream(conn, message @ Downstream::Credit(_)) => {
                    self.credits.push((conn, message));
                }
                TableOutput::Downstream(conn, message) => self.send(conn, &message),
            }
        }
    }

    fn send(&mut self, conn: ConnId, message: &Downstream) {
        match (encode(message), message) {
            (Ok(payload), _) if self.net.send(conn, &payload) => {}
            // Without a start command the node reports nothing, so its ranks fail here.
            (result, Downstream::Start { node, launch }) => {
                let rejected = "the start command is too long, or the connection is closed";
                let why = result.map_or_else(|error| error.to_string(), |_| rejected.to_owned());
                self.fail_start(*node, launch, &why);
            }
            _ => {}
        }
    }

    fn fail_start(&mut self, node: u32, launch: &NodeLaunch, why: &str) {
        let failed = |rank| RankEvent::Job(JobEvent::StartFailed { rank, why: why.to_owned() });
        let events = launch.ranks.iter().map(|launch| failed(launch.rank));
        for event in events.chain([RankEvent::Finished(Default::default())]) {
            let outputs = self.nodes.record(node, launch.attempt, event);
            self.apply(outputs);
        }
    }

    /// Grants agents the credits for consumed output.
    fn flush_credits(&mut self) {
        for (conn, message) in std::mem::take(&mut self.credits) {
            self.send(conn, &message);
        }
    }

    /// The next queued event; [`JobEvent::Finished`] comes after all output.
    fn pop_event(&mut self, output_paused: bool) -> Option<JobEvent> {
        let deferred = |e: &mut JobEvent| *e == JobEvent::Finished && !self.output.is_empty();
        let event = self.events.pop_front_if(|event| !deferred(event));
        if event.is_some() || output_paused {
            return event;
        }
        let output = self.output.pop_front();
        if self.output.is_empty() {
            self.flush_credits();
        }
        output
    }
}

impl WorkerGroup for Coordinator {
    fn next(&mut self, timeout: Duration, output_paused: bool) -> Option<JobEvent> {
        let event = self.pop_event(output_paused);
        if event.is_some() {
            // Queued events are handled before more is received, but heartbeats must go out.
            self.net.flush_and_heartbeat();
            return event;
        }
        self.poll(timeout);
        self.pop_event(output_paused)
    }

    fn control(&mut self, control: RankControl) {
        if control == RankControl::Kill {
            if self.last_kill.is_some_and(|at| at.elapsed() < KILL_INTERVAL) {
                return;
            }
            self.last_kill = Some(Instant::now());
        }
        let outputs = self.nodes.broadcast(&Downstream::Broadcast(control));
        self.apply(outputs);
    }
}
