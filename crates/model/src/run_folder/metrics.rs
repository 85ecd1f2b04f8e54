//! Metrics of a training step.

use serde::{Deserialize, Serialize};

use crate::finite_or_null;

/// Metrics of a step. Serialised, the fields of a [`super::Record`] of `metrics.jsonl`;
/// readers need only the first three.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct StepMetrics {
    /// Steps finished, including this one.
    pub step: u64,
    /// Steps of the run.
    pub steps: u64,
    /// Mean training loss over all ranks.
    #[serde(with = "finite_or_null")]
    pub loss: f64,
    /// Mean validation loss, if evaluated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub val_loss: Option<f64>,
    /// Learning rate.
    #[serde(default)]
    pub lr: f64,
    /// Global gradient norm before clipping.
    #[serde(default, with = "finite_or_null")]
    pub grad_norm: f64,
    /// Tokens trained on so far, over all ranks and restarts.
    #[serde(default)]
    pub tokens: u64,
    /// Throughput of this step over all ranks.
    #[serde(default)]
    pub tokens_per_second: f64,
    /// Model FLOPS of this step over all ranks: `FLOPS_FORMULA` of `regatta_train::metrics`.
    #[serde(default)]
    pub flops_per_second: f64,
    /// Memory of the GPU of rank 0, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_memory: Option<GpuMemory>,
    /// Time breakdown.
    #[serde(default)]
    pub seconds: StepSeconds,
    /// When the step ended, in seconds since the Unix epoch.
    #[serde(default)]
    pub time: f64,
    /// Seconds since the start in which rank 0 was stopped (Ctrl-Z, `scontrol suspend`).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub stopped_seconds: f64,
}

/// Memory of a GPU in bytes, of all processes on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct GpuMemory {
    /// Largest amount in use at the end of a step since the start.
    pub peak: u64,
    /// Memory of the device.
    pub total: u64,
}

/// Time breakdown of a step, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StepSeconds {
    /// The whole step, without the time in which the rank was stopped.
    pub step: f64,
    /// Waiting for the data loader.
    pub data: f64,
    /// Forward passes.
    pub forward: f64,
    /// Backward passes.
    pub backward: f64,
    /// Exposed communication.
    pub communication: f64,
    /// Optimizer step.
    pub optimizer: f64,
    /// Blocking part of checkpointing.
    pub checkpoint: f64,
    /// Everything else.
    pub other: f64,
}

impl StepSeconds {
    /// The means over some steps; zeros without any.
    pub fn mean<'a>(steps: impl Iterator<Item = &'a StepMetrics> + Clone) -> Self {
        let count = steps.clone().count().max(1) as f64;
        let mean =
            |of: fn(&Self) -> f64| steps.clone().map(|step| of(&step.seconds)).sum::<f64>() / count;
        Self {
            step: mean(|s| s.step),
            data: mean(|s| s.data),
            forward: mean(|s| s.forward),
            backward: mean(|s| s.backward),
            communication: mean(|s| s.communication),
            optimizer: mean(|s| s.optimizer),
            checkpoint: mean(|s| s.checkpoint),
            other: mean(|s| s.other),
        }
    }

    /// The phases and their names, in the order of a step.
    pub fn phases(&self) -> [(&'static str, f64); 7] {
        [
            ("data", self.data),
            ("forward", self.forward),
            ("backward", self.backward),
            ("communication", self.communication),
            ("optimizer", self.optimizer),
            ("checkpoint", self.checkpoint),
            ("other", self.other),
        ]
    }
}

/// Whether a field is left out.
#[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
pub(crate) fn is_zero(seconds: &f64) -> bool {
    *seconds == 0.0
}
