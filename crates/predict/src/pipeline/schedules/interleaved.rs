//! Interleaved 1F1B (Megatron): a stage has several chunks of the model (virtual stages), and a
//! micro-batch passes all stages once per chunk.
//!
//! Micro-batches are processed in groups of as many as there are stages: a group passes a stage's first
//! chunk, then its second, and so on, then the next group follows; backward in reverse chunk order. When
//! the last micro-batch of a group leaves the last stage, the first one is back at the first stage.

use super::Computation::{Backward, Forward};
use super::{Action, PipelineSize, ScheduleError, action};

pub(super) fn check(size: PipelineSize) -> Result<(), ScheduleError> {
    let PipelineSize { stages, virtual_stages: chunks, micro_batches, .. } = size;
    if chunks < 2 {
        return Err(ScheduleError::FewChunks { chunks });
    }
    if !micro_batches.is_multiple_of(stages) {
        let below = micro_batches - micro_batches % stages;
        let (above, below) = (below + stages, (below > 0).then_some(below));
        return Err(ScheduleError::UnevenMicroBatches { micro_batches, stages, below, above });
    }
    Ok(())
}

pub(super) fn actions(size: PipelineSize, stage: usize) -> Vec<Action> {
    let PipelineSize { stages, virtual_stages: chunks, micro_batches, .. } = size;
    let passes = micro_batches * chunks;
    // The index of a pass encodes group of micro-batches, local chunk, and micro-batch in the group.
    let chunk_of = |pass: usize| pass / stages % chunks;
    let micro_of = |pass: usize| pass / (stages * chunks) * stages + pass % stages;
    let forward = |pass| action(Forward, chunk_of(pass) * stages + stage, micro_of(pass));
    let backward = |pass| {
        let chunk = chunks - 1 - chunk_of(pass);
        action(Backward, chunk * stages + stage, micro_of(pass))
    };
    let warmup = ((chunks - 1) * stages + 2 * (stages - 1 - stage)).min(passes);
    let mut all: Vec<Action> = (0..warmup).map(forward).collect();
    for pass in 0..passes {
        all.extend((warmup + pass < passes).then(|| forward(warmup + pass)));
        all.push(backward(pass));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::{ScheduleKind, render};
    use super::*;

    fn size(stages: usize, virtual_stages: usize, micro_batches: usize) -> PipelineSize {
        PipelineSize { kind: ScheduleKind::Interleaved, stages, virtual_stages, micro_batches }
    }

    #[test]
    fn groups_of_micro_batches_alternate_between_chunks() {
        for (stage, expected) in [
            "F0.0 F1.0 F0.2 F1.2 F2.0 B0.2 F3.0 B1.2 F2.2 B0.0 F3.2 B1.0 B2.2 B3.2 B2.0 B3.0",
            "F0.1 F1.1 F0.3 B0.3 F1.3 B1.3 F2.1 B0.1 F3.1 B1.1 F2.3 B2.3 F3.3 B3.3 B2.1 B3.1",
        ]
        .into_iter()
        .enumerate()
        {
            assert_eq!(render(&actions(size(2, 2, 4), stage), true), expected, "stage {stage}");
        }
    }

    #[test]
    fn invalid_micro_batch_counts_name_valid_ones() {
        let text = |micro_batches| check(size(4, 2, micro_batches)).unwrap_err().to_string();
        assert!(text(10).contains("try 8 or 12,"), "{}", text(10));
        assert!(text(3).contains("try 4,"), "{}", text(3));
        assert_eq!(check(size(4, 1, 8)), Err(ScheduleError::FewChunks { chunks: 1 }));
        assert_eq!(check(size(4, 2, 8)), Ok(()));
    }
}
