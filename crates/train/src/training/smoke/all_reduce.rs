//! All-reduces with known results.

use std::time::Instant;

use regatta_comm::{Collectives, Comm, ReduceOp};

use super::event::AllReduceTiming;
use crate::training::gather::all_gather;
use crate::training::{Result, TrainError};

/// Elements of each message: latency-bound, in between, bandwidth-bound.
const COUNTS: [usize; 3] = [2, 16 << 10, 1 << 20];

/// Timed rounds per size, after one warm-up.
const ROUNDS: u32 = 5;

/// Element of a rank: small integers, whose sums are exact in any order.
fn element(rank: u32, index: usize) -> f32 {
    (rank % 8) as f32 + (index % 5) as f32
}

/// Sum over all ranks.
fn expected(ranks: u32, index: usize) -> f32 {
    let of_ranks = u64::from(ranks / 8) * 28 + (0..u64::from(ranks % 8)).sum::<u64>();
    (of_ranks + u64::from(ranks) * (index % 5) as u64) as f32
}

/// Number of wrong elements.
fn wrong(sums: &[f32], ranks: u32) -> u64 {
    sums.iter().enumerate().filter(|(index, sum)| **sum != expected(ranks, *index)).count() as u64
}

/// Bus bandwidth relative to algorithm bandwidth.
fn bus_factor(ranks: u32) -> f64 {
    2.0 * (f64::from(ranks) - 1.0) / f64::from(ranks)
}

/// Checks and times all-reduces of several sizes.
pub fn check(comm: &dyn Comm) -> Result<Vec<AllReduceTiming>> {
    COUNTS.iter().map(|&count| one(comm, count)).collect()
}

fn one(comm: &dyn Comm, count: usize) -> Result<AllReduceTiming> {
    let (rank, ranks) = (comm.rank(), comm.size());
    let own: Vec<f32> = (0..count).map(|index| element(rank, index)).collect();
    let mut sums = vec![0.0; count];
    comm.all_reduce_into(&own, &mut sums, ReduceOp::Sum)?;
    let mut wrong_count = wrong(&sums, ranks);
    let start = Instant::now();
    for _ in 0..ROUNDS {
        comm.all_reduce_into(&own, &mut sums, ReduceOp::Sum)?;
    }
    let seconds = start.elapsed().as_secs_f64() / f64::from(ROUNDS);
    wrong_count += wrong(&sums, ranks);
    let bytes = (count * size_of::<f32>()) as u64;
    let all: Vec<(u64, f64)> = all_gather(comm, &(wrong_count, seconds))?;
    if let Some((rank, (wrong, _))) = (0..).zip(&all).find(|(_, (wrong, _))| *wrong > 0) {
        let host = comm.peer(rank).host;
        return Err(TrainError::WrongAllReduce { rank, host, bytes, wrong: *wrong });
    }
    let seconds = all.iter().map(|(_, seconds)| *seconds).fold(0.0, f64::max);
    let bus_bandwidth = bytes as f64 / seconds.max(f64::MIN_POSITIVE) * bus_factor(ranks);
    Ok(AllReduceTiming { bytes, seconds, bus_bandwidth })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expected_sums_match_a_loop() {
        for ranks in [1, 2, 3, 7, 8, 9, 1000, 100_000] {
            for index in 0..7 {
                let sum: f64 = (0..ranks).map(|rank| f64::from(element(rank, index))).sum();
                assert_eq!(f64::from(expected(ranks, index)), sum, "{ranks} {index}");
            }
        }
    }

    #[test]
    fn wrong_elements_are_counted() {
        let mut sums: Vec<f32> = (0..20).map(|index| expected(3, index)).collect();
        assert_eq!(wrong(&sums, 3), 0);
        sums[7] += 1.0;
        sums[9] = f32::NAN;
        assert_eq!(wrong(&sums, 3), 2);
    }
}
