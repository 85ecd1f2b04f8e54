//! Evaluation on the validation split in training, and of a loaded model on any data.

use regatta_comm::{Collectives, Comm, ReduceOp};

use super::error::Result;
use crate::data::DataLoader;
use crate::step::{DeviceModel, Engine, MicroBatch};
use regatta_device::tensor::View;

/// Indices of `count` windows, evenly spaced over the split, so that every evaluation uses the same ones.
pub fn evenly_spaced(windows: u64, count: u64) -> impl Iterator<Item = u64> {
    let count = count.min(windows);
    (0..count).map(move |i| (u128::from(i) * u128::from(windows) / u128::from(count)) as u64)
}

/// The forward passes of one data-parallel replica. All replicas run the same number of passes, because
/// sharded parameters are gathered in each; a replica without windows left repeats one that does not count.
pub fn passes(
    windows: &[u64],
    micro_batch: usize,
    (replica, replicas): (usize, usize),
) -> Vec<EvalPass> {
    let own: Vec<u64> = windows.iter().copied().skip(replica).step_by(replicas).collect();
    let all = windows.len().div_ceil(replicas).div_ceil(micro_batch);
    let mut passes: Vec<EvalPass> = own
        .chunks(micro_batch)
        .map(|some| EvalPass { windows: some.to_vec(), is_counted: true })
        .collect();
    let again =
        EvalPass { windows: windows.first().copied().into_iter().collect(), is_counted: false };
    passes.resize(all, again);
    passes
}

/// Windows of one forward pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EvalPass {
    /// The windows.
    pub windows: Vec<u64>,
    /// Whether their loss counts.
    pub is_counted: bool,
}

/// Mean validation loss over `count` windows, split over the replicas.
pub fn validation_loss(
    engine: &mut Engine,
    comm: &dyn Comm,
    loader: &DataLoader,
    count: u64,
    micro_batch: usize,
) -> Result<f64> {
    let replica = (engine.groups.coord.dp, engine.groups.mesh.dp);
    let windows: Vec<u64> = evenly_spaced(loader.sampler().windows(), count).collect();
    let (mut sum, mut tokens) = ([0.0], 0);
    for EvalPass { windows, is_counted } in passes(&windows, micro_batch.max(1), replica) {
        let batch = loader.batch(windows)?;
        let loss = engine.loss(&MicroBatch::of(&batch, 0))?;
        sum[0] += if is_counted { loss } else { 0.0 };
        tokens = batch.sequence;
    }
    comm.all_reduce(&mut sum, ReduceOp::Sum)?;
    Ok(sum[0] / ((windows.len() * tokens) as f64).max(1.0))
}

/// Loss of a model on some windows of a text.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct EvalLoss {
    /// Sum of the losses of the tokens, in nats.
    pub sum: f64,
    /// Windows evaluated.
    pub windows: u64,
    /// Tokens predicted.
    pub tokens: u64,
    /// Bytes of text of these tokens.
    pub bytes: u64,
}

impl EvalLoss {
    /// Mean loss per token, in nats.
    pub fn mean(&self) -> f64 {
        self.sum / (self.tokens as f64).max(1.0)
    }
}

/// Evaluates a model on `count` windows, the same as [`validation_loss`] chooses. `token_bytes` has the length of
/// each token; `progress` is called with the windows done and in total.
pub fn evaluate(
    (model, params): (&DeviceModel, &[View<'_>]),
    loader: &DataLoader,
    (count, micro_batch): (u64, usize),
    token_bytes: &[u64],
    progress: &mut dyn FnMut(u64, u64),
) -> Result<EvalLoss> {
    let windows: Vec<u64> = evenly_spaced(loader.sampler().windows(), count).collect();
    let mut total = EvalLoss::default();
    for pass in passes(&windows, micro_batch.max(1), (0, 1)) {
        let batch = loader.batch(pass.windows)?;
        total.sum += model.loss(params, &MicroBatch::of(&batch, 0))?;
        total.windows += batch.batch as u64;
        total.tokens += batch.targets.len() as u64;
        let bytes = |token: &u32| token_bytes.get(*token as usize).copied().unwrap_or(0);
        total.bytes += batch.targets.iter().map(bytes).sum::<u64>();
        progress(total.windows, windows.len() as u64);
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn replicas_run_equally_many_passes_and_every_window_counts_once(
            count in 1u64..50, micro_batch in 1usize..9, replicas in 1usize..9,
        ) {
            let windows: Vec<u64> = (0..count).map(|n| 3 * n).collect();
            let all: Vec<Vec<EvalPass>> =
                (0..replicas).map(|replica| passes(&windows, micro_batch, (replica, replicas))).collect();
            prop_assert!(all.iter().all(|passes| passes.len() == all[0].len()));
            let one = |pass: &EvalPass| !pass.windows.is_empty() && pass.windows.len() <= micro_batch;
            prop_assert!(all.iter().flatten().all(one));
            let counted = all.iter().flatten().filter(|pass| pass.is_counted);
            let mut seen: Vec<u64> = counted.flat_map(|pass| pass.windows.clone()).collect();
            seen.sort_unstable();
            prop_assert_eq!(seen, windows);
        }
    }
}
