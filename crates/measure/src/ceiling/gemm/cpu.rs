//! Products on the CPU: one tile of the result a thread.

use std::ops::Range;

use super::super::together::{Work, time_all};
use super::super::{Cases, CeilingError, threads_text};
use super::{Settings, row};

/// Numbers that the processor multiplies by itself.
pub(super) trait Number: Copy + Send + Sync + 'static {
    const NAME: &'static str;
    const ZERO: Self;
    const ONE: Self;

    fn from_f64(value: f64) -> Self;

    /// What multiplies such numbers.
    fn multiply() -> Multiply<Self>;
}

/// A product of `gemm`: its sizes; the result, and the strides of its columns and rows; whether it is
/// added; both matrices and their strides; factors of the old and the new; what is conjugated; threads.
type Multiply<T> = unsafe fn(
    usize,
    usize,
    usize,
    *mut T,
    isize,
    isize,
    bool,
    *const T,
    isize,
    isize,
    *const T,
    isize,
    isize,
    T,
    T,
    bool,
    bool,
    bool,
    gemm_common::Parallelism,
);

impl Number for f32 {
    const NAME: &'static str = "f32";
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;

    fn from_f64(value: f64) -> Self {
        value as f32
    }

    fn multiply() -> Multiply<Self> {
        gemm_f32::gemm::f32::get_gemm_fn()
    }
}

impl Number for f64 {
    const NAME: &'static str = "f64";
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;

    fn from_f64(value: f64) -> Self {
        value
    }

    fn multiply() -> Multiply<Self> {
        gemm_f64::gemm::f64::get_gemm_fn()
    }
}

/// Numbers from -1 to 1 that look like nothing: a device computes zeros faster.
pub(super) fn noise(at: usize) -> f64 {
    let mixed = (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed >> 40) as f64 / f64::from(1 << 23) - 1.0
}

/// Measures products of all sizes by so many threads.
pub(super) fn measure<T: Number>(
    cases: &mut Cases<'_>,
    settings: &Settings,
    thread_counts: &[usize],
) -> Result<(), CeilingError> {
    for &size in &settings.sizes {
        let left = matrix::<T>(size, 0);
        let right = matrix::<T>(size, size * size);
        for &threads in thread_counts {
            let what = format!("{} {size}, {}", T::NAME, threads_text(threads));
            cases.case(&what, |stop| {
                let mut tiles = tiles(size, threads, &left, &right);
                let timed = time_all(&mut tiles, &settings.effort, stop)?;
                Ok(timed.map(|timed| row(&timed, what.clone(), size)))
            })?;
        }
    }
    Ok(())
}

fn matrix<T: Number>(size: usize, seed: usize) -> Vec<T> {
    (0..size * size).map(|at| T::from_f64(noise(seed + at))).collect()
}

/// A part of a product, of matrices that lie column by column.
struct Tile<'a, T> {
    /// Rows of the whole matrices.
    size: usize,
    rows: Range<usize>,
    columns: Range<usize>,
    left: &'a [T],
    right: &'a [T],
    /// The part of the result, column by column.
    result: Vec<T>,
}

impl<T: Number> Work for Tile<'_, T> {
    fn prepare(&mut self) {
        self.result = vec![T::ZERO; self.rows.len() * self.columns.len()];
    }

    fn once(&mut self) {
        let (size, rows, columns) = (self.size, self.rows.len(), self.columns.len());
        let within = self.rows.end <= size && self.columns.end <= size;
        let whole = size * size <= self.left.len().min(self.right.len());
        if !(within && whole && rows * columns <= self.result.len()) {
            return;
        }
        let stride = size as isize;
        let left = self.left[self.rows.start..].as_ptr();
        let right = self.right[self.columns.start * size..].as_ptr();
        let result = self.result.as_mut_ptr();
        // SAFETY: it was seen that `rows` rows and all columns of the left matrix, all rows and
        // `columns` columns of the right one, and so many elements of the result are there.
        unsafe {
            T::multiply()(
                rows,
                columns,
                size,
                result,
                rows as isize,
                1,
                false,
                left,
                stride,
                1,
                right,
                stride,
                1,
                T::ZERO,
                T::ONE,
                false,
                false,
                false,
                gemm_common::Parallelism::None,
            );
        }
    }
}

/// The tiles of a product, one a thread. Where there are more threads than rows and columns, fewer.
fn tiles<'a, T: Number>(
    size: usize,
    threads: usize,
    left: &'a [T],
    right: &'a [T],
) -> Vec<Tile<'a, T>> {
    let (down, across) = grid(threads);
    let cuts = |parts: usize| (0..parts).map(move |at| at * size / parts..(at + 1) * size / parts);
    cuts(down)
        .flat_map(|rows| cuts(across).map(move |columns| (rows.clone(), columns)))
        .filter(|(rows, columns)| !rows.is_empty() && !columns.is_empty())
        .map(|(rows, columns)| Tile { size, rows, columns, left, right, result: Vec::new() })
        .collect()
}

/// How many tiles down and across, as square as can be: each reads the least of both matrices so.
fn grid(threads: usize) -> (usize, usize) {
    let threads = threads.max(1);
    let down = (1..=threads.isqrt()).rev().find(|down| threads.is_multiple_of(*down)).unwrap_or(1);
    (down, threads / down)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The product of two matrices as it is defined.
    fn naive<T: Number + Into<f64>>(size: usize, left: &[T], right: &[T]) -> Vec<f64> {
        let at = |row: usize, column: usize| {
            let step = |k: usize| left[k * size + row].into() * right[column * size + k].into();
            (0..size).map(step).sum()
        };
        (0..size).flat_map(|column| (0..size).map(move |row| at(row, column))).collect()
    }

    fn is_right<T: Number + Into<f64>>(size: usize, threads: usize, error: f64) {
        let (left, right) = (matrix::<T>(size, 0), matrix::<T>(size, size * size));
        let expected = naive(size, &left, &right);
        let mut seen = vec![false; size * size];
        for mut tile in tiles(size, threads, &left, &right) {
            tile.prepare();
            // Twice: what was there before must not count.
            tile.once();
            tile.once();
            for (at, &found) in tile.result.iter().enumerate() {
                let row = tile.rows.start + at % tile.rows.len();
                let column = tile.columns.start + at / tile.rows.len();
                let place = column * size + row;
                let (found, expected) = (found.into(), expected[place]);
                assert!((found - expected).abs() <= error * size as f64, "{found} {expected}");
                assert!(!std::mem::replace(&mut seen[place], true), "two tiles have {place}");
            }
        }
        assert!(seen.iter().all(|seen| *seen), "some of the product is missing");
    }

    #[test]
    fn a_tiled_product_is_the_product() {
        for (size, threads) in [(1, 1), (1, 4), (7, 1), (33, 2), (64, 6), (50, 7)] {
            is_right::<f32>(size, threads, 1e-6);
            is_right::<f64>(size, threads, 1e-14);
        }
    }

    #[test]
    fn tiles_are_as_square_as_can_be() {
        let found = [0, 1, 2, 6, 7, 64, 96].map(grid);
        assert_eq!(found, [(1, 1), (1, 1), (1, 2), (2, 3), (1, 7), (8, 8), (8, 12)]);
    }

    proptest! {
        #[test]
        fn noise_is_noise(at in 0usize..1_000_000_000) {
            prop_assert!((-1.0..1.0).contains(&noise(at)));
            prop_assert_ne!(noise(at), noise(at + 1));
        }
    }
}
