//! Checkpoint errors, each with the file and the fix.

use std::io;
use std::path::{Path, PathBuf};

use super::manifest::VERSION;

/// A result about checkpoints.
pub type Result<T, E = CheckpointError> = std::result::Result<T, E>;

/// Why a checkpoint could not be written or read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each field is what the message shows")]
pub enum CheckpointError {
    /// An I/O error.
    #[error("cannot {action} {}: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    /// The disk is full, found before or while writing.
    #[error(
        "no space for {} ({needed} bytes needed, {} free); existing checkpoints are intact: free space \
        or set another checkpoint.dir",
        path.display(),
        free.map_or_else(|| "unknown".to_owned(), |free| free.to_string())
    )]
    NoSpace { path: PathBuf, needed: u64, free: Option<u64> },
    /// The file exceeds the file size limit of the process or of the file system.
    #[error(
        "{} ({needed} bytes needed) exceeds the file size limit; existing checkpoints are intact: raise the \
        limit with `ulimit -f unlimited`",
        path.display()
    )]
    FileTooLarge { path: PathBuf, needed: u64 },
    /// The directory is not writable.
    #[error("cannot write {}: {source}; set checkpoint.dir to a writable directory", path.display())]
    NotWritable { path: PathBuf, source: io::Error },
    /// The directory is locked by another job.
    #[error(
        "another job ({owner}) is writing checkpoints in {}: stop it, or set another \
        checkpoint.dir",
        folder.display()
    )]
    Locked { folder: PathBuf, owner: String },
    /// The previous save is still in progress.
    #[error("the checkpoint of step {writing} is still being written")]
    Busy { writing: u64 },
    /// An invalid shard.
    #[error("cannot save tensor {name}: it {why}")]
    InvalidShard { name: String, why: String },
    /// Rank 0 does not see another rank's file.
    #[error(
        "rank 0 does not see {}, written by rank {rank}: checkpoint.dir must be on a \
         file system that all nodes share",
        path.display()
    )]
    NotShared { path: PathBuf, rank: usize },
    /// A commit without a finished save.
    #[error("the checkpoint of step {step} cannot be committed: {why}")]
    NotWritten { step: u64, why: String },
    /// A checkpoint of another format version, which is neither read nor removed.
    #[error(
        "{} has format version {found}, but this regatta reads version {VERSION}: {}",
        path.display(),
        if *found > VERSION { "update regatta" } else { "export it with the regatta that wrote it" }
    )]
    Version { path: PathBuf, found: u32 },
    /// An invalid, damaged or missing file, or one with unsupported settings.
    #[error("{} {why}", path.display())]
    File { path: PathBuf, why: String },
    /// A damaged tensor.
    #[error("{}: {key} {why}", path.display())]
    Damaged { path: PathBuf, key: String, why: String },
    /// The tensor does not exist.
    #[error("checkpoint {} has no {tensor}", folder.display())]
    NoTensor { folder: PathBuf, tensor: String },
    /// The tensor has another shape or is incomplete.
    #[error("checkpoint {}: {tensor} {why}", folder.display())]
    Tensor { folder: PathBuf, tensor: String, why: String },
    /// No model in a Hugging Face folder.
    #[error(
        "no model in {}: it has neither model.safetensors nor model.safetensors.index.json; expected a \
         folder written by `save_pretrained` of transformers",
        folder.display()
    )]
    NoModel { folder: PathBuf },
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

impl CheckpointError {
    /// Wraps an I/O error.
    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }

    /// Wraps an error of writing a file; a full disk is distinguished.
    pub(super) fn writing(path: &Path, needed: u64) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::NoSpace { path, needed, free: None }
            }
            io::ErrorKind::FileTooLarge => Self::FileTooLarge { path, needed },
            _ => Self::NotWritable { path, source },
        }
    }

    /// A tensor of a Hugging Face model is wrong.
    pub(super) fn damaged_tensor(path: &Path, name: &str, why: String) -> Self {
        Self::Damaged { path: path.to_owned(), key: format!("tensor {name}"), why }
    }
}
