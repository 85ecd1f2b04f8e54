//! Bootstrap of a job over the network: rank 0 listens at a known address, the other ranks register
//! with it, and all receive the addresses of all ranks.

mod backoff;
mod config;
mod listen;
mod load_algorithm_table;
mod root_connection;
pub mod simulation;
mod world_table;

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use regatta_wire::clock;
use regatta_wire::link::Timing;

use crate::control::{
    AuthConn, CommRegistry, ControlHandle, ControlPlane, ControlRole, Dial, DialError, FromRoot,
    Hello, Job, MAX_CONNECTIONS, RankInfo, RootState, ToRoot, children, decode, encode,
};
use crate::libfabric;
use crate::network::{NetworkContext, NetworkEngine, NetworkTransport, SharedState};
use crate::schedule::algorithm_table::AlgorithmTable;
use crate::tcp::{Dialler, Sockets};
use crate::{CommError, Communicator, Result};
pub use config::{BootstrapConfig, VARIABLES, host_name};
pub use listen::listen;
use root_connection::{RootConnector, connect_error, resolve};

/// Time for a peer to authenticate.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Rank 0 reports why the bootstrap failed; the other ranks wait a little longer for the report.
const REPORT_SLACK: Duration = Duration::from_secs(5);

/// Roughly the cost of putting a thread to sleep and waking it up.
const SPIN: Duration = Duration::from_micros(50);

/// Larger than any machine; rank 0 keeps about 100 bytes per rank.
const MAX_WORLD_SIZE: u32 = 1 << 20;

/// Connects this rank with all others over the network.
pub fn join(config: BootstrapConfig) -> Result<Communicator> {
    Ok(Communicator::new(Box::new(engine(config)?)))
}

/// The engine of [`join`].
pub fn engine(config: BootstrapConfig) -> Result<NetworkEngine> {
    let (rank, world_size) = (config.rank, config.world_size);
    if rank >= world_size {
        let what = format!("rank {rank} is out of range: the world size is {world_size}");
        return Err(CommError::bootstrap(what, "RANK must be between 0 and WORLD_SIZE - 1"));
    }
    if world_size > MAX_WORLD_SIZE {
        let what = format!("WORLD_SIZE is {world_size}, over the limit of {MAX_WORLD_SIZE} ranks");
        return Err(CommError::bootstrap(what, "correct it"));
    }
    let choice = config.fabric.clone();
    let context = Arc::new(if rank == 0 { serve(config) } else { connect_root(config) }?);
    let (network, name) = libfabric::select_network(&context, &choice)?;
    context.network.get_or_init(|| (network.clone(), name));
    let members = (0..world_size).collect();
    Ok(NetworkEngine::new(NetworkTransport::new(context, network, 0, members, rank)))
}

/// Rank 0 accepts the registrations of all other ranks.
fn serve(mut config: BootstrapConfig) -> Result<NetworkContext> {
    let port = config.master_port;
    let listener = match config.listener.take() {
        Some(listener) => listener,
        None => listen(listen_address(&config, resolve(&config)?, port)).map_err(|error| {
            let what = format!("rank 0 cannot listen on MASTER_PORT {port}: {error}");
            CommError::bootstrap(what, "choose a free MASTER_PORT, one per job")
        })?,
    };
    let algorithms = load_algorithm_table::load(&config)?;
    let port = listener.local_addr().map_err(|e| CommError::system("listening socket", e))?.port();
    let root_address = resolve(&config)?.ip();
    let own = config.rank_info(config.bind.clone(), port);
    let (sender, result) = channel();
    let table = load_algorithm_table::encode(&algorithms)?;
    let fanout = config.table_fanout.max(1);
    let root = RootState::new(config.world_size, own, config.join_timeout, table, fanout, sender);
    let role = ControlRole::Root(Box::new(root));
    let control = start_control_plane(&config, listener, role)?;
    let members = match result.recv() {
        Ok(Ok(members)) => members,
        Ok(Err(error)) => {
            // The process may exit next, but the other ranks must be told.
            control.handle.shutdown();
            return Err(CommError::bootstrap(error.what, error.hint));
        }
        Err(_) => {
            let what = "the control-plane thread of rank 0 ended";
            return Err(CommError::bootstrap(what, "please report this bug"));
        }
    };
    Ok(context(config, with_root_address(root_address, members), algorithms, control))
}

