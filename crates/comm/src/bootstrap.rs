//! Bootstrap of a job over the network: rank 0 listens at a known address, the other ranks register
//! with it, and all receive the addresses of all ranks.

mod backoff;
mod config;
mod load_algorithm_table;
mod root_connection;
pub mod simulation;
mod world_table;

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use regatta_model::cpuset::CpuSet;
use regatta_model::document::to_json_line;
use regatta_wire::clock;

use crate::control::{
    AuthConn, CommRegistry, ControlHandle, ControlPlane, ControlRole, Dial, DialError, FromRoot,
    Hello, Job, RankInfo, RootState, ToRoot, children, decode, encode,
};
use crate::libfabric;
use crate::network::{NetworkContext, NetworkEngine, NetworkTransport, SharedState};
use crate::schedule::algorithm_table::AlgorithmTable;
use crate::tcp::{Dialler, Sockets};
use crate::{CommError, Communicator, Result};
pub use config::{BootstrapConfig, VARIABLES, host_name};
pub use regatta_wire::reactor::listen;
use root_connection::{RootConnector, connect_error, resolve};

/// Rank 0 reports why the bootstrap failed; the other ranks wait a little longer for the report.
const REPORT_SLACK: Duration = Duration::from_secs(5);

/// Roughly the cost of putting a thread to sleep and waking it up.
const SPIN: Duration = Duration::from_micros(50);

/// Larger than any machine; rank 0 keeps about 100 bytes per rank.
const MAX_WORLD_SIZE: u32 = 1 << 20;

/// Connects this rank with all others over the network.
pub fn join(config: BootstrapConfig) -> Result<Communicator> {
    Ok(Communicator::recorded(Box::new(engine(config)?)))
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
    Ok(NetworkEngine::new(NetworkTransport::new(context, network, 0, members)))
}

/// Rank 0 accepts the registrations of all other ranks.
fn serve(mut config: BootstrapConfig) -> Result<NetworkContext> {
    let (address, port) = (resolve(&config)?, config.master_port);
    let listener = match config.listener.take() {
        Some(listener) => listener,
        None => listen(listen_address(&config, address, port)).map_err(|error| {
            let what = format!("rank 0 cannot listen on MASTER_PORT {port}: {error}");
            CommError::bootstrap(what, "choose a free MASTER_PORT, one per job")
        })?,
    };
    let algorithms = load_algorithm_table::load(&config)?;
    let own = config.rank_info(config.bind.clone(), port_of(&listener)?);
    let (sender, result) = channel();
    let table = to_json_line(&algorithms)
        .map_err(|e| CommError::system("cannot encode the algorithm table", e))?;
    let fanout = config.table_fanout.max(1);
    let root = RootState::new(config.world_size, own, config.join_timeout, table, fanout, sender);
    let control = start_control_plane(&config, listener, ControlRole::Root(Box::new(root)))?;
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
    Ok(context(config, address.ip(), members, algorithms, control))
}

