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

/// The mean loss over some sequences, which the ranks share.
pub fn loss(
    engine: &mut Engine,
    comm: &dyn Comm,
    loader: &Loader,
    wanted: u64,
    at_once: usize,
) -> Result<f64, TrainError> {
    let (rank, ranks) = (comm.rank() as usize, comm.size() as usize);
    let windows: Vec<u64> = spread(loader.order().windows(), wanted).collect();
    let own: Vec<u64> = windows.iter().copied().skip(rank).step_by(ranks).collect();
    let mut sums = [0.0, 0.0];
    for some in own.chunks(at_once.max(1)) {
        let batch = loader.batch(some.iter().copied())?;
        let (inputs, targets) = (&batch.inputs, &batch.targets);
        let micro = Micro { inputs, targets, batch: batch.batch, first: 0 };
        sums[0] += engine.loss(&micro)?;
        sums[1] += targets.len() as f64;
    }
    comm.all_reduce(&mut sums, ReduceOp::Sum)?;
    Ok(sums[0] / sums[1].max(1.0))
}