/// Any other rank registers with rank 0 and receives the world table.
fn connect_root(config: BootstrapConfig) -> Result<NetworkContext> {
    let until = clock::now() + config.join_timeout;
    let Registration { conn, root, listener, reply } = register(&config, until)?;
    let parent = match decode::<FromRoot>(&reply) {
        Some(FromRoot::Ready { .. }) => None,
        Some(FromRoot::ReadyAt(parent)) => Some(parent),
        Some(FromRoot::Rejected { what, hint }) => return Err(CommError::bootstrap(what, hint)),
        Some(FromRoot::TryLater) => {
            let what = format!("rank 0 at {root} belongs to an earlier job");
            return Err(CommError::bootstrap(what, "give every job its own MASTER_PORT"));
        }
        _ => return Err(unrecognised(root)),
    };
    // The control plane sends heartbeats to rank 0 while this rank waits for its parent.
    let control =
        start_control_plane(&config, listener, ControlRole::Member { root: Box::new(conn) })?;
    let table = match parent {
        None => reply,
        Some(parent) => {
            world_table::fetch(&config, &parent, root, &control.registry, until + REPORT_SLACK)?
        }
    };
    let Some(FromRoot::Ready { table: members, algorithms, fanout }) = decode(&table) else {
        return Err(unrecognised(root));
    };
    let children = children(config.rank, config.world_size, fanout).len() as u32;
    control.handle.pass_on(&table, children);
    control.handle.send(ToRoot::HasTable);
    let algorithms = load_algorithm_table::decode(&algorithms)?;
    let members = members.into_members().ok_or_else(|| unrecognised(root))?;
    Ok(context(config, with_root_address(root.ip(), members), algorithms, control))
}

fn unrecognised(root: SocketAddr) -> CommError {
    let what = format!("unrecognised reply from rank 0 at {root}");
    CommError::bootstrap(what, "run the same version of Regatta on all nodes")
}

/// The reply of rank 0 to a registration, and what goes with it.
struct Registration {
    conn: AuthConn,
    root: SocketAddr,
    listener: TcpListener,
    reply: Vec<u8>,
}

/// Registers with rank 0 and waits until all ranks have.
fn register(config: &BootstrapConfig, mut until: Instant) -> Result<Registration> {
    let mut connector = RootConnector::new(config);
    loop {
        let (mut conn, root) = connector.connect(until)?;
        let (hello, listener) = hello(config, &conn, root)?;
        let dial = dial(config, root, until + REPORT_SLACK);
        match dial.request(&mut conn, &encode(&hello)) {
            Ok(reply) => {
                let try_later = decode::<FromRoot>(&reply) == Some(FromRoot::TryLater);
                if !try_later || !connector.pause(until) {
                    return Ok(Registration { conn, root, listener, reply });
                }
            }
            // Rank 0 crashed, or exited at the end of an earlier job.
            Err(error @ DialError::Unreachable(_)) => {
                until = until.min(clock::now() + config.lost_after);
                if !connector.pause(until) {
                    return Err(connect_error(root, error));
                }
            }
            Err(error) => return Err(connect_error(root, error)),
        }
    }
}

/// The registration of a rank, and the socket it listens on.
fn hello(
    config: &BootstrapConfig,
    conn: &AuthConn,
    root: SocketAddr,
) -> Result<(Hello, TcpListener)> {
    let local = conn.stream.local_addr().map_err(|e| CommError::system("local address", e))?;
    let (ips, listener) = match config.bind.as_slice() {
        [] => (vec![local.ip()], listen(listen_address(config, root, 0))),
        [bind] => (vec![*bind], listen((*bind, 0).into())),
        [first, ..] => (config.bind.clone(), listen(unspecified_address((*first, 0).into(), 0))),
    };
    let socket_error = |e| CommError::system("listening socket", e);
    let listener = listener.map_err(socket_error)?;
    let port = listener.local_addr().map_err(socket_error)?.port();
    let member = config.rank_info(ips, port);
    Ok((Hello::Join { world_size: config.world_size, member }, listener))
}

/// Adds the address of an unbound rank 0, which differs between ranks.
fn with_root_address(address: IpAddr, mut members: Vec<RankInfo>) -> Vec<RankInfo> {
    if let Some(root) = members.first_mut().filter(|member| member.ips.is_empty()) {
        root.ips.push(address);
    }
    members
}

