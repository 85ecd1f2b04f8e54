//! Errors of importing and exporting Hugging Face models.

use std::io;
use std::path::{Path, PathBuf};

/// Why a model could not be imported or exported.
#[derive(Debug, thiserror::Error)]
pub enum HuggingFaceError {
    /// An I/O error.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The operation.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// No model in the folder.
    #[error(
        "no model in {}: it has neither model.safetensors nor model.safetensors.index.json; expected a \
         folder written by `save_pretrained` of transformers",
        folder.display()
    )]
    NoModel {
        /// The folder.
        folder: PathBuf,
    },
    /// An invalid file, or unsupported settings.
    #[error("{}: {why}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// An invalid tensor.
    #[error("{}: tensor {name} {why}", path.display())]
    Tensor {
        /// The file or folder.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// transformers does not support the model.
    #[error("cannot export this model: {why}")]
    Shape {
        /// Why.
        why: String,
    },
}

impl HuggingFaceError {
    /// Wraps an I/O error.
    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }
}
