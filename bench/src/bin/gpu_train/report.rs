//! Results as text and JSON.

use serde_json::{Value, json};

use crate::case::Case;

/// Times of one contender.
#[derive(Debug, Default)]
pub struct Measured {
    /// Seconds of each step.
    pub seconds: Vec<f64>,
    /// Loss of the last step.
    pub loss: f64,
    /// Peak memory in bytes.
    pub memory: u64,
}

impl Measured {
    pub fn text(&self, name: &str, case: &Case) -> String {
        let [low, median, high] = quartiles(&self.seconds);
        let (rate, gib) = (case.tokens() / median, self.memory as f64 / (1u64 << 30) as f64);
        format!(
            "  {name:8} {:8.2} ms/step ({:.2} to {:.2})  {rate:9.0} tokens/s  {gib:6.1} GiB  loss {:.4}",
            1e3 * median,
            1e3 * low,
            1e3 * high,
            self.loss,
        )
    }

    fn json(&self, case: &Case) -> Value {
        let quartiles = quartiles(&self.seconds);
        json!({
            "seconds": quartiles,
            "tokens_per_second": case.tokens() / quartiles[1],
            "memory_bytes": self.memory,
            "loss": self.loss,
        })
    }
}

/// The result of a case.
#[derive(Debug)]
pub struct Report<'a> {
    pub case: &'a Case,
    pub device: String,
    pub own: Measured,
    /// PyTorch, its mode of torch.compile, and the ratio of step times in each round.
    pub peer: Option<(Measured, String, Vec<f64>)>,
}

impl Report<'_> {
    pub fn text(&self) -> String {
        let Self { case, device, own, peer } = self;
        let mut lines = vec![format!("{}: {device}", case.name), own.text("regatta", case)];
        if let Some((torch, mode, ratios)) = peer {
            let [low, median, high] = quartiles(ratios);
            lines.push(torch.text("torch", case));
            lines.push(format!("  ratio    {median:.3} ({low:.3} to {high:.3}), mode {mode}"));
        }
        lines.join("\n")
    }

    /// Quartiles are the first quartile, the median and the third.
    pub fn json(&self) -> Value {
        let Self { case, device, own, peer } = self;
        let torch = peer.as_ref().map(|(torch, mode, ratios)| {
            json!({ "mode": mode, "steps": torch.json(case), "ratio": quartiles(ratios) })
        });
        json!({
            "case": case.name,
            "device": device,
            "parameters": case.shape.num_params(),
            "batch": case.batch,
            "seq_len": case.shape.seq_len,
            "regatta": own.json(case),
            "torch": torch,
        })
    }
}

/// First quartile, median and third quartile.
pub fn quartiles(values: &[f64]) -> [f64; 3] {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |share: f64| sorted.get((share * (sorted.len().max(1) - 1) as f64).round() as usize);
    [0.25, 0.5, 0.75].map(|share| at(share).copied().unwrap_or(f64::NAN))
}