fn dial(config: &BootstrapConfig, to: SocketAddr, until: Instant) -> Dial<'_> {
    let (secret, timing) = (&config.secret, timing(config));
    // Control traffic is light, and rank 0 may be on another network than the NICs.
    Dial { to, from: None, secret, timing, until, cancelled: &|| false }
}

fn timing(config: &BootstrapConfig) -> Timing {
    let beat = config.lost_after / 4;
    Timing { handshake: HANDSHAKE_TIMEOUT, heartbeat: beat, lost_after: config.lost_after }
}

/// Where a rank listens: at the address of rank 0 if that is a loopback address, because all ranks
/// are then on this host; else on all interfaces. Only the literal address counts: a host name may
/// resolve to a loopback address on its own host alone.
fn listen_address(config: &BootstrapConfig, master: SocketAddr, port: u16) -> SocketAddr {
    let name = config.master_addr.as_str();
    let loopback = name.parse().map_or(name == "localhost", |ip: IpAddr| ip.is_loopback());
    match loopback && config.bind.is_empty() {
        true => SocketAddr::new(master.ip(), port),
        false => unspecified_address(master, port),
    }
}

/// The unspecified address of the same family.
fn unspecified_address(like: SocketAddr, port: u16) -> SocketAddr {
    match like {
        SocketAddr::V4(_) => (std::net::Ipv4Addr::UNSPECIFIED, port).into(),
        SocketAddr::V6(_) => (std::net::Ipv6Addr::UNSPECIFIED, port).into(),
    }
}

/// A running control plane, and what it shares with the transports.
struct RunningControl {
    handle: ControlHandle,
    sockets: Arc<Sockets>,
    registry: Arc<CommRegistry>,
}

fn start_control_plane(
    config: &BootstrapConfig,
    listener: TcpListener,
    role: ControlRole,
) -> Result<RunningControl> {
    let shared = Arc::new(SharedState::new().map_err(|e| CommError::system("eventfd", e))?);
    let sockets = Arc::new(Sockets::new(shared.clone()));
    let registry = Arc::new(CommRegistry::new(move || shared.wake_all()));
    let (secret, timing) = (config.secret.clone(), timing(config));
    let planes = (sockets.clone(), registry.clone());
    let parts = ControlPlane::new(listener, secret, timing, planes, role);
    let what = if config.rank == 0 { "control plane of rank 0" } else { "control plane" };
    let (control_plane, handle) = parts.map_err(|e| CommError::system(what, e))?;
    let thread = std::thread::Builder::new().name("comm-control".to_owned());
    let spawned = thread.spawn(|| control_plane.run());
    spawned.map_err(|e| CommError::system("control-plane thread", e))?;
    Ok(RunningControl { handle, sockets, registry })
}

fn context(
    config: BootstrapConfig,
    members: Vec<RankInfo>,
    algorithms: AlgorithmTable,
    control: RunningControl,
) -> NetworkContext {
    let (spin, timing) = (spin(&config, &members), timing(&config));
    let members: Arc<[RankInfo]> = members.into();
    let RunningControl { handle, sockets, registry } = control;
    let shared = sockets.shared.clone();
    let dialler = Dialler {
        registry: registry.clone(),
        rank: config.rank,
        members: members.clone(),
        bind: config.bind.clone(),
        connections: config.connections.clamp(1, MAX_CONNECTIONS),
        lost_after: config.lost_after,
        secret: config.secret.clone(),
        timing,
        dialling: std::sync::Mutex::default(),
    };
    sockets.dialler.get_or_init(|| dialler);
    let job = Job { rank: config.rank, members: members.clone(), control: handle, registry };
    NetworkContext {
        rank: config.rank,
        members,
        shared,
        tcp: sockets,
        bind: config.bind,
        secret: config.secret,
        network: std::sync::OnceLock::new(),
        job: Arc::new(job),
        algorithms: Arc::new(algorithms),
        lost_after: config.lost_after,
        desync_after: config.desync_after,
        debug: config.debug,
        spin,
    }
}

/// Spins for about the cost of a wake-up if every rank of this node has a core. On an oversubscribed
/// node, spinning would delay the awaited rank.
fn spin(config: &BootstrapConfig, members: &[RankInfo]) -> Duration {
    let node = config.node_id();
    let local_size = members.iter().filter(|member| member.node == node).count();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if local_size <= cores { SPIN } else { Duration::ZERO }
}
