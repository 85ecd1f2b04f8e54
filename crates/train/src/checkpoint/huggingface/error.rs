//! What can be wrong with models of others.

use std::io;
use std::path::{Path, PathBuf};

/// Why a model could not be imported or exported.
#[derive(Debug, thiserror::Error)]
pub enum HuggingFaceError {
    /// The system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was to be done.
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// There is no model.
    #[error(
        "{} has neither model.safetensors nor model.safetensors.index.json: a folder is needed as \
         `save_pretrained` of transformers writes it",
        folder.display()
    )]
    NoModel {
        /// The folder.
        folder: PathBuf,
    },
    /// A file is not what it should be, or says what our models cannot do.
    #[error("{}: {why}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A tensor is not what it should be.
    #[error("{}: tensor {name} {why}", path.display())]
    Tensor {
        /// The file or folder.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// Such a model is not known there.
    #[error("this model cannot be exported: {why}")]
    Shape {
        /// What is in the way.
        why: String,
    },
}

impl HuggingFaceError {
    /// Wraps what the system said.
    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }
}
