//! Zero-bubble, in its variant that keeps no more than 1F1B (ZB-H1): the order of 1F1B, with the
//! gradients of the inputs first, for which the stage before waits, and those of the weights later,
//! where the rank would wait itself.
//!
//! 1F1B keeps *p - i* micro-batches on stage *i*. A later stage thus has room for *i* more, and its
//! gradients of weights may be so many micro-batches behind. Those that are behind fill the time in
//! which gradients flow back to the first stage.

use super::{Action, Work, action};

pub(super) fn actions(stage: usize, stages: usize, micros: usize) -> Vec<Action> {
    let ahead = (stages - 1 - stage).min(micros);
    let behind = stage.min(micros);
    let forward = |micro| action(Work::Forward, stage, micro);
    let weight = |micro| action(Work::Weight, stage, micro);
    let mut all: Vec<Action> = (0..ahead).map(forward).collect();
    for micro in 0..micros {
        all.extend((ahead + micro < micros).then(|| forward(ahead + micro)));
        if stage == 0 {
            // Nobody waits for the gradient of the tokens.
            all.push(action(Work::Backward, stage, micro));
            continue;
        }
        all.push(action(Work::Input, stage, micro));
        all.extend(micro.checked_sub(behind).map(weight));
    }
    if stage > 0 {
        all.extend((micros - behind..micros).map(weight));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::words;
    use super::*;

    #[test]
    fn gradients_of_weights_are_behind_on_later_stages() {
        assert_eq!(words(&actions(0, 3, 4), false), "F0 F1 F2 B0 F3 B1 B2 B3");
        assert_eq!(words(&actions(1, 3, 4), false), "F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3");
        assert_eq!(words(&actions(2, 3, 4), false), "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3");
    }

    #[test]
    fn few_micros_have_their_weights_at_the_end() {
        assert_eq!(words(&actions(3, 4, 2), false), "F0 I0 F1 I1 W0 W1");
    }
}
