//! What can be wrong with checkpoints, each with the file and what to do.

use std::io;
use std::path::{Path, PathBuf};

/// Why a checkpoint could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was to be done.
        action: &'static str,
        /// With which file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// There is not enough room, found before or while writing.
    #[error(
        "{} needs {needed} bytes and the disk has {} free; the last good checkpoint is kept: \
         make room or choose another checkpoint.folder",
        path.display(),
        free.map_or_else(|| "nothing".to_owned(), |free| free.to_string())
    )]
    NoRoom {
        /// The file.
        path: PathBuf,
        /// Bytes it needs.
        needed: u64,
        /// Bytes that are free, if the system says.
        free: Option<u64>,
    },
    /// The folder cannot be written to.
    #[error(
        "cannot write {} ({needed} bytes): {source}; choose a checkpoint.folder that can be written"
        , path.display()
    )]
    NotWritable {
        /// The file.
        path: PathBuf,
        /// Bytes it needs.
        needed: u64,
        /// What the system said.
        source: io::Error,
    },
    /// Another job writes checkpoints here.
    #[error(
        "another job ({owner}) writes checkpoints in {}: end it, or choose another \
         checkpoint.folder",
        folder.display()
    )]
    InUse {
        /// The checkpoints' folder.
        folder: PathBuf,
        /// What its lock file says about it.
        owner: String,
    },
    /// The last one is not written yet.
    #[error("the checkpoint of step {writing} is still being written")]
    Busy {
        /// Its step.
        writing: u64,
    },
    /// What is to be saved does not make sense.
    #[error("cannot save tensor {name}: it {why}")]
    Piece {
        /// The tensor.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// Another rank's file is not seen from rank 0.
    #[error(
        "rank 0 does not see {}, which rank {rank} has written: checkpoint.folder must be on a \
         file system that all nodes share",
        path.display()
    )]
    NotShared {
        /// The file.
        path: PathBuf,
        /// Whose it is.
        rank: usize,
    },
    /// A rank wrote something else than the others.
    #[error("{}: {why}", path.display())]
    Sidecar {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A call out of turn.
    #[error("the checkpoint of step {step} cannot be committed: {why}")]
    NotWritten {
        /// The step.
        step: u64,
        /// What it is instead.
        why: String,
    },
    /// It is no checkpoint, or one of another version.
    #[error("{}: {why}", path.display())]
    Manifest {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A file of the checkpoint is not as it was written.
    #[error("{}: {why}", path.display())]
    Shard {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Numbers of a tensor are not as they were written.
    #[error("{}: {key} {why}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Which piece of a tensor.
        key: String,
        /// What is wrong with it.
        why: String,
    },
    /// There is no such tensor.
    #[error("the checkpoint {} has no {tensor}", folder.display())]
    NoTensor {
        /// The checkpoint.
        folder: PathBuf,
        /// Which tensor.
        tensor: String,
    },
    /// A tensor is there, but is of another shape, or not all of it is there.
    #[error("the checkpoint {}: {tensor} {why}", folder.display())]
    Tensor {
        /// The checkpoint.
        folder: PathBuf,
        /// Which tensor.
        tensor: String,
        /// What is wrong with it.
        why: String,
    },
}

impl CheckpointError {
    /// Wraps what the system said.
    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }

    /// The same for a file that was to be written, with the commonest reasons told apart.
    pub(super) fn writing(path: &Path, needed: u64) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::NoRoom { path, needed, free: None }
            }
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                Self::NotWritable { path, needed, source }
            }
            _ => Self::Io { action: "write", path, source },
        }
    }
}
