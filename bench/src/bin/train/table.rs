//! Results of processes of one and two threads, and of two ranks, as a table.

use regatta_device::precision::Precision;

use crate::preset::Preset;
use crate::worker_processes::{Framework, Workers};

/// Result of a group of workers.
pub struct ResultRow {
    framework: Framework,
    threads: usize,
    ranks: usize,
    global_batch: usize,
    /// Minimum step time over rounds.
    seconds: f64,
    /// Throughput at that time.
    tokens_per_s: f64,
    /// Throughput of each round.
    rounds: Vec<f64>,
}

impl ResultRow {
    /// From the mean step time of each round.
    pub fn new(workers: &Workers, preset: &Preset, seconds: Vec<f64>) -> Self {
        let Workers { framework, threads, ranks, global_batch, .. } = *workers;
        let tokens = preset.tokens(global_batch) as f64;
        let min = seconds.iter().copied().fold(f64::INFINITY, f64::min);
        let rounds = seconds.into_iter().map(|seconds| tokens / seconds).collect();
        let tokens_per_s = tokens / min;
        Self { framework, threads, ranks, global_batch, seconds: min, tokens_per_s, rounds }
    }

    fn name(&self) -> String {
        let framework = match self.framework {
            Framework::Regatta(Precision::F32) => "Regatta, f32",
            Framework::Regatta(Precision::Bf16) => "Regatta, bf16",
            Framework::Torch { compiled: true, .. } => "PyTorch, compiled",
            Framework::Torch { compiled: false, .. } => "PyTorch, eager",
        };
        match (self.ranks, self.threads) {
            (1, 1) => format!("{framework}, 1 thread"),
            (1, threads) => format!("{framework}, {threads} threads"),
            (ranks, _) => format!("{framework}, {ranks} ranks, batch {}", self.global_batch),
        }
    }

    /// The row to compare with: the faster PyTorch with as many threads, or one rank.
    fn baseline<'a>(&self, all: &'a [ResultRow]) -> Option<(&'static str, &'a ResultRow)> {
        let is_regatta = matches!(self.framework, Framework::Regatta(_));
        let comparable = |row: &&ResultRow| match self.ranks {
            1 => {
                let is_torch = matches!(row.framework, Framework::Torch { .. });
                is_regatta && is_torch && row.threads == self.threads
            }
            _ => row.framework == self.framework && row.ranks == 1 && row.threads == 1,
        };
        let throughput = |a: &&ResultRow, b: &&ResultRow| a.tokens_per_s.total_cmp(&b.tokens_per_s);
        let name = if self.ranks == 1 { "PyTorch" } else { "one rank" };
        Some((name, all.iter().filter(comparable).max_by(throughput)?))
    }
}

/// Minimum, median and maximum over rounds of the ratio of throughputs. Within a round, a change of the
/// machine's speed affects both.
fn ratios_by_round(rounds: &[f64], baseline: &[f64]) -> Option<[f64; 3]> {
    let mut ratios: Vec<f64> =
        rounds.iter().zip(baseline).map(|(own, other)| own / other).collect();
    ratios.sort_unstable_by(f64::total_cmp);
    Some([*ratios.first()?, ratios[ratios.len() / 2], *ratios.last()?])
}

pub fn print(preset: &Preset, rows: &[ResultRow]) {
    let flops = preset.shape().training_flops_per_token(preset.seq_len);
    println!("{:<32}{:>11}{:>11}{:>10}", "", "ms/step", "tokens/s", "GFLOP/s");
    for row in rows {
        let (ms, gflops) = (row.seconds * 1e3, row.tokens_per_s * flops / 1e9);
        let ratio = row.baseline(rows).map_or_else(String::new, |(name, baseline)| {
            let ratio = row.tokens_per_s / baseline.tokens_per_s;
            let by_round = ratios_by_round(&row.rounds, &baseline.rounds);
            let [min, median, max] = by_round.unwrap_or([ratio; 3]);
            format!("  {ratio:.2}x {name}; per round {min:.2} to {max:.2}, median {median:.2}")
        });
        println!("{:<32}{ms:>11.3}{:>11.0}{gflops:>10.1}{ratio}", row.name(), row.tokens_per_s);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_computed_per_round() {
        // The machine is half as fast in the second round, and other load disturbs Regatta in the third.
        let (regatta, torch) = ([4.0, 2.0, 1.0], [2.0, 1.0, 2.0]);
        assert_eq!(ratios_by_round(&regatta, &torch), Some([0.5, 2.0, 2.0]));
        assert_eq!(ratios_by_round(&[], &[]), None);
    }
}
