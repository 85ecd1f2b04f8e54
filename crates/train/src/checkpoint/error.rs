//! Checkpoint errors, each with the file and the fix.

use std::io;
use std::path::{Path, PathBuf};

/// Why a checkpoint could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// An I/O error.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The operation.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// The disk is full, found before or while writing.
    #[error(
        "no space for {} ({needed} bytes needed, {} free); the last checkpoint is unaffected: free space \
        or set another checkpoint.dir",
        path.display(),
        free.map_or_else(|| "unknown".to_owned(), |free| free.to_string())
    )]
    NoSpace {
        /// The file.
        path: PathBuf,
        /// Its size.
        needed: u64,
        /// Free bytes, if known.
        free: Option<u64>,
    },
    /// The directory is not writable.
    #[error(
        "cannot write {} ({needed} bytes): {source}; set checkpoint.dir to a writable directory"
        , path.display()
    )]
    NotWritable {
        /// The file.
        path: PathBuf,
        /// Its size.
        needed: u64,
        /// Cause.
        source: io::Error,
    },
    /// The directory is locked by another job.
    #[error(
        "another job ({owner}) is writing checkpoints in {}: stop it, or set another \
        checkpoint.dir",
        folder.display()
    )]
    Locked {
        /// The checkpoint directory.
        folder: PathBuf,
        /// Contents of the lock file.
        owner: String,
    },
    /// The previous save is still in progress.
    #[error("the checkpoint of step {writing} is still being written")]
    Busy {
        /// Its step.
        writing: u64,
    },
    /// An invalid shard.
    #[error("cannot save tensor {name}: it {why}")]
    InvalidShard {
        /// The tensor.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// Rank 0 does not see another rank's file.
    #[error(
        "rank 0 does not see {}, written by rank {rank}: checkpoint.dir must be on a \
         file system that all nodes share",
        path.display()
    )]
    NotShared {
        /// The file.
        path: PathBuf,
        /// The rank.
        rank: usize,
    },
    /// Shards of different ranks are inconsistent.
    #[error("{}: {why}", path.display())]
    Sidecar {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A commit without a finished save.
    #[error("the checkpoint of step {step} cannot be committed: {why}")]
    NotWritten {
        /// The step.
        step: u64,
        /// The state of the writer.
        why: String,
    },
    /// Not a checkpoint, or one of another format version.
    #[error("{}: {why}", path.display())]
    Manifest {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A damaged file.
    #[error("{}: {why}", path.display())]
    DamagedFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A damaged tensor.
    #[error("{}: {key} {why}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The shard.
        key: String,
        /// What is wrong with it.
        why: String,
    },
    /// The tensor does not exist.
    #[error("checkpoint {} has no {tensor}", folder.display())]
    NoTensor {
        /// The checkpoint.
        folder: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// The tensor has another shape or is incomplete.
    #[error("checkpoint {}: {tensor} {why}", folder.display())]
    Tensor {
        /// The checkpoint.
        folder: PathBuf,
        /// The tensor.
        tensor: String,
        /// What is wrong with it.
        why: String,
    },
}

impl CheckpointError {
    /// Wraps an I/O error.
    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }

    /// Wraps an error of writing a file, with the most common causes distinguished.
    pub(super) fn writing(path: &Path, needed: u64) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::NoSpace { path, needed, free: None }
            }
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                Self::NotWritable { path, needed, source }
            }
            _ => Self::Io { action: "write", path, source },
        }
    }
}
