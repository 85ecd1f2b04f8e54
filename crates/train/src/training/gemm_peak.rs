//! The GEMM peak of the cores that the ranks run on.

use regatta_comm::gather::all_gather;
use regatta_comm::{Comm, CommError};
use regatta_model::CpuSet;
use serde::{Deserialize, Serialize};

/// Threads of a rank, or of ranks that share cores, and the CPUs they may run on.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RankGemm {
    /// The host.
    pub host: String,
    /// CPUs that the threads may run on.
    pub cpus: CpuSet,
    /// Number of threads.
    pub threads: usize,
    /// Sum of the threads' GEMM throughputs in FLOP per second of CPU time.
    pub flops_per_second: f64,
}

impl RankGemm {
    fn shares_cores_with(&self, other: &Self) -> bool {
        self.host == other.host && self.cpus.intersects(&other.cpus)
    }

    fn merge(&mut self, other: &Self) {
        self.cpus = self.cpus.union(&other.cpus);
        self.threads += other.threads;
        self.flops_per_second += other.flops_per_second;
    }

    /// GEMM throughput of the CPUs: at most one thread at a time runs on each.
    fn peak(&self) -> f64 {
        let busy = self.cpus.len().min(self.threads);
        // An unknown affinity limits nothing.
        let share = if busy == 0 { 1.0 } else { busy as f64 / self.threads as f64 };
        self.flops_per_second * share
    }
}

/// The GEMM peak of all ranks in FLOP/s, given that of this rank.
pub fn gemm_peak(comm: &dyn Comm, own: &RankGemm) -> Result<f64, CommError> {
    Ok(total_peak(all_gather(comm, own)?))
}

/// Sum over disjoint sets of CPUs, so that a core counts once, however many ranks share it.
fn total_peak(ranks: Vec<RankGemm>) -> f64 {
    let mut groups: Vec<RankGemm> = Vec::new();
    for mut group in ranks {
        let shares_cores = |other: &mut RankGemm| other.shares_cores_with(&group);
        let same: Vec<RankGemm> = groups.extract_if(.., shares_cores).collect();
        same.iter().for_each(|other| group.merge(other));
        groups.push(group);
    }
    groups.iter().map(RankGemm::peak).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rank whose threads each have a throughput of 100.
    fn rank(host: &str, cpus: &str, threads: usize) -> RankGemm {
        let (host, cpus) = (host.to_owned(), cpus.parse().unwrap());
        RankGemm { host, cpus, threads, flops_per_second: 100.0 * threads as f64 }
    }

    #[test]
    fn peak_is_that_of_the_cores_for_every_layout() {
        let layouts: [&[RankGemm]; 6] = [
            &[rank("a", "0-1", 2)],
            &[rank("a", "0", 1), rank("a", "1", 1)],
            &[rank("a", "0-1", 1), rank("a", "0-1", 1)],
            &[rank("a", "0", 1), rank("a", "1", 1), rank("a", "0", 1), rank("a", "1", 1)],
            &[rank("a", "0-1", 2), rank("a", "0-1", 2), rank("a", "0-1", 2)],
            &[rank("a", "0", 1), rank("a", "1", 1), rank("a", "0-1", 2)],
        ];
        for layout in layouts {
            assert_eq!(total_peak(layout.to_vec()), 200.0, "{layout:?}");
        }
    }

    #[test]
    fn idle_cores_do_not_count_and_hosts_add_up() {
        assert_eq!(total_peak(vec![rank("a", "0-7", 3)]), 300.0);
        assert_eq!(total_peak(vec![rank("a", "0", 1), rank("b", "0", 1)]), 200.0);
        assert_eq!(total_peak(vec![rank("a", "", 2), rank("a", "", 2)]), 400.0, "unknown affinity");
        assert_eq!(total_peak(Vec::new()), 0.0);
    }
}
