//! Errors of importing and exporting Hugging Face models.

use std::io;
use std::path::{Path, PathBuf};

/// A result about Hugging Face models.
pub type Result<T, E = HuggingFaceError> = std::result::Result<T, E>;

/// Why a model could not be imported or exported.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each field is what the message shows")]
pub enum HuggingFaceError {
    /// An I/O error.
    #[error("cannot {action} {}: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    /// No model in the folder.
    #[error(
        "no model in {}: it has neither model.safetensors nor model.safetensors.index.json; expected a \
         folder written by `save_pretrained` of transformers",
        folder.display()
    )]
    NoModel { folder: PathBuf },
    /// An invalid file, or unsupported settings.
    #[error("{} {why}", path.display())]
    File { path: PathBuf, why: String },
    /// An invalid tensor.
    #[error("{}: tensor {name} {why}", path.display())]
    Tensor { path: PathBuf, name: String, why: String },
    /// The target of an export exists.
    #[error("{} already exists: choose another folder, or overwrite it with --force", path.display())]
    Exists { path: PathBuf },
    /// The target of an export has a run or checkpoints, which it would hide.
    #[error("{} is a run folder or has checkpoints: export to another folder", folder.display())]
    RunFolder { folder: PathBuf },
    /// transformers does not support the model.
    #[error("cannot export this model: {why}")]
    Shape { why: String },
}

impl HuggingFaceError {
    /// Wraps an I/O error.
    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }
}
