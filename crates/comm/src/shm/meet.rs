//! How ranks come by the same memory. Rank 0 makes it, listens on a socket whose name is in no
//! folder, and hands the memory to whoever comes from the same user and is of the same job.

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::arena::{self, Arena};
use super::board::{Board, Doing};
use super::home::{Home, Waiting};
use super::layout::{CPU_WORDS, Layout};
use super::segment::Segment;
use super::split::{FIRST_PAGE, allocate};
use super::wait::{Now, Shared};
use super::{Settings, ShmEngine};
use crate::error::Peer;
use crate::{CommError, DType, Kind, ReduceOp, Signature};

/// The least that slots are made for.
const CHUNK_MIN: usize = 16 << 10;
/// How long is waited before it is tried again.
const PAUSE: Duration = Duration::from_millis(2);

/// A rank's place in a communicator.
#[derive(Clone)]
pub struct Seat {
    pub segment: Arc<Segment>,
    pub start: u64,
    pub layout: Layout,
    pub rank: usize,
    pub peers: Vec<Peer>,
    pub lives: Vec<u32>,
    /// What it is split off, if it is.
    pub home: Option<Arc<Home>>,
    pub arena: Option<Arc<Arena>>,
    pub settings: Settings,
}

/// Joins the ranks of this node: `peers` are all of them, this one is `rank`. The `name` must be the
/// same for all, and of no other communicator: a job's number and a digest of its secret, say.
///
/// Either each rank is a process of its own, or all are threads of one.
pub fn join(
    name: &str,
    rank: u32,
    peers: Vec<Peer>,
    settings: Settings,
) -> Result<ShmEngine, CommError> {
    join_unless(name, rank, peers, settings, &|| None)
}

/// The same, unless there is no use in it any more.
pub fn join_unless(
    name: &str,
    rank: u32,
    peers: Vec<Peer>,
    settings: Settings,
    over: &dyn Fn() -> Option<CommError>,
) -> Result<ShmEngine, CommError> {
    let settings = sane(settings);
    // What is told of a rank is told by its place.
    let numbered = peers.into_iter().zip(0..).map(|(peer, rank)| Peer { rank, ..peer });
    let peers: Vec<Peer> = numbered.collect();
    if rank as usize >= peers.len() {
        let what = format!("rank {rank} of {}", peers.len());
        return Err(join_error(what, "give every rank of the node a number below their count"));
    }
    let limit = Instant::now() + settings.join_within;
    let layout = Layout { ranks: peers.len(), chunk_bytes: settings.chunk_bytes };
    let hello = Hello { rank, ranks: peers.len() as u32, settings: alike(&settings) };
    let segment = Arc::new(match rank {
        0 => furnished(layout)?,
        _ => Segment::received(fetch(name, hello, limit, over)?),
    });
    segment.show_life(rank)?;
    let seat = seat(segment, layout, rank as usize, peers, settings);
    if rank == 0 {
        // It is here, whoever is not: nobody should wait for it.
        mapped(seat.clone(), Vec::new())?.arrive();
        hand_out(name, &seat.segment, hello, &seat.peers, limit, over)?;
    }
    let rest = limit.saturating_duration_since(Instant::now());
    // Before they are here they show no life: only the time tells.
    let unchecked = vec![true; seat.peers.len()];
    let engine = take_seat(seat, unchecked, rest, false, over);
    engine.map_err(|error| match error {
        CommError::Late { missing, .. } => {
            let missing: Vec<String> = missing.iter().map(ToString::to_string).collect();
            let what = format!("{} did not come", missing.join(", "));
            join_error(what, "see why they ended, or allow more time")
        }
        other => other,
    })
}

/// Ranks that are threads of this process.
pub fn threads(ranks: u32, settings: Settings) -> Result<Vec<ShmEngine>, CommError> {
    let settings = sane(settings);
    let layout = Layout { ranks: ranks as usize, chunk_bytes: settings.chunk_bytes };
    let segment = Arc::new(furnished(layout)?);
    let host = || "this node".to_owned();
    let peers: Vec<Peer> = (0..ranks).map(|rank| Peer { rank, host: host() }).collect();
    let board = |rank: usize| -> Result<Shared, CommError> {
        let seat = seat(segment.clone(), layout, rank, peers.clone(), settings);
        let shared = mapped(seat, vec![true; ranks as usize])?;
        shared.arrive();
        Ok(shared)
    };
    let all: Result<Vec<Shared>, CommError> = (0..ranks as usize).map(board).collect();
    Ok(all?.into_iter().map(|shared| ShmEngine::new(settled(shared), None)).collect())
}

fn sane(settings: Settings) -> Settings {
    let chunk_bytes = settings.chunk_bytes.max(CHUNK_MIN).next_multiple_of(FIRST_PAGE);
    Settings { chunk_bytes, ..settings }
}

/// What all ranks must have set alike.
fn alike(settings: &Settings) -> u64 {
    (settings.chunk_bytes as u64) << 1 | u64::from(settings.debug)
}

