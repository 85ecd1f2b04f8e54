//! How ranks find each other: rank 0 listens where all know, the others come, and all get the table
//! of who is where.

mod algorithms;
mod listen;
mod settings;

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use regatta_wire::link::Timing;

use crate::CommError;
use crate::background::Background;
use crate::fabric;
use crate::schedule::choose::Table;
use crate::tcp::{
    Dial, Down, Endpoint, Hello, Hub, Keeper, Line, MOST_CONNECTIONS, Member, NoLine, Shared,
    TcpEngine, TcpTransport, decode, encode,
};
pub use listen::listen;
pub use settings::Settings;

/// How long a stranger may take to prove that it is none.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Rank 0 says why it comes to nothing; the others wait a little longer to hear it.
const SLACK: Duration = Duration::from_secs(5);

/// What putting a thread to sleep and waking it up costs, about.
const SPIN: Duration = Duration::from_micros(50);

/// Between two attempts to reach rank 0.
const AGAIN: Duration = Duration::from_millis(50);

/// Connects this rank with all others, through the network.
pub fn join(settings: Settings) -> Result<Background, CommError> {
    Ok(Background::new(Box::new(engine(settings)?)))
}

/// The same, to build upon.
pub fn engine(settings: Settings) -> Result<TcpEngine, CommError> {
    let (rank, ranks) = (settings.rank, settings.ranks);
    if rank >= ranks {
        let what = format!("rank {rank} is not below the number of ranks, {ranks}");
        return Err(failed(what, "RANK must be from 0 to WORLD_SIZE - 1"));
    }
    let choice = settings.fabric.clone();
    let endpoint = Arc::new(if rank == 0 { host(settings) } else { come(settings) }?);
    let carried = fabric::connect(&endpoint, &choice)?;
    endpoint.carried.get_or_init(|| carried);
    let members = (0..ranks).collect();
    let transport = TcpTransport::new(endpoint, 0, members, rank);
    Ok(TcpEngine::new(transport))
}

/// Rank 0 waits for the others.
fn host(mut settings: Settings) -> Result<Endpoint, CommError> {
    let listener = match settings.listener.take() {
        Some(listener) => listener,
        None => {
            let any = any_address(master(&settings)?, settings.port);
            listen(any).map_err(|error| {
                let what = format!("rank 0 cannot listen on port {}: {error}", settings.port);
                failed(what, "choose another MASTER_PORT, and one job per port")
            })?
        }
    };
    let algorithms = algorithms::wanted(&settings)?;
    let port = listener.local_addr().map_err(|e| system("the listening socket", &e))?.port();
    let here = master(&settings)?.ip();
    let own = settings.member(settings.bind.clone(), port);
    let shared = Arc::new(Shared::new().map_err(|e| system("an event counter", &e))?);
    let (sender, gathered) = channel();
    let table = algorithms::told(&algorithms)?;
    let hub = Hub::new(settings.ranks, own, settings.join_within, table, sender);
    let timing = timing(&settings);
    let parts = Keeper::hub(listener, settings.secret.clone(), timing, shared.clone(), hub);
    let (keeper, control) = parts.map_err(|e| system("the connections of rank 0", &e))?;
    spawn(keeper)?;
    let members = match gathered.recv() {
        Ok(Ok(members)) => members,
        Ok(Err(why)) => return Err(failed(why.what, &why.hint)),
        Err(_) => return Err(failed("rank 0's thread ended".to_owned(), "report this")),
    };
    Ok(endpoint(settings, reached_at(here, members), algorithms, shared, control))
}

/// Another rank goes to rank 0.
fn come(settings: Settings) -> Result<Endpoint, CommError> {
    let until = Instant::now() + settings.join_within;
    let (mut line, at) = reach(&settings, until)?;
    let local = line.stream.local_addr().map_err(|e| system("a connection's address", &e))?;
    let (ips, listener) = match settings.bind.as_slice() {
        [] => (vec![local.ip()], listen(any_address(at, 0))),
        [bind] => (vec![*bind], listen(SocketAddr::new(*bind, 0))),
        [first, ..] => (settings.bind.clone(), listen(any_address(SocketAddr::new(*first, 0), 0))),
    };
    let listener = listener.map_err(|e| system("to listen", &e))?;
    let port = listener.local_addr().map_err(|e| system("the listening socket", &e))?.port();
    let hello = Hello::Join { world: settings.ranks, member: settings.member(ips, port) };
    let dial = dial(&settings, at, until + SLACK);
    let answer = dial.ask(&mut line, &encode(&hello)).map_err(|why| refused(at, why))?;
    let (members, algorithms) = match decode::<Down>(&answer) {
        Some(Down::Table { members, algorithms }) => (members, algorithms::heard(&algorithms)?),
        Some(Down::Refused { what, hint }) => return Err(failed(what, &hint)),
        _ => return Err(failed(format!("rank 0 at {at} spoke nonsense"), "use one version")),
    };
    let shared = Arc::new(Shared::new().map_err(|e| system("an event counter", &e))?);
    let timing = timing(&settings);
    let parts = Keeper::spoke(listener, settings.secret.clone(), timing, shared.clone(), line);
    let (keeper, control) = parts.map_err(|e| system("the connection to rank 0", &e))?;
    spawn(keeper)?;
    Ok(endpoint(settings, reached_at(at.ip(), members), algorithms, shared, control))
}

