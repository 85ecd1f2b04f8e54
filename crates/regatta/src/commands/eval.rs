//! `regatta eval`: the loss of a trained model on its validation split or on other data.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use regatta_comm::MemorySpace;
use regatta_device::precision::Precision;
use regatta_device::tensor::{Tensor, View};
use regatta_kernels_cpu::Cpu;
use regatta_model::units::pluralize;
use regatta_train::config::{Config, MicroBatchSize};
use regatta_train::data::{self, DataDirs, DataLoader, DataSpec, Dataset, Sampler, Tokenizer};
use regatta_train::load::Loaded;
use regatta_train::model::Model;
use regatta_train::step::DeviceModel;
use regatta_train::training::evaluate::{self, EvalLoss};
use serde::Serialize;

use super::progress_bar::ProgressBar;
use crate::args::eval::{Batches, EvalArgs, Split};
use crate::cli::{FAINT, HEADING};
use crate::output;

/// Sequences per batch if the model does not come with its training configuration.
const DEFAULT_BATCH: usize = 8;
/// Delay before the progress bar appears.
const BAR_DELAY: Duration = Duration::from_secs(1);

/// Batches as in training.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct EvalBatches {
    /// Sequences to evaluate.
    sequences: u64,
    /// Sequences per forward pass.
    micro_batch: usize,
}

impl EvalBatches {
    fn new(config: Option<&Config>, batches: Option<Batches>) -> Self {
        let Some(config) = config else {
            let sequences = match batches {
                Some(Batches::Count(count)) => count.saturating_mul(DEFAULT_BATCH as u64),
                _ => u64::MAX,
            };
            return Self { sequences, micro_batch: DEFAULT_BATCH };
        };
        // A model-parallel configuration is not valid on one rank.
        let layout = config.validate(1).ok();
        let batch = layout.as_ref().map_or(config.train.batch, |layout| layout.batch);
        let micro_batch = match config.train.micro_batch {
            MicroBatchSize::Auto => layout.map_or(DEFAULT_BATCH, |layout| layout.micro_batch),
            MicroBatchSize::Chosen(size) | MicroBatchSize::Fixed(size) => size,
        };
        let sequences = match batches {
            Some(Batches::All) => u64::MAX,
            Some(Batches::Count(count)) => count.saturating_mul(batch as u64),
            None => (config.train.eval_batches * batch) as u64,
        };
        Self { sequences, micro_batch }
    }
}

/// The result.
#[derive(Debug, Serialize)]
struct EvalReport {
    model: String,
    step: Option<u64>,
    data: String,
    split: &'static str,
    /// Mean loss per token, in nats.
    loss: f64,
    perplexity: f64,
    bits_per_byte: f64,
    /// Only for character tokenizers.
    #[serde(skip_serializing_if = "Option::is_none")]
    bits_per_character: Option<f64>,
    sequences: u64,
    tokens: u64,
    bytes: u64,
    seconds: f64,
    tokens_per_second: f64,
}

/// Runs the command.
pub fn run(args: &EvalArgs) -> Result<()> {
    let device = args.model.device(Precision::F32)?;
    let loaded = args.model.load(&*device)?;
    let (file, tokenizer) = args.model.tokenizer(&loaded)?;
    let (source, dataset, split) = dataset(args, &loaded, &file, &tokenizer)?;
    let (tokens, split) = match split {
        Some(Split::Val) => (dataset.validation, "val"),
        Some(Split::Train) => (dataset.train, "train"),
        None => (dataset.train, "all"),
    };
    let Loaded { shape, parameters, from, step, config, .. } = loaded;
    let order = Sampler::sequential(tokens.len(), shape.seq_len as u64)
        .with_context(|| format!("split {split} of {source}"))?;
    let loader = DataLoader::new(tokens, order);
    let batches = args.batches.or_else(|| args.data.as_ref().map(|_| Batches::All));
    let batches = EvalBatches::new(config.as_ref(), batches);
    let precision = config.map_or(Precision::F32, |config| {
        config.train.precision.unwrap_or_else(Cpu::fastest_precision)
    });
    // Tensors on the CPU do not depend on the precision.
    let device = match device.memory_space() {
        MemorySpace::Host => args.model.device(precision)?,
        MemorySpace::Device(_) => device,
    };
    let device_model = DeviceModel::new(Model::new(shape), device);
    let params: Vec<View<'_>> = parameters.iter().map(Tensor::view).collect();
    let start = Instant::now();
    let found = evaluate_with_bar((&device_model, &params), &loader, batches, &tokenizer, start)?;
    let seconds = start.elapsed().as_secs_f64();
    let report = EvalReport {
        model: from.display().to_string(),
        step,
        data: source,
        split,
        loss: found.mean(),
        perplexity: found.mean().exp(),
        bits_per_byte: bits_per(&found, found.bytes),
        bits_per_character: matches!(tokenizer, Tokenizer::Char(_))
            .then(|| bits_per(&found, found.tokens)),
        sequences: found.windows,
        tokens: found.tokens,
        bytes: found.bytes,
        seconds,
        tokens_per_second: found.tokens as f64 / seconds.max(f64::MIN_POSITIVE),
    };
    output::print_report(args.json, || output::json_line(&report), || text(&report))
}

/// Total loss in bits per unit of text.
fn bits_per(found: &EvalLoss, units: u64) -> f64 {
    found.sum / std::f64::consts::LN_2 / (units as f64).max(1.0)
}

