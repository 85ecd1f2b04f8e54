//! Reserves the device memory of a run in one piece, before its state is allocated: a run that does not fit
//! ends at its start, and steps allocate nothing.

use regatta_device::ops::Device;
use regatta_model::units::format_memory;
use regatta_predict::cost::MemoryBytes;
use regatta_predict::layout::ParallelLayout;

use super::error::Result;
use crate::model::Model;

/// Tensors of a block: parameters, their copy, gradients and moments, each resident and staged.
const TENSORS_PER_BLOCK: usize = 8;

/// Tensors that the forward pass of a micro-batch through a layer saves, at most.
const TENSORS_PER_LAYER: usize = 16;

/// Tensors besides: gradients of a layer, logits, tokens, positions, scalars.
const OTHER_TENSORS: usize = 64;

/// Reserves the predicted memory. Returns a note if there is none, which is an error if `is_required`.
pub(super) fn reserve(
    device: &dyn Device,
    memory: &MemoryBytes,
    tensors: usize,
    is_required: bool,
) -> Result<Option<String>> {
    match device.reserve(memory.total(), tensors) {
        Ok(()) => Ok(None),
        Err(error) if is_required => Err(error.into()),
        Err(_) => Ok(Some(format!(
            "the predicted {} of device memory are not free: tensors are allocated on demand",
            format_memory(memory.total())
        ))),
    }
}

/// An upper bound of the tensors of a rank at a time: each is padded.
pub(super) fn max_tensors(model: &Model, plan: &ParallelLayout) -> usize {
    let in_flight = if plan.mesh.pp == 1 { 1 } else { plan.micro_batches };
    let saved = TENSORS_PER_LAYER.saturating_mul(model.shape.num_layers).saturating_mul(in_flight);
    (TENSORS_PER_BLOCK * model.blocks.len()).saturating_add(saved).saturating_add(OTHER_TENSORS)
}
