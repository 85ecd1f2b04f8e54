//! Loops around the micro-kernel: blocks of rows whose packed A stays in L2, and within them two panels of
//! B that stay in L1.

use std::ops::Range;

use super::aligned_lines::{CacheLine, WORDS};
use super::epilogue::{Accumulators, TILE_COLUMNS, TileOutput};
use super::kernel::Blocking;
use super::matrix::{MatrixSlice, MatrixSliceMut};
use super::microkernel::{GemmTile, PanelA};
use super::{GemmScratch, PackedBView, pack};
use crate::gemm::Epilogue;
use crate::gemm::small_f32::MatrixPtr;
use crate::slice::DisjointMut;
use crate::thread_pool::task_range;

/// Maximum bytes of a packed block of A.
const MAX_A_BLOCK_BYTES: usize = 256 << 10;

/// Depth blocks of a bf16 output before its sums are staged in f32. A block is then as deep as several:
/// storing and loading tiles of sums takes as long as multiplying tiles.
const MAX_UNSTAGED_BLOCKS: usize = 8;
const STAGED_BLOCKS: usize = 4;

/// The left operand of a block.
#[derive(Clone, Copy)]
pub(crate) enum OperandA<'a> {
    /// Packed by the block, unless the kernel reads it in place.
    Matrix(MatrixSlice<'a>),
    /// Packed before.
    Packed(PanelA),
}

/// Columns of some rows of an output, of which other threads may write others.
#[derive(Clone, Copy)]
pub(crate) struct OutputBlock<'a> {
    pub elements: DisjointMut<'a>,
    /// Index of the first element.
    pub first: usize,
    /// Stride between rows.
    pub row_stride: usize,
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
    let row_stride = c.row_stride;
    let c = OutputBlock { elements: DisjointMut::new(c.elements), first: 0, row_stride };
    // SAFETY: `c` is borrowed mutably.
    unsafe { gemm_block(m, OperandA::Matrix(a), b, epilogue, c, scratch) }
}

/// GEMM of `m` rows by packed B into a block of the output.
///
/// # Safety
/// No other thread may access these rows and columns of `c`. Packed rows of A must be as many and as long as
/// those of B.
///
/// # Panics
/// If an operand is too short.
pub(crate) unsafe fn gemm_block(
    m: usize,
    a: OperandA<'_>,
    b: PackedBView<'_>,
    epilogue: Epilogue<'_>,
    c: OutputBlock<'_>,
    scratch: &mut GemmScratch,
) {
    if let Epilogue::Bias(bias) = epilogue {
        assert!(bias.len() >= b.n, "the bias has {} elements for {} columns", bias.len(), b.n);
    }
    if m == 0 || b.n == 0 {
        return;
    }
    let kernel = b.packed.kernel;
    let blocking = kernel.blocking();
    let _tile_config = kernel.configure_thread();
    // A bf16 output would be rounded after every depth block; sums are staged in f32 if there are many.
    let is_f32 = c.elements.is_f32();
    let is_staged = !is_f32 && b.k > MAX_UNSTAGED_BLOCKS * blocking.kc;
    let kc = match (is_f32, is_staged) {
        (true, _) => even_depth(b.k, blocking.kc),
        (false, true) => even_depth(b.k, STAGED_BLOCKS * blocking.kc),
        (false, false) => usize::MAX,
    };
    let GemmScratch { packed_a, acc, staged_sums, .. } = scratch;
    for rows in row_blocks(&blocking, m, b.k.min(kc)) {
        let staged = is_staged.then(|| StagedSums::new(staged_sums, &blocking, rows.len(), b.n));
        let mut first = 0_usize;
        loop {
            let ks = first..b.k.min(first.saturating_add(kc));
            let a = match a {
                OperandA::Matrix(a) => {
                    pack::pack_a(kernel, &blocking, &a, rows.clone(), ks.clone(), packed_a)
                }
                OperandA::Packed(panel) => panel.at_row(rows.start).at_depth(ks.start),
            };
            let block = GemmBlock { blocking: &blocking, a, rows: rows.clone(), b, ks };
            let epilogue = if first == 0 || is_staged { epilogue } else { Epilogue::Accumulate };
            // SAFETY: the caller promises exclusive access to the block.
            unsafe { block.multiply(epilogue, c, staged, acc) };
            first = block.ks.end;
            if first == b.k {
                break;
            }
        }
    }
}

/// f32 sums of a block of rows of a bf16 output, between depth blocks.
#[derive(Clone, Copy)]
struct StagedSums<'a> {
    sums: DisjointMut<'a>,
    row_stride: usize,
}

impl<'a> StagedSums<'a> {
    fn new(buffer: &'a mut Vec<f32>, blocking: &Blocking, rows: usize, columns: usize) -> Self {
        // Full tiles, because their padding is stored, too.
        let row_stride = columns.next_multiple_of(TILE_COLUMNS);
        let len = (rows + blocking.tile_rows) * row_stride;
        if buffer.len() < len {
            buffer.resize(len, 0.0);
        }
        Self { sums: DisjointMut::new(&mut buffer[..]), row_stride }
    }

