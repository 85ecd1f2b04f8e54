//! Pipeline parallel: the model is cut into chunks of blocks, a stage has one or several of them, and
//! micro-batches flow through. What each rank does, in which order, is a [`Schedule`]: pure data,
//! which can be drawn, checked and simulated before anything is computed.
//!
//! Chunk *c* lies on stage *c* % stages. A forward message goes to the next stage, and from the last
//! one around to the first, where a stage has several chunks; a gradient goes the other way. Each of
//! these links has its own order, which is the same at both ends. Sends go on in the background; a
//! receive waits.
//!
//! Under every schedule the gradients of a chunk are added up in the order of the micro-batches, so
//! that their sums are the same to the last bit.
//!
//! `kinds/` writes schedules, [`mod@check`] proves them right, [`mod@simulate`] says what they cost,
//! [`draw`] shows them, [`mod@balance`] cuts the model.

pub mod balance;
pub mod check;
pub mod draw;
mod error;
mod kinds;
pub mod simulate;
mod stage;
#[cfg(test)]
mod tests;

pub use balance::{balance, costs_of};
pub use check::{Fault, check};
pub use error::{KindError, ScheduleError};
pub use kinds::Kind;
pub use simulate::{Costs, SimulateError, Timeline, simulate};
pub use stage::{Stage, StageError};

use std::fmt;

/// What is done with a micro-batch in a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Work {
    /// The forward pass.
    Forward,
    /// The backward pass, gradients of the input and of the weights at once.
    Backward,
    /// The gradient of the input only, for which the stage before waits.
    Input,
    /// The gradients of the weights, for which nobody waits: some time after [`Work::Input`].
    Weight,
}

impl Work {
    /// As drawings have it.
    pub fn letter(self) -> char {
        match self {
            Self::Forward => 'F',
            Self::Backward => 'B',
            Self::Input => 'I',
            Self::Weight => 'W',
        }
    }

    /// Whether the gradients of the weights are there when it is done, and the activations are of no
    /// more use.
    pub fn ends(self) -> bool {
        matches!(self, Self::Backward | Self::Weight)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Forward => "the forward pass",
            Self::Backward => "the backward pass",
            Self::Input => "the gradient of the input",
            Self::Weight => "the gradients of the weights",
        }
    }
}

/// Something that a rank does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Action {
    /// What.
    pub work: Work,
    /// In which chunk of the model.
    pub chunk: usize,
    /// With which micro-batch.
    pub micro: usize,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { work, chunk, micro } = self;
        write!(f, "{} of micro-batch {micro} in chunk {chunk}", work.name())
    }
}

/// Which way a message goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Way {
    /// Activations, to the next stage.
    Forward,
    /// Gradients, to the stage before.
    Backward,
}

/// Activations or gradients on their way from a stage to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Message {
    /// Which way; with the sender it says which link.
    pub way: Way,
    /// The stage that sends.
    pub from: usize,
    /// The stage that receives.
    pub to: usize,
    /// The chunk that it is for.
    pub chunk: usize,
    /// Of which micro-batch.
    pub micro: usize,
}

/// What all ranks of a pipeline do in a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    /// Which kind it is.
    pub kind: Kind,
    /// How many stages, each a rank.
    pub stages: usize,
    /// How many chunks of the model a stage has.
    pub chunks: usize,
    /// How many micro-batches.
    pub micros: usize,
    /// What each rank does, one after the other.
    pub ranks: Vec<Vec<Action>>,
}

/// No schedule has more forward passes of chunks: beyond it, a wrong number would fill the memory.
const MOST: usize = 1 << 24;

impl Schedule {
    /// The schedule of a kind; what does not fit together is refused with what would.
    pub fn new(
        kind: Kind,
        stages: usize,
        chunks: usize,
        micros: usize,
    ) -> Result<Self, ScheduleError> {
        check_sizes(stages, chunks, micros)?;
        kind.check(stages, chunks, micros)?;
        let ranks = (0..stages).map(|stage| kind.actions(stage, stages, chunks, micros)).collect();
        Ok(Self { kind, stages, chunks, micros, ranks })
    }

    /// How many chunks the model is cut into.
    pub fn parts(&self) -> usize {
        self.stages * self.chunks
    }

    /// The stage that has a chunk.
    pub fn stage(&self, chunk: usize) -> usize {
        chunk % self.stages
    }

    /// What an action must receive before it begins. Nothing at the ends of the model, where there
    /// are the tokens and the loss.
    pub fn receives(&self, action: Action) -> Option<Message> {
        let Action { work, chunk, micro } = action;
        let (way, sender) = match work {
            Work::Forward => (Way::Forward, chunk.checked_sub(1)?),
            Work::Backward | Work::Input => (Way::Backward, self.after(chunk)?),
            Work::Weight => return None,
        };
        Some(Message { way, from: self.stage(sender), to: self.stage(chunk), chunk, micro })
    }

    /// What an action sends when it is done.
    pub fn sends(&self, action: Action) -> Option<Message> {
        let Action { work, chunk, micro } = action;
        let (way, receiver) = match work {
            Work::Forward => (Way::Forward, self.after(chunk)?),
            Work::Backward | Work::Input => (Way::Backward, chunk.checked_sub(1)?),
            Work::Weight => return None,
        };
        let (from, to) = (self.stage(chunk), self.stage(receiver));
        Some(Message { way, from, to, chunk: receiver, micro })
    }

    /// All that a rank sends, in its order.
    pub fn sent(&self, rank: usize) -> impl Iterator<Item = Message> {
        self.ranks[rank].iter().filter_map(|action| self.sends(*action))
    }

    /// All that a rank receives, in its order.
    pub fn received(&self, rank: usize) -> impl Iterator<Item = Message> {
        self.ranks[rank].iter().filter_map(|action| self.receives(*action))
    }

    /// Whether the gradients of a chunk are complete with this action.
    pub fn completes(&self, action: Action) -> bool {
        action.work.ends() && action.micro + 1 == self.micros
    }

    /// The most micro-batches whose activations a rank keeps at once, each in each chunk counted.
    pub fn alive(&self, rank: usize) -> usize {
        let (mut alive, mut most) = (0usize, 0);
        for action in &self.ranks[rank] {
            match action.work {
                Work::Forward => alive += 1,
                work if work.ends() => alive = alive.saturating_sub(1),
                _ => {}
            }
            most = most.max(alive);
        }
        most
    }

    fn after(&self, chunk: usize) -> Option<usize> {
        (chunk + 1 < self.parts()).then_some(chunk + 1)
    }
}

/// What holds for the sizes of all kinds.
fn check_sizes(stages: usize, chunks: usize, micros: usize) -> Result<(), ScheduleError> {
    let all = [("stages", stages), ("chunks", chunks), ("micro-batches", micros)];
    if let Some((what, _)) = all.into_iter().find(|(_, count)| *count == 0) {
        return Err(ScheduleError::None { what });
    }
    if stages == 1 && chunks > 1 {
        return Err(ScheduleError::OneStage { chunks });
    }
    let actions = stages.checked_mul(chunks).and_then(|parts| parts.checked_mul(micros));
    match actions {
        Some(actions) if actions <= MOST => Ok(()),
        _ => Err(ScheduleError::TooLarge { stages, chunks, micros, most: MOST }),
    }
}
