//! The rows of a block and its shared memory.

use super::super::super::launch::Launch;

/// Rows of a block of a kernel.
#[derive(Clone, Copy)]
pub(super) struct BlockLayout {
    pub rows: usize,
    /// Rows that loops over the other operand load at once.
    pub loop_rows: usize,
    pub is_mma: bool,
}

impl BlockLayout {
    /// `attention_generic.cu`.
    pub fn generic(launch: &Launch<'_>) -> Self {
        let head_dim = launch.define("HEAD_DIM");
        let is_large = head_dim > 128;
        let (warps, warp_threads) = (if is_large { 2 } else { 4 }, launch.gpu.config.warp_size());
        assert_eq!(launch.define("WARP_THREADS"), warp_threads, "threads of a warp");
        let tile_rows = if is_large && warp_threads == 64 { 16 } else { 32 };
        let (rows, padded_dim) = (warps * 4, head_dim.next_multiple_of(4));
        let weights = 2 * warps * tile_rows * 4;
        let tiles = 2 * tile_rows * (padded_dim + 1);
        let floats = 2 * rows * padded_dim + weights + tiles;
        Self { rows, loop_rows: tile_rows, is_mma: false }.checked(
            launch,
            warps * warp_threads,
            floats * size_of::<f32>(),
        )
    }

    /// `attention_mma_forward.cu`.
    pub fn mma_forward(launch: &Launch<'_>) -> Self {
        let head_dim = mma_head_dim(launch);
        let is_large = head_dim == 128 && launch.define("DROPOUT") == 1;
        let (rows, loop_rows) = (128, if is_large { 32 } else { 64 });
        let shared_bytes = (rows + 2 * loop_rows) * row_bytes(head_dim);
        Self { rows, loop_rows, is_mma: true }.checked(launch, 128, shared_bytes)
    }

    /// `attention_mma_backward.cu`. The gradients of keys and values need statistics of queries.
    pub fn mma_backward(launch: &Launch<'_>, has_statistics: bool) -> Self {
        let (head_dim, warps) = (mma_head_dim(launch), launch.define("WARPS"));
        let row_tiles = if head_dim == 64 { 2 } else { 1 };
        let (rows, loop_rows) = (warps * row_tiles * 16, 64);
        let tiles = (2 * rows + 4 * loop_rows) * row_bytes(head_dim);
        let statistics = 4 * loop_rows * size_of::<f32>();
        let shared_bytes = tiles + if has_statistics { statistics } else { 0 };
        Self { rows, loop_rows, is_mma: true }.checked(launch, warps * 32, shared_bytes)
    }

    /// `attention_mfma_forward.cu` and `attention_mfma_backward.cu`, with some tiles of loop rows and some
    /// transposed ones.
    pub fn mfma(launch: &Launch<'_>, [row_tiles, transposed_tiles]: [usize; 2]) -> Self {
        let (head_dim, loop_rows) = (mma_head_dim(launch), launch.define("LOOP_ROWS"));
        let row_tile = loop_rows * (2 * head_dim + 8);
        let transposed_tile = head_dim * (2 * loop_rows + 8);
        let shared_bytes = row_tiles * row_tile + transposed_tiles * transposed_tile;
        Self { rows: 128, loop_rows, is_mma: true }.checked(launch, 256, shared_bytes)
    }

    fn checked(self, launch: &Launch<'_>, threads: usize, shared_bytes: usize) -> Self {
        launch.assert_threads(threads);
        launch.assert_one_dimension();
        assert!(launch.shared_bytes >= shared_bytes, "{shared_bytes} bytes of shared memory");
        self
    }

    /// The sequences of a grid in which blocks have some of `rows` rows of `heads` heads.
    pub fn batch(self, launch: &Launch<'_>, rows: usize, heads: usize) -> usize {
        let blocks_of_sequence = rows.div_ceil(self.rows) * heads;
        let blocks = launch.blocks[0];
        assert!(blocks.is_multiple_of(blocks_of_sequence), "{blocks} blocks");
        blocks / blocks_of_sequence
    }
}

fn mma_head_dim(launch: &Launch<'_>) -> usize {
    let head_dim = launch.define("HEAD_DIM");
    assert!(matches!(head_dim, 64 | 128), "head_dim {head_dim}");
    head_dim
}

/// Bytes of a row in shared memory.
fn row_bytes(head_dim: usize) -> usize {
    2 * head_dim + 16
}
