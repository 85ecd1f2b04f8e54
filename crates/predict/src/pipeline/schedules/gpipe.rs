//! GPipe: all forward passes, then all backward passes. Activations of all micro-batches are in flight.

use super::Computation::{Backward, Forward};
use super::{Action, action};

pub(super) fn actions(stage: usize, micro_batches: usize) -> Vec<Action> {
    let pass = |pass| (0..micro_batches).map(move |micro_batch| action(pass, stage, micro_batch));
    pass(Forward).chain(pass(Backward)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::render;
    use super::*;

    #[test]
    fn all_forward_then_all_backward() {
        assert_eq!(render(&actions(1, 3), false), "F0 F1 F2 B0 B1 B2");
        assert!(actions(1, 3).iter().all(|action| action.chunk == 1));
    }
}