fn furnished(layout: Layout) -> Result<Segment, CommError> {
    let segment = Segment::create()?;
    segment.grow(FIRST_PAGE as u64)?;
    allocate(&segment, layout.bytes().next_multiple_of(FIRST_PAGE) as u64)?;
    if arena::bytes(layout.ranks) > 0 {
        allocate(&segment, arena::bytes(layout.ranks) as u64)?;
    }
    Ok(segment)
}

/// Where the arena begins.
fn after(layout: Layout) -> u64 {
    (FIRST_PAGE + layout.bytes().next_multiple_of(FIRST_PAGE)) as u64
}

fn seat(
    segment: Arc<Segment>,
    layout: Layout,
    rank: usize,
    peers: Vec<Peer>,
    settings: Settings,
) -> Seat {
    let lives = (0..peers.len() as u32).collect();
    let arena = Arena::open(&segment, after(layout), layout.ranks, rank);
    let (start, home) = (FIRST_PAGE as u64, None);
    Seat { segment, start, layout, rank, peers, lives, home, arena, settings }
}

fn mapped(seat: Seat, here: Vec<bool>) -> Result<Shared, CommError> {
    let home = seat.home.clone().map_or_else(|| home(&seat), Ok)?;
    let Seat { segment, start, layout, rank, peers, lives, arena, settings, .. } = seat;
    let map = segment.map(start, layout.bytes())?;
    let board = Board::new(map, layout, rank);
    let waiting = Waiting::new(home, lives.clone());
    Ok(Shared { board, segment, peers, arena, lives, here, crowded: true, waiting, settings })
}

/// Of a communicator that is the first.
fn home(seat: &Seat) -> Result<Arc<Home>, CommError> {
    let map = seat.segment.map(seat.start, seat.layout.bytes_of_ranks())?;
    let (board, peers) = (Board::new(map, seat.layout, seat.rank), seat.peers.clone());
    Ok(Arc::new(Home { board, peers, had: AtomicUsize::new(0) }))
}

/// Takes a seat, and waits until all have. `unchecked`: those of whom it is not asked whether they
/// live. `own`: whether the memory is to be freed when all have closed.
pub fn take_seat(
    seat: Seat,
    unchecked: Vec<bool>,
    within: Duration,
    own: bool,
    over: &dyn Fn() -> Option<CommError>,
) -> Result<ShmEngine, CommError> {
    let region = own.then_some((seat.start, seat.layout.bytes() as u64));
    let settings = seat.settings;
    let mut shared = mapped(seat, unchecked)?;
    shared.settings.desync_after = within;
    shared.arrive();
    let (kind, dtype, op) = (Kind::Barrier, DType::U8, ReduceOp::Sum);
    let signature = Signature { kind, dtype, op, root: 0, count: 0, shape: 0 };
    let now = Now { doing: Doing::Message(0), signature, digest: 0 };
    for other in 0..shared.peers.len() {
        let here = || shared.board.process(other).is_some();
        shared.wait(other, &now, || here() || over().is_some()).map_err(|e| absent(e, &shared))?;
        if let Some(error) = over().filter(|_| !here()) {
            return Err(error);
        }
    }
    shared.settings = settings;
    Ok(ShmEngine::new(settled(shared), region))
}

impl Shared {
    /// Says that this rank is here.
    fn arrive(&self) {
        self.board.arrive(process(), cpus(), self.arena.is_some());
    }
}

/// If it is said who does not come, all are named who are not here.
fn absent(error: CommError, shared: &Shared) -> CommError {
    let away = |peer: &&Peer| shared.board.process(peer.rank as usize).is_none();
    let away: Vec<Peer> = shared.peers.iter().filter(away).cloned().collect();
    match error {
        CommError::Late { call, seconds, missing } => {
            let missing = if away.is_empty() { missing } else { away };
            CommError::Late { call, seconds, missing }
        }
        other => other,
    }
}

/// All are here: what is to be known of them is known.
fn settled(mut shared: Shared) -> Shared {
    let own = process();
    let of = |rank: usize| shared.board.process(rank) == Some(own);
    shared.here = (0..shared.peers.len()).map(of).collect();
    shared.board.light = shared.board.all_can_be_light();
    shared.arena = shared.arena.filter(|_| shared.board.all_reach());
    shared.crowded = shared.board.cpus() < shared.peers.len() as u32;
    shared
}

/// A number for this process that no other of the node has, whatever name space it is in.
fn process() -> u64 {
    static NUMBER: OnceLock<u64> = OnceLock::new();
    *NUMBER.get_or_init(|| {
        use std::hash::{BuildHasher, RandomState};
        // The standard library's hash maps have random keys of each process.
        RandomState::new().hash_one(std::process::id()) | 1
    })
}

