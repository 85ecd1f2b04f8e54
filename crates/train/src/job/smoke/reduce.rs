//! Sums over all ranks that are known beforehand.

use std::time::Instant;

use regatta_comm::{Collectives, Comm, ReduceOp};

use super::gather::gather;
use super::part::Reduced;
use crate::job::TrainError;

/// Numbers of each size that is tried: what waits, what is in between, and what fills the links.
const COUNTS: [usize; 3] = [2, 16 << 10, 1 << 20];

/// Sums of each size that are timed; the one before them is not.
const ROUNDS: u32 = 5;

/// What a rank has at a place: small whole numbers, whose sums are exact in any order.
fn given(rank: u32, place: usize) -> f32 {
    (rank % 8) as f32 + (place % 5) as f32
}

/// Their sum over all ranks.
fn expected(ranks: u32, place: usize) -> f32 {
    let of_ranks = u64::from(ranks / 8) * 28 + (0..u64::from(ranks % 8)).sum::<u64>();
    (of_ranks + u64::from(ranks) * (place % 5) as u64) as f32
}

/// How many numbers are not the sum.
fn wrong(sums: &[f32], ranks: u32) -> u64 {
    sums.iter().enumerate().filter(|(place, sum)| **sum != expected(ranks, *place)).count() as u64
}

/// What each link carries of an all-reduce, of the whole.
fn bus_factor(ranks: u32) -> f64 {
    2.0 * (f64::from(ranks) - 1.0) / f64::from(ranks)
}

/// Makes sums of several sizes, and looks at them.
pub fn check(comm: &dyn Comm) -> Result<Vec<Reduced>, TrainError> {
    COUNTS.iter().map(|&count| one(comm, count)).collect()
}

fn one(comm: &dyn Comm, count: usize) -> Result<Reduced, TrainError> {
    let (rank, ranks) = (comm.rank(), comm.size());
    let own: Vec<f32> = (0..count).map(|place| given(rank, place)).collect();
    let mut sums = vec![0.0; count];
    comm.all_reduce_into(&own, &mut sums, ReduceOp::Sum)?;
    let mut wrong_ones = wrong(&sums, ranks);
    let began = Instant::now();
    for _ in 0..ROUNDS {
        comm.all_reduce_into(&own, &mut sums, ReduceOp::Sum)?;
    }
    let seconds = began.elapsed().as_secs_f64() / f64::from(ROUNDS);
    wrong_ones += wrong(&sums, ranks);
    let bytes = (count * size_of::<f32>()) as u64;
    let all: Vec<(u64, f64)> = gather(comm, &(wrong_ones, seconds))?;
    if let Some((rank, (wrong, _))) = (0..).zip(&all).find(|(_, (wrong, _))| *wrong > 0) {
        let host = comm.peer(rank).host;
        return Err(TrainError::Sum { rank, host, bytes, wrong: *wrong });
    }
    let seconds = all.iter().map(|(_, seconds)| *seconds).fold(0.0, f64::max);
    let bus_bandwidth = bytes as f64 / seconds.max(f64::MIN_POSITIVE) * bus_factor(ranks);
    Ok(Reduced { bytes, seconds, bus_bandwidth })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_expected_sum_is_the_sum() {
        for ranks in [1, 2, 3, 7, 8, 9, 1000, 100_000] {
            for place in 0..7 {
                let sum: f64 = (0..ranks).map(|rank| f64::from(given(rank, place))).sum();
                assert_eq!(f64::from(expected(ranks, place)), sum, "{ranks} {place}");
            }
        }
    }

    #[test]
    fn a_wrong_number_is_seen() {
        let mut sums: Vec<f32> = (0..20).map(|place| expected(3, place)).collect();
        assert_eq!(wrong(&sums, 3), 0);
        sums[7] += 1.0;
        sums[9] = f32::NAN;
        assert_eq!(wrong(&sums, 3), 2);
    }
}
