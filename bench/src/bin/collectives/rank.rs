//! A rank of ours.

use std::time::Instant;

use anyhow::Result;
use regatta_comm::bootstrap::BootstrapConfig;
use regatta_comm::{Collectives, Comm, ReduceOp, hierarchical};

use crate::{NAMES, ROUNDS};

/// Runs the requested sizes; rank 0 prints a line "operation bytes seconds" per round.
pub fn run() -> Result<()> {
    let comm = hierarchical::join(BootstrapConfig::from_env()?)?;
    let pairs: Vec<u64> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    for name in NAMES {
        for pair in pairs.chunks_exact(2) {
            let rounds = timed(&comm, name, pair[0], pair[1] as usize / 4)?;
            if comm.rank() == 0 {
                rounds.iter().for_each(|seconds| println!("{name} {} {seconds:.9}", pair[1]));
            }
        }
    }
    Ok(())
}

/// Seconds of each round, maximum over the ranks.
fn timed(comm: &dyn Comm, name: &str, repeats: u64, count: usize) -> Result<Vec<f64>> {
    let part = count / comm.size() as usize;
    let (mut data, mut out) = (vec![1.0f32; count], vec![0.0f32; count]);
    let mut shared = comm.buffer(if name == NAMES[4] { count * 4 } else { 0 });
    let mut once = || match name {
        "all-reduce" => comm.all_reduce_into(&data, &mut out, ReduceOp::Sum),
        "all-gather" => comm.all_gather(&data[..part], &mut out[..part * comm.size() as usize]),
        "reduce-scatter" => {
            let all = &data[..part * comm.size() as usize];
            comm.reduce_scatter(all, &mut out[..part], ReduceOp::Sum)
        }
        "broadcast" => comm.broadcast(&mut data, 0),
        _ => comm.all_reduce(shared.as_mut_slice::<f32>(), ReduceOp::Max),
    };
    (0..2).try_for_each(|_| once())?;
    let mut rounds = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        comm.barrier()?;
        let start = Instant::now();
        (0..repeats).try_for_each(|_| once())?;
        let mut slowest = [start.elapsed().as_secs_f64() / repeats as f64];
        comm.all_reduce(&mut slowest, ReduceOp::Max)?;
        rounds.push(slowest[0]);
    }
    Ok(rounds)
}
