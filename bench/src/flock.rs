//! Many agents in one process: real members over one net, without machines and ranks of their own.
//! Agent *i* has the loopback address 127.1.x.y of its own; its ranks end well as soon as they are
//! started.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use regatta_launch::crew::Event;
use regatta_launch::fleet::boot::{REJOIN, Times};
use regatta_launch::fleet::member::{Input, Member, Output, Patience};
use regatta_launch::fleet::message::{Hello, decode, encode};
use regatta_launch::fleet::tree::{Above, Tree};
use regatta_launch::net::{ConnId, ListenerId, Net, NetEvent};
use regatta_model::result::Ending;
use regatta_wire::secret::Secret;

/// How often all agents look at the clock. Real ones do so at least as often.
const TICK: Duration = Duration::from_millis(20);

/// What all agents of a job have in common.
#[derive(Debug, Clone)]
pub struct Common {
    /// Who is above whom.
    pub tree: Tree,
    /// Where the coordinator listens.
    pub root: SocketAddr,
    /// Where agents listen, each at its own address.
    pub port: u16,
    /// The job's secret.
    pub secret: Secret,
    /// How long things may take.
    pub times: Times,
    /// What each says of its machine.
    pub machine: String,
}

struct Agent {
    member: Member<ConnId>,
    calling: Option<ConnId>,
    left: bool,
}

/// Agents of a job.
pub struct Flock {
    common: Common,
    net: Net,
    agents: Vec<Agent>,
    /// Whose connection it is, and whose listener.
    conns: HashMap<ConnId, usize>,
    listeners: HashMap<ListenerId, usize>,
    came: Vec<NetEvent>,
    next_tick: Instant,
}

/// The address of an agent.
fn address(node: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from_bits(Ipv4Addr::new(127, 1, 0, 0).to_bits() + node))
}

/// A port that nobody uses now.
pub fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

impl Flock {
    /// The agents of these nodes, those that have others below them listening.
    pub fn new(nodes: &[u32], common: Common) -> io::Result<Self> {
        let now = Instant::now();
        let mut net = Net::new(common.secret.clone(), common.times.timing())?;
        let Times { grace, join, .. } = common.times;
        let patience = Patience { grace, join, rejoin: REJOIN };
        let (mut agents, mut listeners) = (Vec::new(), HashMap::new());
        for &node in nodes {
            if common.tree.has_below(node) {
                let (listener, _) = net.listen(SocketAddr::new(address(node), common.port))?;
                listeners.insert(listener, agents.len());
            }
            let hello = Hello { node, machine: common.machine.clone(), port: None };
            let member = Member::new(hello, common.tree, patience, now);
            agents.push(Agent { member, calling: None, left: false });
        }
        let (conns, came) = (HashMap::new(), Vec::new());
        Ok(Self { common, net, agents, conns, listeners, came, next_tick: now })
    }

    /// Whether all agents have been sent home.
    pub fn has_left(&self) -> bool {
        self.agents.iter().all(|agent| agent.left)
    }

    /// Sends what is still to be sent.
    pub fn finish(mut self) -> io::Result<()> {
        self.net.finish(self.common.times.timing().beat)
    }

    /// Lets the agents do what there is to do; waits for it at most `timeout`.
    pub fn turn(&mut self, timeout: Duration) -> io::Result<()> {
        let mut came = std::mem::take(&mut self.came);
        let until_tick = self.next_tick.saturating_duration_since(Instant::now());
        self.net.poll(timeout.min(until_tick), &mut came)?;
        came.drain(..).for_each(|event| self.hear(event));
        self.came = came;
        let now = Instant::now();
        if now >= self.next_tick {
            self.next_tick = now + TICK;
            (0..self.agents.len()).for_each(|agent| self.handle(agent, Input::Tick));
        }
        Ok(())
    }

    fn hear(&mut self, event: NetEvent) {
        match event {
            NetEvent::Ready { conn, listener: Some(listener), .. } => {
                self.conns.insert(conn, self.listeners[&listener]);
            }
            NetEvent::Ready { conn, listener: None, .. } => {
                let agent = self.conns[&conn];
                self.agents[agent].calling = None;
                self.handle(agent, Input::Joined(conn));
            }
            NetEvent::Frame { conn, payload } => self.frame(conn, &payload),
            NetEvent::Closed { conn, why } => {
                let Some(agent) = self.conns.remove(&conn) else { return };
                let input = match self.agents[agent].calling == Some(conn) {
                    true => Input::CallFailed,
                    false => Input::Closed(conn, why.to_string()),
                };
                self.handle(agent, input);
            }
        }
    }

    fn frame(&mut self, conn: ConnId, payload: &[u8]) {
        let agent = self.conns[&conn];
        let input = match self.agents[agent].member.above() == Some(conn) {
            true => decode(payload).map(Input::Down),
            false => decode(payload).map(|up| Input::Up(conn, up)),
        };
        if let Ok(input) = input {
            self.handle(agent, input);
        }
    }

    fn handle(&mut self, agent: usize, input: Input<ConnId>) {
        if self.agents[agent].left {
            return;
        }
        for output in self.agents[agent].member.handle(input, Instant::now()) {
            self.carry_out(agent, output);
        }
    }

    fn carry_out(&mut self, agent: usize, output: Output<ConnId>) {
        match output {
            Output::Call(above) => {
                let conn = self.net.connect(match above {
                    Above::Root => self.common.root,
                    Above::Node(node) => SocketAddr::new(address(node), self.common.port),
                });
                self.conns.insert(conn, agent);
                self.agents[agent].calling = Some(conn);
            }
            Output::Up(conn, up) => {
                self.net.send(conn, &encode(&up).unwrap_or_default());
            }
            Output::Down(conn, down) => {
                self.net.send(conn, &encode(&down).unwrap_or_default());
            }
            Output::Start(work) => {
                for rank in work.ranks.iter().map(|r| r.rank) {
                    self.handle(agent, Input::Ranks(Event::Started { rank, pid: 1 }));
                    self.handle(agent, Input::Ranks(Event::Ended(rank, Ending::Exit(0))));
                }
                self.handle(agent, Input::Ranks(Event::Over));
            }
            Output::Ranks(_) => {}
            Output::Leave => self.agents[agent].left = true,
        }
    }
}
