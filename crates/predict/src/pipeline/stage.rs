//! A rank's part in a pipeline: which blocks of the model it has, and what it does in a step.

use std::borrow::Cow;
use std::ops::Range;

use super::balance::BalanceError;
use super::{Action, Kind, Schedule, ScheduleError, balance, costs_of};
use crate::shape::Shape;

/// A rank's part in a pipeline.
#[derive(Debug, Clone)]
pub struct Stage {
    /// Which stage it is.
    pub stage: usize,
    /// The blocks of each chunk of the model; chunk *c* lies on stage *c* % stages.
    pub parts: Vec<Range<usize>>,
    /// What all stages do in a step.
    pub schedule: Schedule,
}

/// Why a model is not cut so.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum StageError {
    /// There is no such schedule.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// There are not so many blocks.
    #[error(transparent)]
    Balance(#[from] BalanceError),
}

impl Stage {
    /// All of the model on one rank.
    pub fn whole(shape: &Shape) -> Self {
        let blocks = shape.layers + 2;
        let schedule = Schedule {
            kind: Kind::OneFOneB,
            stages: 1,
            chunks: 1,
            micros: 1,
            ranks: vec![Kind::OneFOneB.actions(0, 1, 1, 1)],
        };
        Self { stage: 0, parts: std::iter::once(0..blocks).collect(), schedule }
    }

    /// One of several stages, with chunks of about the same cost.
    pub fn new(
        shape: &Shape,
        (kind, stages, chunks, micros): (Kind, usize, usize, usize),
        stage: usize,
    ) -> Result<Self, StageError> {
        let schedule = Schedule::new(kind, stages, chunks, micros)?;
        let parts = balance(&costs_of(shape, shape.context), schedule.parts())?;
        Ok(Self { stage, parts, schedule })
    }

    /// What this rank does in a step of so many micro-batches.
    ///
    /// # Panics
    /// If several stages were planned for another number.
    pub fn actions(&self, micros: usize) -> Cow<'_, [Action]> {
        if self.schedule.stages == 1 {
            return Cow::Owned(self.schedule.kind.actions(0, 1, 1, micros));
        }
        assert_eq!(micros, self.schedule.micros, "micro-batches of a pipeline's step");
        Cow::Borrowed(&self.schedule.ranks[self.stage])
    }

    /// The chunks that this rank has, in their order.
    pub fn chunks(&self) -> impl Iterator<Item = usize> + use<> {
        (self.stage..self.parts.len()).step_by(self.schedule.stages)
    }

    /// Whether a chunk begins with the embedding.
    pub fn is_first(&self, chunk: usize) -> bool {
        chunk == 0
    }

    /// Whether a chunk ends with the head.
    pub fn is_last(&self, chunk: usize) -> bool {
        chunk + 1 == self.parts.len()
    }

    /// Whether this rank has a block as its own.
    pub fn has(&self, block: usize) -> bool {
        self.chunks().any(|chunk| self.parts[chunk].contains(&block))
    }

    /// Whether this rank has the head, but not the embedding, whose table a tied head needs.
    pub fn has_copy(&self, shape: &Shape) -> bool {
        shape.tied && !self.has(0) && self.has(shape.layers + 1)
    }

    /// Whether the embedding's table is on this rank and on another one, too.
    pub fn is_tied_apart(&self, shape: &Shape) -> bool {
        let ends = self.has(0) || self.has(shape.layers + 1);
        shape.tied && self.schedule.stages > 1 && ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::Family;
    use crate::testing::shape;

    #[test]
    fn stages_have_all_blocks_and_the_ends_a_tied_table() {
        let mut shape = shape(Family::Gpt2);
        shape.layers = 6;
        for (kind, chunks) in [(Kind::OneFOneB, 1), (Kind::Interleaved, 2)] {
            let of = |stage| Stage::new(&shape, (kind, 3, chunks, 6), stage).unwrap();
            let stages: Vec<Stage> = (0..3).map(of).collect();
            for block in 0..8 {
                assert_eq!(stages.iter().filter(|stage| stage.has(block)).count(), 1);
            }
            let copies: Vec<bool> = stages.iter().map(|stage| stage.has_copy(&shape)).collect();
            assert_eq!(copies, [false, false, true]);
            let tied: Vec<bool> = stages.iter().map(|stage| stage.is_tied_apart(&shape)).collect();
            assert_eq!(tied, [true, false, true]);
        }
        let whole = Stage::whole(&shape);
        assert!(!whole.has_copy(&shape) && !whole.is_tied_apart(&shape));
        assert_eq!(whole.actions(3).len(), 6);
    }
}
