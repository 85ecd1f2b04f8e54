//! Loops around the micro-kernel: blocks of rows whose A stays in L2, and within them two panels of B that stay
//! in L1 or L2 for all tiles of rows, which meanwhile prefetch the next two.

use std::ops::Range;

use super::aligned_lines::{CacheLine, WORDS};
use super::epilogue::{Accumulators, TILE_COLUMNS, TileOutput};
use super::kernel::Blocking;
use super::matrix::{MatrixSlice, MatrixSliceMut, OutputPtr};
use super::microkernel::{GemmTile, PanelA};
use super::pack::DEPTH;
use super::{GemmScratch, PackedBView, pack};
use crate::gemm::Epilogue;
use crate::gemm::small_f32::MatrixPtrMut;
use crate::slice::ElementPtr;

/// Maximum bytes of a packed block of A.
const MAX_A_BLOCK_BYTES: usize = 256 << 10;

/// Tiles of rows that prefetch the next panels, a part each.
const PREFETCHING_TILES: usize = 4;

/// Left operand of a block.
#[derive(Clone, Copy)]
pub enum OperandA<'a> {
    /// From the first row of the block on; packed if the kernel cannot read it in place.
    Matrix(MatrixSlice<'a>),
    /// All rows and the whole depth of the block.
    Packed(PanelA),
}

/// A block of the output.
pub struct OutputBlock<'a> {
    /// Number of rows.
    pub rows: usize,
    /// Columns of B and of the output, from the start of a panel on.
    pub columns: Range<usize>,
    /// Left operand, from the first row of the block on.
    pub a: OperandA<'a>,
    /// Right operand.
    pub b: PackedBView<'a>,
    /// Epilogue.
    pub epilogue: Epilogue<'a>,
    /// Output, from the first row of the block and column 0 on.
    pub c: OutputPtr,
}

/// GEMM of `m` rows by packed B.
///
/// # Panics
/// If an operand is too short.
pub fn gemm_packed(
    m: usize,
    a: MatrixSlice<'_>,
    b: PackedBView<'_>,
    epilogue: Epilogue<'_>,
    c: MatrixSliceMut<'_>,
    scratch: &mut GemmScratch,
) {
    a.assert_in_bounds(m, b.k);
    c.assert_in_bounds(m, b.n);
    if let Epilogue::Bias(bias) = epilogue {
        assert!(bias.len() >= b.n, "the bias has {} elements for {} columns", bias.len(), b.n);
    }
    let (a, columns) = (OperandA::Matrix(a), 0..b.n);
    let block = OutputBlock { rows: m, columns, a, b, epilogue, c: c.into_ptr() };
    // SAFETY: checked above.
    unsafe { gemm_block(&block, scratch) };
}

/// GEMM of a block of the output.
///
/// # Safety
/// The operands and the bias must have the block's rows and columns, and nothing else may access that part of
/// the output.
pub unsafe fn gemm_block(block: &OutputBlock<'_>, scratch: &mut GemmScratch) {
    if block.rows == 0 || block.columns.is_empty() {
        return;
    }
    let GemmScratch { packed_a, acc, sums, .. } = scratch;
    let kernel = block.b.packed.kernel;
    let blocking = kernel.blocking();
    let _tile_config = kernel.configure_thread();
    let depth_blocks = DepthBlocks::new(&blocking, block.b.k, block.c.elements);
    for rows in even_blocks(0..block.rows, max_block_rows(&blocking, depth_blocks.len)) {
        // A bf16 output would be rounded after every depth block.
        let sums = depth_blocks.needs_sums().then(|| {
            let row_stride = block.columns.len().next_multiple_of(TILE_COLUMNS) + WORDS;
            let lines = rows.len().next_multiple_of(blocking.tile_rows) * row_stride / WORDS;
            MatrixPtrMut { ptr: sums.at_least(lines).as_mut_ptr().cast(), row_stride }
        });
        for ks in depth_blocks.ranges() {
            let a = match block.a {
                OperandA::Packed(panel) => panel.at_row(rows.start).at_depth(ks.start / DEPTH),
                OperandA::Matrix(a) => {
                    pack::pack_a(kernel, &blocking, &a, rows.clone(), ks.clone(), packed_a)
                }
            };
            let (rows, is_last) = (rows.clone(), ks.end == block.b.k);
            let part = DepthBlock { block, blocking: &blocking, a, rows, ks, is_last, sums };
            // SAFETY: the caller's promise.
            unsafe { part.multiply(acc) };
        }
    }
}

/// How the depth is split, so that operands stay in the cache.
#[derive(Debug, Clone, Copy)]
struct DepthBlocks {
    k: usize,
    /// Depth of a block.
    len: usize,
    is_f32: bool,
}

impl DepthBlocks {
    fn new(blocking: &Blocking, k: usize, output: ElementPtr) -> Self {
        let is_f32 = matches!(output, ElementPtr::F32(_));
        // Only kernels that compute blocks have f32 sums for other outputs.
        let kc = if is_f32 || blocking.max_block.is_some() { blocking.kc } else { usize::MAX };
        let len = k.div_ceil(k.div_ceil(kc).max(1)).next_multiple_of(DEPTH);
        Self { k, len, is_f32 }
    }

    fn needs_sums(&self) -> bool {
        self.len < self.k && !self.is_f32
    }

