//! Times one case: warm-up, timed rounds, a check.

use std::time::{Duration, Instant};

use regatta_comm::{Collectives, Comm, CommError, ReduceOp};
use regatta_model::{Measurement, Operation};

use super::case::Case;
use super::spread::spread;
use super::suite::Average;
use crate::formula;

/// How often a case is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rounds {
    /// Before it is timed.
    pub warmup: u32,
    /// Timed.
    pub iterations: u32,
    /// Whether more are timed where so few are over too soon to be measured well.
    pub or_more: bool,
    /// Whose results are checked.
    pub check: u32,
}

/// What is over sooner than this is measured by more rounds.
const LONG_ENOUGH: Duration = Duration::from_millis(2);
const MOST_ROUNDS: u32 = 20_000;

/// Calls that take longer are timed one by one: to look at the clock costs less than a hundredth of
/// them. Shorter ones are timed all together, and one by one in rounds of their own.
const SLOW: Duration = Duration::from_micros(10);

/// Runs a case and times it.
pub fn measure(
    comm: &dyn Comm,
    case: &mut Case<'_>,
    rounds: &Rounds,
    queued: bool,
) -> Result<Timed, CommError> {
    case.fill()?;
    let once = warmed(comm, case, rounds)?;
    let (rounds, slow) = agreed(comm, rounds, once)?;
    let (mean, single) = match slow && !queued {
        true => {
            let single = one_by_one(comm, case, rounds)?;
            (single.iter().sum::<f64>() / f64::from(rounds), single)
        }
        false => (together(comm, case, rounds)?, one_by_one(comm, case, rounds)?),
    };
    Ok(Timed { mean, single, rounds })
}

/// The times of this rank, in microseconds.
pub struct Timed {
    mean: f64,
    single: Vec<f64>,
    rounds: u32,
}

/// Runs it as often as it is to be warmed up, and tells how long one call took.
fn warmed(comm: &dyn Comm, case: &mut Case<'_>, rounds: &Rounds) -> Result<Duration, CommError> {
    comm.barrier()?;
    case.run(rounds.warmup)?;
    let start = Instant::now();
    case.run(1)?;
    Ok(start.elapsed())
}

/// How many rounds all ranks do, and whether one by one: as rank 0 says.
fn agreed(comm: &dyn Comm, rounds: &Rounds, once: Duration) -> Result<(u32, bool), CommError> {
    let needed = LONG_ENOUGH.as_nanos() / once.as_nanos().max(1);
    let more = u32::try_from(needed).unwrap_or(u32::MAX).min(MOST_ROUNDS);
    let asked = rounds.iterations.max(1);
    let count = if rounds.or_more { asked.max(more) } else { asked };
    let mut said = [i64::from(count), i64::from(once >= SLOW)];
    comm.broadcast(&mut said, 0)?;
    Ok((u32::try_from(said[0]).unwrap_or(asked).max(1), said[1] != 0))
}

/// The mean of many calls in a row.
fn together(comm: &dyn Comm, case: &mut Case<'_>, rounds: u32) -> Result<f64, CommError> {
    comm.barrier()?;
    let start = Instant::now();
    case.run(rounds)?;
    Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(rounds))
}

/// The time of each call.
fn one_by_one(comm: &dyn Comm, case: &mut Case<'_>, rounds: u32) -> Result<Vec<f64>, CommError> {
    let mut times = Vec::with_capacity(rounds as usize);
    comm.barrier()?;
    let mut before = Instant::now();
    for _ in 0..rounds {
        case.run(1)?;
        let now = Instant::now();
        times.push((now - before).as_secs_f64() * 1e6);
        before = now;
    }
    Ok(times)
}

impl Timed {
    /// What all ranks measured, as one.
    pub fn of_all(
        self,
        comm: &dyn Comm,
        operation: &Operation,
        size_bytes: u64,
        average: Average,
    ) -> Result<Measurement, CommError> {
        let mut ranks = vec![0.0; comm.size() as usize];
        comm.all_gather(&[self.mean], &mut ranks)?;
        // A call has taken as long as it took the slowest rank.
        let mut slowest = self.single;
        comm.all_reduce(&mut slowest, ReduceOp::Max)?;
        let time = average.of(&ranks);
        let bandwidth = formula::bandwidth(operation, comm.size(), size_bytes, time);
        Ok(Measurement {
            time_us: Some(time),
            algbw: bandwidth.map(|b| b.algbw),
            busbw: bandwidth.map(|b| b.busbw),
            iterations: Some(u64::from(self.rounds)),
            spread: spread(slowest),
            rank_spread: spread(ranks.clone()),
            rank_times_us: ranks,
            ..Measurement::default()
        })
    }
}

/// Runs a case as often as it is to be checked, and counts wrong elements of all ranks.
pub fn check(
    comm: &dyn Comm,
    case: &mut Case<'_>,
    rounds: &Rounds,
) -> Result<Option<u64>, CommError> {
    if rounds.check == 0 {
        return Ok(None);
    }
    let mut wrong = 0;
    for _ in 0..rounds.check {
        case.fill()?;
        case.run(1)?;
        wrong += case.wrong()?;
    }
    let mut all = [i64::try_from(wrong).unwrap_or(i64::MAX / i64::from(comm.size()))];
    comm.all_reduce(&mut all, ReduceOp::Sum)?;
    Ok(Some(all[0].unsigned_abs()))
}
