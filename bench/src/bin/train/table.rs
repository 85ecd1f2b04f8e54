//! What was measured, and how it is shown.

use regatta_device::precision::Precision;

use crate::crew::{Crew, Who};
use crate::preset::Preset;

/// What somebody did.
pub struct Row {
    who: Who,
    threads: usize,
    ranks: usize,
    batch: usize,
    /// The least time of a step.
    seconds: f64,
    /// In that time.
    tokens_per_s: f64,
    /// In each turn.
    turns: Vec<f64>,
}

impl Row {
    /// Of the seconds that a step took in each turn.
    pub fn new(crew: &Crew, preset: &Preset, seconds: Vec<f64>) -> Self {
        let Crew { who, threads, ranks, batch, .. } = *crew;
        let tokens = preset.tokens(batch) as f64;
        let least = seconds.iter().copied().fold(f64::INFINITY, f64::min);
        let turns = seconds.into_iter().map(|seconds| tokens / seconds).collect();
        Self { who, threads, ranks, batch, seconds: least, tokens_per_s: tokens / least, turns }
    }

    fn name(&self) -> String {
        let who = match self.who {
            Who::Ours(Precision::F32) => "ours, f32",
            Who::Ours(Precision::Bf16) => "ours, bf16",
            Who::Torch { compiled: true } => "PyTorch, compiled",
            Who::Torch { compiled: false } => "PyTorch, eager",
        };
        match (self.ranks, self.threads) {
            (1, 1) => format!("{who}, 1 thread"),
            (1, threads) => format!("{who}, {threads} threads"),
            (ranks, _) => format!("{who}, {ranks} ranks, batch {}", self.batch),
        }
    }

    /// Whom it is beside: PyTorch's better one on as many threads, or one rank of ours.
    fn beside<'a>(&self, all: &'a [Row]) -> Option<(&'static str, &'a Row)> {
        let ours = matches!(self.who, Who::Ours(_));
        let fits = |row: &&Row| match self.ranks {
            1 => ours && matches!(row.who, Who::Torch { .. }) && row.threads == self.threads,
            _ => row.who == self.who && row.ranks == 1 && row.threads == 1,
        };
        let fastest = |a: &&Row, b: &&Row| a.tokens_per_s.total_cmp(&b.tokens_per_s);
        let name = if self.ranks == 1 { "PyTorch" } else { "one rank" };
        Some((name, all.iter().filter(fits).max_by(fastest)?))
    }
}

/// How many times as fast one was as another, turn by turn: a machine that becomes slower meanwhile
/// does so for both. The least, the median and the largest.
fn by_turn(one: &[f64], other: &[f64]) -> Option<[f64; 3]> {
    let mut ratios: Vec<f64> = one.iter().zip(other).map(|(one, other)| one / other).collect();
    ratios.sort_unstable_by(f64::total_cmp);
    Some([*ratios.first()?, ratios[ratios.len() / 2], *ratios.last()?])
}

pub fn print(preset: &Preset, rows: &[Row]) {
    let flops = preset.shape().training_flops_per_token(preset.context);
    println!("{:<32}{:>11}{:>11}{:>10}", "", "ms/step", "tokens/s", "GFLOP/s");
    for row in rows {
        let (ms, rate) = (row.seconds * 1e3, row.tokens_per_s * flops / 1e9);
        let ratio = row.beside(rows).map_or_else(String::new, |(name, other)| {
            let ratio = row.tokens_per_s / other.tokens_per_s;
            let [least, median, most] = by_turn(&row.turns, &other.turns).unwrap_or([ratio; 3]);
            format!(
                "  {ratio:.2} times {name}; by turn {least:.2} to {most:.2}, median {median:.2}"
            )
        });
        println!("{:<32}{ms:>11.3}{:>11.0}{rate:>10.1}{ratio}", row.name(), row.tokens_per_s);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_those_of_each_turn() {
        // The machine is half as fast in the second turn, and a neighbour disturbs us in the third.
        let (ours, theirs) = ([4.0, 2.0, 1.0], [2.0, 1.0, 2.0]);
        assert_eq!(by_turn(&ours, &theirs), Some([0.5, 2.0, 2.0]));
        assert_eq!(by_turn(&[], &[]), None);
    }
}
