//! Training errors.

use std::path::{Path, PathBuf};

use regatta_comm::CommError;
use regatta_device::DeviceError;
use thiserror::Error;

use crate::checkpoint::CheckpointError;
use crate::config::ConfigError;
use crate::data::DataError;
use crate::offload::OffloadError;
use crate::step::StepError;

/// A result of training.
pub type Result<T, E = TrainError> = std::result::Result<T, E>;

/// Why a training run failed.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "each field is what the message shows")]
pub enum TrainError {
    /// The configuration is inconsistent.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The data cannot be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The data cannot be used for training.
    #[error("{data}: {source}")]
    UnusableData { data: String, source: Box<DataError> },
    /// A checkpoint cannot be read, or the last one cannot be written.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Communication failed.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The device failed in a step.
    #[error(
        "rank {rank} ({host}) failed in step {step}: {source}{}",
        checkpoint.map_or_else(String::new, |step| format!(". The checkpoint of step {step} is intact"))
    )]
    DeviceInStep {
        rank: u32,
        host: String,
        step: u64,
        checkpoint: Option<u64>,
        source: Box<DeviceError>,
    },
    /// Offloaded state cannot be read or written.
    #[error(transparent)]
    Offload(#[from] OffloadError),
    /// The loss, the gradients or the parameters are not finite.
    #[error(
        "{what} is {number} in step {step} on rank {rank} ({host}); lower optimizer.lr, {}{}",
        if *clipped { "or increase optimizer.warmup_steps" } else {
            "increase optimizer.warmup_steps, or set optimizer.grad_clip=1"
        },
        checkpoint.map_or_else(String::new, |step| format!(". The checkpoint of step {step} is intact"))
    )]
    NotFinite {
        rank: u32,
        host: String,
        what: &'static str,
        number: f64,
        step: u64,
        /// Whether gradients are clipped.
        clipped: bool,
        checkpoint: Option<u64>,
    },
    /// Ranks have different configurations or data.
    #[error(
        "rank {rank} on {host} has a different {what} than rank 0: give all ranks the same configuration \
        and data"
    )]
    RankMismatch { rank: u32, host: String, what: &'static str },
    /// The final checkpoint could not be written.
    #[error("the checkpoint after step {step} could not be saved: {why}")]
    FinalCheckpoint { step: u64, why: String },
    /// A rank cannot read its shards of the checkpoint that rank 0 found.
    #[error(
        "rank {rank} on {host} cannot read {}: {source}; checkpoints must be on a file system that all \
        nodes share",
        folder.display()
    )]
    UnreadableCheckpoint { rank: u32, host: String, folder: PathBuf, source: Box<CheckpointError> },
    /// No checkpoint to resume from.
    #[error(
        "no {}checkpoint in {}{}{skipped}. Start a new run, set checkpoint.resume to a checkpoint or to another \
        run folder, or set checkpoint.resume=never to start this run over",
        if skipped.is_empty() { "" } else { "valid " },
        folder.display(),
        if skipped.is_empty() { "" } else { ": " },
    )]
    NoCheckpoint { folder: PathBuf, skipped: String },
    /// The checkpoint does not match the configuration.
    #[error("{} has a different {what}: {why}", folder.display())]
    Incompatible { folder: PathBuf, what: &'static str, why: String },
    /// The data has changed since the run started.
    #[error(
        "{} was trained on different data ({then}) than {source_now} is now ({now}): restore the data, or \
        start a new run on this data from the checkpoint with checkpoint.resume={}",
        folder.display(), folder.display()
    )]
    DataChanged { folder: PathBuf, source_now: String, then: String, now: String },
}

impl From<StepError> for TrainError {
    fn from(error: StepError) -> Self {
        match error {
            StepError::Comm(error) => Self::Comm(error),
            StepError::Device(error) => Self::Device(error),
            StepError::Offload(error) => Self::Offload(error),
        }
    }
}

impl TrainError {
    /// The folder has no checkpoint to resume from.
    pub fn no_checkpoint(folder: &Path) -> Self {
        Self::NoCheckpoint { folder: folder.to_owned(), skipped: String::new() }
    }

    /// The data cannot be used for training.
    pub(super) fn unusable_data(data: &str, source: DataError) -> Self {
        Self::UnusableData { data: data.to_owned(), source: Box::new(source) }
    }
}
