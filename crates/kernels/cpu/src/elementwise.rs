//! Elementwise operations, dropout and the sum of squares.

use std::sync::Mutex;

use crate::Cpu;
use crate::isa::kernel;
use crate::lanes::{Lanes, WIDTH};
use crate::slice::{DisjointMut, Slice, SliceMut};
use crate::thread_pool::MIN_ELEMENTS_PER_THREAD;
use regatta_device::ElementwiseOps;
use regatta_device::random::DropoutMask;
use regatta_device::tensor::{View, ViewMut};

/// Squares that are summed in f32, few enough to be exact; chunks are summed in f64.
const SQUARES_CHUNK: usize = 1024;

/// Chunks of squares that are worth another thread.
const MIN_SQUARES_CHUNKS: usize = 4;

impl ElementwiseOps for Cpu {
    fn add(&self, x: View<'_>, y: View<'_>, z: ViewMut<'_>) {
        let _timer = self.timer("add");
        assert!(x.len() == z.len() && y.len() == z.len(), "tensor lengths differ");
        let (x, y, z) = (Slice::from(x), Slice::from(y), DisjointMut::new(z));
        self.pool.run_balanced(z.len(), MIN_ELEMENTS_PER_THREAD, WIDTH, |range| {
            // SAFETY: ranges are disjoint.
            let z = unsafe { z.slice(range.clone()) };
            add_kernel(self.isa, x.slice(range.clone()), y.slice(range), z);
        });
    }

    fn add_assign(&self, x: View<'_>, y: ViewMut<'_>) {
        let _timer = self.timer("add_assign");
        self.zip_chunks(x, y, |x, y| add_assign_kernel(self.isa, x, y));
    }

    fn dropout(&self, mask: DropoutMask, x: ViewMut<'_>) {
        let _timer = self.timer("dropout");
        self.map_chunks(x, |first, x| dropout_kernel(self.isa, mask, first, x));
    }

    fn scale(&self, by: f64, x: ViewMut<'_>) {
        let _timer = self.timer("scale");
        self.map_chunks(x, |_, x| scale_kernel(self.isa, by as f32, x));
    }

    /// Independent of the number of threads: chunk sums are added in order.
    fn sum_of_squares(&self, x: View<'_>, sum: ViewMut<'_>) {
        let _timer = self.timer("sum_of_squares");
        let x = Slice::from(x);
        let chunks = x.len().div_ceil(SQUARES_CHUNK);
        let sums = Mutex::new(vec![0.0; chunks]);
        self.pool.run_ranges(chunks, MIN_SQUARES_CHUNKS, 1, |range| {
            let sum = |chunk: usize| {
                let end = x.len().min((chunk + 1) * SQUARES_CHUNK);
                f64::from(squares_kernel(self.isa, x.slice(chunk * SQUARES_CHUNK..end)))
            };
            let partial: Vec<f64> = range.clone().map(sum).collect();
            if let Ok(mut sums) = sums.lock() {
                sums[range].copy_from_slice(&partial);
            }
        });
        sum.as_slice::<f64>()[0] += sums.into_inner().unwrap_or_default().iter().sum::<f64>();
    }
}

impl Cpu {
    /// Calls `work` for each of `rows` rows of `row_len` elements.
    pub(crate) fn for_each_row(&self, rows: usize, row_len: usize, work: impl Fn(usize) + Sync) {
        let min_rows = MIN_ELEMENTS_PER_THREAD.div_ceil(row_len);
        self.pool.run_ranges(rows, min_rows, 1, |range| range.for_each(&work));
    }

    /// Applies a kernel to corresponding chunks of two tensors of the same length.
    pub(crate) fn zip_chunks(
        &self,
        x: View<'_>,
        y: ViewMut<'_>,
        kernel: impl Fn(Slice<'_>, SliceMut<'_>) + Sync,
    ) {
        assert_eq!(x.len(), y.len(), "tensor lengths differ");
        let (x, y) = (Slice::from(x), DisjointMut::new(y));
        self.pool.run_balanced(y.len(), MIN_ELEMENTS_PER_THREAD, WIDTH, |range| {
            // SAFETY: ranges are disjoint.
            kernel(x.slice(range.clone()), unsafe { y.slice(range) });
        });
    }

