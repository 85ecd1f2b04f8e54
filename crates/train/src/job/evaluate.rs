//! The loss on text that is not trained on.

use regatta_comm::{Collectives, Comm, ReduceOp};

use super::error::TrainError;
use crate::data::Loader;
use crate::step::{Engine, Micro};

/// Which sequences a validation takes: so many, evenly spread over all that there are, so that each
/// validation sees the same and all of the text counts.
pub fn spread(windows: u64, wanted: u64) -> impl Iterator<Item = u64> {
    let count = wanted.min(windows);
    (0..count).map(move |i| (u128::from(i) * u128::from(windows) / u128::from(count)) as u64)
}

/// The sequences of one copy of the model of several, a pass after the other. All copies do as many
/// passes, for they may share parameters that are gathered in each: who has no sequence left does one
/// again, which does not count.
pub fn passes(windows: &[u64], at_once: usize, (copy, copies): (usize, usize)) -> Vec<Pass> {
    let own: Vec<u64> = windows.iter().copied().skip(copy).step_by(copies).collect();
    let all = windows.len().div_ceil(copies).div_ceil(at_once);
    let mut passes: Vec<Pass> =
        own.chunks(at_once).map(|some| Pass { windows: some.to_vec(), counts: true }).collect();
    let again = Pass { windows: windows.first().copied().into_iter().collect(), counts: false };
    passes.resize(all, again);
    passes
}

/// Sequences of a validation that go through the model at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pass {
    /// Which.
    pub windows: Vec<u64>,
    /// Whether their loss is part of the mean.
    pub counts: bool,
}

/// The mean loss over some sequences, which the copies of the model share.
pub fn loss(
    engine: &mut Engine,
    comm: &dyn Comm,
    loader: &Loader,
    wanted: u64,
    at_once: usize,
) -> Result<f64, TrainError> {
    let copy = (engine.groups.seat.dp, engine.groups.mesh.dp);
    let windows: Vec<u64> = spread(loader.order().windows(), wanted).collect();
    let (mut sum, mut tokens) = ([0.0], 0);
    for Pass { windows, counts } in passes(&windows, at_once.max(1), copy) {
        let batch = loader.batch(windows)?;
        let (inputs, targets) = (&batch.inputs, &batch.targets);
        let micro = Micro { inputs, targets, batch: batch.batch, first: 0 };
        let loss = engine.loss(&micro)?;
        sum[0] += if counts { loss } else { 0.0 };
        tokens = targets.len() / batch.batch.max(1);
    }
    comm.all_reduce(&mut sum, ReduceOp::Sum)?;
    Ok(sum[0] / ((windows.len() * tokens) as f64).max(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn all_copies_do_as_many_passes_and_every_sequence_counts_once(
            count in 1u64..50, at_once in 1usize..9, copies in 1usize..9,
        ) {
            let windows: Vec<u64> = (0..count).map(|n| 3 * n).collect();
            let all: Vec<Vec<Pass>> =
                (0..copies).map(|copy| passes(&windows, at_once, (copy, copies))).collect();
            prop_assert!(all.iter().all(|passes| passes.len() == all[0].len()));
            let one = |pass: &Pass| !pass.windows.is_empty() && pass.windows.len() <= at_once;
            prop_assert!(all.iter().flatten().all(one));
            let counted = all.iter().flatten().filter(|pass| pass.counts);
            let mut seen: Vec<u64> = counted.flat_map(|pass| pass.windows.clone()).collect();
            seen.sort_unstable();
            prop_assert_eq!(seen, windows);
        }
    }
}
