//! Measures every pair over a communicator, by messages alone.
//!
//! Of a pair, the one that sends leads: every burst is told before it comes, so that only one clock
//! counts and both know when it is enough.

use std::time::{Duration, Instant};

use regatta_comm::{Call, Collectives, Comm, CommError, Counts, DType, Kind, ReduceOp};
use regatta_model::bench::{Matrix, PairEnd, Pairs};

use super::effort::{self, Burst, Effort, Sent};
use super::{ends, rounds};

/// How pairs are measured. The same on all ranks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// All ranks, if there are several nodes, too; else the first of each.
    pub every_rank: bool,
    /// One pair after the other, for networks that pairs would share.
    pub one_at_a_time: bool,
    /// How much is measured.
    pub effort: Effort,
}

/// Measures every pair; all ranks call it. What was measured is given to rank 0 alone, without
/// findings. `progress` hears, on every rank, how many rounds of how many are over.
pub fn measure(
    comm: &dyn Comm,
    options: &Options,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Option<Pairs>, CommError> {
    let hosts: Vec<String> = (0..comm.size()).map(|rank| comm.peer(rank).host).collect();
    let ends = ends(&hosts, options.every_rank);
    let plan = match options.one_at_a_time {
        true => rounds::one_at_a_time(ends.len()),
        false => rounds::rounds(ends.len()),
    };
    let own = ends.iter().position(|end| end.rank == comm.rank());
    let mut bench = Bench { comm, effort: &options.effort, memory: Vec::new() };
    let mut row = Row::new(ends.len());
    for (done, round) in plan.iter().enumerate() {
        progress(done, plan.len());
        comm.barrier()?;
        let pair = round.iter().find(|(a, b)| Some(*a) == own || Some(*b) == own);
        if let Some(&(first, second)) = pair {
            let leads = Some(first) == own;
            let other = if leads { second } else { first };
            row.put(other, bench.pair(ends[other].rank, leads)?);
        }
    }
    progress(plan.len(), plan.len());
    let rows = gather(comm, &ends, own.map(|_| row))?;
    Ok(rows.map(|rows| result(ends, options, &rows)))
}

/// What a rank measured of one other; what the other has measured is absent.
struct Measured {
    bandwidth: Option<f64>,
    latencies_us: Vec<f64>,
}

/// What a rank measured of all: bandwidths to them, least and median latencies; not a number where
/// nothing was.
struct Row {
    ends: usize,
    figures: Vec<f64>,
}

/// Figures of a pair in a row.
const FIGURES: usize = 3;

impl Row {
    fn new(ends: usize) -> Self {
        Self { ends, figures: vec![f64::NAN; FIGURES * ends] }
    }

    fn put(&mut self, other: usize, mut measured: Measured) {
        let latencies = &mut measured.latencies_us;
        latencies.sort_by(f64::total_cmp);
        let least = latencies.first().copied();
        let median = latencies.get(latencies.len() / 2).copied();
        for (at, figure) in [measured.bandwidth, least, median].into_iter().enumerate() {
            self.figures[at * self.ends + other] = figure.unwrap_or(f64::NAN);
        }
    }
}

/// One rank at work.
struct Bench<'a> {
    comm: &'a dyn Comm,
    effort: &'a Effort,
    memory: Vec<u8>,
}

