//! Zero-bubble with the memory of 1F1B (ZB-H1): 1F1B order with the backward pass split. Input gradients,
//! which the previous stage waits for, come first; weight gradients fill the bubble.
//!
//! 1F1B has *p - i* micro-batches in flight on stage *i*, so stage *i* can defer the weight gradients of
//! *i* micro-batches within the same memory.

use super::Computation::{Backward, BackwardInput, BackwardWeight, Forward};
use super::{Action, action};

pub(super) fn actions(stage: usize, stages: usize, micro_batches: usize) -> Vec<Action> {
    let warmup = (stages - 1 - stage).min(micro_batches);
    let deferred = stage.min(micro_batches);
    let forward = |micro_batch| action(Forward, stage, micro_batch);
    let weight = |micro_batch| action(BackwardWeight, stage, micro_batch);
    let mut all: Vec<Action> = (0..warmup).map(forward).collect();
    for micro_batch in 0..micro_batches {
        all.extend((warmup + micro_batch < micro_batches).then(|| forward(warmup + micro_batch)));
        if stage == 0 {
            // No stage waits for the gradient of the first stage's input.
            all.push(action(Backward, stage, micro_batch));
            continue;
        }
        all.push(action(BackwardInput, stage, micro_batch));
        all.extend(micro_batch.checked_sub(deferred).map(weight));
    }
    if stage > 0 {
        all.extend((micro_batches - deferred..micro_batches).map(weight));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::render;
    use super::*;

    #[test]
    fn later_stages_defer_more_weight_gradients() {
        assert_eq!(render(&actions(0, 3, 4), false), "F0 F1 F2 B0 F3 B1 B2 B3");
        assert_eq!(render(&actions(1, 3, 4), false), "F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3");
        assert_eq!(render(&actions(2, 3, 4), false), "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3");
    }

    #[test]
    fn with_few_micro_batches_all_weight_gradients_come_last() {
        assert_eq!(render(&actions(3, 4, 2), false), "F0 I0 F1 I1 W0 W1");
    }
}
