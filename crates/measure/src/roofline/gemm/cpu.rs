//! GEMM on the CPU: one tile of the result per thread.

use std::ops::Range;

use super::super::threads::{ThreadKernel, time_threads};
use super::super::{Cases, Result, RooflineSettings, threads_text};
use super::row;

/// Element types with a native CPU GEMM.
pub(super) trait GemmElement: Copy + Send + Sync + 'static {
    const NAME: &'static str;
    const ZERO: Self;
    const ONE: Self;

    fn from_f64(value: f64) -> Self;

    fn gemm() -> GemmKernel<Self>;
}

/// Signature of the `gemm` crate: m, n, k; dst with column and row stride; accumulate; lhs and rhs
/// with strides; alpha, beta; conjugations; parallelism.
#[rustfmt::skip]
type GemmKernel<T> = unsafe fn(
    usize, usize, usize, *mut T, isize, isize, bool, *const T, isize, isize, *const T, isize, isize,
    T, T, bool, bool, bool, gemm_common::Parallelism,
);

macro_rules! gemm_element {
    ($type:ident, $gemm:path) => {
        impl GemmElement for $type {
            const NAME: &'static str = stringify!($type);
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;

            fn from_f64(value: f64) -> Self {
                value as Self
            }

            fn gemm() -> GemmKernel<Self> {
                $gemm()
            }
        }
    };
}

gemm_element!(f32, gemm_f32::gemm::f32::get_gemm_fn);
gemm_element!(f64, gemm_f64::gemm::f64::get_gemm_fn);

/// Pseudo-random values in [-1, 1): zeros would draw less power and run faster.
pub(super) fn pseudo_random(at: usize) -> f64 {
    let mixed = (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed >> 40) as f64 / f64::from(1 << 23) - 1.0
}

/// Measures all sizes at all thread counts.
pub(super) fn measure<T: GemmElement>(
    cases: &mut Cases<'_>,
    settings: &RooflineSettings,
    thread_counts: &[usize],
) -> Result {
    for &size in &settings.sizes {
        let left = matrix::<T>(size, 0);
        let right = matrix::<T>(size, size * size);
        for &threads in thread_counts {
            let what = format!("{} {size}, {}", T::NAME, threads_text(threads));
            cases.case(&what, || {
                let mut tiles = tiles(size, threads, &left, &right);
                let timed = time_threads(&mut tiles, &settings.timing)?;
                Ok(row(&timed, what.clone(), size))
            })?;
        }
    }
    Ok(())
}

fn matrix<T: GemmElement>(size: usize, seed: usize) -> Vec<T> {
    (0..size * size).map(|at| T::from_f64(pseudo_random(seed + at))).collect()
}

/// One tile of a product of column-major matrices.
struct GemmTile<'a, T> {
    /// Rows of the full matrices.
    size: usize,
    rows: Range<usize>,
    columns: Range<usize>,
    left: &'a [T],
    right: &'a [T],
    /// The tile of the result, column-major.
    result: Vec<T>,
}

impl<T: GemmElement> ThreadKernel for GemmTile<'_, T> {
    fn init(&mut self) {
        self.result = vec![T::ZERO; self.rows.len() * self.columns.len()];
    }

    fn run(&mut self) {
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
        // SAFETY: checked above: the left matrix has `rows` rows and `size` columns from its start,
        // the right one `size` rows and `columns` columns, and the result holds `rows * columns`
        // elements.
        unsafe {
            #[rustfmt::skip]
            T::gemm()(
                rows, columns, size, result, rows as isize, 1, false, left, stride, 1, right, stride, 1,
                T::ZERO, T::ONE, false, false, false, gemm_common::Parallelism::None,
            );
        }
    }
}

/// A whole product on one thread, with matrices of its own.
pub struct SquareGemm<T> {
    size: usize,
    left: Vec<T>,
    right: Vec<T>,
    result: Vec<T>,
}

impl<T> SquareGemm<T> {
    pub fn new(size: usize) -> Self {
        Self { size, left: Vec::new(), right: Vec::new(), result: Vec::new() }
    }
}