/// Rank 0, if it is not bound, may know itself by another address than the one that leads to it
/// from here.
fn reached_at(first: IpAddr, mut members: Vec<Member>) -> Vec<Member> {
    if let Some(rank_0) = members.first_mut().filter(|member| member.ips.is_empty()) {
        rank_0.ips.push(first);
    }
    members
}

/// A connection to rank 0, which may begin to listen later.
fn reach(settings: &Settings, until: Instant) -> Result<(Line, SocketAddr), CommError> {
    loop {
        let tried = master(settings).map(|at| (at, dial(settings, at, until).open()));
        let error = match tried {
            Ok((at, Ok(line))) => return Ok((line, at)),
            Ok((at, Err(why @ NoLine::Stranger(_)))) => return Err(refused(at, why)),
            Ok((at, Err(why))) => refused(at, why),
            Err(error) => error,
        };
        if Instant::now() + AGAIN >= until {
            return Err(error);
        }
        std::thread::sleep(AGAIN);
    }
}

fn dial<'a>(settings: &'a Settings, to: SocketAddr, until: Instant) -> Dial<'a> {
    let (secret, timing) = (&settings.secret, timing(settings));
    // Little goes over this one, and rank 0 may be reached by another network than the NICs are on.
    Dial { to, from: None, secret, timing, until, stop: &|| false }
}

fn timing(settings: &Settings) -> Timing {
    let beat = settings.lost_after / 4;
    Timing { handshake: HANDSHAKE, beat, lost_after: settings.lost_after }
}

/// Where rank 0 is.
fn master(settings: &Settings) -> Result<SocketAddr, CommError> {
    let (name, port) = (settings.master.as_str(), settings.port);
    let unknown = |why: String| {
        let what = format!("MASTER_ADDR {name} is no address: {why}");
        failed(what, "it must be a name or address of rank 0's node that all nodes know")
    };
    let mut found = (name, port).to_socket_addrs().map_err(|error| unknown(error.to_string()))?;
    found.next().ok_or_else(|| unknown("the name has none".to_owned()))
}

/// All addresses of this node, of the same kind.
fn any_address(like: SocketAddr, port: u16) -> SocketAddr {
    match like {
        SocketAddr::V4(_) => (std::net::Ipv4Addr::UNSPECIFIED, port).into(),
        SocketAddr::V6(_) => (std::net::Ipv6Addr::UNSPECIFIED, port).into(),
    }
}

fn spawn(keeper: Keeper) -> Result<(), CommError> {
    let thread = std::thread::Builder::new().name("comm-keeper".to_owned());
    thread.spawn(|| keeper.run()).map(drop).map_err(|e| system("a thread", &e))
}

fn endpoint(
    settings: Settings,
    members: Vec<Member>,
    algorithms: Table,
    shared: Arc<Shared>,
    control: crate::tcp::Control,
) -> Endpoint {
    let spin = spin(&settings, &members);
    Endpoint {
        rank: settings.rank,
        members,
        algorithms: Arc::new(algorithms),
        spin,
        shared,
        dialling: std::sync::Mutex::default(),
        control,
        connections: settings.connections.clamp(1, MOST_CONNECTIONS),
        bind: settings.bind.clone(),
        lost_after: settings.lost_after,
        desync_after: settings.desync_after,
        debug: settings.debug,
        timing: timing(&settings),
        carried: std::sync::OnceLock::new(),
        secret: settings.secret,
    }
}

/// If every rank of this node has a core, it may look for messages for about as long as it takes to
/// be put to sleep and woken up again. If not, it would keep the one whom it waits for from working.
fn spin(settings: &Settings, members: &[Member]) -> Duration {
    let own = settings.node_number();
    let here = members.iter().filter(|member| member.node == own).count();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if here <= cores { SPIN } else { Duration::ZERO }
}

fn refused(at: SocketAddr, why: NoLine) -> CommError {
    match why {
        NoLine::Nobody(why) => {
            let hint = "see whether rank 0 runs, and whether this node can reach it";
            failed(format!("rank 0 at {at}: {why}"), hint)
        }
        NoLine::Stranger(why) => {
            let hint = "give all ranks the same REGATTA_SECRET_FILE, and each job its port";
            failed(format!("rank 0 at {at}: {why}"), hint)
        }
    }
}

fn failed(what: String, hint: &str) -> CommError {
    CommError::Join { what, hint: hint.to_owned() }
}

fn system(what: &str, why: &std::io::Error) -> CommError {
    CommError::System { what: what.to_owned(), why: why.to_string() }
}
