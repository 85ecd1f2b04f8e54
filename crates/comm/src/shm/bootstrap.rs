//! Distributes the shared memory. Rank 0 creates it and listens on an abstract socket; it passes
//! the file descriptor to ranks of the same job and user.

mod socket;

use std::sync::Arc;
use std::time::{Duration, Instant};

use regatta_model::CpuSet;
use regatta_wire::clock;

use super::ShmEngine;
use super::arena::{self, Arena};
use super::cross_memory::{CrossMemory, Probe};
use super::l3;
use super::layout::{CPU_WORDS, PAGE_BYTES, POST_RING, POST_RING_OVERSUBSCRIBED, RegionLayout};
use super::region::Region;
use super::segment::Segment;
use super::wait::{SLEEP_MAX, ShmState};
use crate::bootstrap::BootstrapConfig;
use crate::control::CommMonitor;
use crate::error::Peer;
use crate::{CommError, Result};
use socket::{JoinRequest, receive_segment, serve_segment};

/// Minimum slot size.
const MIN_CHUNK_BYTES: usize = 16 << 10;

/// Joins the ranks of this node: `members` are the global ranks of all of them, this one is `rank` of
/// them. The `name` must be equal on all ranks and unique to the communicator.
pub fn join(
    name: &str,
    rank: u32,
    members: Vec<u32>,
    monitor: &Arc<CommMonitor>,
    config: Arc<BootstrapConfig>,
    chunk_bytes: usize,
) -> Result<ShmEngine> {
    let chunk_bytes = chunk_bytes.max(MIN_CHUNK_BYTES).next_multiple_of(PAGE_BYTES);
    let deadline = clock::now() + config.join_timeout;
    let layout = RegionLayout { ranks: members.len(), chunk_bytes, post_ring: POST_RING };
    let ranks = members.len() as u32;
    let shared_settings = (chunk_bytes as u64) << 1 | u64::from(config.debug);
    let request = JoinRequest { rank, ranks, shared_settings };
    let peers: Vec<Peer> = members.iter().map(|global| monitor.peer(*global)).collect();
    let waiting = || "the bootstrap of shared memory".to_owned();
    let cancelled = || monitor.announced_error(&waiting, &|_, _| false);
    let segment = Arc::new(match rank {
        0 => create_segment(layout)?,
        _ => Segment { file: receive_segment(name, request, deadline, &cancelled)? },
    });
    let arena = Arena::open(segment.clone(), arena_start(layout), layout.ranks, rank as usize);
    let mut region = Region::new(segment.map(0, layout.bytes())?, layout, rank as usize);
    let probe = Probe::new();
    mark_joined(&region, &probe, arena.is_some());
    if rank == 0 {
        serve_segment(name, &segment, request, &peers, deadline, &cancelled)?;
    }
    let await_all =
        |done: &dyn Fn(usize) -> bool| await_ranks(&region, &peers, done, deadline, &cancelled);
    await_all(&|rank| region.process(rank) != 0)?;
    let reaches_all = || (0..peers.len()).all(|rank| region.probe(rank).is_reachable());
    region.publish_probed(match config.cross_memory {
        Some(false) => CrossMemory::Never,
        _ if !reaches_all() => CrossMemory::Never,
        Some(true) => CrossMemory::Always,
        None => CrossMemory::IfFaster,
    });
    (0..peers.len()).for_each(|rank| region.prefault(rank));
    // The others read the probe until then.
    await_all(&|rank| region.has_probed(rank))?;
    drop(probe);
    // All ranks must agree on the ring: they derive it from what all have published.
    let oversubscribed = region.usable_cpus() < ranks;
    if oversubscribed {
        region.layout.post_ring = POST_RING_OVERSUBSCRIBED;
        region.prefault_posts();
    }
    let arena = arena.filter(|_| region.all_map_arena());
    // With more ranks than CPUs they sleep often, and the barrier interrupts all CPUs.
    region.asymmetric_fence = !oversubscribed && region.all_support_membarrier();
    let monitor = monitor.clone();
    let state = ShmState { region, peers, members, arena, oversubscribed, monitor, config };
    Ok(ShmEngine::new(state))
}

/// Waits until all ranks have done something.
fn await_ranks(
    region: &Region,
    peers: &[Peer],
    done: &dyn Fn(usize) -> bool,
    deadline: Instant,
    cancelled: &dyn Fn() -> Option<CommError>,
) -> Result {
    loop {
        let missing: Vec<usize> = (0..peers.len()).filter(|rank| !done(*rank)).collect();
        let Some(first) = missing.first().copied() else { return Ok(()) };
        let rest = time_left(missing.into_iter().map(|rank| &peers[rank]), deadline, cancelled)?;
        region.wait_doorbell(first, rest.min(SLEEP_MAX), || done(first));
    }
}

/// The time in which the missing ranks may still join.
fn time_left<'a>(
    missing: impl Iterator<Item = &'a Peer>,
    deadline: Instant,
    cancelled: &dyn Fn() -> Option<CommError>,
) -> Result<Duration> {
    let rest = deadline.saturating_duration_since(clock::now());
    match cancelled() {
        Some(error) => Err(error),
        None if rest.is_zero() => {
            let missing: Vec<String> = missing.map(ToString::to_string).collect();
            let what = format!("timed out waiting for {} to join", missing.join(", "));
            Err(CommError::bootstrap(what, "check why they exited, or increase the timeout"))
        }
        None => Ok(rest),
    }
}

fn create_segment(layout: RegionLayout) -> Result<Segment> {
    let segment = Segment::create()?;
    segment.grow(arena_start(layout) + arena::bytes(layout.ranks) as u64)?;
    Ok(segment)
}

/// Start of the arena in the file.
fn arena_start(layout: RegionLayout) -> u64 {
    layout.bytes().next_multiple_of(PAGE_BYTES) as u64
}

/// Publishes that this rank has joined.
fn mark_joined(region: &Region, probe: &Probe, maps_arena: bool) {
    region.prefault(region.rank);
    let cpus = affinity();
    let l3 = cpus.as_ref().map_or(l3::UNKNOWN, l3::id);
    let mask = cpus.map_or([u64::MAX; CPU_WORDS], |cpus| affinity_mask(&cpus));
    region.mark_joined(probe.location(), mask, l3, maps_arena);
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
