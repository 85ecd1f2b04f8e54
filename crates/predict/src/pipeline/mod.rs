//! Pipeline parallelism: the model is split into chunks of blocks, each stage has one or several of
//! them, and micro-batches flow through. What each rank does and in which order is a [`Schedule`]: pure
//! data that is drawn, checked and simulated before anything is computed.
//!
//! Chunk *c* is on stage *c* % stages. Activations go to the next stage, wrapping around from the last to
//! the first where a stage has several chunks; gradients go the other way. Each of these links is FIFO at
//! both ends. Sends are asynchronous; receives block.
//!
//! Under every schedule the gradients of a chunk are accumulated in micro-batch order, so that sums are
//! bit-identical.
//!
//! `schedules/` generates schedules, [`mod@check`] verifies them, [`mod@simulate`] computes their cost,
//! [`draw`] renders them, [`mod@balance`] splits the model.

pub mod balance;
pub mod check;
pub mod draw;
mod error;
mod schedules;
pub mod simulate;
mod stage;
#[cfg(test)]
mod tests;

pub use balance::{balance, block_costs};
pub use check::{ScheduleFault, check};
pub use error::ScheduleError;
pub use schedules::ScheduleKind;
pub use simulate::{ChunkCosts, SimulateError, Timeline, simulate};
pub use stage::{PipelineSize, Stage, StageError};

use std::fmt;

/// A pass of a micro-batch through a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Computation {
    /// Forward.
    Forward,
    /// Full backward: input and weight gradients.
    Backward,
    /// Input gradient only, which the previous stage waits for.
    BackwardInput,
    /// Weight gradients only, some time after [`Computation::BackwardInput`].
    BackwardWeight,
}

impl Computation {
    /// Its letter in drawings.
    pub fn letter(self) -> char {
        match self {
            Self::Forward => 'F',
            Self::Backward => 'B',
            Self::BackwardInput => 'I',
            Self::BackwardWeight => 'W',
        }
    }

    /// Whether it computes weight gradients, after which the activations are freed.
    pub fn computes_weight_grads(self) -> bool {
        matches!(self, Self::Backward | Self::BackwardWeight)
    }

    /// Direction of the message that it receives and of the one that it sends.
    fn direction(self) -> Option<Direction> {
        match self {
            Self::Forward => Some(Direction::Forward),
            Self::Backward | Self::BackwardInput => Some(Direction::Backward),
            Self::BackwardWeight => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::BackwardInput => "backward-input",
            Self::BackwardWeight => "backward-weight",
        }
    }
}

/// One entry of a rank's schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Action {
    /// The pass.
    pub computation: Computation,
    /// The model chunk.
    pub chunk: usize,
    /// The micro-batch.
    pub micro_batch: usize,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { computation, chunk, micro_batch } = self;
        write!(f, "{} of micro-batch {micro_batch} in chunk {chunk}", computation.name())
    }
}

/// Direction of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Activations, to the next stage.
    Forward,
    /// Gradients, to the previous stage.
    Backward,
}

/// Activations or gradients sent from one stage to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Message {
    /// Direction; with the sender it identifies the link.
    pub direction: Direction,
    /// Sending stage.
    pub from: usize,
    /// Receiving stage.
    pub to: usize,
    /// Destination chunk.
    pub chunk: usize,
    /// Micro-batch.
    pub micro_batch: usize,
}

/// The actions of all ranks of a pipeline in one step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    /// Kind of schedule.
    pub kind: ScheduleKind,
    /// Stages, one rank each.
    pub stages: usize,
    /// Model chunks per stage.
    pub chunks: usize,
    /// Micro-batches.
    pub micro_batches: usize,
    /// The actions of each rank in order.
    pub ranks: Vec<Vec<Action>>,
}

/// Limit of forward passes over all chunks, so that a mistyped size does not exhaust memory.
const MAX_FORWARDS: usize = 1 << 24;

impl Schedule {
    /// Generates a schedule; the error of an invalid size names valid ones.
    pub fn new(
        kind: ScheduleKind,
        stages: usize,
        chunks: usize,
        micro_batches: usize,
    ) -> Result<Self, ScheduleError> {
        check_sizes(stages, chunks, micro_batches)?;
        let size = PipelineSize { kind, stages, virtual_stages: chunks, micro_batches };
        size.check()?;
        let ranks = (0..stages).map(|stage| size.actions(stage)).collect();
        Ok(Self { kind, stages, chunks, micro_batches, ranks })
    }

    /// Number of chunks of the model.
    pub fn num_chunks(&self) -> usize {
        self.stages * self.chunks
    }

    /// The stage of a chunk.
    pub fn stage(&self, chunk: usize) -> usize {
        chunk % self.stages
    }

    /// The message that an action waits for, except at the ends of the model.
    pub fn receives(&self, action: Action) -> Option<Message> {
        let Action { computation, chunk, micro_batch } = action;
        let direction = computation.direction()?;
        let sender = self.neighbour(chunk, direction == Direction::Backward)?;
        let (from, to) = (self.stage(sender), self.stage(chunk));
        Some(Message { direction, from, to, chunk, micro_batch })
    }

    /// The message that an action sends when it is done.
    pub fn sends(&self, action: Action) -> Option<Message> {
        let Action { computation, chunk, micro_batch } = action;
        let direction = computation.direction()?;
        let receiver = self.neighbour(chunk, direction == Direction::Forward)?;
        let (from, to) = (self.stage(chunk), self.stage(receiver));
        Some(Message { direction, from, to, chunk: receiver, micro_batch })
    }

    /// All messages that a rank sends, in order.
    pub fn sent(&self, rank: usize) -> impl Iterator<Item = Message> {
        self.ranks[rank].iter().filter_map(|action| self.sends(*action))
    }

    /// The next or the previous chunk, if there is one.
    fn neighbour(&self, chunk: usize, next: bool) -> Option<usize> {
        let neighbour = if next { chunk + 1 } else { chunk.checked_sub(1)? };
        (neighbour < self.num_chunks()).then_some(neighbour)
    }
}

/// Checks of sizes that hold for all kinds.
fn check_sizes(stages: usize, chunks: usize, micro_batches: usize) -> Result<(), ScheduleError> {
    let sizes = [("stages", stages), ("chunks", chunks), ("micro-batches", micro_batches)];
    if let Some((what, _)) = sizes.into_iter().find(|(_, count)| *count == 0) {
        return Err(ScheduleError::Zero { what });
    }
    if stages == 1 && chunks > 1 {
        return Err(ScheduleError::OneStage { chunks });
    }
    let actions = stages.checked_mul(chunks).and_then(|chunks| chunks.checked_mul(micro_batches));
    match actions {
        Some(actions) if actions <= MAX_FORWARDS => Ok(()),
        _ => Err(ScheduleError::TooLarge { stages, chunks, micro_batches, max: MAX_FORWARDS }),
    }
}
