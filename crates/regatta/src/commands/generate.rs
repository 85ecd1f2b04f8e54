//! `regatta generate`: text from a trained model, as it comes.

use std::io::{IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;
use regatta_device::memory::Tensor;
use regatta_device::precision::Precision;
use regatta_kernels_cpu::Cpu;
use regatta_train::data::{Stream, Tokenizer};
use regatta_train::generate::{Generator, Sampling};
use regatta_train::load::{Loaded, load};
use regatta_train::model::Model;
use regatta_train::step::Net;
use serde::Serialize;

use crate::cli::{FAINT, WARNING};
use crate::output;

/// `regatta generate`.
#[derive(Debug, Args)]
pub struct GenerateArgs {
    /// A run's folder, a checkpoint, or a folder of Hugging Face's
    pub model: PathBuf,
    /// What the text begins with (`-`: standard input); without it a line end
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    pub prompt: Option<String>,
    /// How many tokens to write
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 500)]
    pub tokens: usize,
    /// Below 1 likely tokens get likelier, above 1 unlikely ones; 0 takes the likeliest
    #[arg(short, long, value_name = "NUMBER", default_value_t = 0.8, value_parser = not_negative, help_heading = "Sampling")]
    pub temperature: f64,
    /// Only so many of the likeliest tokens; 0: all
    #[arg(long, value_name = "COUNT", default_value_t = 200, help_heading = "Sampling")]
    pub top_k: usize,
    /// Only the likeliest tokens that have this probability together
    #[arg(long, value_name = "SHARE", default_value_t = 1.0, value_parser = not_negative, help_heading = "Sampling")]
    pub top_p: f64,
    /// The same seed writes the same text
    #[arg(long, value_name = "NUMBER", default_value_t = 1337, help_heading = "Sampling")]
    pub seed: u64,
    /// Another tokenizer file than the one beside the model
    #[arg(long, value_name = "FILE")]
    pub tokenizer: Option<PathBuf>,
    /// Threads; without it one for each core
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..))]
    pub threads: Option<u16>,
    /// Print one JSON object at the end: prompt, text, tokens, seconds
    #[arg(long)]
    pub json: bool,
}

/// What `regatta generate --help` teaches.
pub const EXAMPLES: &str = "\
Examples:
  regatta generate runs/20261115-120000-4711    from the newest checkpoint of a run
  regatta generate runs/mine --prompt 'ROMEO:' -n 200
  regatta generate gpt2/ --prompt 'Once upon' --temperature 0
                                                a model of Hugging Face, the likeliest text
  echo 'To be' | regatta generate runs/mine --prompt -";

/// What was written.
#[derive(Serialize)]
struct Written<'a> {
    model: String,
    step: Option<u64>,
    prompt: &'a str,
    text: &'a str,
    tokens: usize,
    seconds: f64,
}

/// Runs the command.
pub fn run(args: &GenerateArgs) -> Result<ExitCode> {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let device = Cpu::new(args.threads.map_or_else(cores, usize::from), Precision::F32);
    let loaded = load(&args.model, &device)?;
    let tokenizer = tokenizer(args, &loaded)?;
    let prompt = prompt(args)?;
    let first = match (tokenizer.encode(&prompt), &args.prompt) {
        // A text without line ends has no token for one.
        (Err(_), None) => vec![0],
        (encoded, _) => encoded.context("--prompt")?,
    };
    let Loaded { shape, parameters, from, step, .. } = loaded;
    let net = Net::new(Model::new(shape), Box::new(device));
    let mut generator = Generator::new(&net, parameters.iter().map(Tensor::view).collect())
        .among(tokenizer.vocabulary());
    generator.read(&first)?;
    let began = Instant::now();
    let text = write(args, &mut generator, &tokenizer, &first)?;
    let seconds = began.elapsed().as_secs_f64();
    let model = from.display().to_string();
    if args.json {
        let tokens = args.tokens;
        let written = Written { model, step, prompt: &prompt, text: &text, tokens, seconds };
        output::print(&(serde_json::to_string(&written)? + "\n"))?;
    } else if std::io::stdout().is_terminal() {
        let speed = args.tokens as f64 / seconds.max(f64::MIN_POSITIVE);
        let step = step.map_or_else(String::new, |step| format!(" after {step} steps"));
        output::complain(&format!("{FAINT}{model}{step}, {speed:.0} tokens/s{FAINT:#}\n"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes token after token, and shows each as soon as it is text.
fn write(
    args: &GenerateArgs,
    generator: &mut Generator<'_>,
    tokenizer: &Tokenizer,
    first: &[u32],
) -> Result<String> {
    let GenerateArgs { temperature, top_k, top_p, seed, .. } = *args;
    let sampling = Sampling { temperature, top_k, top_p, seed };
    let mut stream: Stream<'_> = tokenizer.stream();
    let mut text = String::new();
    let mut show = |piece: String| -> Result<()> {
        if !args.json {
            let mut out = std::io::stdout();
            out.write_all(piece.as_bytes())
                .and_then(|()| out.flush())
                .context("standard output")?;
        }
        text.push_str(&piece);
        Ok(())
    };
    for token in first {
        show(stream.push(*token)?)?;
    }
    for _ in 0..args.tokens {
        show(stream.push(generator.next(&sampling)?)?)?;
    }
    show(stream.finish() + "\n")?;
    text.truncate(text.len() - 1);
    Ok(text)
}

fn tokenizer(args: &GenerateArgs, loaded: &Loaded) -> Result<Tokenizer> {
    let Some(file) = args.tokenizer.as_ref().or(loaded.tokenizer.as_ref()) else {
        let from = loaded.from.display();
        bail!("{from} has no tokenizer.json beside it: name the tokenizer's file by --tokenizer");
    };
    let tokenizer = Tokenizer::load(file)?;
    check_maker(args, loaded, file, &tokenizer.fingerprint())?;
    let (kinds, known) = (tokenizer.vocabulary(), loaded.shape.vocabulary);
    if kinds > known {
        let file = file.display();
        bail!("{file} has {kinds} kinds of tokens, the model knows {known}: it is another model's");
    }
    Ok(tokenizer)
}

/// The tokenizer is the one that the model was trained with. Another one that was asked for may say
/// the same in other words, so that is only told.
fn check_maker(args: &GenerateArgs, loaded: &Loaded, file: &Path, fingerprint: &str) -> Result<()> {
    let Some(made_by) = loaded.made_by.as_deref().filter(|made_by| *made_by != fingerprint) else {
        return Ok(());
    };
    let (file, from) = (file.display(), loaded.from.display());
    let what = format!("{file} ({fingerprint}) is not the tokenizer of {from} ({made_by})");
    if args.tokenizer.is_none() {
        bail!(
            "{what}: name the right one by --tokenizer FILE, or this one to take it all the same"
        );
    }
    output::complain(&format!("{WARNING}note:{WARNING:#} {what}\n"));
    Ok(())
}

/// What the text begins with.
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

fn not_negative(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| format!("{text} is no number"))?;
    if number >= 0.0 { Ok(number) } else { Err("it must be 0 or more".to_owned()) }
}
