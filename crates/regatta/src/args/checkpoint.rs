//! The options of `regatta checkpoint`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// `regatta checkpoint`.
#[derive(Debug, Args)]
pub struct CheckpointArgs {
    /// Action
    #[command(subcommand)]
    pub command: CheckpointCommand,
}

#[derive(Debug, Subcommand)]
pub enum CheckpointCommand {
    /// Show a checkpoint's step, model, tensors and configuration
    Show(FolderArgs),
    /// Check that all tensors are there and that all checksums match; exit 1 on corruption
    Verify(FolderArgs),
    /// Convert a Hugging Face GPT-2 or Llama model to a checkpoint: parameters only, step 0
    Import(ImportArgs),
    /// Convert a checkpoint to a model that transformers loads
    Export(ExportArgs),
}

#[derive(Debug, Args)]
pub struct FolderArgs {
    /// A checkpoint, a folder of checkpoints, or a run folder; the latest checkpoint is used
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ImportArgs {
    /// Folder with config.json and model.safetensors, or with sharded safetensors and their index
    #[arg(value_name = "MODEL")]
    pub model: PathBuf,
    /// Folder of checkpoints to write to; not that of a run
    #[arg(long, value_name = "FOLDER")]
    pub to: PathBuf,
    /// Write to a folder that has a checkpoint, and replace that of an earlier import
    #[arg(long)]
    pub force: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ExportArgs {
    /// A checkpoint, a folder of checkpoints, or a run folder; the latest checkpoint is used
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,
    /// Folder to write the model to; not a run folder
    #[arg(long, value_name = "MODEL")]
    pub to: PathBuf,
    /// Overwrite the files of an earlier export
    #[arg(long)]
    pub force: bool,
    /// tokenizer.json to include [default: the checkpoint's]
    #[arg(long, value_name = "FILE")]
    pub tokenizer: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}
