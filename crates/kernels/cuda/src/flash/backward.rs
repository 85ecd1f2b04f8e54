//! Backward pass: statistics of queries, then the gradients of keys and values, then those of queries.

use regatta_comm::DType;
use regatta_comm::gpu_runtime::Vendor;
use regatta_device::ops::AttentionChunkShape;
use regatta_device::tensor::View;

use super::mma::{self, BackwardLayout};
use super::problem::kernel_args;
use super::{Problem, generic, mfma};
use crate::elementwise::{are_aligned, is_bf16, to_u32};
use crate::{Arg, CudaDevice, Grid, Kernel, Ptr, Source};

pub(crate) static PREPARE: Source =
    Source { name: "attention_prepare", text: include_str!("../../kernels/attention_prepare.cu") };

/// Heads are padded to a multiple of this, at least the queries of a block.
const PADDED_QUERIES: usize = 128;
/// Threads of a block of the preparation.
const PREPARE_THREADS: usize = 256;

/// Inputs of the backward pass besides the operands.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BackwardInputs<'a> {
    pub y: View<'a>,
    pub dy: View<'a>,
    /// f32.
    pub lse: View<'a>,
}

/// Gradients of the operands, which are accumulated if the problem is a chunk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grads {
    pub dq: Ptr,
    pub dk: Ptr,
    pub dv: Ptr,
    pub dtype: DType,
    /// Elements between rows of `dq`.
    pub dq_stride: usize,
    /// Elements between rows of `dk`, and of `dv`.
    pub dkv_stride: usize,
}

/// Statistics of queries in scratch memory.
#[derive(Debug, Clone, Copy)]
struct Statistics {
    scaled_lse: Ptr,
    delta: Ptr,
    padded_queries: usize,
}

impl CudaDevice {
    /// Gradients by the matrix units of the GPU. Every gradient is summed in a fixed order.
    pub(crate) fn flash_backward(
        &self,
        problem: &Problem,
        inputs: BackwardInputs<'_>,
        grads: Grads,
    ) {
        let head_dim = problem.shape.head_dim;
        let launches = match self.runtime.vendor {
            Vendor::Nvidia => {
                let layout = BackwardLayout::new(head_dim, self.max_shared_bytes() as usize);
                let kernel = |function| layout.kernel(problem, function);
                [
                    (kernel("attention_mma_backward_kv"), layout.kv_grid(problem)),
                    (kernel("attention_mma_backward_q"), layout.q_grid(problem)),
                ]
            }
            Vendor::Amd => {
                let kv = mfma::Layout::backward_kv(head_dim);
                let q = mfma::Layout::backward_q(head_dim);
                let flags = mma::flags(problem);
                let kernel = |function| kv.kernel(&mfma::BACKWARD, function, flags, "ACCUMULATE");
                [
                    (kernel("attention_mfma_backward_kv"), kv.key_grid(problem)),
                    (kernel("attention_mfma_backward_q"), q.query_grid(problem)),
                ]
            }
        };
        self.launch_gradients(problem, inputs, grads, &launches);
    }

    /// Gradients without matrix units, in a fixed order, too.
    pub(crate) fn generic_backward(
        &self,
        problem: &Problem,
        inputs: BackwardInputs<'_>,
        grads: Grads,
    ) {
        let layout = generic::Layout::new(problem, self.warp_threads());
        let [dy_bf16, out_bf16] = [inputs.dy.dtype(), grads.dtype].map(is_bf16);
        let rows = layout.block_rows();
        let kernel = |function| layout.kernel(problem, function, dy_bf16, out_bf16);
        let launches = [
            (kernel("attention_generic_backward_kv"), layout.grid(problem.key_blocks(rows))),
            (kernel("attention_generic_backward_q"), layout.grid(problem.query_blocks(rows))),
        ];
        self.launch_gradients(problem, inputs, grads, &launches);
    }

