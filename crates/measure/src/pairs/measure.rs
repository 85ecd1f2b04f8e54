//! Measures every pair of ranks over a communicator with point-to-point messages.
//!
//! Slow pairs are measured again at the end: a CPU that was briefly busy is not a slow link.

use regatta_comm::{Collectives, Comm};
use regatta_model::bench::{PairEndpoint, PairMatrices, PairMatrix};
use serde::{Deserialize, Serialize};

use super::burst::BurstOptions;
use super::diagnose::suspects;
use super::ping_pong::{PairMeasurement, PairWorker};
use super::schedule::{self, EndpointPair};
use super::select_ranks;
use crate::CommResult;

/// Options; must be equal on all ranks.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PairsOptions {
    /// Measure all ranks; otherwise, on several nodes, the first rank of each.
    pub all_ranks: bool,
    /// One pair at a time, for shared networks.
    pub serialized: bool,
    /// Amount of measurement per pair.
    pub burst: BurstOptions,
}

/// Retries of slow pairs; the best value counts.
const RETRIES: u32 = 2;

/// Measures every pair. Collective. Rank 0 gets the matrices, without findings. `progress` receives
/// finished and total rounds on every rank; retries increase the total.
pub fn measure(
    comm: &dyn Comm,
    options: &PairsOptions,
    progress: &mut dyn FnMut(usize, usize),
) -> CommResult<Option<PairMatrices>> {
    let hosts: Vec<String> = (0..comm.size()).map(|rank| comm.peer(rank).host).collect();
    let endpoints = select_ranks(&hosts, options.all_ranks);
    let nodes: Vec<&str> = endpoints.iter().map(|end| end.host.as_str()).collect();
    let mut rounds = schedule::node_aware_rounds(&nodes);
    if options.serialized {
        rounds = schedule::serialize(rounds);
    }
    let own = endpoints.iter().position(|end| end.rank == comm.rank());
    let mut rank = PairsRank {
        comm,
        row: PairRow::new(if own.is_some() { endpoints.len() } else { 0 }),
        worker: PairWorker::new(comm, &options.burst),
        own,
        endpoints: &endpoints,
        done: 0,
    };
    rank.run_rounds(&rounds, progress)?;
    let mut pairs = rank.gather(options)?;
    for _ in 0..RETRIES {
        let slow = pairs.as_ref().map(suspects);
        let retry_rounds = rank.agree_on_retries(&rounds, slow)?;
        if retry_rounds.is_empty() {
            break;
        }
        rank.run_rounds(&retry_rounds, progress)?;
        pairs = rank.gather(options)?;
    }
    progress(rank.done, rank.done);
    Ok(pairs)
}

/// This rank's part in the measurement.
struct PairsRank<'a> {
    comm: &'a dyn Comm,
    endpoints: &'a [PairEndpoint],
    /// Its index among the endpoints, if it is one.
    own: Option<usize>,
    worker: PairWorker<'a>,
    row: PairRow,
    /// Finished rounds.
    done: usize,
}

impl PairsRank<'_> {
    /// Takes part in the rounds.
    fn run_rounds(
        &mut self,
        rounds: &[Vec<EndpointPair>],
        progress: &mut dyn FnMut(usize, usize),
    ) -> CommResult {
        let all = self.done + rounds.len();
        for round in rounds {
            progress(self.done, all);
            self.done += 1;
            self.comm.barrier()?;
            let is_own = |end: usize| Some(end) == self.own;
            if let Some(&(a, b)) = round.iter().find(|(a, b)| is_own(*a) || is_own(*b)) {
                let (other, is_initiator) = if is_own(a) { (b, true) } else { (a, false) };
                let peer = self.endpoints[other].rank;
                self.row.merge(other, self.worker.measure_pair(peer, is_initiator)?);
            }
        }
        Ok(())
    }

    /// Gathers the matrices on rank 0.
    fn gather(&self, options: &PairsOptions) -> CommResult<Option<PairMatrices>> {
        let length = METRICS * self.endpoints.len();
        let mut counts = vec![0; self.comm.size() as usize];
        for end in self.endpoints {
            counts[end.rank as usize] = length;
        }
        let is_first = self.comm.rank() == 0;
        let mut all = vec![0.0; if is_first { length * self.endpoints.len() } else { 0 }];
        self.comm.gather_v(&self.row.values, &mut all, &counts, 0)?;
        let rows: Vec<&[f64]> = all.chunks(length.max(1)).collect();
        Ok(is_first.then(|| result(self.endpoints, options, &rows)))
    }

    /// Broadcasts the pairs that rank 0 wants to retry, as rounds.
    fn agree_on_retries(
        &self,
        rounds: &[Vec<EndpointPair>],
        retries: Option<Vec<EndpointPair>>,
    ) -> CommResult<Vec<Vec<EndpointPair>>> {
        let n = self.endpoints.len();
        let mut marks = vec![0u8; n * n];
        for (a, b) in retries.unwrap_or_default() {
            marks[a * n + b] = 1;
        }
        self.comm.broadcast(&mut marks, 0)?;
        let marked = |(a, b): &EndpointPair| marks[a * n + b] == 1 || marks[b * n + a] == 1;
        let retried = |round: &Vec<EndpointPair>| round.iter().copied().filter(marked).collect();
        let mut rounds: Vec<Vec<EndpointPair>> = rounds.iter().map(retried).collect();
        rounds.retain(|round| !round.is_empty());
        Ok(rounds)
    }
}

