//! Measures every pair over a communicator, by messages alone.
//!
//! What looks slow is measured again after all others: a processor that was busy with something
//! else for a moment is not a slow link.

use regatta_comm::{Collectives, Comm, CommError};
use regatta_model::bench::{Matrix, PairEnd, Pairs};

use super::effort::Effort;
use super::ends;
use super::judge::{Bounds, suspects};
use super::rounds::{self, Pair};
use super::worker::{Measured, Worker};

/// How pairs are measured. The same on all ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// All ranks, if there are several nodes, too; else the first of each.
    pub every_rank: bool,
    /// One pair after the other, for networks that pairs would share.
    pub one_at_a_time: bool,
    /// How much is measured.
    pub effort: Effort,
    /// How often pairs are measured again that look slow; the best counts.
    pub again: u32,
    /// What looks slow.
    pub bounds: Bounds,
}

impl Default for Options {
    fn default() -> Self {
        let (effort, bounds) = (Effort::default(), Bounds::default());
        Self { every_rank: false, one_at_a_time: false, effort, again: 2, bounds }
    }
}

/// Measures every pair; all ranks call it. What was measured is given to rank 0 alone, without
/// findings. `progress` hears, on every rank, how many rounds of how many are over; there may come
/// to be more.
pub fn measure(
    comm: &dyn Comm,
    options: &Options,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Option<Pairs>, CommError> {
    let hosts: Vec<String> = (0..comm.size()).map(|rank| comm.peer(rank).host).collect();
    let ends = ends(&hosts, options.every_rank);
    let nodes: Vec<&str> = ends.iter().map(|end| end.host.as_str()).collect();
    let plan = match options.one_at_a_time {
        true => rounds::one_at_a_time(rounds::on_nodes(&nodes)),
        false => rounds::on_nodes(&nodes),
    };
    let own = ends.iter().position(|end| end.rank == comm.rank());
    let mut rank = Rank {
        comm,
        row: Row::new(if own.is_some() { ends.len() } else { 0 }),
        worker: Worker::new(comm, &options.effort),
        own,
        ends: &ends,
        done: 0,
    };
    rank.play(&plan, progress)?;
    let mut pairs = rank.gather(options)?;
    for _ in 0..options.again {
        let slow = pairs.as_ref().map(|pairs| suspects(pairs, &options.bounds));
        let left = rank.agree(&plan, slow)?;
        if left.is_empty() {
            break;
        }
        rank.play(&left, progress)?;
        pairs = rank.gather(options)?;
    }
    progress(rank.done, rank.done);
    Ok(pairs)
}

/// This rank among those that are measured.
struct Rank<'a> {
    comm: &'a dyn Comm,
    ends: &'a [PairEnd],
    /// Its place among them, if it is one of them.
    own: Option<usize>,
    worker: Worker<'a>,
    row: Row,
    /// Rounds that are over.
    done: usize,
}

impl Rank<'_> {
    /// Takes part in rounds.
    fn play(
        &mut self,
        rounds: &[Vec<Pair>],
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<(), CommError> {
        let all = self.done + rounds.len();
        for round in rounds {
            progress(self.done, all);
            self.done += 1;
            self.comm.barrier()?;
            let is_own = |end: usize| Some(end) == self.own;
            if let Some(&(a, b)) = round.iter().find(|(a, b)| is_own(*a) || is_own(*b)) {
                let (other, leads) = if is_own(a) { (b, true) } else { (a, false) };
                let measured = self.worker.pair(self.ends[other].rank, leads)?;
                self.row.put(other, measured);
            }
        }
        Ok(())
    }

    /// What all have measured, at rank 0.
    fn gather(&self, options: &Options) -> Result<Option<Pairs>, CommError> {
        let length = FIGURES * self.ends.len();
        let mut counts = vec![0; self.comm.size() as usize];
        for end in self.ends {
            counts[end.rank as usize] = length;
        }
        let is_first = self.comm.rank() == 0;
        let mut all = vec![0.0; if is_first { length * self.ends.len() } else { 0 }];
        self.comm.gather_v(&self.row.figures, &mut all, &counts, 0)?;
        let rows: Vec<&[f64]> = all.chunks(length.max(1)).collect();
        Ok(is_first.then(|| result(self.ends, options, &rows)))
    }

    /// The rounds of the plan with those pairs only that rank 0 wants to see again.
    fn agree(
        &self,
        plan: &[Vec<Pair>],
        wanted: Option<Vec<Pair>>,
    ) -> Result<Vec<Vec<Pair>>, CommError> {
        let n = self.ends.len();
        let mut marks = vec![0u8; n * n];
        for (a, b) in wanted.unwrap_or_default() {
            marks[a * n + b] = 1;
        }
        self.comm.broadcast(&mut marks, 0)?;
        let marked = |(a, b): &Pair| marks[a * n + b] == 1 || marks[b * n + a] == 1;
        let kept = |round: &Vec<Pair>| round.iter().copied().filter(marked).collect();
        let rounds: Vec<Vec<Pair>> = plan.iter().map(kept).collect();
        Ok(rounds.into_iter().filter(|round| !round.is_empty()).collect())
    }
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

    /// Keeps what is better than what was measured before.
    fn put(&mut self, other: usize, mut measured: Measured) {
        let latencies = &mut measured.latencies_us;
        latencies.sort_by(f64::total_cmp);
        let least = latencies.first().copied();
        let median = latencies.get(latencies.len() / 2).copied();
        let mut keep = |at: usize, figure: Option<f64>, better: fn(f64, f64) -> f64| {
            let kept = &mut self.figures[at * self.ends + other];
            // Either gives the figure if the other is not a number.
            *kept = better(*kept, figure.unwrap_or(f64::NAN));
        };
        keep(0, measured.bandwidth, f64::max);
        keep(1, least, f64::min);
        keep(2, median, f64::min);
    }
}

/// The rows as matrices. Latencies are there and back, so that they count for both ways.
fn result(ends: &[PairEnd], options: &Options, rows: &[&[f64]]) -> Pairs {
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
        ends: ends.to_vec(),
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
                let options =
                    Options { one_at_a_time, effort: effort.clone(), ..Options::default() };
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
