//! 1F1B: as many forward passes as there are stages behind this one, then one forward and one
//! backward in turn, then the backward passes that are left. Stage *i* keeps *p - i* micro-batches.

use super::{Action, Work, action};

pub(super) fn actions(stage: usize, stages: usize, micros: usize) -> Vec<Action> {
    let ahead = (stages - 1 - stage).min(micros);
    let forward = |micro| action(Work::Forward, stage, micro);
    let mut all: Vec<Action> = (0..ahead).map(forward).collect();
    for micro in 0..micros {
        all.extend((ahead + micro < micros).then(|| forward(ahead + micro)));
        all.push(action(Work::Backward, stage, micro));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::words;
    use super::*;

    #[test]
    fn forward_and_backward_take_turns() {
        assert_eq!(words(&actions(0, 3, 4), false), "F0 F1 F2 B0 F3 B1 B2 B3");
        assert_eq!(words(&actions(1, 3, 4), false), "F0 F1 B0 F2 B1 F3 B2 B3");
        assert_eq!(words(&actions(2, 3, 4), false), "F0 B0 F1 B1 F2 B2 F3 B3");
    }

    #[test]
    fn fewer_micros_than_stages_are_all_ahead() {
        assert_eq!(words(&actions(0, 4, 2), false), "F0 F1 B0 B1");
    }
}