impl<T: GemmElement> ThreadKernel for SquareGemm<T> {
    fn init(&mut self) {
        self.left = matrix(self.size, 0);
        self.right = matrix(self.size, self.size * self.size);
        self.result = vec![T::ZERO; self.size * self.size];
    }

    fn run(&mut self) {
        let (size, result) = (self.size, std::mem::take(&mut self.result));
        let (rows, columns) = (0..size, 0..size);
        let (left, right) = (&self.left[..], &self.right[..]);
        let mut tile = GemmTile { size, rows, columns, left, right, result };
        tile.run();
        self.result = tile.result;
    }
}

/// The tiles of a product, one per thread; empty tiles are omitted.
fn tiles<'a, T: GemmElement>(
    size: usize,
    threads: usize,
    left: &'a [T],
    right: &'a [T],
) -> Vec<GemmTile<'a, T>> {
    let (down, across) = grid(threads);
    let cuts = |parts: usize| (0..parts).map(move |at| at * size / parts..(at + 1) * size / parts);
    cuts(down)
        .flat_map(|rows| cuts(across).map(move |columns| (rows.clone(), columns)))
        .filter(|(rows, columns)| !rows.is_empty() && !columns.is_empty())
        .map(|(rows, columns)| GemmTile { size, rows, columns, left, right, result: Vec::new() })
        .collect()
}

/// Tile grid, as square as possible to minimise the reads of both matrices.
fn grid(threads: usize) -> (usize, usize) {
    let threads = threads.max(1);
    let down = (1..=threads.isqrt()).rev().find(|down| threads.is_multiple_of(*down)).unwrap_or(1);
    (down, threads / down)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Naive reference product.
    fn reference_gemm<T: Copy + Into<f64>>(size: usize, left: &[T], right: &[T]) -> Vec<f64> {
        let at = |row: usize, column: usize| {
            let step = |k: usize| left[k * size + row].into() * right[column * size + k].into();
            (0..size).map(step).sum()
        };
        (0..size).flat_map(|column| (0..size).map(move |row| at(row, column))).collect()
    }

    fn assert_tiled_product<T: GemmElement + Into<f64>>(size: usize, threads: usize, error: f64) {
        let (left, right) = (matrix::<T>(size, 0), matrix::<T>(size, size * size));
        let expected = reference_gemm(size, &left, &right);
        let mut seen = vec![false; size * size];
        for mut tile in tiles(size, threads, &left, &right) {
            tile.init();
            // Twice, to check that the old result is overwritten.
            tile.run();
            tile.run();
            for (at, &found) in tile.result.iter().enumerate() {
                let row = tile.rows.start + at % tile.rows.len();
                let column = tile.columns.start + at / tile.rows.len();
                let place = column * size + row;
                let (found, expected) = (found.into(), expected[place]);
                assert!((found - expected).abs() <= error * size as f64, "{found} {expected}");
                assert!(!std::mem::replace(&mut seen[place], true), "tiles overlap at {place}");
            }
        }
        assert!(seen.iter().all(|seen| *seen), "tiles do not cover the product");
    }

    #[test]
    fn tiled_gemm_matches_the_reference() {
        for (size, threads) in [(1, 1), (1, 4), (7, 1), (33, 2), (64, 6), (50, 7)] {
            assert_tiled_product::<f32>(size, threads, 1e-6);
            assert_tiled_product::<f64>(size, threads, 1e-14);
        }
    }

    #[test]
    fn tile_grids_are_as_square_as_possible() {
        let found = [0, 1, 2, 6, 7, 64, 96].map(grid);
        assert_eq!(found, [(1, 1), (1, 1), (1, 2), (2, 3), (1, 7), (8, 8), (8, 12)]);
    }

    proptest! {
        #[test]
        fn noise_is_noise(at in 0usize..1_000_000_000) {
            prop_assert!((-1.0..1.0).contains(&pseudo_random(at)));
            prop_assert_ne!(pseudo_random(at), pseudo_random(at + 1));
        }
    }
}
