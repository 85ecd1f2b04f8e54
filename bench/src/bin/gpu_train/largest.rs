//! The largest model that one GPU trains, by the cost model: layers of the shape of Llama 8B, bf16,
//! AdamW, activations recomputed.

use anyhow::{Result, ensure};
use regatta_device::ops::GPU_MAX_LOGITS;
use regatta_device::precision::Precision;
use regatta_kernels_cuda::CudaDevice;
use regatta_predict::cost::{CostOptions, rank_cost};
use regatta_train::config;
use regatta_train::training::gpu_micro_batch::LIBRARY_BYTES;

use crate::case::Case;
use crate::options::Settings;
use crate::own::Trainer;
use crate::report::{Measured, Report};

const STEPS: usize = 3;

/// Memory of a case, as `regatta train --explain` predicts it.
fn predicted_bytes(case: &Case) -> Result<u64> {
    let words = [format!("batch={}", case.batch), format!("seq_len={}", case.shape.seq_len)];
    let plan = config::resolve(None, &words)?.config.validate(1)?;
    let bytes = Precision::Bf16.activation_bytes();
    let options = CostOptions::gpu(bytes, Some(GPU_MAX_LOGITS), case.recompute);
    Ok(rank_cost(&case.shape, &plan, options, 0)?.memory.total() + LIBRARY_BYTES)
}

/// The case with the most layers that fits in this much memory.
fn largest_case(batch: usize, free: u64) -> Result<Case> {
    let fits = |layers: usize| -> Result<bool> {
        Ok(predicted_bytes(&Case::of_layers(layers, batch))? <= free)
    };
    ensure!(fits(1)?, "one layer does not fit in {free} bytes");
    let mut layers = 1;
    while fits(layers + 1)? {
        layers += 1;
    }
    Ok(Case::of_layers(layers, batch))
}

/// Trains a few steps of the largest model and reports them.
pub fn run(batch: usize, json: bool) -> Result<()> {
    let free = CudaDevice::open(0, Precision::Bf16)?.free_bytes()?;
    let case = largest_case(batch, free)?;
    let mut trainer = Trainer::new(&case, Settings::DEFAULT)?;
    // The first step compiles and autotunes.
    trainer.run(1)?;
    let seconds = trainer.run(STEPS)?;
    let own = Measured { seconds, loss: trainer.last_loss, memory: trainer.memory_in_use() };
    let report = Report { case: &case, device: trainer.describe().to_owned(), own, peer: None };
    let (parameters, predicted) = (case.shape.num_params(), predicted_bytes(&case)?);
    if json {
        let mut value = report.json();
        value["predicted_bytes"] = predicted.into();
        value["free_bytes"] = free.into();
        println!("{value}");
        return Ok(());
    }
    println!("{}", report.text());
    println!("  {parameters} parameters, {predicted} bytes predicted, {free} bytes free before");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_more_layer_does_not_fit() {
        let free = 40 << 30;
        let largest = largest_case(1, free).unwrap();
        let more = Case::of_layers(largest.shape.num_layers + 1, 1);
        assert!(predicted_bytes(&largest).unwrap() <= free);
        assert!(predicted_bytes(&more).unwrap() > free);
        assert!(largest_case(1, 1 << 30).is_err());
    }
}
