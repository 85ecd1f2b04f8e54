//! Why there is no such schedule, and what there is instead.

use super::Kind;

/// Why a schedule cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// A size of zero.
    #[error("a pipeline with 0 {what}: it needs at least 1")]
    None {
        /// Of what there are none.
        what: &'static str,
    },
    /// Chunks that would all lie on one stage.
    #[error(
        "a pipeline of one stage has the model in one chunk, not in {chunks}: set the chunks to 1, \
         or take more stages"
    )]
    OneStage {
        /// How many were asked for.
        chunks: usize,
    },
    /// Chunks for a kind that has one a stage.
    #[error(
        "{kind} has one chunk a stage, not {chunks}: set the chunks to 1, or the schedule to {}",
        Kind::Interleaved
    )]
    ManyChunks {
        /// The kind.
        kind: Kind,
        /// How many were asked for.
        chunks: usize,
    },
    /// One chunk for a kind that needs several.
    #[error(
        "{} stages have at least 2 chunks each, not {chunks}: set the chunks to 2, or the schedule \
         to {}",
        Kind::Interleaved,
        Kind::OneFOneB
    )]
    FewChunks {
        /// How many were asked for.
        chunks: usize,
    },
    /// Micro-batches that do not come out even.
    #[error(
        "{} stages take as many micro-batches in turn as there are stages, and {micros} is no \
         multiple of {stages}: try {}{above} micro-batches, or the schedule {}",
        Kind::Interleaved,
        .below.map_or(String::new(), |below| format!("{below} or ")),
        Kind::OneFOneB
    )]
    UnevenMicros {
        /// How many were asked for.
        micros: usize,
        /// Stages.
        stages: usize,
        /// The nearest number below that works, if there is one.
        below: Option<usize>,
        /// The nearest above.
        above: usize,
    },
    /// More than anybody can wait for.
    #[error(
        "{stages} stages with {chunks} chunks and {micros} micro-batches are more than {most} \
         passes of chunks: take fewer or larger micro-batches"
    )]
    TooLarge {
        /// Stages.
        stages: usize,
        /// Chunks of each.
        chunks: usize,
        /// Micro-batches.
        micros: usize,
        /// The most that their product may be.
        most: usize,
    },
}

/// A name that no kind of schedule has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no pipeline schedule is called {name:?}: there are {}", all_names())]
pub struct KindError {
    /// The name.
    pub name: String,
}

fn all_names() -> String {
    Kind::ALL.map(Kind::name).join(", ")
}