impl Bench<'_> {
    /// Measures a pair; the one that `leads` asks first.
    fn pair(&mut self, other: u32, leads: bool) -> Result<Measured, CommError> {
        let mut measured = Measured { bandwidth: None, latencies_us: Vec::new() };
        if leads {
            measured.latencies_us = self.ping(other)?;
            // The way back is not of the burst.
            let back = measured.latencies_us.iter().copied().fold(f64::INFINITY, f64::min);
            measured.bandwidth = self.send_bursts(other, back)?;
            self.receive_bursts(other)?;
        } else {
            let latencies = self.pong(other)?;
            self.receive_bursts(other)?;
            measured.bandwidth = self.send_bursts(other, latencies)?;
        }
        Ok(measured)
    }

    /// Half the times there and back, in microseconds. The last ping says so.
    fn ping(&mut self, other: u32) -> Result<Vec<f64>, CommError> {
        let start = Instant::now();
        let mut halves = Vec::new();
        loop {
            let enough = halves.len() + 1 >= self.effort.pings as usize;
            let last = enough || start.elapsed() >= self.effort.limit;
            let sent = Instant::now();
            self.comm.send(&[i64::from(last)], other, 0)?;
            self.comm.receive(&mut [0i64], other, 0)?;
            halves.push(sent.elapsed().as_secs_f64() * 1e6 / 2.0);
            if last {
                break;
            }
        }
        // The first opens connections.
        if halves.len() > 1 {
            halves.remove(0);
        }
        let least = halves.iter().copied().fold(f64::INFINITY, f64::min);
        self.comm.send(&[least], other, 0)?;
        Ok(halves)
    }

    /// Answers pings until the last; what is given back is the least time that the other measured.
    fn pong(&mut self, other: u32) -> Result<f64, CommError> {
        let mut last = [0i64];
        while last == [0] {
            self.comm.receive(&mut last, other, 0)?;
            self.comm.send(&last, other, 0)?;
        }
        let mut least = [0f64];
        self.comm.receive(&mut least, other, 0)?;
        Ok(least[0])
    }

    /// Sends bursts until it is enough; what is given back is the bandwidth in GB/s.
    fn send_bursts(&mut self, other: u32, back_us: f64) -> Result<Option<f64>, CommError> {
        let start = Instant::now();
        let back = Duration::from_secs_f64((back_us / 1e6).clamp(0.0, 1.0));
        let mut sent = Vec::new();
        while let Some(burst) = self.effort.next(&sent, start.elapsed()) {
            self.comm.send(&[burst.bytes as i64, i64::from(burst.messages)], other, 0)?;
            let begun = Instant::now();
            self.burst(Kind::Send, burst, other)?;
            self.comm.receive(&mut [0u8], other, 0)?;
            let whole = begun.elapsed();
            let took = whole.saturating_sub(back).max(whole / 2);
            sent.push(Sent { burst, took });
        }
        self.comm.send(&[0i64, 0], other, 0)?;
        Ok(effort::bandwidth(&sent))
    }

    /// Receives bursts until the other has enough.
    fn receive_bursts(&mut self, other: u32) -> Result<(), CommError> {
        loop {
            let mut order = [0i64; 2];
            self.comm.receive(&mut order, other, 0)?;
            let burst = match order {
                [_, 0] => return Ok(()),
                [bytes, messages] => self.fitting(bytes, messages, other)?,
            };
            self.burst(Kind::Receive, burst, other)?;
            self.comm.send(&[0u8], other, 0)?;
        }
    }

    /// The burst that the other has told, which is never larger than the effort that all agree on.
    fn fitting(&self, bytes: i64, messages: i64, other: u32) -> Result<Burst, CommError> {
        if let (Ok(bytes), Ok(messages)) = (u64::try_from(bytes), u32::try_from(messages))
            && bytes <= self.effort.bytes.max(1)
            && messages <= self.effort.messages.max(1)
        {
            return Ok(Burst { bytes, messages });
        }
        Err(CommError::System {
            what: format!("measuring with {}", self.comm.peer(other)),
            why: format!(
                "it sends {messages} messages of {bytes} bytes, more than was asked for here; give \
                 all ranks the same options"
            ),
        })
    }

    /// All messages of a burst at once.
    fn burst(&mut self, kind: Kind, burst: Burst, other: u32) -> Result<(), CommError> {
        let bytes = burst.bytes as usize;
        let room = bytes * burst.messages as usize;
        if self.memory.len() < room {
            self.memory.resize(room, 1);
        }
        let parts = self.memory[..room].chunks_mut(bytes.max(1)).zip(0..);
        let call = |(part, tag)| message(kind, part, other, tag);
        self.comm.run_group(parts.map(call).collect())
    }
}

fn message(kind: Kind, part: &mut [u8], other: u32, tag: u32) -> Call<'_> {
    let (dtype, op, counts) = (DType::U8, ReduceOp::Sum, Counts::Equal(part.len()));
    let (input, output): (Option<&[u8]>, &mut [u8]) = match kind {
        Kind::Send => (Some(part), &mut []),
        _ => (None, part),
    };
    Call { kind, dtype, op, root: other, tag, counts, input, output }
}

