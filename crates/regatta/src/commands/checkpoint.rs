//! `regatta checkpoint`: inspect and verify checkpoints; import and export Hugging Face models.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use regatta_model::{run_folder, units};
use regatta_predict::shape::ModelShape;
use regatta_train::checkpoint::huggingface;
use regatta_train::checkpoint::manifest::{Manifest, ShardCounts};
use regatta_train::checkpoint::{
    Checkpoint, CheckpointMeta, SPLIT, Shard, State, StateTensor, Writer, has_checkpoint,
};
use regatta_train::data::Tokenizer;
use regatta_train::training::TOKENIZER;
use regatta_train::{load, run_paths};
use serde_json::json;

use super::runs::no_checkpoint;
use crate::args::checkpoint::{
    CheckpointArgs, CheckpointCommand, ExportArgs, FolderArgs, ImportArgs,
};
use crate::cli::{ERROR, FAINT, GOOD, HEADING};
use crate::output;

/// Runs the command.
pub fn run(args: &CheckpointArgs) -> Result<ExitCode> {
    match &args.command {
        CheckpointCommand::Show(args) => show(args)?,
        CheckpointCommand::Verify(args) => return verify(args),
        CheckpointCommand::Import(args) => import(args)?,
        CheckpointCommand::Export(args) => export(args)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The checkpoint in a folder, or its latest one.
fn find(folder: &Path) -> Result<Checkpoint> {
    let shown = folder.display();
    match std::fs::metadata(folder) {
        Ok(found) if found.is_dir() => {}
        Ok(_) => bail!("{shown} is not a directory; expected a checkpoint or a run folder"),
        Err(error) => return Err(error).with_context(|| format!("cannot read {shown}")),
    }
    for candidate in [folder.to_owned(), run_paths::find_checkpoint_dir(folder)] {
        if let Some(newest) = Checkpoint::latest(&candidate)? {
            return Ok(newest);
        }
    }
    if folder.join("checkpoint.json").exists() {
        return Ok(Checkpoint::open(folder)?);
    }
    match no_checkpoint::message(folder) {
        Some(message) => bail!(message),
        None => bail!("no checkpoint found in {shown} or {shown}/{}", run_folder::CHECKPOINTS),
    }
}

fn show(args: &FolderArgs) -> Result<()> {
    let checkpoint = find(&args.folder)?;
    let (folder, manifest) = (checkpoint.folder(), checkpoint.manifest());
    if args.json {
        let shards = manifest.shard_counts();
        let report = json!({ "folder": folder, "shards": shards, "checkpoint": manifest });
        return output::print(&format!("{report}\n"));
    }
    let CheckpointMeta { step, tokens, seed, shape, config, tokenizer, .. } = checkpoint.meta();
    let bytes = units::format_bytes(manifest.files.values().sum());
    let (files, ranks) = (manifest.files.len(), units::pluralize(manifest.ranks, "rank"));
    let count = |kind| manifest.tensors.iter().filter(|tensor| tensor.kind == kind).count();
    let [parameters, moments] = [StateTensor::Parameter, StateTensor::Moment1].map(count);
    let state = if moments > 0 { "with optimizer state" } else { "without optimizer state" };
    let mut text = format!("{HEADING}{}{HEADING:#}\n", folder.display());
    let lines = [
        ("step", format!("{step}, {tokens} tokens seen, seed {seed}")),
        ("model", describe(shape)),
        ("tensors", format!("{parameters}, {state}")),
        ("files", format!("{files} from {ranks}, {bytes}")),
        ("sharding", sharding(manifest)),
        ("tokenizer", if tokenizer.is_empty() { "unknown".to_owned() } else { tokenizer.clone() }),
    ];
    let config = config.lines().map(|line| ("config", line.to_owned()));
    for (name, value) in lines.into_iter().chain(config) {
        text.push_str(&format!("  {FAINT}{name:<10}{FAINT:#}{value}\n"));
    }
    output::print(&text)
}

/// The parallelism of the ranks that wrote the checkpoint, and the shards of its tensors by kind.
fn sharding(manifest: &Manifest) -> String {
    let ShardCounts { whole, ranges, rectangles } = manifest.shard_counts();
    let shards = [(whole, "unsharded"), (ranges, "ranges"), (rectangles, "rectangles")];
    let shards = shards.into_iter().filter(|(count, _)| *count > 0);
    let shards: Vec<String> = shards.map(|(count, kind)| format!("{count} {kind}")).collect();
    let split = manifest.meta.extra.get(SPLIT).map_or(String::new(), |split| format!("{split}; "));
    format!("{split}{} tensors, shards: {}", manifest.tensors.len(), shards.join(", "))
}

fn describe(shape: &ModelShape) -> String {
    let ModelShape { family, hidden_size, seq_len, vocab_size, .. } = shape;
    let layers = units::pluralize(shape.num_layers, "layer");
    let heads = units::pluralize(shape.num_heads, "head");
    format!(
        "{family}, {} parameters: {layers}, hidden size {hidden_size}, {heads}, sequence length \
         {seq_len}, vocabulary size {vocab_size}",
        shape.num_params()
    )
}

fn verify(args: &FolderArgs) -> Result<ExitCode> {
    let checkpoint = find(&args.folder)?;
    let folder = checkpoint.folder();
    let (bytes, errors) = match checkpoint.verify() {
        Ok(bytes) => (bytes, Vec::new()),
        Err(errors) => (0, errors.iter().map(ToString::to_string).collect::<Vec<_>>()),
    };
    let ok = errors.is_empty();
    output::print(&if args.json {
        let report = json!({ "folder": folder, "ok": ok, "bytes": bytes, "errors": errors });
        format!("{report}\n")
    } else if ok {
        let (folder, bytes) = (folder.display(), units::format_bytes(bytes));
        format!(
            "{GOOD}ok{GOOD:#}    {folder}: {bytes} read, all tensors present, all checksums match\n"
        )
    } else {
        errors.iter().map(|error| format!("{ERROR}fail{ERROR:#}  {error}\n")).collect()
    })?;
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Limit on writing a model that fits in memory.
const WRITE_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// Refuses to write a checkpoint into a run, and over another one without `--force`.
fn check_import_target(to: &Path, force: bool) -> Result<()> {
    let is_run = |folder: &Path| folder.join(run_folder::CONFIG).exists();
    let parent = to.parent().filter(|_| to.ends_with(run_folder::CHECKPOINTS));
    if let Some(run) = [Some(to), parent].into_iter().flatten().find(|folder| is_run(folder)) {
        bail!("{} is a run folder: import to another folder with --to", run.display());
    }
    if !force && has_checkpoint(to)? {
        let to = to.display();
        bail!("{to} already has a checkpoint: choose another folder with --to, or use --force");
    }
    Ok(())
}

fn import(args: &ImportArgs) -> Result<()> {
    check_import_target(&args.to, args.force)?;
    let model = huggingface::import(&args.model)?;
    let read = |parameter| -> Result<Shard> {
        let values = model.read(&parameter)?;
        Ok(Shard::full_tensor(&parameter.name, StateTensor::Parameter, &parameter.shape, values))
    };
    let tensors = model.parameters().into_iter().map(read).collect::<Result<Vec<_>, _>>()?;
    let tokenizer = import_tokenizer(&args.model, &args.to)?;
    // An import keeps all existing checkpoints.
    let mut writer = Writer::new(&args.to, 0, 1, usize::MAX)?;
    let origin = args.model.display().to_string();
    let about = CheckpointMeta {
        step: 0,
        tokens: 0,
        seed: 0,
        shape: model.shape.clone(),
        config: String::new(),
        tokenizer: tokenizer.as_ref().map(Tokenizer::fingerprint).unwrap_or_default(),
        extra: [("imported".to_owned(), origin)].into(),
    };
    writer.begin(about, tensors)?;
    match writer.finish(WRITE_TIMEOUT) {
        State::Written { step } => {
            let committed = writer.commit(step)?.context("rank 0 commits")?;
            tokenizer.map_or(Ok(()), |tokenizer| tokenizer.save(&args.to.join(TOKENIZER)))?;
            report(args.json, "checkpoint", &committed.path, &model.shape)
        }
        State::Failed { error, .. } => Err(anyhow!("{error}")),
        State::Idle | State::Writing { .. } => bail!("timed out writing {}", args.to.display()),
    }
}

/// The model's tokenizer, if it has a supported one. The target folder must not have another.
fn import_tokenizer(model: &Path, to: &Path) -> Result<Option<Tokenizer>> {
    let file = model.join(TOKENIZER);
    if !file.is_file() {
        return Ok(None);
    }
    let note =
        |error: &_| output::note(&format!("{error}; importing the model without a tokenizer"));
    let Ok(tokenizer) = Tokenizer::load(&file).inspect_err(note) else { return Ok(None) };
    let existing = to.join(TOKENIZER);
    let is_same = |found: Tokenizer| found.fingerprint() == tokenizer.fingerprint();
    if existing.exists() && !Tokenizer::load(&existing).is_ok_and(is_same) {
        bail!(
            "{} belongs to another model: choose another directory with --to",
            existing.display()
        );
    }
    Ok(Some(tokenizer))
}

fn export(args: &ExportArgs) -> Result<()> {
    let checkpoint = find(&args.folder)?;
    let shape = &checkpoint.meta().shape;
    let mut read = |name: &str| checkpoint.read_whole(name, StateTensor::Parameter);
    let file = args.tokenizer.clone().or_else(|| load::tokenizer_of(&checkpoint));
    let tokenizer = file.map(|file| Tokenizer::load(&file)).transpose()?;
    huggingface::export(&args.to, shape, &mut read, tokenizer.as_ref(), args.force)?;
    report(args.json, "model", &args.to, shape)
}

fn report(json: bool, what: &str, path: &Path, shape: &ModelShape) -> Result<()> {
    let to_json = || output::json_line(&json!({ what: path, "shape": shape }));
    output::print_report(json, to_json, || format!("{}: {}\n", path.display(), describe(shape)))
}