    /// The blocks; a single empty one without any depth, because the output is written even so.
    fn ranges(&self) -> impl Iterator<Item = Range<usize>> {
        let Self { k, len, .. } = *self;
        (0..k.max(1)).step_by(len.max(1)).map(move |first| first..k.min(first + len))
    }
}

/// Rows of a block: a multiple of the tile rows.
fn max_block_rows(blocking: &Blocking, depth: usize) -> usize {
    let rows = MAX_A_BLOCK_BYTES / (2 * depth.max(1));
    rows.max(blocking.tile_rows) / blocking.tile_rows * blocking.tile_rows
}

/// Splits a range into blocks of nearly equal length, at most `max`: a short last one would be slow.
fn even_blocks(range: Range<usize>, max: usize) -> impl Iterator<Item = Range<usize>> {
    let (start, len) = (range.start, range.len());
    let blocks = len.div_ceil(max);
    (0..blocks).map(move |i| start + i * len / blocks..start + (i + 1) * len / blocks)
}

/// Some rows of a block of the output, all of its columns, and a range of the depth.
struct DepthBlock<'a> {
    block: &'a OutputBlock<'a>,
    blocking: &'a Blocking,
    /// From the first of the rows on.
    a: PanelA,
    rows: Range<usize>,
    ks: Range<usize>,
    is_last: bool,
    /// Sums over the depth blocks, if they are not in the output.
    sums: Option<MatrixPtrMut>,
}

impl DepthBlock<'_> {
    /// # Safety
    /// See [`gemm_block`].
    unsafe fn multiply(&self, acc: &mut Accumulators) {
        let columns = &self.block.columns;
        let (first, end) = (columns.start / WORDS, columns.end.div_ceil(WORDS));
        for panel in (first..end).step_by(self.blocking.tile_panels) {
            let panels = panel..end.min(panel + self.blocking.tile_panels);
            let tiles = even_blocks(self.rows.clone(), self.blocking.tile_rows);
            for (at, rows) in tiles.enumerate() {
                let columns = panels.start * WORDS..columns.end.min(panels.end * WORDS);
                let prefetch = if panels.end < end {
                    self.prefetch(panels.end, at)
                } else {
                    self.panel(panel)
                };
                let tile = GemmTile {
                    rows: rows.len(),
                    panels: panels.len(),
                    a: self.a.at_row(rows.start - self.rows.start),
                    b: self.panel(panel),
                    b_stride: pack::panel_stride(self.block.b.packed.k),
                    pairs: self.ks.len().div_ceil(2),
                    sums: self.earlier_sums(&rows, &columns),
                    prefetch,
                };
                let output = self.tile_output(&rows, columns);
                // SAFETY: packing B checked that the CPU supports the kernel, and the tile is within the
                // operands.
                unsafe { (self.blocking.run)(&tile, acc, output) };
            }
        }
    }

    /// The first line of a panel of B, which is in bounds.
    fn panel(&self, panel: usize) -> *const CacheLine {
        let b = &self.block.b;
        let first_pair = (b.first + self.ks.start) / 2;
        let at = panel * pack::panel_stride(b.packed.k) + first_pair;
        b.packed.lines.as_slice()[at..].as_ptr()
    }

    /// What a tile of rows prefetches of two panels.
    fn prefetch(&self, panel: usize, tile: usize) -> *const CacheLine {
        let (panel_lines, tile) = (self.ks.len() / 2, tile % PREFETCHING_TILES);
        let per_panel = PREFETCHING_TILES / 2;
        let stride = pack::panel_stride(self.block.b.packed.k);
        let at = tile / per_panel * stride + tile % per_panel * (panel_lines / per_panel);
        self.panel(panel).wrapping_add(at)
    }

    /// The sums of earlier depth blocks with which a tile starts.
    fn earlier_sums(&self, rows: &Range<usize>, columns: &Range<usize>) -> Option<MatrixPtrMut> {
        if self.ks.start == 0 { None } else { self.sums_at(rows, columns) }
    }

    fn sums_at(&self, rows: &Range<usize>, columns: &Range<usize>) -> Option<MatrixPtrMut> {
        let column = columns.start - self.block.columns.start;
        let at_column =
            |sums: MatrixPtrMut| MatrixPtrMut { ptr: sums.ptr.wrapping_add(column), ..sums };
        self.sums.map(|sums| at_column(sums.at_row(rows.start - self.rows.start)))
    }

    /// The destination of a tile.
    fn tile_output(&self, rows: &Range<usize>, columns: Range<usize>) -> TileOutput<'_> {
        let OutputBlock { epilogue, c, .. } = *self.block;
        match self.sums_at(rows, &columns) {
            Some(sums) if !self.is_last => TileOutput {
                c: OutputPtr { elements: ElementPtr::F32(sums.ptr), row_stride: sums.row_stride },
                // Padding too: the next depth block starts with a full tile.
                columns: TILE_COLUMNS,
                epilogue: Epilogue::Store,
            },
            sums => TileOutput {
                c: c.at(rows.start, columns.start),
                columns: columns.len(),
                epilogue: match epilogue {
                    _ if self.ks.start > 0 && sums.is_none() => Epilogue::Accumulate,
                    epilogue => epilogue.at_column(columns.start),
                },
            },
        }
    }
}
