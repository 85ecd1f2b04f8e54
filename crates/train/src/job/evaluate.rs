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

/// The mean loss over some sequences, which copies of the model share.
pub fn loss(
    engine: &mut Engine,
    comm: &dyn Comm,
    loader: &Loader,
    wanted: u64,
    at_once: usize,
) -> Result<f64, TrainError> {
    let (copy, copies) = (engine.groups.seat.dp, engine.groups.mesh.dp);
    let windows: Vec<u64> = spread(loader.order().windows(), wanted).collect();
    let mut sum = [0.0];
    let mut tokens = 0;
    for (some, counts) in passes(&windows, copy, copies, at_once) {
        let batch = loader.batch(some.iter().copied())?;
        let (inputs, targets) = (&batch.inputs, &batch.targets);
        tokens = windows.len() * targets.len() / some.len();
        let micro = Micro { inputs, targets, batch: batch.batch, first: 0 };
        let loss = engine.loss(&micro)?;
        sum[0] += if counts { loss } else { 0.0 };
    }
    // Of the ranks of a copy each says what no other says.
    comm.all_reduce(&mut sum, ReduceOp::Sum)?;
    Ok(sum[0] / tokens.max(1) as f64)
}

/// What a copy of the model tries in each pass, and whether it counts. All copies have as many
/// passes, for ranks may need each other in them: who has nothing left tries something again.
fn passes(windows: &[u64], copy: usize, copies: usize, at_once: usize) -> Vec<(Vec<u64>, bool)> {
    let most = windows.len().div_ceil(copies);
    let own: Vec<u64> = windows.iter().copied().skip(copy).step_by(copies).collect();
    let pass = |start: usize| match own.get(start..own.len().min(start + at_once.max(1))) {
        Some(some) if !some.is_empty() => (some.to_vec(), true),
        _ => (windows[..1].to_vec(), false),
    };
    (0..most).step_by(at_once.max(1)).map(pass).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_window_counts_once_and_copies_have_as_many_passes(
            count in 0u64..30, copies in 1usize..6, at_once in 0usize..5,
        ) {
            let windows: Vec<u64> = (100..100 + count).collect();
            let all: Vec<_> =
                (0..copies).map(|copy| passes(&windows, copy, copies, at_once)).collect();
            let mut counted: Vec<u64> = all
                .iter()
                .flatten()
                .filter(|(_, counts)| *counts)
                .flat_map(|(some, _)| some.iter().copied())
                .collect();
            counted.sort_unstable();
            prop_assert_eq!(counted, windows);
            prop_assert!(all.iter().all(|passes| passes.len() == all[0].len()));
            let some = all.iter().flatten().all(|(some, _)| {
                !some.is_empty() && some.len() <= at_once.max(1)
            });
            prop_assert!(some);
        }
    }
}