/// The data source, the data in tokens of the model, and the split; None is all of a text.
fn dataset(
    args: &EvalArgs,
    loaded: &Loaded,
    file: &Path,
    tokenizer: &Tokenizer,
) -> Result<(String, Dataset, Option<Split>)> {
    let configured = loaded.config.as_ref().map(|config| &config.data);
    let Some(source) = args.data.as_ref().or(configured.map(|data| &data.source)) else {
        let from = loaded.from.display();
        bail!("{from} does not say what it was trained on: pass the data with --data");
    };
    let path = Path::new(source);
    let is_all = args.data.is_some() && args.split.is_none() && path.is_file();
    let validation = match configured {
        _ if is_all => 0.0,
        Some(data) => data.val_fraction,
        None => DataSpec::default().validation,
    };
    // A prepared folder has a tokenizer of its own, which is compared below.
    let spec_tokenizer = (!path.is_dir()).then(|| file.to_owned());
    let data = source.clone();
    let spec = DataSpec { data, tokenizer: spec_tokenizer, require_char: false, validation };
    let context = || match &args.data {
        Some(source) => format!("--data {source}"),
        // A relative path is relative to where the run was started.
        None => format!("data of the run, {source} (if it is elsewhere, name it with --data)"),
    };
    let dirs = DataDirs::of(|name| std::env::var_os(name));
    let open = || data::open(&spec, &dirs);
    let dataset = open().with_context(context)?;
    if !dataset.tokenizer.has_same_tokens(tokenizer) {
        bail!(
            "{source} was prepared with another tokenizer ({}, {} tokens) than the model was trained \
             with ({}, {} tokens): prepare it with --tokenizer {}",
            dataset.tokenizer.kind(),
            dataset.tokenizer.vocab_size(),
            tokenizer.kind(),
            tokenizer.vocab_size(),
            file.display()
        );
    }
    let split = (!is_all).then(|| args.split.unwrap_or(Split::Val));
    Ok((source.clone(), dataset, split))
}

/// Evaluates, with a progress bar after a second.
fn evaluate_with_bar(
    model: (&DeviceModel, &[View<'_>]),
    loader: &DataLoader,
    batches: EvalBatches,
    tokenizer: &Tokenizer,
    start: Instant,
) -> Result<EvalLoss> {
    let mut bar = ProgressBar::new(None);
    let mut progress = |done: u64, total: u64| {
        let elapsed = start.elapsed();
        if elapsed >= BAR_DELAY {
            let eta_s = elapsed.as_secs_f64() / done as f64 * (total - done) as f64;
            bar.show("sequences", done as usize, total as usize, eta_s);
        }
    };
    let batches = (batches.sequences, batches.micro_batch);
    let found = evaluate::evaluate(model, loader, batches, &tokenizer.token_lens(), &mut progress);
    bar.hide();
    Ok(found?)
}

fn text(report: &EvalReport) -> String {
    let EvalReport { model, data, split, loss, perplexity, sequences, tokens, .. } = report;
    let step = report.step.map_or_else(String::new, |step| format!(", step {step}"));
    let bits = match report.bits_per_character {
        Some(bits) => ("bits/char", format!("{bits:.4}")),
        None => ("bits/byte", format!("{:.4}", report.bits_per_byte)),
    };
    let split = if *split == "all" { "whole text".to_owned() } else { format!("{split} split") };
    let (seconds, speed) = (report.seconds, report.tokens_per_second);
    let sequences = pluralize(*sequences as usize, "sequence");
    let lines = [
        ("data", format!("{data}, {split}")),
        ("loss", format!("{loss:.4}")),
        ("perplexity", format!("{perplexity:.3}")),
        bits,
        ("tokens", format!("{tokens} in {sequences}, {seconds:.1} s, {speed:.0} tokens/s")),
    ];
    let line = |(name, value): &(_, String)| format!("  {FAINT}{name:<12}{FAINT:#}{value}\n");
    format!("{HEADING}{model}{step}{HEADING:#}\n{}", lines.iter().map(line).collect::<String>())
}

#[cfg(test)]
mod tests {
    use regatta_train::config;

    use super::*;

    #[test]
    fn batches_are_those_of_training_unless_given() {
        let config = config::resolve(None, &["batch=12", "micro_batch=4", "eval_batches=3"]);
        let config = config.unwrap().config;
        let sequences = |config, batches: Option<&str>| {
            EvalBatches::new(config, batches.map(|text| text.parse().unwrap())).sequences
        };
        let config = Some(&config);
        assert_eq!(EvalBatches::new(config, None), EvalBatches { sequences: 36, micro_batch: 4 });
        assert_eq!((sequences(config, Some("2")), sequences(config, Some("all"))), (24, u64::MAX));
        assert_eq!((sequences(None, Some("2")), sequences(None, None)), (16, u64::MAX));
        for invalid in ["0", "-1", "x", ""] {
            assert!(invalid.parse::<Batches>().is_err(), "{invalid}");
        }
    }

    #[test]
    fn bits_follow_from_the_total_loss() {
        let loss =
            EvalLoss { sum: 100.0 * std::f64::consts::LN_2, windows: 1, tokens: 50, bytes: 200 };
        assert!((bits_per(&loss, loss.bytes) - 0.5).abs() < 1e-12);
        assert!((loss.mean() - 2.0 * std::f64::consts::LN_2).abs() < 1e-12);
    }
}
