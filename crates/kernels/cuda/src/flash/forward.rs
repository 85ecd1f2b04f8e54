//! Forward pass.

use regatta_comm::gpu_runtime::Vendor;
use regatta_device::tensor::View;

use super::{Problem, generic, mfma, mma};
use crate::elementwise::is_bf16;
use crate::{Arg, CudaDevice, Ptr};

impl CudaDevice {
    /// Attention on the matrix units of the GPU. Outputs are merged into if the problem is a chunk.
    pub(crate) fn flash_forward(&self, problem: &Problem, y: View<'_>, lse: View<'_>) {
        let (kernel, grid) = match self.runtime.vendor {
            Vendor::Nvidia => (mma::forward_kernel(problem), mma::forward_grid(problem)),
            Vendor::Amd => {
                let layout = mfma::Layout::forward(problem.shape.head_dim);
                let flags = mma::flags(problem);
                let kernel =
                    layout.kernel(&mfma::FORWARD, "attention_mfma_forward", flags, "MERGE");
                (kernel, layout.query_grid(problem))
            }
        };
        self.launch(&kernel, grid, &forward_args(problem, y, lse));
    }

    /// Attention without matrix units.
    pub(crate) fn generic_forward(&self, problem: &Problem, y: View<'_>, lse: View<'_>) {
        let layout = generic::Layout::new(problem, self.warp_threads());
        let out_bf16 = is_bf16(y.dtype());
        let kernel = layout.kernel(problem, "attention_generic_forward", out_bf16, out_bf16);
        let blocks = problem.query_blocks(layout.block_rows());
        self.launch(&kernel, layout.grid(blocks), &forward_args(problem, y, lse));
    }
}

/// Arguments of all forward kernels.
fn forward_args(problem: &Problem, y: View<'_>, lse: View<'_>) -> Vec<Arg> {
    let shape = problem.shape;
    let pointers = [problem.q, problem.k, problem.v, Ptr::of(y), Ptr::of(lse)];
    let sizes = [shape.queries, shape.keys, shape.heads, shape.kv_heads];
    let strides = [problem.q_stride, problem.kv_stride];
    super::problem::kernel_args(problem, &pointers, &sizes, &strides)
}
