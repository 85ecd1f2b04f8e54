//! Why a run cannot be read.

use std::io;
use std::path::{Path, PathBuf};

use regatta_model::DocumentError;

/// A run folder, or a file in it, cannot be read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum ReadError {
    /// No launch, training or benchmark wrote the folder.
    #[error(
        "{0} is not a run folder: expected one written by regatta train, launch or bench; \
         `regatta runs` lists them"
    )]
    NotARun(PathBuf),
    /// A file or folder cannot be opened or read.
    #[error("cannot read {path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    /// A FIFO, device, socket or folder in place of a file.
    #[error("cannot read {0}: it is not a regular file")]
    NotRegular(PathBuf),
    /// A folder without files of a job's communication.
    #[error(
        "{folder} has no files *.{extension}: run the job with `regatta launch --profile`, or set \
         NCCL_PROFILER_PLUGIN to the path of regatta's profiler plug-in and REGATTA_PROFILE to a \
         folder that all nodes share"
    )]
    NotRecorded { folder: PathBuf, extension: &'static str },
    /// Larger than any valid file of its format.
    #[error("cannot read {path}: it has {bytes} bytes, but such a file has at most {limit}")]
    TooLarge { path: PathBuf, bytes: u64, limit: u64 },
    /// A document with another format.
    #[error("{path}: {source}")]
    Document { path: PathBuf, source: DocumentError },
}

impl ReadError {
    pub(super) fn io(path: &Path) -> impl Fn(io::Error) -> Self {
        move |source| Self::Io { path: path.to_owned(), source }
    }
}
