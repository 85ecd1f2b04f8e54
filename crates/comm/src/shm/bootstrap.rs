//! Distributes the shared memory. Rank 0 creates it and listens on an abstract socket; it passes
//! the file descriptor to ranks of the same job and user.

mod socket;

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use regatta_model::CpuSet;
use regatta_wire::clock;

use super::arena::{self, Arena};
use super::l3;
use super::layout::{CPU_WORDS, RegionLayout};
use super::region::{Activity, Region};
use super::segment::Segment;
use super::split::{FIRST_PAGE, allocate};
use super::wait::{CallCtx, ShmState};
use super::wait_table::{WaitRecord, WaitTable};
use super::{ShmConfig, ShmEngine};
use crate::error::Peer;
use crate::{CallKind, CommError, DType, ReduceOp, Result, Signature};
use socket::{JoinRequest, receive_segment, serve_segment};

/// Minimum slot size.
const MIN_CHUNK_BYTES: usize = 16 << 10;

/// Everything a rank needs to join a communicator.
#[derive(Clone)]
pub struct JoinContext {
    pub segment: Arc<Segment>,
    pub start: u64,
    pub layout: RegionLayout,
    pub rank: usize,
    pub peers: Vec<Peer>,
    pub root_ranks: Vec<u32>,
    /// The table of the root communicator; `None` for the root itself.
    pub wait_table: Option<Arc<WaitTable>>,
    pub arena: Option<Arc<Arena>>,
    pub config: ShmConfig,
}

/// Joins the ranks of this node: `peers` are all of them, this one is `rank`. The `name` must be
/// equal on all ranks and unique to the communicator, for example a job id and a digest of its
/// secret.
///
/// Either each rank is a process, or all are threads of one process.
pub fn join(name: &str, rank: u32, peers: Vec<Peer>, config: ShmConfig) -> Result<ShmEngine> {
    join_unless_cancelled(name, rank, peers, config, &|| None)
}

/// [`join`], until `cancelled` returns an error.
pub fn join_unless_cancelled(
    name: &str,
    rank: u32,
    peers: Vec<Peer>,
    config: ShmConfig,
    cancelled: &dyn Fn() -> Option<CommError>,
) -> Result<ShmEngine> {
    let config = normalized(config);
    // Errors identify ranks by their index.
    let indexed = peers.into_iter().zip(0..).map(|(peer, rank)| Peer { rank, ..peer });
    let peers: Vec<Peer> = indexed.collect();
    if rank as usize >= peers.len() {
        let what = format!("rank {rank} is out of range: {} ranks on this node", peers.len());
        return Err(CommError::bootstrap(what, "ranks of a node are indexed from 0"));
    }
    let deadline = clock::now() + config.join_timeout;
    let layout = RegionLayout { ranks: peers.len(), chunk_bytes: config.chunk_bytes };
    let request =
        JoinRequest { rank, ranks: peers.len() as u32, shared_settings: shared_settings(&config) };
    let segment = Arc::new(match rank {
        0 => create_segment(layout)?,
        _ => Segment { file: receive_segment(name, request, deadline, cancelled)? },
    });
    segment.lock_liveness(rank)?;
    let context = root_context(segment, layout, rank as usize, peers, config);
    if rank == 0 {
        // Rank 0 has joined, even if others have not.
        map_region(context.clone(), Vec::new())?.mark_joined();
        serve_segment(name, &context.segment, request, &context.peers, deadline, cancelled)?;
    }
    let rest = deadline.saturating_duration_since(clock::now());
    // Ranks hold no liveness lock before they join: only the timeout applies.
    let skip_liveness = vec![true; context.peers.len()];
    let engine = attach(context, skip_liveness, rest, false, cancelled);
    engine.map_err(|error| match error {
        CommError::Timeout { missing, .. } => join_timeout(missing.iter()),
        other => other,
    })
}