    /// Destination of the tile that starts at `row` of the block, with full panels.
    fn tile_output(&self, row: usize, panels: &Range<usize>, is_first: bool) -> TileOutput<'a> {
        let epilogue = if is_first { Epilogue::Store } else { Epilogue::Accumulate };
        TileOutput {
            elements: self.sums,
            first: row * self.row_stride + panels.start * WORDS,
            row_stride: self.row_stride,
            columns: panels.len() * WORDS,
            epilogue,
        }
    }

    /// The sums of the tile that starts at `row` of the block and at `column`.
    fn tile(&self, row: usize, column: usize) -> MatrixPtr {
        let ptr = self.sums.ptr_f32(row * self.row_stride + column);
        MatrixPtr { ptr, row_stride: self.row_stride, column_stride: 1 }
    }
}

/// Depth of nearly equal blocks of at most about `max`, a multiple of the depth of packed blocks.
fn even_depth(k: usize, max: usize) -> usize {
    k.div_ceil(k.div_ceil(max).max(1)).next_multiple_of(pack::DEPTH).max(pack::DEPTH)
}

/// Blocks of rows. Tiles that are read in place are full, except for the last.
fn row_blocks(blocking: &Blocking, m: usize, depth: usize) -> impl Iterator<Item = Range<usize>> {
    let unit = if blocking.a_in_place { blocking.tile_rows } else { 1 };
    let blocks = m.div_ceil(max_block_rows(blocking, depth));
    (0..blocks).map(move |block| task_range(m, blocks, block, unit))
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

/// A block of rows, all columns, and a range of the depth.
struct GemmBlock<'a> {
    blocking: &'a Blocking,
    a: PanelA,
    rows: Range<usize>,
    b: PackedBView<'a>,
    ks: Range<usize>,
}

impl GemmBlock<'_> {
    /// # Safety
    /// No other thread may access the rows and columns of `c`.
    unsafe fn multiply(
        &self,
        epilogue: Epilogue<'_>,
        c: OutputBlock<'_>,
        staged: Option<StagedSums<'_>>,
        acc: &mut Accumulators,
    ) {
        let panels = self.b.n.div_ceil(WORDS);
        let (is_first, is_last) = (self.ks.start == 0, self.ks.end == self.b.k);
        for panel in (0..panels).step_by(self.blocking.tile_panels) {
            let panels = panel..panels.min(panel + self.blocking.tile_panels);
            let columns = panels.start * WORDS..self.b.n.min(panels.end * WORDS);
            for rows in even_blocks(self.rows.clone(), self.blocking.tile_rows) {
                let mut tile = self.tile(&rows, &panels);
                let (row, column) = (rows.start - self.rows.start, columns.start);
                let output = match staged {
                    Some(staged) if !is_last => staged.tile_output(row, &panels, is_first),
                    _ => tile_output(c, epilogue, rows.start, columns.clone()),
                };
                tile.init = staged.filter(|_| is_last).map(|staged| staged.tile(row, column));
                // SAFETY: packing B checked that the CPU supports the kernel, the tile is within the
                // packed operands, and the caller promises exclusive access.
                unsafe { (self.blocking.run)(&tile, acc, output) };
            }
        }
    }

    /// The lines of B from a panel on, and the lines between panels.
    fn panel_lines(&self, panel: usize) -> (&[CacheLine], usize) {
        let packed = self.b.packed;
        let b_stride = pack::panel_stride(packed.k);
        let first_pair = (self.b.first + self.ks.start) / 2;
        let first_panel = self.b.first_column / WORDS + panel;
        (&packed.lines.as_slice()[first_panel * b_stride + first_pair..], b_stride)
    }

    fn tile(&self, rows: &Range<usize>, panels: &Range<usize>) -> GemmTile {
        let (b, b_stride) = self.panel_lines(panels.start);
        GemmTile {
            rows: rows.len(),
            panels: panels.len(),
            a: self.a.at_row(rows.start - self.rows.start),
            b: b.as_ptr(),
            b_stride,
            pairs: self.ks.len().div_ceil(2),
            init: None,
        }
    }
}

/// Destination of the tile that starts at `row` and at the first column.
fn tile_output<'a>(
    c: OutputBlock<'a>,
    epilogue: Epilogue<'a>,
    row: usize,
    columns: Range<usize>,
) -> TileOutput<'a> {
    let epilogue = match epilogue {
        Epilogue::Bias(bias) => Epilogue::Bias(&bias[columns.start..]),
        other => other,
    };
    TileOutput {
        elements: c.elements,
        first: c.first + row * c.row_stride + columns.start,
        row_stride: c.row_stride,
        columns: columns.len(),
        epilogue,
    }
}