/// Any other rank registers with rank 0 and receives the world table.
fn connect_root(config: BootstrapConfig) -> Result<NetworkContext> {
    let until = clock::now() + config.join_timeout;
    let (conn, root, listener, reply) = register(&config, until)?;
    let parent = match decode::<FromRoot>(&reply) {
        Some(FromRoot::Ready { .. }) => None,
        Some(FromRoot::ReadyAt(parent)) => Some(parent),
        Some(FromRoot::Rejected(error)) => {
            return Err(CommError::bootstrap(error.what, error.hint));
        }
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
    Ok(context(config, root.ip(), members, algorithms, control))
}

fn unrecognised(root: SocketAddr) -> CommError {
    let what = format!("unrecognised reply from rank 0 at {root}");
    CommError::bootstrap(what, "run the same version of Regatta on all nodes")
}

/// Registers with rank 0 and waits until all ranks have. Returns the connection to rank 0, its address,
/// the socket that this rank listens on, and the reply.
fn register(
    config: &BootstrapConfig,
    mut until: Instant,
) -> Result<(AuthConn, SocketAddr, TcpListener, Vec<u8>)> {
    let mut connector = RootConnector::new(config);
    loop {
        let (mut conn, root) = connector.connect(until)?;
        let (hello, listener) = hello(config, &conn, root)?;
        let dial = dial(config, root, until + REPORT_SLACK);
        match dial.request(&mut conn, &encode(&hello)) {
            Ok(reply) => {
                let try_later = decode::<FromRoot>(&reply) == Some(FromRoot::TryLater);
                if !try_later || !connector.pause(until) {
                    return Ok((conn, root, listener, reply));
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
    let listener = listener.map_err(|e| CommError::system("listening socket", e))?;
    let member = config.rank_info(ips, port_of(&listener)?);
    Ok((Hello::Join { world_size: config.world_size, member }, listener))
}

fn port_of(listener: &TcpListener) -> Result<u16> {
    let address = listener.local_addr().map_err(|e| CommError::system("listening socket", e))?;
    Ok(address.port())
}

fn dial(config: &BootstrapConfig, to: SocketAddr, until: Instant) -> Dial<'_> {
    let (secret, timing) = (&config.secret, config.timing());
    // Control traffic is light, and rank 0 may be on another network than the NICs.
    Dial { to, from: None, secret, timing, until, cancelled: &|| false }
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
    let planes = (sockets.clone(), registry.clone());
    let parts = ControlPlane::new(listener, config.secret.clone(), config.timing(), planes, role);
    let what = if config.rank == 0 { "control plane of rank 0" } else { "control plane" };
    let (control_plane, handle) = parts.map_err(|e| CommError::system(what, e))?;
    let thread = std::thread::Builder::new().name("comm-control".to_owned());
    let spawned = thread.spawn(|| control_plane.run());
    spawned.map_err(|e| CommError::system("control-plane thread", e))?;
    Ok(RunningControl { handle, sockets, registry })
}

/// The state of this process. The address of an unbound rank 0 differs between ranks.
fn context(
    config: BootstrapConfig,
    root: IpAddr,
    mut members: Vec<RankInfo>,
    algorithms: AlgorithmTable,
    control: RunningControl,
) -> NetworkContext {
    if let Some(unbound) = members.first_mut().filter(|member| member.ips.is_empty()) {
        unbound.ips.push(root);
    }
    let spin = spin(&config, &members);
    let (config, members): (_, Arc<[RankInfo]>) = (Arc::new(config), members.into());
    let RunningControl { handle, sockets, registry } = control;
    let dialling = std::sync::Mutex::default();
    sockets.dialler.get_or_init(|| Dialler {
        config: config.clone(),
        members: members.clone(),
        registry: registry.clone(),
        dialling,
    });
    NetworkContext {
        job: Arc::new(Job { rank: config.rank, members, control: handle, registry }),
        config,
        shared: sockets.shared.clone(),
        tcp: sockets,
        network: std::sync::OnceLock::new(),
        algorithms: Arc::new(algorithms),
        spin,
    }
}

/// Spins for about the cost of a wake-up if every rank of this node has a core. On an oversubscribed
/// node, spinning would delay the awaited rank.
fn spin(config: &BootstrapConfig, members: &[RankInfo]) -> Duration {
    let node = config.node_id();
    let local_size = members.iter().filter(|member| member.node == node).count();
    if local_size <= online_cpus() { SPIN } else { Duration::ZERO }
}

/// The CPUs of this node. Those of this rank's affinity would be too few: a launcher binds each rank
/// to cores of its own.
fn online_cpus() -> usize {
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").ok();
    let online = online.and_then(|list| list.trim().parse::<CpuSet>().ok());
    let own = || std::thread::available_parallelism().map_or(1, usize::from);
    online.map_or_else(own, |cpus| cpus.len())
}
