//! Interleaved 1F1B: a stage has several chunks of the model, each a turn around the ring of stages.
//!
//! Micro-batches go in groups of as many as there are stages: the group through a stage's first chunk,
//! then through its second, and so on, then the next group; backward the chunks the other way round.
//! When the last of a group leaves the last stage, the first one is back at the first stage for the
//! next chunk just in time.

use super::{Action, ScheduleError, Work, action};

pub(super) fn check(stages: usize, chunks: usize, micros: usize) -> Result<(), ScheduleError> {
    if chunks < 2 {
        return Err(ScheduleError::FewChunks { chunks });
    }
    if !micros.is_multiple_of(stages) {
        let below = micros - micros % stages;
        let (above, below) = (below + stages, (below > 0).then_some(below));
        return Err(ScheduleError::UnevenMicros { micros, stages, below, above });
    }
    Ok(())
}

pub(super) fn actions(stage: usize, stages: usize, chunks: usize, micros: usize) -> Vec<Action> {
    let passes = micros * chunks;
    // The number of a pass says its group, its turn in the group, and its place in the turn.
    let turn_of = |pass: usize| pass / stages % chunks;
    let micro_of = |pass: usize| pass / (stages * chunks) * stages + pass % stages;
    let forward = |pass| action(Work::Forward, turn_of(pass) * stages + stage, micro_of(pass));
    let backward = |pass| {
        let turn = chunks - 1 - turn_of(pass);
        action(Work::Backward, turn * stages + stage, micro_of(pass))
    };
    let ahead = ((chunks - 1) * stages + 2 * (stages - 1 - stage)).min(passes);
    let mut all: Vec<Action> = (0..ahead).map(forward).collect();
    for pass in 0..passes {
        all.extend((ahead + pass < passes).then(|| forward(ahead + pass)));
        all.push(backward(pass));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::words;
    use super::*;

    #[test]
    fn groups_go_around_the_ring() {
        let first =
            "F0.0 F1.0 F0.2 F1.2 F2.0 B0.2 F3.0 B1.2 F2.2 B0.0 F3.2 B1.0 B2.2 B3.2 B2.0 B3.0";
        assert_eq!(words(&actions(0, 2, 2, 4), true), first);
        let second =
            "F0.1 F1.1 F0.3 B0.3 F1.3 B1.3 F2.1 B0.1 F3.1 B1.1 F2.3 B2.3 F3.3 B3.3 B2.1 B3.1";
        assert_eq!(words(&actions(1, 2, 2, 4), true), second);
    }

    #[test]
    fn what_does_not_fit_is_told_with_what_would() {
        let text = |micros| check(4, 2, micros).unwrap_err().to_string();
        assert!(text(10).contains("try 8 or 12 micro-batches"), "{}", text(10));
        assert!(text(3).contains("try 4 micro-batches"), "{}", text(3));
        assert_eq!(check(4, 1, 8), Err(ScheduleError::FewChunks { chunks: 1 }));
        assert_eq!(check(4, 2, 8), Ok(()));
    }
}