    /// Applies a kernel to chunks of a tensor, given the index of the chunk's first element.
    pub(crate) fn map_chunks(&self, x: ViewMut<'_>, kernel: impl Fn(usize, SliceMut<'_>) + Sync) {
        let x = DisjointMut::new(x);
        self.pool.run_balanced(x.len(), MIN_ELEMENTS_PER_THREAD, WIDTH, |range| {
            // SAFETY: ranges are disjoint.
            kernel(range.start, unsafe { x.slice(range) });
        });
    }
}

kernel! {
    fn add_kernel<V>(x: Slice<'_>, y: Slice<'_>, z: SliceMut<'_>) {
        for at in (0..z.len()).step_by(WIDTH) {
            z.store_partial(at, x.load_padded::<V>(at).add(y.load_padded(at)));
        }
    }

    /// `y += x`.
    pub fn add_assign_kernel<V>(x: Slice<'_>, y: SliceMut<'_>) {
        for at in (0..y.len()).step_by(WIDTH) {
            y.store_partial(at, y.load_padded::<V>(at).add(x.load_padded(at)));
        }
    }

    fn scale_kernel<V>(by: f32, x: SliceMut<'_>) {
        for at in (0..x.len()).step_by(WIDTH) {
            x.store_partial(at, x.load_padded::<V>(at).mul(V::splat(by)));
        }
    }

    fn dropout_kernel<V>(mask: DropoutMask, first: usize, x: SliceMut<'_>) {
        for at in (0..x.len()).step_by(WIDTH) {
            let factors: V = dropout_factors(mask, (first + at) as u64);
            x.store_partial(at, x.load_padded::<V>(at).mul(factors));
        }
    }
}

/// Factors of sixteen consecutive elements of a dropout mask.
#[inline(always)]
pub fn dropout_factors<V: Lanes>(mask: DropoutMask, index: u64) -> V {
    let first = mask.offset.wrapping_add(index);
    let (low, high) = (first as u32, (first >> 32) as u32);
    let Some(_) = low.checked_add(WIDTH as u32) else {
        return V::from_array(std::array::from_fn(|at| mask.factor(index.wrapping_add(at as u64))));
    };
    // As `random::random_u32`, written so that it vectorises.
    let (key, added) = (mask.key as u32, (mask.key >> 32) as u32 ^ high.wrapping_mul(0x9e37_79b9));
    let (threshold, scale) = (mask.p * 16_777_216.0, 1.0 / (1.0 - mask.p));
    let mut factors = [0.0; WIDTH];
    for (at, factor) in factors.iter_mut().enumerate() {
        let mut z = low.wrapping_add(at as u32) ^ key;
        z = (z ^ (z >> 16)).wrapping_mul(0x7feb_352d);
        z = z.wrapping_add(added);
        z = (z ^ (z >> 15)).wrapping_mul(0x846c_a68b);
        z ^= z >> 16;
        *factor = if ((z >> 8) as i32 as f32) < threshold { 0.0 } else { scale };
    }
    V::from_array(factors)
}

kernel! {
    fn squares_kernel<V>(x: Slice<'_>) -> f32 {
        let mut sums = [V::splat(0.0); 2];
        for at in (0..x.len()).step_by(2 * WIDTH) {
            let first: V = x.load_padded(at);
            sums[0] = first.mul_add(first, sums[0]);
            if at + WIDTH < x.len() {
                let second: V = x.load_padded(at + WIDTH);
                sums[1] = second.mul_add(second, sums[1]);
            }
        }
        sums[0].add(sums[1]).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;

    kernel! {
        fn factors<V>(mask: DropoutMask, index: u64) -> [f32; WIDTH] {
            dropout_factors::<V>(mask, index).to_array()
        }
    }

    #[test]
    fn vectorised_dropout_factors_equal_those_of_the_mask() {
        for isa in Isa::all() {
            for offset in [0, 5, u64::from(u32::MAX) - 7, 1 << 40, u64::MAX - 3] {
                let mask = DropoutMask { p: 0.4, key: 0x1234_5678_9abc_def0, offset };
                for index in [0, 1, 100, 1 << 33] {
                    let expected = std::array::from_fn(|at| mask.factor(index + at as u64));
                    assert_eq!(factors(isa, mask, index), expected, "{offset} {index}");
                }
            }
        }
    }
}