fn join_timeout<'a>(missing: impl Iterator<Item = &'a Peer>) -> CommError {
    let missing: Vec<String> = missing.map(ToString::to_string).collect();
    let what = format!("timed out waiting for {} to join", missing.join(", "));
    CommError::bootstrap(what, "check why they exited, or increase the timeout")
}

/// Engines for ranks that are threads of this process.
pub fn join_threads(ranks: u32, config: ShmConfig) -> Result<Vec<ShmEngine>> {
    let config = normalized(config);
    let layout = RegionLayout { ranks: ranks as usize, chunk_bytes: config.chunk_bytes };
    let segment = Arc::new(create_segment(layout)?);
    let host = || "this node".to_owned();
    let peers: Vec<Peer> = (0..ranks).map(|rank| Peer::new(rank, host())).collect();
    let region = |rank: usize| -> Result<ShmState> {
        let context = root_context(segment.clone(), layout, rank, peers.clone(), config);
        let shared = map_region(context, vec![true; ranks as usize])?;
        shared.mark_joined();
        Ok(shared)
    };
    let all: Result<Vec<ShmState>> = (0..ranks as usize).map(region).collect();
    Ok(all?.into_iter().map(|shared| ShmEngine::new(complete_bootstrap(shared), None)).collect())
}

fn normalized(config: ShmConfig) -> ShmConfig {
    let chunk_bytes = config.chunk_bytes.max(MIN_CHUNK_BYTES).next_multiple_of(FIRST_PAGE);
    ShmConfig { chunk_bytes, ..config }
}

/// The settings that must be equal on all ranks.
fn shared_settings(config: &ShmConfig) -> u64 {
    (config.chunk_bytes as u64) << 1 | u64::from(config.debug)
}

fn create_segment(layout: RegionLayout) -> Result<Segment> {
    let segment = Segment::create()?;
    segment.grow(FIRST_PAGE as u64)?;
    allocate(&segment, layout.bytes().next_multiple_of(FIRST_PAGE) as u64)?;
    if arena::bytes(layout.ranks) > 0 {
        allocate(&segment, arena::bytes(layout.ranks) as u64)?;
    }
    Ok(segment)
}

/// Start of the arena in the file.
fn arena_start(layout: RegionLayout) -> u64 {
    (FIRST_PAGE + layout.bytes().next_multiple_of(FIRST_PAGE)) as u64
}

fn root_context(
    segment: Arc<Segment>,
    layout: RegionLayout,
    rank: usize,
    peers: Vec<Peer>,
    config: ShmConfig,
) -> JoinContext {
    let root_ranks = (0..peers.len() as u32).collect();
    let arena = Arena::open(segment.clone(), arena_start(layout), layout.ranks, rank);
    let (start, wait_table) = (FIRST_PAGE as u64, None);
    JoinContext { segment, start, layout, rank, peers, root_ranks, wait_table, arena, config }
}

fn map_region(context: JoinContext, same_process: Vec<bool>) -> Result<ShmState> {
    let wait_table = context.wait_table.clone().map_or_else(|| wait_table(&context), Ok)?;
    let JoinContext { segment, start, layout, rank, peers, root_ranks, arena, config, .. } =
        context;
    let map = segment.map(start, layout.bytes())?;
    let region = Region::new(map, layout, rank);
    let wait_record = WaitRecord::new(wait_table, root_ranks.clone());
    Ok(ShmState {
        region,
        segment,
        peers,
        arena,
        root_ranks,
        same_process,
        oversubscribed: true,
        wait_record,
        config,
    })
}

/// The wait table of a root communicator.
fn wait_table(context: &JoinContext) -> Result<Arc<WaitTable>> {
    let map = context.segment.map(context.start, context.layout.rank_blocks_end())?;
    let (region, peers) = (Region::new(map, context.layout, context.rank), context.peers.clone());
    Ok(Arc::new(WaitTable { region, peers, registered: AtomicUsize::new(0) }))
}

