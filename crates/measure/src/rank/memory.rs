//! The sizes that fit in memory.

use regatta_comm::nccl::Gpu;
use regatta_comm::{Collectives, Comm, ReduceOp};
use regatta_model::units;

use super::connect::{self, Connection};
use super::{BenchError, NodeContext, Result};

/// Buffers per rank and size, including those of the communicator.
const BUFFERS: u64 = 3;

/// Drops sizes that exceed the memory of any rank, and returns a note if there are any.
pub fn drop_too_large(
    connection: &Connection,
    sizes: &mut Vec<u64>,
    node: &NodeContext<'_>,
) -> Result<Option<String>> {
    let mut max = [i64::try_from(max_size(connection, node)?).unwrap_or(i64::MAX)];
    connection.comm.all_reduce(&mut max, ReduceOp::Min)?;
    let max = max[0].unsigned_abs();
    let before = sizes.len();
    sizes.retain(|size| *size <= max);
    let available = units::format_bytes(max);
    if sizes.is_empty() {
        return Err(BenchError::NoMemory(available));
    }
    let skipped = units::pluralize(before - sizes.len(), "size");
    let note = || format!("{skipped} skipped: only {available} of memory available per rank");
    Ok((sizes.len() < before).then(note))
}

/// The largest size that fits in this rank's share of the node's free memory. Device buffers are
/// filled and checked through host memory.
fn max_size(connection: &Connection, node: &NodeContext<'_>) -> Result<u64> {
    let comm = &connection.comm;
    let own = comm.peer(comm.rank()).host;
    let local: Vec<u32> = (0..comm.size()).filter(|rank| comm.peer(*rank).host == own).collect();
    let each = |free: u64, ranks: usize| free / ranks.max(1) as u64 / BUFFERS;
    let host = (node.available_memory)().map_or(u64::MAX, |free| each(free, local.len()));
    let buses = connect::buses(comm, connection.device)?;
    let Some((vendor, device)) = connection.device else { return Ok(host) };
    let bus = |rank: &u32| &buses[*rank as usize];
    let sharing = local.iter().filter(|rank| bus(rank) == bus(&comm.rank())).count();
    let free = Gpu::open(vendor, device)?.free_bytes()?;
    Ok(each(free, sharing).min(host))
}
