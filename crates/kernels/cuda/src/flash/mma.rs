//! The kernels of NVIDIA's tensor cores: definitions, shared memory and blocks.

use super::Problem;
use crate::elementwise::to_u32;
use crate::{Grid, Kernel, Source};

pub(crate) static FORWARD: Source = Source {
    name: "attention_mma_forward",
    text: concat!(
        include_str!("../../kernels/attention_ptx.cuh"),
        include_str!("../../kernels/attention_dropout.cuh"),
        include_str!("../../kernels/attention_mma.cuh"),
        include_str!("../../kernels/attention_mma_forward.cu"),
    ),
};

pub(crate) static BACKWARD: Source = Source {
    name: "attention_mma_backward",
    text: concat!(
        include_str!("../../kernels/attention_ptx.cuh"),
        include_str!("../../kernels/attention_dropout.cuh"),
        include_str!("../../kernels/attention_mma.cuh"),
        include_str!("../../kernels/attention_mma_backward.cu"),
    ),
};

/// Threads of a warp.
const WARP: usize = 32;
/// `BLOCK_THREADS` and `BLOCK_QUERIES` of the forward source.
const FORWARD_THREADS: usize = 128;
const FORWARD_QUERIES: usize = 128;
/// `LOOP_ROWS` of the backward source.
const LOOP_ROWS: usize = 64;

/// Bytes of a row in shared memory, `ROW_BYTES`.
fn row_bytes(head_dim: usize) -> usize {
    head_dim * 2 + 16
}

pub(super) fn forward_kernel(problem: &Problem) -> Kernel {
    let kernel = Kernel::new(&FORWARD, "attention_mma_forward");
    with_defines(kernel, problem.shape.head_dim, flags(problem), "MERGE")
}

pub(super) fn forward_grid(problem: &Problem) -> Grid {
    let head_dim = problem.shape.head_dim;
    let block_keys = if head_dim == 128 && problem.dropout.is_some() { 32 } else { 64 };
    let shared = (FORWARD_QUERIES + 2 * block_keys) * row_bytes(head_dim);
    Grid::new(problem.query_blocks(FORWARD_QUERIES), to_u32(FORWARD_THREADS)).shared(to_u32(shared))
}

/// The blocks of the backward kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BackwardLayout {
    head_dim: usize,
    warps: usize,
}

impl BackwardLayout {
    /// Two blocks per multiprocessor if shared memory allows, otherwise one with more warps, or with
    /// fewer if even that is too large.
    pub fn new(head_dim: usize, max_shared_bytes: usize) -> Self {
        let layout = |warps| Self { head_dim, warps };
        let four = layout(4);
        if head_dim == 64 || max_shared_bytes >= 2 * four.kv_shared_bytes() {
            return four;
        }
        let fits = |layout: &Self| layout.kv_shared_bytes() <= max_shared_bytes;
        Some(layout(8)).filter(fits).unwrap_or(layout(2))
    }

    pub fn kernel(self, problem: &Problem, function: &'static str) -> Kernel {
        let kernel = Kernel::new(&BACKWARD, function);
        let kernel = with_defines(kernel, self.head_dim, flags(problem), "ACCUMULATE");
        kernel.define("WARPS", self.warps as u64)
    }

    /// Grid of the gradients of keys and values.
    pub fn kv_grid(self, problem: &Problem) -> Grid {
        let blocks = problem.key_blocks(self.block_rows());
        Grid::new(blocks, self.threads()).shared(to_u32(self.kv_shared_bytes()))
    }

    /// Grid of the gradients of queries.
    pub fn q_grid(self, problem: &Problem) -> Grid {
        let blocks = problem.query_blocks(self.block_rows());
        Grid::new(blocks, self.threads()).shared(to_u32(self.tile_bytes()))
    }

    fn threads(self) -> u32 {
        to_u32(self.warps * WARP)
    }

    /// `BLOCK_ROWS` of the source.
    fn block_rows(self) -> usize {
        let row_tiles = if self.head_dim == 64 { 2 } else { 1 };
        self.warps * row_tiles * 16
    }

    /// Two tiles of the block, and two stages of two tiles of the loop.
    fn tile_bytes(self) -> usize {
        (2 * self.block_rows() + 4 * LOOP_ROWS) * row_bytes(self.head_dim)
    }

    /// With two stages of statistics of queries.
    fn kv_shared_bytes(self) -> usize {
        self.tile_bytes() + 4 * LOOP_ROWS * size_of::<f32>()
    }
}

/// `CAUSAL`, `DROPOUT`, and whether results are accumulated over chunks.
pub(super) fn flags(problem: &Problem) -> [u64; 3] {
    [problem.shape.causal, problem.dropout.is_some(), problem.is_chunk].map(u64::from)
}

pub(super) fn with_defines(
    kernel: Kernel,
    head_dim: usize,
    [causal, dropout, chunk]: [u64; 3],
    accumulation: &'static str,
) -> Kernel {
    kernel
        .define("HEAD_DIM", head_dim as u64)
        .define("CAUSAL", causal)
        .define("DROPOUT", dropout)
        .define(accumulation, chunk)
}

#[cfg(test)]
pub(super) fn kernels(head_dim: usize, flags: [u64; 3]) -> Vec<Kernel> {
    let forward = Kernel::new(&FORWARD, "attention_mma_forward");
    let backward = Kernel::new(&BACKWARD, "attention_mma_backward_kv");
    let backward = with_defines(backward, head_dim, flags, "ACCUMULATE").define("WARPS", 4);
    vec![with_defines(forward, head_dim, flags, "MERGE"), backward]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backward_blocks_fit_in_shared_memory() {
        let kib = |kib: usize| kib << 10;
        for (head_dim, max_shared_bytes, warps) in [
            (64, kib(99), 4),
            (64, kib(227), 4),
            (128, kib(99), 2),
            (128, kib(163), 8),
            (128, kib(227), 4),
        ] {
            let layout = BackwardLayout::new(head_dim, max_shared_bytes);
            assert_eq!(layout.warps, warps, "head_dim {head_dim}, {max_shared_bytes} bytes");
            assert!(layout.kv_shared_bytes() <= max_shared_bytes);
        }
    }
}
