//! Loops around the micro-kernel: blocks of rows whose packed A stays in L2, and within them two panels of
//! B that stay in L1.

use std::ops::Range;

use super::aligned_lines::WORDS;
use super::epilogue::{Accumulators, TileOutput};
use super::kernel::Blocking;
use super::matrix::{MatrixSlice, MatrixSliceMut};
use super::microkernel::{GemmTile, PanelA};
use super::{GemmScratch, PackedBView, pack};
use crate::gemm::Epilogue;
use crate::slice::SliceMut;

/// Maximum bytes of a packed block of A.
const MAX_A_BLOCK_BYTES: usize = 256 << 10;

/// GEMM of `m` rows by packed B.
///
/// # Panics
/// If an operand is too short.
pub fn gemm_packed(
    m: usize,
    a: MatrixSlice<'_>,
    b: PackedBView<'_>,
    epilogue: Epilogue<'_>,
    mut c: MatrixSliceMut<'_>,
    scratch: &mut GemmScratch,
) {
    let GemmScratch { packed_a, acc, .. } = scratch;
    a.assert_in_bounds(m, b.k);
    c.assert_in_bounds(m, b.n);
    if let Epilogue::Bias(bias) = epilogue {
        assert!(bias.len() >= b.n, "the bias has {} elements for {} columns", bias.len(), b.n);
    }
    if m == 0 || b.n == 0 {
        return;
    }
    let kernel = b.packed.kernel;
    let blocking = kernel.blocking();
    let _tile_config = kernel.configure_thread();
    // A bf16 output would be rounded after every depth block.
    let kc = if matches!(c.elements, SliceMut::F32(_)) { blocking.kc } else { usize::MAX };
    for rows in even_blocks(0..m, max_block_rows(&blocking, b.k.min(kc))) {
        let mut first = 0_usize;
        loop {
            let ks = first..b.k.min(first.saturating_add(kc));
            let epilogue = if first == 0 { epilogue } else { Epilogue::Accumulate };
            let a = pack::pack_a(kernel, &blocking, &a, rows.clone(), ks.clone(), packed_a);
            let block = GemmBlock { blocking: &blocking, a, rows: rows.clone(), b, ks };
            block.multiply(epilogue, &mut c, acc);
            first = block.ks.end;
            if first == b.k {
                break;
            }
        }
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

/// A block of rows, all columns, and a range of the depth.
struct GemmBlock<'a> {
    blocking: &'a Blocking,
    a: PanelA,
    rows: Range<usize>,
    b: PackedBView<'a>,
    ks: Range<usize>,
}

impl GemmBlock<'_> {
    fn multiply(&self, epilogue: Epilogue<'_>, c: &mut MatrixSliceMut<'_>, acc: &mut Accumulators) {
        let panels = self.b.n.div_ceil(WORDS);
        for panel in (0..panels).step_by(self.blocking.tile_panels) {
            let panels = panel..panels.min(panel + self.blocking.tile_panels);
            for rows in even_blocks(self.rows.clone(), self.blocking.tile_rows) {
                let tile = self.tile(&rows, &panels);
                let columns = panels.start * WORDS..self.b.n.min(panels.end * WORDS);
                let output = tile_output(c, epilogue, rows.start, columns);
                // SAFETY: packing B checked that the CPU supports the kernel, and the tile is within the
                // packed operands.
                unsafe { (self.blocking.run)(&tile, acc, output) };
            }
        }
    }

    fn tile(&self, rows: &Range<usize>, panels: &Range<usize>) -> GemmTile {
        let packed = self.b.packed;
        let b_stride = pack::panel_stride(packed.k);
        let first_pair = (self.b.first + self.ks.start) / 2;
        let b = &packed.lines.as_slice()[panels.start * b_stride + first_pair..];
        GemmTile {
            rows: rows.len(),
            panels: panels.len(),
            a: self.a.at_row(rows.start - self.rows.start),
            b: b.as_ptr(),
            b_stride,
            pairs: self.ks.len().div_ceil(2),
        }
    }
}

/// Destination of the tile that starts at `row` and at the first column.
fn tile_output<'a>(
    c: &'a mut MatrixSliceMut<'_>,
    epilogue: Epilogue<'a>,
    row: usize,
    columns: Range<usize>,
) -> TileOutput<'a> {
    let first = row * c.row_stride + columns.start;
    let len = c.elements.len();
    let epilogue = match epilogue {
        Epilogue::Bias(bias) => Epilogue::Bias(&bias[columns.start..]),
        other => other,
    };
    let elements = c.elements.slice(first..len);
    TileOutput { elements, row_stride: c.row_stride, columns: columns.len(), epilogue }
}