/// On which CPUs this rank may be; if the system does not say, on all.
fn cpus() -> [u64; CPU_WORDS] {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else { return [u64::MAX; CPU_WORDS] };
    let bit = |word: usize, bit: usize| u64::from(set.is_set(word * 64 + bit)) << bit;
    std::array::from_fn(|word| (0..64).map(|b| bit(word, b)).fold(0, |all, one| all | one))
}

/// What a rank says when it comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Hello {
    rank: u32,
    ranks: u32,
    settings: u64,
}

impl Hello {
    const BYTES: usize = 16;

    fn bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.rank.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.ranks.to_le_bytes());
        bytes[8..].copy_from_slice(&self.settings.to_le_bytes());
        bytes
    }
}

fn join_error(what: impl Into<String>, hint: &str) -> CommError {
    CommError::Join { what: what.into(), hint: hint.to_owned() }
}

fn socket_error(error: impl std::fmt::Display) -> CommError {
    join_error(format!("the socket of the node: {error}"), "see that it is one node and one user")
}

fn address(name: &str) -> Result<SocketAddr, CommError> {
    SocketAddr::from_abstract_name(format!("regatta-comm/{name}")).map_err(socket_error)
}

/// Whether the other end is of the same user.
fn is_of_this_user(stream: &UnixStream) -> bool {
    let other = rustix::net::sockopt::socket_peercred(stream);
    other.is_ok_and(|other| other.uid == rustix::process::geteuid())
}

/// Rank 0: gives the memory to all others.
fn hand_out(
    name: &str,
    segment: &Segment,
    own: Hello,
    peers: &[Peer],
    limit: Instant,
    over: &dyn Fn() -> Option<CommError>,
) -> Result<(), CommError> {
    let mut missing: Vec<u32> = (1..own.ranks).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let listener = UnixListener::bind_addr(&address(name)?).map_err(socket_error)?;
    listener.set_nonblocking(true).map_err(socket_error)?;
    while !missing.is_empty() {
        let rest = limit.saturating_duration_since(Instant::now());
        if rest.is_zero() {
            let names: Vec<String> =
                missing.iter().map(|r| peers[*r as usize].to_string()).collect();
            let what = format!("{} did not come", names.join(", "));
            return Err(join_error(what, "see why they ended, or allow more time"));
        }
        if let Some(error) = over() {
            return Err(error);
        }
        let Ok((stream, _)) = listener.accept() else {
            std::thread::sleep(PAUSE.min(rest));
            continue;
        };
        // Whoever is not of this job is left alone; he may not keep the others from coming.
        if let Some(rank) = serve(&stream, segment, own, &missing) {
            missing.retain(|r| *r != rank);
        }
    }
    Ok(())
}

/// Gives the memory to one that came, if it is one of ours.
fn serve(mut stream: &UnixStream, segment: &Segment, own: Hello, missing: &[u32]) -> Option<u32> {
    if !is_of_this_user(stream) {
        return None;
    }
    let mut said = [0; Hello::BYTES];
    stream.set_nonblocking(false).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
    stream.read_exact(&mut said).ok()?;
    let rank = *missing.iter().find(|rank| Hello { rank: **rank, ..own }.bytes() == said)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    let files = [segment.file().as_fd()];
    rights.push(SendAncillaryMessage::ScmRights(&files));
    sendmsg(stream, &[IoSlice::new(&[1])], &mut rights, SendFlags::NOSIGNAL).ok()?;
    Some(rank)
}

/// The others: fetch the memory from rank 0, as soon as it is there.
fn fetch(
    name: &str,
    hello: Hello,
    limit: Instant,
    over: &dyn Fn() -> Option<CommError>,
) -> Result<OwnedFd, CommError> {
    let address = address(name)?;
    let mut why = "nobody is there".to_owned();
    while Instant::now() < limit {
        match UnixStream::connect_addr(&address) {
            Ok(stream) if !is_of_this_user(&stream) => {
                return Err(socket_error("another user has its name"));
            }
            Ok(stream) => match take(stream, hello, limit) {
                Ok(file) => return Ok(file),
                Err(error) => why = error,
            },
            Err(error) => why = error.to_string(),
        }
        if let Some(error) = over() {
            return Err(error);
        }
        std::thread::sleep(PAUSE);
    }
    Err(join_error(
        format!("rank 0 gave no memory ({why})"),
        "see whether rank 0 of this node runs",
    ))
}

fn take(mut stream: UnixStream, hello: Hello, limit: Instant) -> Result<OwnedFd, String> {
    let text = |error: std::io::Error| error.to_string();
    let rest = limit.saturating_duration_since(Instant::now()).max(PAUSE);
    stream.set_read_timeout(Some(rest)).map_err(text)?;
    stream.write_all(&hello.bytes()).map_err(text)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut rights = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let receive = || recvmsg(&stream, &mut [IoSliceMut::new(&mut byte)], &mut rights, flags);
    rustix::io::retry_on_intr(receive).map_err(|error| error.to_string())?;
    let file = rights.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    file.ok_or_else(|| "rank 0 refused: another rank of this number, or another setting".to_owned())
}
