//! `regatta generate`: generates text from a trained model and streams it.

use std::io::Read;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Args;
use regatta_device::precision::Precision;
use regatta_device::tensor::Tensor;
use regatta_train::data::Tokenizer;
use regatta_train::generate::{Generator, Sampling};
use regatta_train::load::Loaded;
use regatta_train::model::Model;
use regatta_train::step::DeviceModel;
use serde::Serialize;

use super::model_args::ModelArgs;
use crate::cli::FAINT;
use crate::options::{at_least, number};
use crate::output::{self, Stream};
use regatta_draw::escapes::Sanitizer;

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

/// The output of `--json`.
#[derive(Serialize)]
struct GenerateReport<'a> {
    model: String,
    step: Option<u64>,
    prompt: &'a str,
    text: &'a str,
    tokens: usize,
    seconds: f64,
}

/// Runs the command.
pub fn run(args: &GenerateArgs) -> Result<()> {
    let device = args.model.device(Precision::F32)?;
    let loaded = args.model.load(&*device)?;
    let tokenizer = args.model.tokenizer(&loaded)?.1;
    let prompt = prompt(args)?;
    let prompt_tokens = match (tokenizer.encode(&prompt), &args.prompt) {
        // A character-level vocabulary may lack the newline.
        (Err(_), None) => vec![0],
        (encoded, _) => encoded.context("--prompt")?,
    };
    let Loaded { shape, parameters, from, step, .. } = loaded;
    let device_model = DeviceModel::new(Model::new(shape), device);
    let mut generator =
        Generator::new(&device_model, parameters.iter().map(Tensor::view).collect())
            .with_tokenizer(&tokenizer);
    generator.prefill(&prompt_tokens)?;
    let start = Instant::now();
    let (text, tokens) = stream_text(args, &mut generator, &tokenizer, &prompt_tokens)?;
    let seconds = start.elapsed().as_secs_f64();
    let model = from.display().to_string();
    if args.json {
        let report = GenerateReport { model, step, prompt: &prompt, text: &text, tokens, seconds };
        output::print(&(serde_json::to_string(&report)? + "\n"))?;
    } else if Stream::Stdout.is_terminal() {
        let speed = tokens as f64 / seconds.max(f64::MIN_POSITIVE);
        let step = step.map_or_else(String::new, |step| format!(" at step {step}"));
        output::eprint(&format!("{FAINT}{model}{step}, {speed:.0} tokens/s{FAINT:#}\n"));
    }
    Ok(())
}

/// Generates token by token and prints each as soon as it decodes to text, until end-of-text or the
/// maximum number of tokens. Returns the text and the number of generated tokens.
fn stream_text(
    args: &GenerateArgs,
    generator: &mut Generator<'_>,
    tokenizer: &Tokenizer,
    prompt: &[u32],
) -> Result<(String, usize)> {
    let GenerateArgs { temperature, top_k, top_p, seed, .. } = *args;
    let sampling = Sampling { temperature, top_k, top_p, seed };
    let mut stream = tokenizer.stream();
    let mut text = String::new();
    let mut sanitizer = Stream::Stdout.is_terminal().then(Sanitizer::default);
    let mut print = |piece: String| {
        text.push_str(&piece);
        match &mut sanitizer {
            _ if args.json => Ok(()),
            Some(sanitizer) => output::print_raw(&sanitizer.push(&piece)),
            None => output::print_raw(&piece),
        }
    };
    for token in prompt {
        print(stream.push(*token)?)?;
    }
    let mut generated = 0;
    while generated < args.tokens {
        let Some(token) = generator.next(&sampling)? else { break };
        print(stream.push(token)?)?;
        generated += 1;
    }
    print(stream.finish() + "\n")?;
    text.truncate(text.len() - 1);
    Ok((text, generated))
}

/// The prompt of the command line or of standard input.
fn prompt(args: &GenerateArgs) -> Result<String> {
    match args.prompt.as_deref() {
        None | Some("") => Ok("\n".to_owned()),
        Some("-") => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).context("standard input")?;
            Ok(text.trim_end_matches('\n').to_owned())
        }
        Some(text) => Ok(text.to_owned()),
    }
}
