//! One rank's stage of a pipeline: its blocks and its actions.

use std::borrow::Cow;
use std::ops::Range;

use super::balance::BalanceError;
use super::check::{ScheduleFault, check};
use super::{Action, Schedule, ScheduleError, ScheduleKind, balance, block_costs};
use crate::shape::ModelShape;

/// The sizes of a pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PipelineSize {
    /// Schedule.
    pub kind: ScheduleKind,
    /// Stages.
    pub stages: usize,
    /// Model chunks per stage.
    pub virtual_stages: usize,
    /// Micro-batches per step.
    pub micro_batches: usize,
}

/// A stage of a pipeline.
#[derive(Debug, Clone)]
pub struct Stage {
    /// Index of the stage.
    pub index: usize,
    /// The blocks of each chunk of the model; chunk *c* is on stage *c* % stages.
    pub chunk_blocks: Vec<Range<usize>>,
    /// The schedule of all stages.
    pub schedule: Schedule,
}

/// A model that cannot be split into these stages.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum StageError {
    /// Invalid sizes.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// Too few blocks.
    #[error(transparent)]
    Balance(#[from] BalanceError),
    /// The schedule is incomplete, out of order or deadlocks.
    #[error("the pipeline schedule is invalid: {0}")]
    Fault(#[from] ScheduleFault),
}

impl Stage {
    /// The full model on one stage.
    pub fn single(shape: &ModelShape) -> Self {
        let (kind, stages, chunks, micro_batches) = (ScheduleKind::OneFOneB, 1, 1, 1);
        let size = PipelineSize { kind, stages, virtual_stages: chunks, micro_batches };
        let ranks = vec![size.actions(0)];
        let schedule = Schedule { kind, stages, chunks, micro_batches, ranks };
        let chunk_blocks = std::iter::once(0..shape.num_layers + 2).collect();
        Self { index: 0, chunk_blocks, schedule }
    }

    /// One of several stages, with chunks of about equal cost. The schedule is verified: every pass is
    /// there once and in order, and no set of ranks deadlocks.
    pub fn new(shape: &ModelShape, size: PipelineSize, index: usize) -> Result<Self, StageError> {
        let PipelineSize { kind, stages, virtual_stages, micro_batches } = size;
        let schedule = Schedule::new(kind, stages, virtual_stages, micro_batches)?;
        check(&schedule)?;
        let chunk_blocks = balance(&block_costs(shape, shape.seq_len), schedule.num_chunks())?;
        Ok(Self { index, chunk_blocks, schedule })
    }

    /// The actions of this rank in a step.
    ///
    /// # Panics
    /// If the schedule of several stages is for another number of micro-batches.
    pub fn actions(&self, micro_batches: usize) -> Cow<'_, [Action]> {
        let Schedule { kind, stages, .. } = self.schedule;
        if stages == 1 {
            let size = PipelineSize { kind, stages, virtual_stages: 1, micro_batches };
            return Cow::Owned(size.actions(0));
        }
        assert_eq!(micro_batches, self.schedule.micro_batches, "micro-batches of the schedule");
        Cow::Borrowed(&self.schedule.ranks[self.index])
    }

    /// The chunks of this rank in order.
    pub fn local_chunks(&self) -> impl Iterator<Item = usize> + use<> {
        (self.index..self.chunk_blocks.len()).step_by(self.schedule.stages)
    }

    /// Whether a chunk ends with the head.
    pub fn is_last(&self, chunk: usize) -> bool {
        chunk + 1 == self.chunk_blocks.len()
    }

    /// Whether this rank owns a block.
    pub fn owns(&self, block: usize) -> bool {
        self.local_chunks().any(|chunk| self.chunk_blocks[chunk].contains(&block))
    }

    /// Whether this rank has a copy of the token embedding for a tied head.
    pub fn has_tied_copy(&self, shape: &ModelShape) -> bool {
        shape.tie_embeddings && !self.owns(0) && self.owns(shape.num_layers + 1)
    }

    /// Whether this rank shares a tied token embedding with another stage.
    pub fn ties_across_stages(&self, shape: &ModelShape) -> bool {
        let is_end = self.owns(0) || self.owns(shape.num_layers + 1);
        shape.tie_embeddings && self.schedule.stages > 1 && is_end
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::Family;
    use crate::testing::shape;

    #[test]
    fn every_block_is_on_one_stage_and_tied_embeddings_are_on_both_ends() {
        let mut shape = shape(Family::Gpt2);
        shape.num_layers = 6;
        let schedules = [(ScheduleKind::OneFOneB, 1), (ScheduleKind::Interleaved, 2)];
        for (kind, virtual_stages) in schedules {
            let size = PipelineSize { kind, stages: 3, virtual_stages, micro_batches: 6 };
            let stages = [0, 1, 2].map(|index| Stage::new(&shape, size, index).unwrap());
            for block in 0..8 {
                assert_eq!(stages.iter().filter(|stage| stage.owns(block)).count(), 1);
            }
            let copies = stages.each_ref().map(|stage| stage.has_tied_copy(&shape));
            assert_eq!(copies, [false, false, true]);
            let tied = stages.each_ref().map(|stage| stage.ties_across_stages(&shape));
            assert_eq!(tied, [true, false, true]);
        }
        let single = Stage::single(&shape);
        assert!(!single.has_tied_copy(&shape) && !single.ties_across_stages(&shape));
        assert_eq!(single.actions(3).len(), 6);
    }
}
