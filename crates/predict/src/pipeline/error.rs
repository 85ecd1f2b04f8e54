//! Errors of invalid schedule sizes.

use super::ScheduleKind;

/// Invalid sizes of a schedule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum ScheduleError {
    /// A size of zero.
    #[error("a pipeline needs at least 1 of its {what}, got 0")]
    Zero { what: &'static str },
    /// Several chunks on a single stage.
    #[error(
        "a pipeline of one stage cannot have {chunks} chunks: set parallel.virtual_stages to 1 or use \
         more stages"
    )]
    OneStage { chunks: usize },
    /// Several chunks per stage for a schedule that supports one.
    #[error(
        "the {kind} schedule has one chunk per stage, got {chunks}: set parallel.virtual_stages to 1 or \
         parallel.schedule to {}",
        ScheduleKind::Interleaved
    )]
    ManyChunks { kind: ScheduleKind, chunks: usize },
    /// One chunk per stage for the interleaved schedule.
    #[error(
        "the {} schedule needs at least 2 chunks per stage, got {chunks}: set parallel.virtual_stages to \
         2 or parallel.schedule to {}",
        ScheduleKind::Interleaved,
        ScheduleKind::OneFOneB
    )]
    FewChunks { chunks: usize },
    /// Micro-batches that are not a multiple of the stages.
    #[error(
        "the {} schedule needs a multiple of {stages} micro-batches (the number of stages), got \
         {micro_batches}: try {}{above}, or parallel.schedule {}",
        ScheduleKind::Interleaved,
        .below.map_or(String::new(), |below| format!("{below} or ")),
        ScheduleKind::OneFOneB
    )]
    UnevenMicroBatches { micro_batches: usize, stages: usize, below: Option<usize>, above: usize },
    /// Too many actions.
    #[error(
        "{stages} stages x {chunks} chunks x {micro_batches} micro-batches exceed the limit of {max} \
         passes: use fewer or larger micro-batches"
    )]
    TooLarge { stages: usize, chunks: usize, micro_batches: usize, max: usize },
}