/// Joins a communicator and waits for all ranks. `skip_liveness`: ranks whose liveness is not
/// checked. `own`: whether to free the memory when all ranks have closed it.
pub fn attach(
    context: JoinContext,
    skip_liveness: Vec<bool>,
    within: Duration,
    own: bool,
    cancelled: &dyn Fn() -> Option<CommError>,
) -> Result<ShmEngine> {
    let owned_range = own.then_some((context.start, context.layout.bytes() as u64));
    let config = context.config;
    let mut shared = map_region(context, skip_liveness)?;
    shared.config.desync_after = within;
    shared.mark_joined();
    let (kind, dtype, op) = (CallKind::Barrier, DType::U8, ReduceOp::Sum);
    let signature = Signature { kind, dtype, op, root: 0, count: 0, shape: 0 };
    let ctx = CallCtx { activity: Activity::P2p(0), sequence: 0, signature, digest: 0 };
    for other in 0..shared.peers.len() {
        let has_joined = || shared.region.process_id(other).is_some();
        shared
            .wait(other, &ctx, || has_joined() || cancelled().is_some())
            .map_err(|e| with_missing_ranks(e, &shared))?;
        if let Some(error) = cancelled().filter(|_| !has_joined()) {
            return Err(error);
        }
    }
    shared.config = config;
    Ok(ShmEngine::new(complete_bootstrap(shared), owned_range))
}

impl ShmState {
    /// Publishes that this rank has joined.
    fn mark_joined(&self) {
        self.region.prefault(self.region.rank);
        let cpus = affinity();
        let l3 = cpus.as_ref().map_or(l3::UNKNOWN, l3::id);
        let mask = cpus.map_or([u64::MAX; CPU_WORDS], |cpus| affinity_mask(&cpus));
        self.region.mark_joined(process_token(), mask, l3, self.arena.is_some());
    }
}

/// Names all ranks that have not joined in a timeout.
fn with_missing_ranks(error: CommError, shared: &ShmState) -> CommError {
    let away = |peer: &&Peer| shared.region.process_id(peer.rank as usize).is_none();
    let away: Vec<Peer> = shared.peers.iter().filter(away).cloned().collect();
    match error {
        CommError::Timeout { call, seconds, missing } => {
            let missing = if away.is_empty() { missing } else { away };
            CommError::Timeout { call, seconds, missing }
        }
        other => other,
    }
}

/// Evaluates what the ranks published, once all have joined.
fn complete_bootstrap(mut shared: ShmState) -> ShmState {
    let own = process_token();
    let of = |rank: usize| shared.region.process_id(rank) == Some(own);
    shared.same_process = (0..shared.peers.len()).map(of).collect();
    shared.region.asymmetric_fence = shared.region.all_support_membarrier();
    shared.arena = shared.arena.filter(|_| shared.region.all_map_arena());
    (0..shared.peers.len()).for_each(|rank| shared.region.prefault(rank));
    shared.oversubscribed = shared.region.usable_cpus() < shared.peers.len() as u32;
    shared
}

/// A token that is unique among the node's processes, across PID namespaces.
fn process_token() -> u64 {
    static TOKEN: OnceLock<u64> = OnceLock::new();
    *TOKEN.get_or_init(|| {
        use std::hash::{BuildHasher, RandomState};
        // `RandomState` has random keys per process.
        RandomState::new().hash_one(std::process::id()) | 1
    })
}

/// CPUs this rank may run on, if they are known.
fn affinity() -> Option<CpuSet> {
    let set = rustix::thread::sched_getaffinity(None).ok()?;
    Some((0..CPU_WORDS * 64).filter(|cpu| set.is_set(*cpu)).collect())
}

fn affinity_mask(cpus: &CpuSet) -> [u64; CPU_WORDS] {
    let mut mask = [0; CPU_WORDS];
    cpus.iter().for_each(|cpu| mask[cpu / 64] |= 1 << (cpu % 64));
    mask
}
