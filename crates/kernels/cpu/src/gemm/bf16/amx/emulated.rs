//! Scalar emulation of the instructions of [`super::run`], to test packing and addressing on CPUs without
//! AMX.

use super::super::convert::PortableRounding;
use super::*;

type WordTile = [[u32; WORDS]; TILE_ROWS];
type FloatTile = [[f32; WORDS]; TILE_ROWS];

/// `tileloadd`.
unsafe fn load(from: *const CacheLine, row_bytes: usize) -> WordTile {
    let row = |row: usize| from.wrapping_byte_add(row * row_bytes).cast::<[u32; WORDS]>();
    // SAFETY: the caller's promise.
    std::array::from_fn(|at| unsafe { row(at).read_unaligned() })
}

/// `tdpbf16ps`.
fn dot(acc: &mut FloatTile, a: &WordTile, b: &WordTile) {
    let pair = |word: u32| [f32::from_bits(word << 16), f32::from_bits(word & 0xffff_0000)];
    for (acc, a) in acc.iter_mut().zip(a) {
        for (a, b) in a.iter().zip(b) {
            for (acc, b) in acc.iter_mut().zip(b) {
                let (a, b) = (pair(*a), pair(*b));
                *acc += a[0] * b[0];
                *acc += a[1] * b[1];
            }
        }
    }
}

/// `tilestored`.
unsafe fn store(acc: &FloatTile, to: *mut f32, row_bytes: usize) {
    for (row, acc) in acc.iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { to.byte_add(row * row_bytes).cast::<[f32; WORDS]>().write_unaligned(*acc) };
    }
}

/// # Safety
/// See [`MicroKernelFn`].
pub unsafe fn run(tile: &GemmTile, acc: &mut Accumulators, mut output: TileOutput<'_>) {
    // SAFETY: the caller's promise.
    let operands = unsafe { TileOperands::new(tile, acc, &mut output) };
    let TileOperands { mut a, a_row, a_step, mut b, c, .. } = operands;
    let rows = |matrix: MatrixPtrMut| [0, TILE_ROWS].map(|row| matrix.at_row(row).ptr);
    let mut tiles = [[[[0.0; WORDS]; TILE_ROWS]; 2]; 2];
    if let Some(start) = operands.start {
        for (tiles, start_rows) in tiles.iter_mut().zip(rows(start)) {
            for (side, tile) in tiles.iter_mut().enumerate() {
                // SAFETY: the caller's promise.
                let words =
                    unsafe { load(start_rows.byte_add(side * 64).cast(), 4 * start.row_stride) };
                *tile = words.map(|row| row.map(f32::from_bits));
            }
        }
    }
    for _ in 0..operands.steps {
        for (tiles, a) in tiles.iter_mut().zip(a) {
            for (tile, b) in tiles.iter_mut().zip(b) {
                // SAFETY: the caller's promise.
                unsafe { dot(tile, &load(a, a_row), &load(b, ROW_BYTES)) };
            }
        }
        a = a.map(|at| at.wrapping_byte_add(a_step));
        b = b.map(|at| at.wrapping_byte_add(1024));
    }
    for (tiles, c_rows) in tiles.iter().zip(rows(c)) {
        for (side, tile) in tiles.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { store(tile, c_rows.byte_add(side * 64), 4 * c.row_stride) };
        }
    }
    if !operands.is_direct {
        // SAFETY: it needs no particular instructions.
        unsafe { write_tile::<PortableRounding>(acc, tile.rows, output) };
    }
}