/// Metrics of this rank to all others: bandwidth, minimum and median latency; NaN if not measured.
struct PairRow {
    endpoints: usize,
    values: Vec<f64>,
}

/// Metrics per pair.
const METRICS: usize = 3;

impl PairRow {
    fn new(endpoints: usize) -> Self {
        Self { endpoints, values: vec![f64::NAN; METRICS * endpoints] }
    }

    /// Keeps the better of the old and new values.
    fn merge(&mut self, other: usize, mut measured: PairMeasurement) {
        let latencies = &mut measured.latencies_us;
        latencies.sort_by(f64::total_cmp);
        let min = latencies.first().copied();
        let median = latencies.get(latencies.len() / 2).copied();
        let mut update = |at: usize, metric: Option<f64>, better: fn(f64, f64) -> f64| {
            let best = &mut self.values[at * self.endpoints + other];
            // `f64::max` and `min` ignore NaN.
            *best = better(*best, metric.unwrap_or(f64::NAN));
        };
        update(0, measured.bandwidth, f64::max);
        update(1, min, f64::min);
        update(2, median, f64::min);
    }
}

/// Rows as matrices. Latencies are round-trip times, so they hold for both directions.
fn result(endpoints: &[PairEndpoint], options: &PairsOptions, rows: &[&[f64]]) -> PairMatrices {
    let n = endpoints.len();
    let cell = |metric: usize, i: usize, j: usize| {
        rows.get(i)?.get(metric * n + j).copied().filter(|metric| metric.is_finite())
    };
    let matrix = |metric: usize, both: bool| -> PairMatrix {
        let either = |i: usize, j: usize| {
            cell(metric, i, j).or_else(|| if both { cell(metric, j, i) } else { None })
        };
        (0..n).map(|i| (0..n).map(|j| either(i, j)).collect()).collect()
    };
    PairMatrices {
        bytes: options.burst.bytes,
        one_at_a_time: options.serialized,
        bandwidth: matrix(0, false),
        latency_us: matrix(1, true),
        latency_median_us: matrix(2, true),
        findings: Vec::new(),
        endpoints: endpoints.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collectives::testing::on_ranks;

    /// The matrices measured by `ranks` in-process ranks.
    fn measured(ranks: u32, options: &PairsOptions) -> PairMatrices {
        let mut all = on_ranks(ranks, |comm| {
            let mut calls = Vec::new();
            let mut progress = |done, of| calls.push((done, of));
            let pairs = measure(&comm, options, &mut progress).unwrap();
            let last = calls.last().copied().unwrap();
            assert_eq!((last.0, calls.len()), (last.1, last.1 + 1));
            pairs
        });
        assert!(all[1..].iter().all(Option::is_none), "only rank 0 gets the matrices");
        all.remove(0).unwrap()
    }

    #[test]
    fn every_pair_is_measured_in_both_directions() {
        let (bytes, iterations, ping_pongs) = (100_000, 2, 5);
        let burst = BurstOptions { bytes, iterations, ping_pongs, ..BurstOptions::default() };
        for ranks in [1, 2, 3, 5, 6] {
            for serialized in [false, true] {
                let burst = burst.clone();
                let options = PairsOptions { serialized, burst, ..PairsOptions::default() };
                let pairs = measured(ranks, &options);
                assert_eq!((pairs.endpoints.len(), pairs.inconsistency()), (ranks as usize, None));
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
    fn different_options_are_reported() {
        let errors = on_ranks(2, |comm| {
            let bytes = [1 << 20, 1 << 10][comm.rank() as usize];
            let burst = BurstOptions { bytes, ..BurstOptions::default() };
            let options = PairsOptions { burst, ..PairsOptions::default() };
            let error = measure(&comm, &options, &mut |_, _| {}).unwrap_err();
            comm.abort("done");
            error.to_string()
        });
        assert!(errors[1].contains("pass the same options to all ranks"), "{errors:?}");
    }
}
