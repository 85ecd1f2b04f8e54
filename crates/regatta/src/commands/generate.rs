//! `regatta generate`: generates text from a trained model and streams it.

use std::io::Read;
use std::time::Instant;

use anyhow::{Context, Result};
use regatta_device::precision::Precision;
use regatta_device::tensor::Tensor;
use regatta_train::data::Tokenizer;
use regatta_train::generate::{Generator, Sampling};
use regatta_train::load::Loaded;
use regatta_train::model::Model;
use regatta_train::step::DeviceModel;
use serde::Serialize;

use crate::args::generate::GenerateArgs;
use crate::cli::FAINT;
use crate::output::{self, Stream};
use regatta_draw::escapes::Sanitizer;

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
        output::print(&output::json_line(&report)?)?;
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
