//! The options of `regatta generate`.

use clap::Args;

use super::model::ModelArgs;
use crate::options::{at_least, number};

/// `regatta generate`.
#[derive(Debug, Args)]
pub struct GenerateArgs {
    /// Prompt (`-`: standard input) [default: a newline]
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    pub prompt: Option<String>,
    /// Number of tokens to generate
    #[arg(short = 'n', long, alias = "max-new-tokens", value_name = "COUNT", default_value_t = 500, allow_negative_numbers = true, value_parser = at_least::<usize>(0))]
    pub tokens: usize,
    /// Sampling temperature: lower is more deterministic; 0 is greedy decoding
    #[arg(short, long, value_name = "NUMBER", default_value_t = 0.8, allow_negative_numbers = true, value_parser = number(|t| *t >= 0.0, "expected a number >= 0"), help_heading = "Sampling")]
    pub temperature: f64,
    /// Sample from the COUNT most likely tokens only (top-k); 0 disables it
    #[arg(long, value_name = "COUNT", default_value_t = 200, allow_negative_numbers = true, value_parser = at_least::<usize>(0), help_heading = "Sampling")]
    pub top_k: usize,
    /// Sample from the most likely tokens with this cumulative probability only (top-p, nucleus)
    #[arg(long, value_name = "PROBABILITY", default_value_t = 1.0, allow_negative_numbers = true, value_parser = number(|p| *p > 0.0 && *p <= 1.0, "expected a probability in (0, 1]"), help_heading = "Sampling")]
    pub top_p: f64,
    /// Random seed; the same seed generates the same text
    #[arg(long, value_name = "NUMBER", default_value_t = 1337, help_heading = "Sampling")]
    pub seed: u64,
    #[command(flatten)]
    pub model: ModelArgs,
    /// Print one JSON object at the end: model, step, prompt, text, tokens, seconds
    #[arg(long)]
    pub json: bool,
}

/// Examples in the help.
pub const EXAMPLES: &str = "\
Examples:
  regatta generate runs/20261115-120000-4711    the latest checkpoint of a run
  regatta generate runs/mine --prompt 'ROMEO:' -n 200
  regatta generate gpt2/ --prompt 'Once upon' --temperature 0
                                                a Hugging Face model, greedy decoding
  echo 'To be' | regatta generate runs/mine --prompt -";
