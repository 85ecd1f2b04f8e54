//! Simulated ranks: the bootstrap of many ranks in one process, over loopback. Connections,
//! authentication and messages are real.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use regatta_comm::bootstrap::simulation::{
    SimulatedStep, confirmation, exit, has_children, is_table_request, next_step, registration,
    table_request,
};
use regatta_wire::link::Timing;
use regatta_wire::reactor::{ConnId, ListenerId, NetEvent, Reactor};
use regatta_wire::secret::Secret;

/// Ranks that connect before the events of the others are handled.
const BATCH: usize = 32;

/// Time before a rank tries again to connect; real ranks add jitter.
const RETRY_DELAY: Duration = Duration::from_millis(20);

/// The ranks of a simulation.
#[derive(Debug, Clone)]
pub struct SimRanksConfig {
    /// Number of ranks, including rank 0, which is real.
    pub world_size: u32,
    /// The fan-out of the tree along which the ranks receive the world table.
    pub fanout: u32,
    /// The address of rank 0.
    pub root: SocketAddr,
    /// The job's secret.
    pub secret: Secret,
}

/// Simulated ranks.
pub struct SimRanks {
    config: SimRanksConfig,
    net: Reactor,
    /// The connections to rank 0 and to the rank that passes the table on, by rank.
    to_root: HashMap<ConnId, u32>,
    to_parent: HashMap<ConnId, u32>,
    root_of: HashMap<u32, ConnId>,
    listeners: HashMap<ListenerId, u32>,
    /// The rank that accepted a connection.
    accepted: HashMap<ConnId, u32>,
    /// The ranks that wait for a table of another simulated rank.
    requests: Vec<(ConnId, u32)>,
    /// The world table, and whether each rank has it. All ranks compare it, one decodes it: real
    /// ranks decode it on their own cores.
    table: Option<Vec<u8>>,
    has_table: HashMap<u32, bool>,
    /// The ranks that were evicted before they authenticated, and when they try again.
    retries: Vec<(Instant, u32)>,
    events: Vec<NetEvent>,
}

impl SimRanks {
    /// Starts to register these ranks with rank 0.
    pub fn start(ranks: &[u32], config: SimRanksConfig) -> io::Result<Self> {
        let second = Duration::from_secs(1);
        let timing =
            Timing { handshake: 60 * second, heartbeat: 4 * second, lost_after: 60 * second };
        let mut this = Self {
            net: Reactor::new(config.secret.clone(), timing)?,
            config,
            to_root: HashMap::new(),
            to_parent: HashMap::new(),
            root_of: HashMap::new(),
            listeners: HashMap::new(),
            accepted: HashMap::new(),
            requests: Vec::new(),
            table: None,
            has_table: ranks.iter().map(|rank| (*rank, false)).collect(),
            retries: Vec::new(),
            events: Vec::new(),
        };
        // A real rank sends its first message as soon as it is connected.
        for batch in ranks.chunks(BATCH) {
            batch.iter().try_for_each(|rank| this.register(*rank))?;
            this.poll(Duration::ZERO)?;
        }
        Ok(this)
    }

    fn register(&mut self, rank: u32) -> io::Result<()> {
        let SimRanksConfig { world_size, fanout, root, .. } = self.config;
        let mut address = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        if has_children(rank, world_size, fanout) {
            let (listener, bound) = self.net.listen((Ipv4Addr::LOCALHOST, 0).into())?;
            self.listeners.insert(listener, rank);
            address = bound;
        }
        let conn = self.net.connect(root);
        self.net.send(conn, &registration(rank, world_size, address));
        self.to_root.insert(conn, rank);
        self.root_of.insert(rank, conn);
        Ok(())
    }

    /// Handles events for up to `timeout`.
    pub fn poll(&mut self, timeout: Duration) -> io::Result<()> {
        let mut events = std::mem::take(&mut self.events);
        self.net.poll(timeout, &mut events)?;
        for event in events.drain(..) {
            match event {
                NetEvent::Ready { conn, listener, .. } => {
                    let rank = listener.and_then(|listener| self.listeners.get(&listener));
                    rank.map(|rank| self.accepted.insert(conn, *rank));
                }
                NetEvent::Frame { conn, payload } => self.handle_frame(conn, &payload)?,
                NetEvent::Closed { conn, why } => {
                    if let Some(rank) = self.to_root.remove(&conn) {
                        if self.has_table[&rank] {
                            let why = format!("rank 0 closed the connection of rank {rank}: {why}");
                            return Err(io::Error::other(why));
                        }
                        self.retries.push((Instant::now() + RETRY_DELAY, rank));
                    }
                }
            }
        }
        self.events = events;
        self.serve();
        let now = Instant::now();
        let due: Vec<_> = self.retries.extract_if(.., |(at, _)| *at <= now).collect();
        due.into_iter().try_for_each(|(_, rank)| self.register(rank))
    }

    /// Announces the exit of all ranks and closes their connections.
    pub fn shutdown(&mut self) -> io::Result<()> {
        for conn in self.root_of.values() {
            self.net.send(*conn, &exit());
        }
        self.net.shutdown(Duration::from_secs(10))
    }

    fn handle_frame(&mut self, conn: ConnId, frame: &[u8]) -> io::Result<()> {
        if let Some(rank) = self.accepted.get(&conn) {
            if is_table_request(frame) {
                self.requests.push((conn, *rank));
            }
            return Ok(());
        }
        let rank = self.to_root.get(&conn).or_else(|| self.to_parent.get(&conn)).copied();
        let Some(rank) = rank.filter(|rank| !self.has_table[rank]) else { return Ok(()) };
        let is_known = self.table.as_deref() == Some(frame);
        match if is_known { SimulatedStep::Confirm } else { next_step(frame) } {
            SimulatedStep::Confirm => {
                self.table.get_or_insert_with(|| frame.to_vec());
                self.has_table.insert(rank, true);
                self.net.send(self.root_of[&rank], &confirmation());
                if self.to_parent.remove(&conn).is_some() {
                    self.net.close(conn);
                }
            }
            SimulatedStep::RequestFrom(parent) => {
                let conn = self.net.connect(parent);
                self.net.send(conn, &table_request());
                self.to_parent.insert(conn, rank);
            }
            SimulatedStep::Failed => {
                return Err(io::Error::other(format!("the bootstrap of rank {rank} failed")));
            }
        }
        Ok(())
    }

    /// Passes the table on, by ranks that have it.
    fn serve(&mut self) {
        let Self { net, requests, table, has_table, .. } = self;
        let Some(table) = table else { return };
        requests.retain(|(conn, rank)| {
            let is_ready = has_table[rank];
            if is_ready {
                net.send(*conn, table);
            }
            !is_ready
        });
    }
}