/// The rows of all that were measured, in their order, at rank 0.
fn gather(
    comm: &dyn Comm,
    ends: &[PairEnd],
    row: Option<Row>,
) -> Result<Option<Vec<Vec<f64>>>, CommError> {
    let length = FIGURES * ends.len();
    let mut counts = vec![0; comm.size() as usize];
    for end in ends {
        counts[end.rank as usize] = length;
    }
    let own = row.map_or_else(Vec::new, |row| row.figures);
    let is_first = comm.rank() == 0;
    let mut all = vec![0.0; if is_first { length * ends.len() } else { 0 }];
    comm.gather_v(&own, &mut all, &counts, 0)?;
    Ok(is_first.then(|| all.chunks(length.max(1)).map(<[f64]>::to_vec).collect()))
}

/// The rows as matrices. Latencies are there and back, so that they count for both ways.
fn result(ends: Vec<PairEnd>, options: &Options, rows: &[Vec<f64>]) -> Pairs {
    let n = ends.len();
    let cell = |figure: usize, i: usize, j: usize| {
        rows.get(i)?.get(figure * n + j).copied().filter(|figure| figure.is_finite())
    };
    let matrix = |figure: usize, both: bool| -> Matrix {
        let either = |i: usize, j: usize| {
            cell(figure, i, j).or_else(|| if both { cell(figure, j, i) } else { None })
        };
        (0..n).map(|i| (0..n).map(|j| either(i, j)).collect()).collect()
    };
    Pairs {
        bytes: options.effort.bytes,
        one_at_a_time: options.one_at_a_time,
        bandwidth: matrix(0, false),
        latency_us: matrix(1, true),
        latency_median_us: matrix(2, true),
        findings: Vec::new(),
        ends,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use regatta_comm::background::Background;

    /// What rank 0 gets of so many ranks that are threads.
    fn measured(ranks: u32, options: &Options) -> Pairs {
        let world = regatta_comm::fake::world(ranks);
        std::thread::scope(|scope| {
            let rank = |comm| {
                scope.spawn(move || {
                    let mut heard = Vec::new();
                    let mut progress = |done, of| heard.push((done, of));
                    let pairs = measure(&comm, options, &mut progress).unwrap();
                    let last = heard.last().copied().unwrap();
                    assert_eq!((last.0, heard.len()), (last.1, last.1 + 1));
                    pairs
                })
            };
            let threads: Vec<_> = world.into_iter().map(rank).collect();
            let mut all = threads.into_iter().map(|thread| thread.join().unwrap());
            let first = all.next().unwrap();
            assert!(all.all(|other| other.is_none()), "only rank 0 gets it");
            first.unwrap()
        })
    }

    #[test]
    fn every_pair_is_measured_each_way() {
        let effort = Effort { bytes: 100_000, repetitions: 2, pings: 5, ..Effort::default() };
        for ranks in [1, 2, 3, 5, 6] {
            for one_at_a_time in [false, true] {
                let options = Options { one_at_a_time, effort: effort.clone(), every_rank: false };
                let pairs = measured(ranks, &options);
                assert_eq!((pairs.ends.len(), pairs.fault()), (ranks as usize, None));
                for i in 0..ranks as usize {
                    for j in 0..ranks as usize {
                        let all = [&pairs.bandwidth, &pairs.latency_us, &pairs.latency_median_us];
                        assert!(all.iter().all(|m| m[i][j].is_some() == (i != j)), "{i} {j}");
                        assert_eq!(pairs.latency_us[i][j], pairs.latency_us[j][i]);
                        assert!(pairs.latency_us[i][j] <= pairs.latency_median_us[i][j]);
                    }
                }
            }
        }
    }

    #[test]
    fn a_rank_with_other_options_is_told_of() {
        let world = regatta_comm::fake::world(2);
        let errors: Vec<String> = std::thread::scope(|scope| {
            let rank = |(comm, bytes): (Background, u64)| {
                scope.spawn(move || {
                    let effort = Effort { bytes, ..Effort::default() };
                    let options = Options { effort, ..Options::default() };
                    let error = measure(&comm, &options, &mut |_, _| {}).unwrap_err();
                    comm.abort("it is over");
                    error.to_string()
                })
            };
            let threads: Vec<_> = world.into_iter().zip([1 << 20, 1 << 10]).map(rank).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(errors[1].contains("give all ranks the same options"), "{errors:?}");
    }
}
