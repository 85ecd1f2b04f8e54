//! 1F1B: warm-up forward passes, as many as there are later stages, then one forward and one backward
//! alternately, then the remaining backward passes. Stage *i* has *p - i* micro-batches in flight.

use super::Computation::{Backward, Forward};
use super::{Action, action};

pub(super) fn actions(stage: usize, stages: usize, micro_batches: usize) -> Vec<Action> {
    let warmup = (stages - 1 - stage).min(micro_batches);
    let forward = |micro_batch| action(Forward, stage, micro_batch);
    let mut all: Vec<Action> = (0..warmup).map(forward).collect();
    for micro_batch in 0..micro_batches {
        all.extend((warmup + micro_batch < micro_batches).then(|| forward(warmup + micro_batch)));
        all.push(action(Backward, stage, micro_batch));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::render;
    use super::*;

    #[test]
    fn forward_and_backward_alternate_after_warmup() {
        assert_eq!(render(&actions(0, 3, 4), false), "F0 F1 F2 B0 F3 B1 B2 B3");
        assert_eq!(render(&actions(1, 3, 4), false), "F0 F1 B0 F2 B1 F3 B2 B3");
        assert_eq!(render(&actions(2, 3, 4), false), "F0 B0 F1 B1 F2 B2 F3 B3");
    }

    #[test]
    fn with_fewer_micro_batches_than_stages_all_forwards_are_warmup() {
        assert_eq!(render(&actions(0, 4, 2), false), "F0 F1 B0 B1");
    }
}
