//! Attention by own kernels: FlashAttention-2 on the matrix units of NVIDIA (mma.sync) and AMD (MFMA) GPUs,
//! and a generic one for f32 and other head dimensions.

mod backward;
mod decode;
mod forward;
mod generic;
mod mfma;
mod mma;
mod problem;

pub(crate) use backward::{BackwardInputs, Grads};
pub(crate) use problem::{Problem, packed_offsets};

#[cfg(test)]
use regatta_comm::gpu_runtime::Vendor;

#[cfg(test)]
use crate::Kernel;

/// One kernel of each source, for tests that compile all sources.
#[cfg(test)]
pub(crate) fn representative_kernels(vendor: Vendor) -> Vec<Kernel> {
    let warp = if vendor == Vendor::Amd { 64 } else { 32 };
    let mut kernels = Vec::new();
    for head_dim in [64, 128] {
        for [causal, dropout, chunk] in [[1, 0, 0], [0, 1, 1]] {
            let flags = [causal, dropout, chunk];
            kernels.extend(match vendor {
                Vendor::Nvidia => mma::kernels(head_dim, flags),
                Vendor::Amd => mfma::kernels(head_dim, flags),
            });
        }
    }
    for head_dim in [33, 64, 256] {
        for bf16 in [0, 1] {
            kernels.extend(generic::kernels(head_dim, bf16, warp));
            kernels.extend(decode::kernels(head_dim, bf16, warp));
            let prepare = backward::prepare_kernel(head_dim, [bf16, bf16], bf16 == 1);
            let vector = if head_dim % 8 == 0 { 8 } else { 1 };
            kernels.push(prepare.define("VECTOR", vector));
        }
    }
    kernels
}
