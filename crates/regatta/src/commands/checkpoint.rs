//! `regatta checkpoint`: what is in a checkpoint, whether it is whole, and the way from and to
//! models of Hugging Face.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, Subcommand};
use regatta_model::units;
use regatta_predict::shape::Shape;
use regatta_train::checkpoint::huggingface::{self, HuggingFaceError};
use regatta_train::checkpoint::manifest::{Manifest, Pieces};
use regatta_train::checkpoint::{
    About, Checkpoint, CheckpointError, Kind, Piece, SPLIT, State, Writer,
};
use regatta_train::data::Tokenizer;
use regatta_train::job::TOKENIZER;
use regatta_train::{load, run};
use serde_json::json;

use crate::cli::{ERROR, FAINT, GOOD, HEADING, WARNING};
use crate::output;

/// `regatta checkpoint`.
#[derive(Debug, Args)]
pub struct CheckpointArgs {
    /// What to do
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Show what a checkpoint is about
    Show(FolderArgs),
    /// Read all of a checkpoint and compare its checksums; exit 1 if anything is wrong
    Verify(FolderArgs),
    /// Make a checkpoint of a GPT-2 or Llama model of Hugging Face: parameters only, step 0
    Import(ImportArgs),
    /// Write a checkpoint's parameters as a model that transformers loads
    Export(ExportArgs),
}

#[derive(Debug, Args)]
struct FolderArgs {
    /// A checkpoint, a folder of checkpoints, or a run: of several the newest
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// Print it as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct ImportArgs {
    /// A folder with config.json and model.safetensors, or several files and their index
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// The folder of checkpoints to write to
    #[arg(long, value_name = "FOLDER")]
    to: PathBuf,
    /// Print what was made as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct ExportArgs {
    /// A checkpoint, a folder of checkpoints, or a run: of several the newest
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// The folder to write to
    #[arg(long, value_name = "MODEL")]
    to: PathBuf,
    /// The tokenizer.json to put beside it; without it the checkpoint's
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// Print what was made as JSON
    #[arg(long)]
    json: bool,
}

/// Runs it.
pub fn run(args: &CheckpointArgs) -> Result<ExitCode> {
    match &args.what {
        What::Show(args) => show(args),
        What::Verify(args) => verify(args),
        What::Import(args) => import(args),
        What::Export(args) => export(args),
    }
}

/// The checkpoint that a folder is, or the newest that it has.
fn find(folder: &Path) -> Result<Checkpoint> {
    if !folder.is_dir() {
        bail!("{} is no folder", folder.display());
    }
    for inside in [folder.to_owned(), run::kept_in(folder)] {
        if let Some(newest) = Checkpoint::latest(&inside)? {
            return Ok(newest);
        }
    }
    if folder.join("checkpoint.json").exists() {
        return Ok(Checkpoint::open(folder)?);
    }
    bail!(
        "{} is no checkpoint, and neither it nor a run's folder of checkpoints in it has any",
        folder.display()
    );
}

