//! What was measured, and how it is shown.

use regatta_train::cpu::Precision;

use crate::crew::{Crew, Who};
use crate::preset::Preset;

/// The least time of a step that somebody took.
pub struct Row {
    who: Who,
    threads: usize,
    ranks: usize,
    batch: usize,
    seconds: f64,
    tokens_per_s: f64,
}

impl Row {
    pub fn new(crew: &Crew, preset: &Preset, seconds: f64) -> Self {
        let Crew { who, threads, ranks, batch, .. } = *crew;
        let tokens_per_s = preset.tokens(batch) as f64 / seconds;
        Self { who, threads, ranks, batch, seconds, tokens_per_s }
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

pub fn print(preset: &Preset, rows: &[Row]) {
    let flops = preset.shape().training_flops_per_token(preset.context);
    println!("{:<32}{:>11}{:>11}{:>10}", "", "ms/step", "tokens/s", "GFLOP/s");
    for row in rows {
        let (ms, rate) = (row.seconds * 1e3, row.tokens_per_s * flops / 1e9);
        let ratio = row.beside(rows).map_or_else(String::new, |(name, other)| {
            format!("  {:.2} times {name}", row.tokens_per_s / other.tokens_per_s)
        });
        println!("{:<32}{ms:>11.3}{:>11.0}{rate:>10.1}{ratio}", row.name(), row.tokens_per_s);
    }
}
