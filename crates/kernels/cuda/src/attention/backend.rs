//! The choice between cuDNN and own kernels.

use std::env;

use regatta_comm::gpu_runtime::Vendor;
use regatta_device::DeviceMemory;
use regatta_device::ops::{AttentionDropout, AttentionShape};
use regatta_device::tensor::View;

use crate::cudnn::{Cudnn, CudnnError, Pass, TensorId};
use crate::elementwise::{are_aligned, is_bf16};
use crate::flash::{BackwardInputs, Grads, Problem};
use crate::{CudaDevice, Ptr};

/// Forces kernels, for tests and comparisons: `cudnn`, `flash` or `generic`.
const ATTENTION: &str = "REGATTA_ATTENTION";

/// Kernels that compute attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Backend {
    Cudnn {
        shape: AttentionShape,
        workspace_bytes: usize,
    },
    /// Tensor cores, or AMD's matrix cores.
    Flash,
    Generic,
}

/// What is to be computed.
pub(super) struct Request<'a> {
    pub problem: &'a Problem,
    /// The pass and the shape, if queries, keys and values are packed.
    pub packed: Option<(Pass, AttentionShape)>,
    /// The other tensors, and whether they have the dtype that tensor-core kernels demand.
    pub others: &'a [(Ptr, bool)],
}

/// The backend that the environment demands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Forced {
    Cudnn,
    Flash,
    Generic,
}

impl Forced {
    fn parse(name: &str) -> Result<Self, String> {
        match name {
            "cudnn" => Ok(Self::Cudnn),
            "flash" => Ok(Self::Flash),
            "generic" => Ok(Self::Generic),
            _ => Err(format!("{ATTENTION}={name}: use cudnn, flash or generic")),
        }
    }
}

impl CudaDevice {
    /// The fastest kernels that support a request; `None` after an error.
    pub(super) fn attention_backend_for(&self, request: &Request<'_>) -> Option<Backend> {
        let forced = env::var(ATTENTION).ok().filter(|name| !name.is_empty());
        let chosen = match forced.map(|name| Forced::parse(&name)).transpose() {
            Err(cause) => Err(cause),
            Ok(None) => Ok(self.fastest_backend(request)),
            Ok(Some(Forced::Generic)) => Ok(Backend::Generic),
            Ok(Some(Forced::Cudnn)) if request.packed.is_some() => {
                self.cudnn_backend(request).map_err(|cause| format!("{ATTENTION}=cudnn: {cause}"))
            }
            Ok(Some(Forced::Flash | Forced::Cudnn)) => match Self::supports_flash(request) {
                true => Ok(Backend::Flash),
                false => Err(format!("{ATTENTION}=flash needs bf16 and head_dim 64 or 128")),
            },
        };
        chosen.map_err(|cause| self.fail("attention", cause)).ok()
    }

    /// What computes the forward pass of attention for a shape, for reports to users.
    pub fn attention_backend(&self, shape: AttentionShape, has_dropout: bool) -> String {
        let dtype = self.activation_dtype();
        let dropout = has_dropout.then(AttentionDropout::default);
        let problem = Problem::without_memory(shape, dtype, dropout);
        let others = [(Ptr::NULL, is_bf16(dtype))];
        let packed = Some((Pass::Forward, shape));
        let request = Request { problem: &problem, packed, others: &others };
        match (self.attention_backend_for(&request), &self.cudnn) {
            (Some(Backend::Cudnn { .. }), Some(cudnn)) => format!("cuDNN {}", cudnn.version()),
            (Some(Backend::Flash), _) => match self.runtime.vendor {
                Vendor::Nvidia => "flash (mma.sync)".to_owned(),
                Vendor::Amd => "flash (MFMA)".to_owned(),
            },
            _ => "generic".to_owned(),
        }
    }

    fn fastest_backend(&self, request: &Request<'_>) -> Backend {
        match self.cudnn_backend(request) {
            Ok(backend) => backend,
            Err(_) if Self::supports_flash(request) => Backend::Flash,
            Err(_) => Backend::Generic,
        }
    }

    fn supports_flash(Request { problem, others, .. }: &Request<'_>) -> bool {
        problem.fits_tensor_cores() && others.iter().all(are_suitable)
    }