fn show(args: &FolderArgs) -> Result<ExitCode> {
    let checkpoint = find(&args.folder)?;
    let (folder, manifest) = (checkpoint.folder(), checkpoint.manifest());
    if args.json {
        let pieces = manifest.pieces();
        let all = json!({ "folder": folder, "pieces": pieces, "checkpoint": manifest });
        let text = serde_json::to_string(&all)?;
        output::print(&format!("{text}\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let About { step, tokens, seed, shape, config, tokenizer, .. } = checkpoint.about();
    let bytes = units::bytes(manifest.files.values().sum());
    let (files, ranks) = (manifest.files.len(), manifest.ranks);
    let count = |kind| manifest.tensors.iter().filter(|tensor| tensor.kind == kind).count();
    let [parameters, moments] = [Kind::Parameter, Kind::Moment1].map(count);
    let state = if moments > 0 { "with the optimizer's state" } else { "no optimizer's state" };
    let mut text = format!("{HEADING}{}{HEADING:#}\n", folder.display());
    let lines = [
        ("step", format!("{step}, {tokens} tokens seen, seed {seed}")),
        ("model", describe(shape)),
        ("tensors", format!("{parameters}, {state}")),
        ("files", format!("{files} of {ranks} ranks, {bytes}")),
        ("split", split(manifest)),
        ("tokenizer", if tokenizer.is_empty() { "unknown".to_owned() } else { tokenizer.clone() }),
    ];
    for (name, value) in lines {
        text.push_str(&format!("  {FAINT}{name:<10}{FAINT:#}{value}\n"));
    }
    for line in config.lines() {
        text.push_str(&format!("  {FAINT}{:<10}{FAINT:#}{line}\n", "config"));
    }
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// How the ranks that wrote it were laid out, and in what pieces its tensors are.
fn split(manifest: &Manifest) -> String {
    let Pieces { whole, ranges, rectangles } = manifest.pieces();
    let pieces = [(whole, "whole"), (ranges, "ranges"), (rectangles, "rectangles")];
    let pieces = pieces.into_iter().filter(|(count, _)| *count > 0);
    let pieces: Vec<String> = pieces.map(|(count, what)| format!("{count} {what}")).collect();
    let by = manifest.about.extra.get(SPLIT).map_or(String::new(), |split| format!("{split}; "));
    format!("{by}{} tensors in pieces: {}", manifest.tensors.len(), pieces.join(", "))
}

fn describe(shape: &Shape) -> String {
    let family = format!("{:?}", shape.family).to_lowercase();
    let Shape { layers, width, heads, context, vocabulary, .. } = shape;
    format!(
        "{family} of {} parameters: {layers} layers, width {width}, {heads} heads, context \
         {context}, vocabulary {vocabulary}",
        shape.parameters()
    )
}

fn verify(args: &FolderArgs) -> Result<ExitCode> {
    let checkpoint = find(&args.folder)?;
    let folder = checkpoint.folder();
    let (bytes, wrong) = match checkpoint.verify() {
        Ok(bytes) => (bytes, Vec::new()),
        Err(wrong) => (0, wrong.iter().map(ToString::to_string).collect()),
    };
    let good = wrong.is_empty();
    if args.json {
        let report = json!({ "folder": folder, "good": good, "bytes": bytes, "wrong": wrong });
        output::print(&format!("{report}\n"))?;
    } else if good {
        let (folder, bytes) = (folder.display(), units::bytes(bytes));
        output::print(&format!(
            "{GOOD}good{GOOD:#}  {folder}: {bytes} are as they were written\n"
        ))?;
    } else {
        let lines = wrong.iter().map(|why| format!("{ERROR}wrong{ERROR:#} {why}\n"));
        output::print(&lines.collect::<String>())?;
    }
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// No disk takes longer for a model that fits into memory.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);

fn import(args: &ImportArgs) -> Result<ExitCode> {
    let model = huggingface::import(&args.model)?;
    let one = |parameter| -> Result<Piece, HuggingFaceError> {
        let numbers = model.read(&parameter)?;
        Ok(Piece::whole(&parameter.name, Kind::Parameter, &parameter.shape, numbers))
    };
    let pieces = model.parameters().into_iter().map(one).collect::<Result<Vec<_>, _>>()?;
    let tokenizer = their_tokenizer(&args.model, &args.to)?;
    // One more than there are is none too many: an import removes nothing.
    let mut writer = Writer::new(&args.to, 0, 1, usize::MAX)?;
    let origin = args.model.display().to_string();
    let about = About {
        step: 0,
        tokens: 0,
        seed: 0,
        shape: model.shape.clone(),
        config: String::new(),
        tokenizer: tokenizer.as_ref().map(Tokenizer::fingerprint).unwrap_or_default(),
        extra: [("imported".to_owned(), origin)].into(),
    };
    writer.begin(about, pieces)?;
    match writer.finish(PATIENCE) {
        State::Written { step } => {
            let committed = writer.commit(step)?.context("rank 0 commits")?;
            tokenizer.map_or(Ok(()), |tokenizer| tokenizer.save(&args.to.join(TOKENIZER)))?;
            report(args.json, "checkpoint", &committed.path, &model.shape)
        }
        State::Failed { error, .. } => Err(anyhow!("{error}")),
        State::Idle | State::Writing { .. } => bail!("{} took too long", args.to.display()),
    }
}

/// What a model's tokens mean, if it says so and we understand it, and if nothing else is said
/// where the checkpoint is to be.
fn their_tokenizer(model: &Path, to: &Path) -> Result<Option<Tokenizer>> {
    let file = model.join(TOKENIZER);
    if !file.is_file() {
        return Ok(None);
    }
    let tokenizer = match Tokenizer::load(&file) {
        Ok(tokenizer) => tokenizer,
        Err(error) => {
            told(&format!("{error}; the model is imported without it"));
            return Ok(None);
        }
    };
    let there = to.join(TOKENIZER);
    if std::fs::read(&there).is_ok_and(|bytes| bytes != tokenizer.to_bytes()) {
        bail!("{} is another model's: choose another folder by --to", there.display());
    }
    Ok(Some(tokenizer))
}

/// What the user should know.
fn told(note: &str) {
    output::complain(&format!("{WARNING}note:{WARNING:#} {note}\n"));
}

/// What can go wrong on either side.
#[derive(Debug, thiserror::Error)]
enum ExportError {
    #[error(transparent)]
    Model(#[from] HuggingFaceError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
}

fn export(args: &ExportArgs) -> Result<ExitCode> {
    let checkpoint = find(&args.folder)?;
    let shape = &checkpoint.about().shape;
    let mut read = |name: &str| -> Result<Vec<f32>, ExportError> {
        Ok(checkpoint.read_whole(name, Kind::Parameter)?)
    };
    let tokenizer = our_tokenizer(args, &checkpoint)?;
    huggingface::export(&args.to, shape, &mut read, tokenizer.as_deref())?;
    report(args.json, "model", &args.to, shape)
}

/// The tokenizer's file to put beside a model: the one that was named, or that of the checkpoint.
/// Nobody but us reads a list of characters.
fn our_tokenizer(args: &ExportArgs, checkpoint: &Checkpoint) -> Result<Option<PathBuf>> {
    let Some(file) = args.tokenizer.clone().or_else(|| load::tokenizer_of(checkpoint)) else {
        return Ok(None);
    };
    match Tokenizer::load(&file)? {
        Tokenizer::Bpe(_) => Ok(Some(file)),
        Tokenizer::Characters(_) => {
            let file = file.display();
            told(&format!(
                "{file} is a list of characters, which transformers does not read: it is left out"
            ));
            Ok(None)
        }
    }
}

fn report(json: bool, what: &str, path: &Path, shape: &Shape) -> Result<ExitCode> {
    let text = match json {
        true => json!({ what: path, "shape": shape }).to_string(),
        false => format!("{}: {}", path.display(), describe(shape)),
    };
    output::print(&format!("{text}\n"))?;
    Ok(ExitCode::SUCCESS)
}
