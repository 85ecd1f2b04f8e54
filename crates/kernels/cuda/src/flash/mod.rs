//! Attention by own kernels: FlashAttention-2 on tensor cores, and a generic one for f32 and other head
//! dimensions.

mod backward;
mod decode;
mod forward;
mod generic;
mod mma;
mod problem;

pub(crate) use backward::{BackwardInputs, Grads};
pub(crate) use decode::DecodeOperands;
pub(crate) use forward::ForwardOutputs;
pub(crate) use problem::{Problem, packed_offsets};

#[cfg(test)]
use crate::Kernel;

/// One kernel of each source, for tests that compile all sources.
#[cfg(test)]
pub(crate) fn representative_kernels() -> Vec<Kernel> {
    let mut kernels = Vec::new();
    for head_dim in [64, 128] {
        for [causal, dropout, chunk] in [[1, 0, 0], [0, 1, 1]] {
            kernels.extend(mma::kernels(head_dim, [causal, dropout, chunk]));
        }
    }
    for head_dim in [33, 64] {
        for bf16 in [0, 1] {
            kernels.extend(generic::kernels(head_dim, bf16));
            kernels.extend(decode::kernels(head_dim, bf16));
            let prepare = backward::prepare_kernel(head_dim, [bf16, bf16], bf16 == 1);
            let vector = if head_dim % 8 == 0 { 8 } else { 1 };
            kernels.push(prepare.define("VECTOR", vector));
        }
    }
    kernels
}