    /// cuDNN, or why it is not used.
    fn cudnn_backend(&self, request: &Request<'_>) -> Result<Backend, String> {
        let Request { problem, packed, others } = request;
        let Some(cudnn) = &self.cudnn else {
            return Err("cuDNN is not loaded".to_owned());
        };
        let Some((pass, shape)) = *packed else {
            return Err("chunks of keys are not supported".to_owned());
        };
        let is_suitable = is_bf16(problem.dtype) && others.iter().all(are_suitable);
        if !is_suitable || !are_aligned(&[problem.q]) {
            return Err("tensors must be bf16 and aligned to 16 bytes".to_owned());
        }
        if problem.dropout.is_some() {
            return Err("dropout is not supported".to_owned());
        }
        if !Cudnn::accepts(shape) {
            let AttentionShape { seq_len, head_dim, .. } = shape;
            return Err(format!("seq_len {seq_len} or head_dim {head_dim} is not supported"));
        }
        if pass == Pass::Backward && self.deterministic {
            return Err("the backward pass is not deterministic".to_owned());
        }
        if !self.make_current() {
            return Err("the device is not available".to_owned());
        }
        let prepared = cudnn.prepare(pass, shape);
        let workspace_bytes = prepared.map_err(|cause| self.note_unsupported(shape, &cause))?;
        Ok(Backend::Cudnn { shape, workspace_bytes })
    }

    fn note_unsupported(&self, shape: AttentionShape, cause: &CudnnError) -> String {
        let note = format!("cuDNN does not support {shape:?} ({cause}); own kernels are used");
        self.note(note);
        cause.to_string()
    }

    pub(super) fn cudnn_forward(
        &self,
        shape: AttentionShape,
        problem: &Problem,
        y: View<'_>,
        lse: View<'_>,
        workspace_bytes: usize,
    ) {
        let workspace = self.scratch(workspace_bytes.max(1));
        let tensors = [
            (TensorId::Q, problem.q),
            (TensorId::K, problem.k),
            (TensorId::V, problem.v),
            (TensorId::Y, Ptr::of(y)),
            (TensorId::Lse, Ptr::of(lse)),
        ];
        self.execute_cudnn((Pass::Forward, shape), &tensors, workspace);
    }

    pub(super) fn cudnn_backward(
        &self,
        shape: AttentionShape,
        problem: &Problem,
        inputs: BackwardInputs<'_>,
        grads: Grads,
        workspace_bytes: usize,
    ) {
        let align = |bytes: usize| bytes.next_multiple_of(256);
        let delta_bytes = align(shape.rows() * shape.heads * size_of::<f32>());
        let dq_bytes = align(shape.rows() * shape.out_dim() * size_of::<f32>());
        let delta = self.scratch(delta_bytes + dq_bytes + workspace_bytes.max(1));
        let dq_sum = delta.offset_bytes(delta_bytes);
        let tensors = [
            (TensorId::Q, problem.q),
            (TensorId::K, problem.k),
            (TensorId::V, problem.v),
            (TensorId::Y, Ptr::of(inputs.y)),
            (TensorId::Lse, Ptr::of(inputs.lse)),
            (TensorId::Dy, Ptr::of(inputs.dy)),
            (TensorId::Dq, grads.dq),
            (TensorId::Dk, grads.dk),
            (TensorId::Dv, grads.dv),
            (TensorId::Delta, delta),
            (TensorId::DqSum, dq_sum),
        ];
        let workspace = dq_sum.offset_bytes(dq_bytes);
        self.execute_cudnn((Pass::Backward, shape), &tensors, workspace);
    }

    fn execute_cudnn(
        &self,
        plan: (Pass, AttentionShape),
        tensors: &[(TensorId, Ptr)],
        workspace: Ptr,
    ) {
        let Some(cudnn) = &self.cudnn else { return };
        // The scratch memory may not have been allocated.
        if self.has_failed() {
            return;
        }
        let name = match plan.0 {
            Pass::Forward => "cudnn_attention_forward",
            Pass::Backward => "cudnn_attention_backward",
        };
        let tensors: Vec<_> = tensors.iter().map(|(id, at)| (*id, at.as_raw())).collect();
        let queue = || {
            // SAFETY: the stream is valid; the lengths of tensors were checked, and the workspace has the
            // size of the plan.
            unsafe { cudnn.execute(self.stream(), plan, &tensors, workspace.as_raw()) }
        };
        match self.timed(|| name.to_owned(), queue) {
            Ok(()) => self.after_launch(name),
            Err(cause) => self.fail(name, cause),
        }
    }
}

fn are_suitable(&(pointer, has_dtype): &(Ptr, bool)) -> bool {
    has_dtype && are_aligned(&[pointer])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_backends_are_rejected() {
        assert_eq!(Forced::parse("flash"), Ok(Forced::Flash));
        let error = Forced::parse("xformers").unwrap_err();
        assert_eq!(error, "REGATTA_ATTENTION=xformers: use cudnn, flash or generic");
    }
}
