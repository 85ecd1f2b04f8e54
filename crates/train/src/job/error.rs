//! Why a training ends before its time.

use std::path::PathBuf;

use regatta_comm::CommError;
use thiserror::Error;

use crate::checkpoint::CheckpointError;
use crate::config::ConfigError;
use crate::data::DataError;
use crate::offload::StoreError;
use crate::step::StepError;

/// Why a training ends before its time.
#[derive(Debug, Error)]
pub enum TrainError {
    /// What it was told does not fit together.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// What it is trained on cannot be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// What it is trained on cannot be used.
    #[error("{data}: {source}")]
    Unfit {
        /// What it is called.
        data: String,
        /// Why.
        source: Box<DataError>,
    },
    /// A checkpoint cannot be read, or the last one cannot be written.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Another rank is gone, or does something else.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// What is on disk while it is trained cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The loss, the gradients or the parameters are no numbers.
    #[error(
        "rank {rank} of {host}: {what} {number} in step {step}: a lower optimizer.rate, a longer \
         optimizer.warmup or optimizer.clip=1 may help; the last checkpoint is as it was"
    )]
    NotFinite {
        /// Which rank saw it; all ranks see the same.
        rank: u32,
        /// Where it is.
        host: String,
        /// What is no number, such as `the loss is`.
        what: &'static str,
        /// What it is instead.
        number: f64,
        /// In which step.
        step: u64,
    },
    /// Ranks were told different things.
    #[error(
        "rank {rank} on {host} has another {what} than rank 0: all ranks must be given the same \
         configuration, and see the same data"
    )]
    Disagree {
        /// The first rank that differs.
        rank: u32,
        /// Where it is.
        host: String,
        /// In what.
        what: &'static str,
    },
    /// An all-reduce gave something else than the sum.
    #[error(
        "an all-reduce of {bytes} bytes is wrong on rank {rank} on {host}: {wrong} of its numbers \
         are not the sum of all ranks'"
    )]
    Sum {
        /// The first rank that has a wrong one.
        rank: u32,
        /// Where it is.
        host: String,
        /// How long it was.
        bytes: u64,
        /// How many numbers are wrong there.
        wrong: u64,
    },
    /// A rank was told to end before all was looked at.
    #[error("told to end before all was looked at")]
    Stopped,
    /// What was trained could not be kept.
    #[error("what was trained in {step} steps is not kept: {why}")]
    Unkept {
        /// Steps that are done.
        step: u64,
        /// Why.
        why: String,
    },
    /// A rank cannot read its parts of the checkpoint that rank 0 found.
    #[error(
        "rank {rank} on {host} cannot go on from {}: {source}; every rank reads its parts of it, so \
         it must be on a file system that all nodes share",
        folder.display()
    )]
    Unread {
        /// Which rank.
        rank: u32,
        /// Where it is.
        host: String,
        /// The checkpoint.
        folder: PathBuf,
        /// Why.
        source: Box<CheckpointError>,
    },
    /// There is no checkpoint to go on from, where there should be one.
    #[error(
        "{} has no checkpoint to go on from{}; checkpoint.resume=never begins anew",
        folder.display(),
        if skipped.is_empty() { String::new() } else { format!(": {skipped}") }
    )]
    Nothing {
        /// Where it was looked for.
        folder: PathBuf,
        /// What was found, and is damaged.
        skipped: String,
    },
    /// The checkpoint to go on from is of something else.
    #[error("{} is of another {what}: {why}", folder.display())]
    Other {
        /// The checkpoint.
        folder: PathBuf,
        /// Model or tokenizer.
        what: &'static str,
        /// How it differs.
        why: String,
    },
    /// The data has changed since the run has begun.
    #[error(
        "{} was trained on other data ({then}) than {source_now} has now ({now}): give it the data \
         back, or begin from it on this data by checkpoint.resume={}",
        folder.display(), folder.display()
    )]
    OtherData {
        /// The checkpoint.
        folder: PathBuf,
        /// What the data is called.
        source_now: String,
        /// What told it from other data.
        then: String,
        /// What does now.
        now: String,
    },
}

impl From<StepError> for TrainError {
    fn from(error: StepError) -> Self {
        match error {
            StepError::Comm(error) => Self::Comm(error),
            StepError::Store(error) => Self::Store(error),
        }
    }
}

impl TrainError {
    /// This data cannot be used.
    pub(super) fn unfit(data: &str, source: DataError) -> Self {
        Self::Unfit { data: data.to_owned(), source: Box::new(source) }
    }
}
