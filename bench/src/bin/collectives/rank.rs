//! A rank of ours.

use std::time::Instant;

use anyhow::{Context, Result};
use regatta_comm::bootstrap::BootstrapConfig;
use regatta_comm::{Collectives, Comm, ReduceOp, hierarchical};

use crate::{COPY, IN_BUFFERS};

/// Runs the requested collectives and sizes, with the arguments and output of `peers/collectives.c`.
pub fn run() -> Result<()> {
    let comm = hierarchical::join(BootstrapConfig::from_env()?)?;
    let names = std::env::args().nth(1).context("no collectives")?;
    let numbers: Vec<u64> = std::env::args().skip(2).filter_map(|a| a.parse().ok()).collect();
    for name in names.split(',') {
        for size in numbers.chunks_exact(4) {
            time_size(&comm, name, [size[0], size[1], size[2]], size[3] as usize / 4)?;
        }
    }
    Ok(())
}

/// Times a collective with one size: the first call, and the rounds after the warm-ups.
fn time_size(
    comm: &dyn Comm,
    name: &str,
    [warm_ups, rounds, calls]: [u64; 3],
    count: usize,
) -> Result<()> {
    let ranks = comm.size() as usize;
    let (part, all) = (count / ranks, count / ranks * ranks);
    let (mut data, mut out) = (vec![1.0f32; count], vec![0.0f32; count]);
    // Zeroed memory has no pages yet.
    out.fill(2.0);
    let mut shared = comm.buffer(if name == IN_BUFFERS { count * 4 } else { 0 });
    let at_root = if comm.rank() == 0 { all } else { 0 };
    let whole_at_root = if comm.rank() == 0 { count } else { 0 };
    let mut once = || match name {
        "all-reduce" => comm.all_reduce_into(&data, &mut out, ReduceOp::Sum),
        "all-gather" => comm.all_gather(&data[..part], &mut out[..all]),
        "reduce-scatter" => comm.reduce_scatter(&data[..all], &mut out[..part], ReduceOp::Sum),
        "broadcast" => comm.broadcast(&mut data, 0),
        "reduce" => comm.reduce_into(&data, &mut out[..whole_at_root], ReduceOp::Sum, 0),
        "gather" => comm.gather(&data[..part], &mut out[..at_root], 0),
        "scatter" => comm.scatter(&data[..at_root], &mut out[..part], 0),
        "all-to-all" => comm.all_to_all(&data[..all], &mut out[..all]),
        IN_BUFFERS => comm.all_reduce(shared.as_mut_slice::<f32>(), ReduceOp::Max),
        COPY => {
            out.copy_from_slice(std::hint::black_box(&data));
            Ok(())
        }
        _ => comm.barrier(),
    };
    timed(comm, &format!("{name}:first {}", count * 4), 1, &mut once)?;
    (1..warm_ups).try_for_each(|_| once())?;
    let label = format!("{name} {}", count * 4);
    (0..rounds).try_for_each(|_| timed(comm, &label, calls, &mut once))
}

/// Times some calls; rank 0 prints the seconds of a call, maximum over the ranks.
fn timed(
    comm: &dyn Comm,
    label: &str,
    calls: u64,
    once: &mut dyn FnMut() -> regatta_comm::Result,
) -> Result<()> {
    comm.barrier()?;
    let start = Instant::now();
    (0..calls).try_for_each(|_| once())?;
    let mut slowest = [start.elapsed().as_secs_f64() / calls as f64];
    comm.all_reduce(&mut slowest, ReduceOp::Max)?;
    if comm.rank() == 0 {
        println!("{label} {:.9}", slowest[0]);
    }
    Ok(())
}
