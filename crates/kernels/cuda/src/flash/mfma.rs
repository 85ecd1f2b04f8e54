//! The kernels of AMD's matrix cores: definitions, shared memory and blocks.

use super::Problem;
use super::mma::with_defines;
use crate::elementwise::to_u32;
use crate::{Grid, Kernel, Source};

pub(crate) static FORWARD: Source = Source {
    name: "attention_mfma_forward",
    text: concat!(
        include_str!("../../kernels/attention_dropout.cuh"),
        include_str!("../../kernels/attention_mfma.cuh"),
        include_str!("../../kernels/attention_mfma_forward.cu"),
    ),
};

pub(crate) static BACKWARD: Source = Source {
    name: "attention_mfma_backward",
    text: concat!(
        include_str!("../../kernels/attention_dropout.cuh"),
        include_str!("../../kernels/attention_mfma.cuh"),
        include_str!("../../kernels/attention_mfma_backward.cu"),
    ),
};

/// `BLOCK_THREADS` and `BLOCK_ROWS` of the sources.
const BLOCK_THREADS: usize = 256;
const BLOCK_ROWS: usize = 128;

/// The blocks of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    head_dim: usize,
    /// `LOOP_ROWS` of the source.
    loop_rows: usize,
    /// Tiles of loop rows in shared memory, and transposed ones.
    row_tiles: usize,
    transposed_tiles: usize,
}

impl Layout {
    /// Every thread loads 32 bytes of keys and of values.
    pub fn forward(head_dim: usize) -> Self {
        Self { head_dim, loop_rows: 4096 / head_dim, row_tiles: 1, transposed_tiles: 1 }
    }

    /// Gradients of keys and values. Fewer rows at a time than in the forward pass, so that the shared
    /// memory of a compute unit suffices for several blocks.
    pub fn backward_kv(head_dim: usize) -> Self {
        Self { head_dim, loop_rows: 2048 / head_dim, row_tiles: 2, transposed_tiles: 2 }
    }

    /// Gradients of queries.
    pub fn backward_q(head_dim: usize) -> Self {
        Self { transposed_tiles: 1, ..Self::backward_kv(head_dim) }
    }

    /// A kernel, compiled for the flags of a problem.
    pub fn kernel(
        self,
        source: &'static Source,
        function: &'static str,
        flags: [u64; 3],
        accumulation: &'static str,
    ) -> Kernel {
        let kernel = Kernel::new(source, function);
        let kernel = with_defines(kernel, self.head_dim, flags, accumulation);
        kernel.define("LOOP_ROWS", self.loop_rows as u64)
    }

    /// The grid of a kernel whose blocks have queries.
    pub fn query_grid(self, problem: &Problem) -> Grid {
        self.grid(problem.query_blocks(BLOCK_ROWS))
    }

    /// The grid of a kernel whose blocks have keys.
    pub fn key_grid(self, problem: &Problem) -> Grid {
        self.grid(problem.key_blocks(BLOCK_ROWS))
    }

    fn grid(self, blocks: u32) -> Grid {
        Grid::new(blocks, to_u32(BLOCK_THREADS)).shared(to_u32(self.shared_bytes()))
    }

    /// `ROW_TILE_BYTES` and `TRANSPOSED_TILE_BYTES` of each tile.
    fn shared_bytes(self) -> usize {
        let padded = |elements: usize| elements * 2 + 8;
        let row_tile = self.loop_rows * padded(self.head_dim);
        let transposed_tile = self.head_dim * padded(self.loop_rows);
        self.row_tiles * row_tile + self.transposed_tiles * transposed_tile
    }
}

#[cfg(test)]
pub(super) fn kernels(head_dim: usize, flags: [u64; 3]) -> Vec<Kernel> {
    let forward = Layout::forward(head_dim);
    let backward = Layout::backward_kv(head_dim);
    vec![
        forward.kernel(&FORWARD, "attention_mfma_forward", flags, "MERGE"),
        backward.kernel(&BACKWARD, "attention_mfma_backward_kv", flags, "ACCUMULATE"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_blocks_share_the_memory_of_a_compute_unit() {
        for head_dim in [64, 128] {
            for layout in [Layout::forward, Layout::backward_kv, Layout::backward_q] {
                assert!(2 * layout(head_dim).shared_bytes() <= 64 << 10, "{:?}", layout(head_dim));
            }
        }
    }
}
