//! GPipe: all forward passes, then all backward passes. Simple, and all activations are kept.

use super::{Action, Work, action};

pub(super) fn actions(stage: usize, micros: usize) -> Vec<Action> {
    let pass = |work| (0..micros).map(move |micro| action(work, stage, micro));
    pass(Work::Forward).chain(pass(Work::Backward)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::words;
    use super::*;

    #[test]
    fn all_forward_then_all_backward() {
        assert_eq!(words(&actions(1, 3), false), "F0 F1 F2 B0 B1 B2");
        assert!(actions(1, 3).iter().all(|action| action.chunk == 1));
    }
}
