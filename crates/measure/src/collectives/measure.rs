//! Times one case: warm-up, timed iterations, result check.

use std::time::{Duration, Instant};

use regatta_comm::gather::all_gather;
use regatta_comm::{Collectives, Comm, ReduceOp};
use regatta_model::{Measurement, Operation};
use serde::{Deserialize, Serialize};

use super::case::CollectiveCase;
use super::spread::spread;
use crate::{CommResult, bus_bandwidth};

/// Iterations of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct IterationCounts {
    /// Warm-up iterations.
    pub warmup: u32,
    /// Timed iterations.
    pub timed: u32,
    /// Increase `timed` for calls too short to be timed accurately.
    pub adaptive: bool,
    /// Iterations whose results are checked.
    pub check: u32,
}

/// How the times of all ranks are combined (nccl-tests `-a`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RankAverage {
    /// Time of rank 0.
    Rank0,
    /// Mean.
    Avg,
    /// Minimum.
    Min,
    /// Maximum.
    Max,
}

impl RankAverage {
    /// Combines the times of all ranks.
    pub fn of(self, ranks: &[f64]) -> f64 {
        let chosen = match self {
            Self::Rank0 => ranks.first().copied(),
            Self::Avg => Some(ranks.iter().sum::<f64>() / ranks.len().max(1) as f64),
            Self::Min => ranks.iter().copied().reduce(f64::min),
            Self::Max => ranks.iter().copied().reduce(f64::max),
        };
        chosen.unwrap_or(0.0)
    }
}

/// Adaptive iterations take at least this long in total.
const MIN_TIMED: Duration = Duration::from_millis(2);
const MAX_ITERATIONS: u32 = 20_000;

/// Calls at least this long are timed individually: the clock costs less than 1 % of them. Shorter
/// calls are timed back to back, and once more individually for the percentiles.
const CLOCK_NEGLIGIBLE: Duration = Duration::from_micros(10);

/// Warms up and times a case.
pub fn measure(
    case: &mut CollectiveCase<'_>,
    iterations: &IterationCounts,
    queued: bool,
) -> CommResult<RankTimes> {
    case.fill()?;
    let once = warm_up(case, iterations)?;
    let (iterations, slow) = agree_on_iterations(case.comm, iterations, once)?;
    let individually = slow && !queued;
    let mean = if individually { None } else { Some(time_back_to_back(case, iterations)?) };
    let per_call = time_individually(case, iterations)?;
    let mean = mean.unwrap_or_else(|| per_call.iter().sum::<f64>() / f64::from(iterations));
    Ok(RankTimes { mean, per_call, iterations })
}

/// Times on this rank in µs.
pub struct RankTimes {
    mean: f64,
    per_call: Vec<f64>,
    iterations: u32,
}

/// Runs the warm-up iterations and returns the duration of one more call.
fn warm_up(case: &mut CollectiveCase<'_>, iterations: &IterationCounts) -> CommResult<Duration> {
    case.comm.barrier()?;
    case.run(iterations.warmup)?;
    let start = Instant::now();
    case.run(1)?;
    Ok(start.elapsed())
}

/// Broadcasts rank 0's iteration count and whether calls are timed individually.
fn agree_on_iterations(
    comm: &dyn Comm,
    iterations: &IterationCounts,
    once: Duration,
) -> CommResult<(u32, bool)> {
    let needed = MIN_TIMED.as_nanos() / once.as_nanos().max(1);
    let more = u32::try_from(needed).unwrap_or(u32::MAX).min(MAX_ITERATIONS);
    let requested = iterations.timed.max(1);
    let count = if iterations.adaptive { requested.max(more) } else { requested };
    let mut agreed = [i64::from(count), i64::from(once >= CLOCK_NEGLIGIBLE)];
    comm.broadcast(&mut agreed, 0)?;
    Ok((u32::try_from(agreed[0]).unwrap_or(requested).max(1), agreed[1] != 0))
}

/// Mean time of back-to-back calls.
fn time_back_to_back(case: &mut CollectiveCase<'_>, iterations: u32) -> CommResult<f64> {
    case.comm.barrier()?;
    let start = Instant::now();
    case.run(iterations)?;
    Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(iterations))
}

/// Time of each call.
fn time_individually(case: &mut CollectiveCase<'_>, iterations: u32) -> CommResult<Vec<f64>> {
    let mut times = Vec::with_capacity(iterations as usize);
    case.comm.barrier()?;
    let mut previous = Instant::now();
    for _ in 0..iterations {
        case.run(1)?;
        let now = Instant::now();
        times.push((now - previous).as_secs_f64() * 1e6);
        previous = now;
    }
    Ok(times)
}

impl RankTimes {
    /// Combines the times of all ranks into a measurement.
    pub fn reduce_over_ranks(
        self,
        comm: &dyn Comm,
        operation: &Operation,
        size_bytes: u64,
        average: RankAverage,
    ) -> CommResult<Measurement> {
        let mut ranks = vec![0.0; comm.size() as usize];
        comm.all_gather(&[self.mean], &mut ranks)?;
        // A call takes as long as on its slowest rank.
        let mut slowest = self.per_call;
        comm.all_reduce(&mut slowest, ReduceOp::Max)?;
        let time = average.of(&ranks);
        let bandwidth = bus_bandwidth::bandwidth(operation, comm.size(), size_bytes, time);
        Ok(Measurement {
            time_us: Some(time),
            algbw: bandwidth.map(|b| b.algbw),
            busbw: bandwidth.map(|b| b.busbw),
            iterations: Some(u64::from(self.iterations)),
            call_stats: spread(slowest),
            rank_stats: spread(ranks.clone()),
            rank_times_us: ranks,
            ..Measurement::default()
        })
    }
}

/// Runs the check iterations and returns the wrong elements of each rank; `None` without iterations.
pub fn check(
    case: &mut CollectiveCase<'_>,
    iterations: &IterationCounts,
) -> CommResult<Option<Vec<u64>>> {
    if iterations.check == 0 {
        return Ok(None);
    }
    let mut wrong = 0;
    for _ in 0..iterations.check {
        case.fill()?;
        case.run(1)?;
        wrong += case.count_wrong()?;
    }
    Ok(Some(all_gather(case.comm, &wrong)?))
}
