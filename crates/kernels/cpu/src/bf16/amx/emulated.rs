//! The instructions that [`super::run`] is made of, played by plain loops: the same packing and
//! the same places on processors without tiles.

use super::super::convert::widened;
use super::super::finish::Plainly;
use super::*;

type Words = [[u32; WORDS]; TILE_ROWS];
type Floats = [[f32; WORDS]; TILE_ROWS];

/// `tileloadd`.
unsafe fn load(from: *const Line, row_bytes: usize) -> Words {
    let row = |row: usize| from.wrapping_byte_add(row * row_bytes).cast::<[u32; WORDS]>();
    // SAFETY: as the caller of `run` says.
    std::array::from_fn(|at| unsafe { row(at).read_unaligned() })
}

/// `tdpbf16ps`.
fn multiply(sums: &mut Floats, left: &Words, right: &Words) {
    let halves = |word: u32| [widened(word as u16), widened((word >> 16) as u16)];
    for (sums, left) in sums.iter_mut().zip(left) {
        for (left, right) in left.iter().zip(right) {
            for (sum, right) in sums.iter_mut().zip(right) {
                let (left, right) = (halves(*left), halves(*right));
                *sum += left[0] * right[0];
                *sum += left[1] * right[1];
            }
        }
    }
}

/// `tilestored`.
unsafe fn store(sums: &Floats, to: *mut f32, row_bytes: usize) {
    for (row, sums) in sums.iter().enumerate() {
        // SAFETY: as the caller of `run` says.
        unsafe { to.byte_add(row * row_bytes).cast::<[f32; WORDS]>().write_unaligned(*sums) };
    }
}

/// # Safety
/// See [`Run`].
pub unsafe fn run(tile: &Tile, sums: &mut Sums, mut goal: Goal<'_>) {
    let Corners { mut left, left_row, left_step, mut right, steps, to, to_row } =
        Corners::of(tile, sums, &mut goal);
    let mut corners = [[[[0.0; WORDS]; TILE_ROWS]; 2]; 2];
    for _ in 0..steps {
        for (corners, left) in corners.iter_mut().zip(left) {
            for (corner, right) in corners.iter_mut().zip(right) {
                // SAFETY: as the caller says.
                unsafe { multiply(corner, &load(left, left_row), &load(right, ROW_BYTES)) };
            }
        }
        left = left.map(|at| at.wrapping_byte_add(left_step));
        right = right.map(|at| at.wrapping_byte_add(1024));
    }
    for (corners, to) in corners.iter().zip(to) {
        for (side, corner) in corners.iter().enumerate() {
            // SAFETY: as the caller says.
            unsafe { store(corner, to.byte_add(side * 64), to_row) };
        }
    }
    if straight(tile, &mut goal).is_none() {
        // SAFETY: it takes no instructions in particular.
        unsafe { finish::<Plainly>(sums, tile.rows, goal) };
    }
}