    /// Launches the kernels of the gradients of keys and values, and of queries.
    fn launch_gradients(
        &self,
        problem: &Problem,
        inputs: BackwardInputs<'_>,
        grads: Grads,
        [kv, q]: &[(Kernel, Grid); 2],
    ) {
        let statistics = self.prepare_backward(problem, inputs);
        let args = |grads: &[Ptr], stride| {
            backward_args(problem, Ptr::of(inputs.dy), statistics, grads, stride)
        };
        self.launch(&kv.0, kv.1, &args(&[grads.dk, grads.dv], grads.dkv_stride));
        self.launch(&q.0, q.1, &args(&[grads.dq], grads.dq_stride));
    }

    fn prepare_backward(&self, problem: &Problem, inputs: BackwardInputs<'_>) -> Statistics {
        let AttentionChunkShape { batch, queries, heads, head_dim, .. } = problem.shape;
        let padded_queries = queries.next_multiple_of(PADDED_QUERIES);
        let count = batch * heads * padded_queries;
        let bytes = count * size_of::<f32>();
        let scaled_lse = self.scratch(2 * bytes);
        let delta = scaled_lse.offset_bytes(bytes);
        let dtypes = [inputs.y, inputs.dy].map(|view| u64::from(is_bf16(view.dtype())));
        let vector = vector_len(head_dim, inputs);
        let kernel = prepare_kernel(head_dim as u64, dtypes, problem.is_chunk);
        let kernel = kernel.define("VECTOR", vector as u64);
        let threads = count * query_lanes(head_dim.div_ceil(vector));
        let args: [Arg; 9] = [
            Ptr::of(inputs.y).into(),
            Ptr::of(inputs.dy).into(),
            Ptr::of(inputs.lse).into(),
            scaled_lse.into(),
            delta.into(),
            (count as u64).into(),
            to_u32(queries).into(),
            to_u32(padded_queries).into(),
            to_u32(heads).into(),
        ];
        let blocks = to_u32(threads.div_ceil(PREPARE_THREADS));
        self.launch(&kernel, Grid::new(blocks, to_u32(PREPARE_THREADS)), &args);
        Statistics { scaled_lse, delta, padded_queries }
    }
}

/// The kernel of the preparation, without `VECTOR`.
pub(super) fn prepare_kernel(
    head_dim: u64,
    [y_bf16, dy_bf16]: [u64; 2],
    lse_by_row: bool,
) -> Kernel {
    Kernel::new(&PREPARE, "attention_prepare_backward")
        .define("HEAD_DIM", head_dim)
        .define("Y_BF16", y_bf16)
        .define("DY_BF16", dy_bf16)
        .define("BY_ROW", lse_by_row.into())
}

/// Elements of a load of the preparation.
fn vector_len(head_dim: usize, inputs: BackwardInputs<'_>) -> usize {
    let are_aligned = are_aligned(&[inputs.y, inputs.dy].map(Ptr::of));
    if head_dim.is_multiple_of(8) && are_aligned { 8 } else { 1 }
}

/// `LANES` of the preparation: lanes that share a query of so many vectors.
fn query_lanes(vectors: usize) -> usize {
    vectors.next_power_of_two().min(32)
}

/// Arguments of a kernel that writes gradients with a stride between rows.
fn backward_args(
    problem: &Problem,
    dy: Ptr,
    statistics: Statistics,
    grads: &[Ptr],
    stride: usize,
) -> Vec<Arg> {
    let Statistics { scaled_lse, delta, padded_queries } = statistics;
    let AttentionChunkShape { queries, keys, heads, kv_heads, .. } = problem.shape;
    let Problem { q, k, v, q_stride, kv_stride, .. } = *problem;
    let pointers = [&[q, k, v, dy, scaled_lse, delta][..], grads].concat();
    let sizes = [queries, keys, padded_queries, heads, kv_heads];
    kernel_args(problem, &pointers, &sizes, &[q_stride, kv_stride, stride])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_share_a_query() {
        let lanes = [1, 8, 10, 16, 32, 33, 256].map(query_lanes);
        assert_eq!(lanes, [1, 8, 16, 16, 32, 32, 32]);
    }
}
