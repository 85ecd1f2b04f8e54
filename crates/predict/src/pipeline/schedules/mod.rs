//! Pipeline schedules, one file each: the actions of one rank.

mod gpipe;
mod interleaved;
mod one_f_one_b;
mod zero_bubble;

use regatta_comm::enum_names;
use serde::{Deserialize, Serialize};

use super::{Action, Computation, PipelineSize, ScheduleError};

/// A pipeline schedule. The bubble is idle time over compute time; with *p* stages, *m* micro-batches and
/// *v* chunks per stage:
///
/// | schedule | bubble | micro-batches in flight on the first stage |
/// |---|---|---|
/// | GPipe | (p-1)/m | m |
/// | 1F1B | (p-1)/m | p |
/// | interleaved | (p-1)/(v·m) | p + (p-1)/v |
/// | zero-bubble | (p-1)/(3m), if forward, input and weight gradients take equally long | p |
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ScheduleKind {
    /// All forward passes, then all backward passes.
    GPipe,
    /// One forward, one backward: backward as early as possible, so that few micro-batches are in flight.
    #[default]
    OneFOneB,
    /// 1F1B with several chunks per stage: a smaller bubble for more messages.
    Interleaved,
    /// 1F1B with deferred weight gradients that fill the bubble (ZB-H1).
    ZeroBubble,
}

enum_names!(ScheduleKind, "All schedules.",
    GPipe "gpipe", OneFOneB "1f1b", Interleaved "interleaved", ZeroBubble "zero-bubble");

impl PipelineSize {
    /// Checks the sizes. A single stage is valid for every schedule.
    pub(super) fn check(self) -> Result<(), ScheduleError> {
        let Self { kind, stages, virtual_stages: chunks, .. } = self;
        match kind {
            _ if stages == 1 => Ok(()),
            ScheduleKind::Interleaved => interleaved::check(self),
            _ if chunks > 1 => Err(ScheduleError::ManyChunks { kind, chunks }),
            _ => Ok(()),
        }
    }

    /// The actions of a stage.
    pub(super) fn actions(self, stage: usize) -> Vec<Action> {
        let Self { kind, stages, micro_batches, .. } = self;
        match kind {
            _ if stages == 1 => one_f_one_b::actions(0, 1, micro_batches),
            ScheduleKind::GPipe => gpipe::actions(stage, micro_batches),
            ScheduleKind::OneFOneB => one_f_one_b::actions(stage, stages, micro_batches),
            ScheduleKind::Interleaved => interleaved::actions(self, stage),
            ScheduleKind::ZeroBubble => zero_bubble::actions(stage, stages, micro_batches),
        }
    }
}

fn action(computation: Computation, chunk: usize, micro_batch: usize) -> Action {
    Action { computation, chunk, micro_batch }
}

/// Actions as text, for tests: `F0` for micro-batch 0; with `show_chunk`, `F0.2` in chunk 2.
#[cfg(test)]
fn render(actions: &[Action], show_chunk: bool) -> String {
    let label = |a: &Action| match show_chunk {
        true => format!("{}{}.{}", a.computation.letter(), a.micro_batch, a.chunk),
        false => format!("{}{}", a.computation.letter(), a.micro_batch),
    };
    actions.iter().map(label).collect::<Vec<_>>().join(" ")
}
