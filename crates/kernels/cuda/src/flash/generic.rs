//! The generic kernels: definitions, shared memory and blocks.

use super::Problem;
use crate::elementwise::{is_bf16, to_u32};
use crate::{Grid, Kernel, Source};

pub(crate) static SOURCE: Source = Source {
    name: "attention_generic",
    text: concat!(
        include_str!("../../kernels/attention_dropout.cuh"),
        include_str!("../../kernels/attention_generic.cu"),
    ),
};

/// `ROWS` of the source: rows of a warp.
const WARP_ROWS: usize = 4;

/// The blocks of the kernels.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    head_dim: usize,
    warp_threads: usize,
}

impl Layout {
    pub fn new(problem: &Problem, warp_threads: usize) -> Self {
        Self { head_dim: problem.shape.head_dim, warp_threads }
    }

    /// `out_bf16` is of the output or of the gradients.
    pub fn kernel(
        self,
        problem: &Problem,
        function: &'static str,
        dy_bf16: bool,
        out_bf16: bool,
    ) -> Kernel {
        let is_chunk = u64::from(problem.is_chunk);
        Kernel::new(&SOURCE, function)
            .define("HEAD_DIM", self.head_dim as u64)
            .define("CAUSAL", problem.shape.causal.into())
            .define("DROPOUT", problem.dropout.is_some().into())
            .define("IN_BF16", is_bf16(problem.dtype).into())
            .define("DY_BF16", dy_bf16.into())
            .define("OUT_BF16", out_bf16.into())
            .define("MERGE", is_chunk)
            .define("ACCUMULATE", is_chunk)
            .define("WARP_THREADS", self.warp_threads as u64)
    }

    pub fn grid(self, blocks: u32) -> Grid {
        let padded_dim = self.head_dim.next_multiple_of(4);
        let rows = 2 * self.block_rows() * padded_dim;
        let weights = 2 * self.warps() * self.tile_rows() * WARP_ROWS;
        let tiles = 2 * self.tile_rows() * (padded_dim + 1);
        let shared = (rows + weights + tiles) * size_of::<f32>();
        Grid::new(blocks, to_u32(self.warps() * self.warp_threads)).shared(to_u32(shared))
    }

    /// `BLOCK_ROWS` of the source.
    pub fn block_rows(self) -> usize {
        self.warps() * WARP_ROWS
    }

    /// `TILE_ROWS` of the source: AMD GPUs have 64 KiB of shared memory.
    fn tile_rows(self) -> usize {
        if self.warp_threads == 64 && self.head_dim > 128 { 16 } else { 32 }
    }

    fn warps(self) -> usize {
        if self.head_dim > 128 { 2 } else { 4 }
    }
}

#[cfg(test)]
pub(super) fn kernels(head_dim: u64, bf16: u64, warp: u64) -> Vec<Kernel> {
    let flags = ["CAUSAL", "DROPOUT", "IN_BF16", "DY_BF16", "OUT_BF16", "MERGE", "ACCUMULATE"];
    let kernel = Kernel::new(&SOURCE, "attention_generic_forward").define("HEAD_DIM", head_dim);
    let kernel = kernel.define("WARP_THREADS", warp);
    vec![flags.into_iter().fold(kernel, |kernel, flag| kernel.define(flag, bf16))]
}
