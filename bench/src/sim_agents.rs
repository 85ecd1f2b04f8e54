//! Simulated agents: many real agent state machines in one process, without nodes and ranks. Agent
//! *i* listens on the loopback address 127.1.x.y; its ranks write the arguments of their command, one
//! per line, and exit successfully.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use regatta_launch::agents::agent_state::{AgentInput, AgentOutput, AgentState};
use regatta_launch::agents::bootstrap_document::JobTimeouts;
use regatta_launch::agents::message::{Registration, decode, encode};
use regatta_launch::agents::tree::Tree;
use regatta_launch::lines::MergedLine;
use regatta_launch::worker_group::JobEvent;
use regatta_model::result::RankExit;
use regatta_wire::reactor::{ConnId, ListenerId, NetEvent, Reactor};
use regatta_wire::secret::Secret;

/// Timer interval of the agents. Real agents tick at least as often.
const TICK: Duration = Duration::from_millis(20);

/// Configuration shared by all agents of a job.
#[derive(Debug, Clone)]
pub struct SimConfig {
    /// The agent tree.
    pub tree: Tree,
    /// Address of the coordinator.
    pub root: SocketAddr,
    /// Port of the agents, each on its own address.
    pub port: u16,
    /// The job's secret.
    pub secret: Secret,
    /// Timeouts.
    pub times: JobTimeouts,
    /// Description of the machine that each agent reports.
    pub machine: String,
}

struct SimAgent {
    state: AgentState<ConnId>,
    connecting: Option<ConnId>,
    left: bool,
}

/// The agents of a job.
pub struct SimAgents {
    config: SimConfig,
    net: Reactor,
    agents: Vec<SimAgent>,
    /// The agent of each connection and listener.
    conns: HashMap<ConnId, usize>,
    listeners: HashMap<ListenerId, usize>,
    events: Vec<NetEvent>,
    next_tick: Instant,
}

/// The loopback address of an agent.
fn address(node: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from_bits(Ipv4Addr::new(127, 1, 0, 0).to_bits() + node))
}

/// A free port.
pub fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

impl SimAgents {
    /// The agents of these nodes; those with children listen.
    pub fn new(nodes: &[u32], config: SimConfig) -> io::Result<Self> {
        let now = Instant::now();
        let mut net = Reactor::new(config.secret.clone(), config.times.timing())?;
        let (mut agents, mut listeners) = (Vec::new(), HashMap::new());
        for &node in nodes {
            if config.tree.has_children(node) {
                let (listener, _) = net.listen(SocketAddr::new(address(node), config.port))?;
                listeners.insert(listener, agents.len());
            }
            let registration = Registration { node, machine: config.machine.clone(), port: None };
            let state = AgentState::new(registration, config.tree, config.times, now);
            agents.push(SimAgent { state, connecting: None, left: false });
        }
        let (conns, events) = (HashMap::new(), Vec::new());
        Ok(Self { config, net, agents, conns, listeners, events, next_tick: now })
    }

    /// Whether all agents have been dismissed.
    pub fn has_left(&self) -> bool {
        self.agents.iter().all(|agent| agent.left)
    }

    /// Flushes pending messages.
    pub fn finish(mut self) -> io::Result<()> {
        self.net.shutdown(self.config.times.timing().heartbeat)
    }

    /// Processes network events and timers, waiting at most `timeout`.
    pub fn poll(&mut self, timeout: Duration) -> io::Result<()> {
        let mut events = std::mem::take(&mut self.events);
        let until_tick = self.next_tick.saturating_duration_since(Instant::now());
        self.net.poll(timeout.min(until_tick), &mut events)?;
        events.drain(..).for_each(|event| self.on_net_event(event));
        self.events = events;
        let now = Instant::now();
        if now >= self.next_tick {
            self.next_tick = now + TICK;
            (0..self.agents.len()).for_each(|agent| self.handle(agent, AgentInput::Tick));
        }
        Ok(())
    }

    fn on_net_event(&mut self, event: NetEvent) {
        match event {
            NetEvent::Ready { conn, listener: Some(listener), .. } => {
                self.conns.insert(conn, self.listeners[&listener]);
            }
            NetEvent::Ready { conn, listener: None, .. } => {
                let agent = self.conns[&conn];
                self.agents[agent].connecting = None;
                self.handle(agent, AgentInput::Connected(conn));
            }
            NetEvent::Frame { conn, payload } => self.frame(conn, &payload),
            NetEvent::Closed { conn, why } => {
                let Some(agent) = self.conns.remove(&conn) else { return };
                if self.agents[agent].connecting == Some(conn) {
                    self.handle(agent, AgentInput::ConnectFailed);
                } else {
                    self.handle(agent, AgentInput::Closed(conn, why.to_string()));
                }
            }
        }
    }

    fn frame(&mut self, conn: ConnId, payload: &[u8]) {
        let agent = self.conns[&conn];
        let input = if self.agents[agent].state.parent_conn() == Some(conn) {
            decode(payload).map(AgentInput::Downstream)
        } else {
            decode(payload).map(|up| AgentInput::Upstream(conn, up))
        };
        if let Ok(input) = input {
            self.handle(agent, input);
        }
    }

    fn handle(&mut self, agent: usize, input: AgentInput<ConnId>) {
        if self.agents[agent].left {
            return;
        }
        for output in self.agents[agent].state.handle(input, Instant::now()) {
            self.apply(agent, output);
        }
    }

    fn apply(&mut self, agent: usize, output: AgentOutput<ConnId>) {
        match output {
            AgentOutput::Connect(above) => {
                let conn = self.net.connect(match above {
                    None => self.config.root,
                    Some(node) => SocketAddr::new(address(node), self.config.port),
                });
                self.conns.insert(conn, agent);
                self.agents[agent].connecting = Some(conn);
            }
            AgentOutput::Upstream(conn, up) => {
                self.net.send(conn, &encode(&up).unwrap_or_default());
            }
            AgentOutput::Downstream(conn, down) => {
                self.net.send(conn, &encode(&down).unwrap_or_default());
            }
            AgentOutput::Start(work) => {
                let mut report = |event| self.handle(agent, AgentInput::Ranks(event));
                for rank in work.ranks.iter().map(|r| r.rank) {
                    report(JobEvent::Started { rank, pid: 1 });
                    for word in work.command.iter().skip(1) {
                        let text = word.to_string_lossy().into_owned();
                        report(JobEvent::Line(MergedLine::of(rank, false, text)));
                    }
                    report(JobEvent::Exited(rank, RankExit::Exit(0)));
                }
                report(JobEvent::Finished);
            }
            AgentOutput::Control(_) => {}
            AgentOutput::Exit => self.agents[agent].left = true,
        }
    }
}
