//! What is done to each number by itself: activations, sums, masks.

use crate::Cpu;
use crate::lanes::{Lanes, WIDTH};
use crate::level::kernel;
use crate::math::{gelu, sigmoid};
use crate::numbers::{Apart, Source, Target};
use regatta_device::memory::{View, ViewMut};
use regatta_device::random::Mask;

/// A thread gets at least so many numbers: fewer are done before it wakes.
const LEAST: usize = 8 * 1024;

impl Cpu {
    /// Applies a kernel to parts of two tensors of the same length.
    fn each(&self, x: View<'_>, y: ViewMut<'_>, kernel: impl Fn(Source<'_>, Target<'_>) + Sync) {
        assert_eq!(x.len(), y.len(), "tensors of different lengths");
        let (x, y) = (Source::from(x), Apart::new(y));
        self.pool.run_ranges(y.len(), LEAST, WIDTH, |range| {
            // SAFETY: ranges are disjoint.
            kernel(x.part(range.clone()), unsafe { y.part(range) });
        });
    }

    /// Applies a kernel to parts of a tensor; it is told where a part begins.
    fn each_in_place(&self, x: ViewMut<'_>, kernel: impl Fn(usize, Target<'_>) + Sync) {
        let x = Apart::new(x);
        self.pool.run_ranges(x.len(), LEAST, WIDTH, |range| {
            // SAFETY: ranges are disjoint.
            kernel(range.start, unsafe { x.part(range) });
        });
    }

    pub(super) fn copy_numbers(&self, from: View<'_>, to: ViewMut<'_>) {
        self.each(from, to, |x, y| copy(self.level, x, y));
    }

    pub(super) fn gelu_forward(&self, x: ViewMut<'_>, y: ViewMut<'_>) {
        assert_eq!(x.len(), y.len(), "tensors of different lengths");
        let (x, y) = (Apart::new(x), Apart::new(y));
        self.pool.run_ranges(y.len(), LEAST, WIDTH, |range| {
            // SAFETY: ranges are disjoint.
            let (x, y) = unsafe { (x.part(range.clone()), y.part(range)) };
            gelu_each(self.level, x, y);
        });
    }

    pub(super) fn multiply_numbers(&self, x: View<'_>, y: ViewMut<'_>) {
        self.each(x, y, |x, y| multiply_each(self.level, x, y));
    }

    pub(super) fn sum_numbers(&self, x: View<'_>, y: View<'_>, z: ViewMut<'_>) {
        assert!(x.len() == z.len() && y.len() == z.len(), "tensors of different lengths");
        let (x, y, z) = (Source::from(x), Source::from(y), Apart::new(z));
        self.pool.run_ranges(z.len(), LEAST, WIDTH, |range| {
            // SAFETY: ranges are disjoint.
            let z = unsafe { z.part(range.clone()) };
            sum_each(self.level, x.part(range.clone()), y.part(range), z);
        });
    }

    pub(super) fn add_numbers(&self, x: View<'_>, y: ViewMut<'_>) {
        self.each(x, y, |x, y| add_each(self.level, x, y));
    }

    pub(super) fn drop_numbers(&self, mask: Mask, x: ViewMut<'_>) {
        self.each_in_place(x, |first, x| drop_each(self.level, mask, first, x));
    }

    pub(super) fn scale_numbers(&self, by: f64, x: ViewMut<'_>) {
        self.each_in_place(x, |_, x| scale_each(self.level, by as f32, x));
    }

    pub(super) fn fill_numbers(&self, number: f32, x: ViewMut<'_>) {
        self.each_in_place(x, |_, x| x.fill(number));
    }

    pub(super) fn swiglu_forward(&self, width: usize, x: View<'_>, y: ViewMut<'_>) {
        assert_eq!(x.len(), 2 * y.len(), "gates and ups of each number");
        let (rows, x, y) = (rows(y.len(), width), Source::from(x), Apart::new(y));
        self.pool.run_ranges(rows, LEAST.div_ceil(width), 1, |range| {
            // SAFETY: ranges are disjoint.
            let mut y = unsafe { y.part(range.start * width..range.end * width) };
            for (at, row) in range.enumerate() {
                let x = x.part(2 * row * width..2 * (row + 1) * width);
                swiglu_row(self.level, x, y.part(at * width..(at + 1) * width));
            }
        });
    }

    pub(super) fn swiglu_backward(&self, width: usize, x: View<'_>, dy: View<'_>, dx: ViewMut<'_>) {
        assert!(x.len() == dx.len() && x.len() == 2 * dy.len(), "gates and ups of each number");
        let rows = rows(dy.len(), width);
        let (x, dy, dx) = (Source::from(x), Source::from(dy), Apart::new(dx));
        self.pool.run_ranges(rows, LEAST.div_ceil(width), 1, |range| {
            for row in range {
                let both = 2 * row * width..2 * (row + 1) * width;
                // SAFETY: rows are disjoint.
                let dx = unsafe { dx.part(both.clone()) };
                let dy = dy.part(row * width..(row + 1) * width);
                swiglu_back_row(self.level, x.part(both), dy, dx);
            }
        });
    }
}

/// How many rows of a width there are.
///
/// # Panics
/// If the last one is not whole.
pub(super) fn rows(elements: usize, width: usize) -> usize {
    assert!(width > 0 && elements.is_multiple_of(width), "{elements} numbers in rows of {width}");
    elements / width
}

kernel! {
    /// `y = x`.
    pub(super) fn copy<V>(x: Source<'_>, y: Target<'_>) {
        let mut y = y;
        for at in (0..y.len()).step_by(WIDTH) {
            y.put(at, x.get::<V>(at));
        }
    }
}

kernel! {
    /// `y = gelu(x)`, and `x` becomes the slope.
    fn gelu_each<V>(x: Target<'_>, y: Target<'_>) {
        let (mut x, mut y) = (x, y);
        for at in (0..y.len()).step_by(WIDTH) {
            let [active, slope] = gelu(x.get::<V>(at));
            y.put(at, active);
            x.put(at, slope);
        }
    }
}

kernel! {
    fn multiply_each<V>(x: Source<'_>, y: Target<'_>) {
        let mut y = y;
        for at in (0..y.len()).step_by(WIDTH) {
            y.put(at, y.get::<V>(at).times(x.get(at)));
        }
    }
}

kernel! {
    fn sum_each<V>(x: Source<'_>, y: Source<'_>, z: Target<'_>) {
        let mut z = z;
        for at in (0..z.len()).step_by(WIDTH) {
            z.put(at, x.get::<V>(at).plus(y.get(at)));
        }
    }
}

kernel! {
    fn add_each<V>(x: Source<'_>, y: Target<'_>) {
        let mut y = y;
        for at in (0..y.len()).step_by(WIDTH) {
            y.put(at, y.get::<V>(at).plus(x.get(at)));
        }
    }
}

kernel! {
    fn scale_each<V>(by: f32, x: Target<'_>) {
        let mut x = x;
        for at in (0..x.len()).step_by(WIDTH) {
            x.put(at, x.get::<V>(at).times(V::splat(by)));
        }
    }
}

kernel! {
    fn drop_each<V>(mask: Mask, first: usize, x: Target<'_>) {
        let mut x = x;
        for at in (0..x.len()).step_by(WIDTH) {
            let kept: V = factors(mask, (first + at) as u64);
            x.put(at, x.get::<V>(at).times(kept));
        }
    }
}

/// A mask's factors of sixteen numbers that follow each other.
#[inline(always)]
pub(super) fn factors<V: Lanes>(mask: Mask, index: u64) -> V {
    let first = mask.first.wrapping_add(index);
    let (low, high) = (first as u32, (first >> 32) as u32);
    let Some(_) = low.checked_add(WIDTH as u32) else {
        return V::of(std::array::from_fn(|at| mask.factor(index.wrapping_add(at as u64))));
    };
    // As `random::word`, written so that it is compiled for all lanes at once.
    let (key, later) = (mask.key as u32, (mask.key >> 32) as u32 ^ high.wrapping_mul(0x9e37_79b9));
    let (limit, kept) = (mask.share * 16_777_216.0, 1.0 / (1.0 - mask.share));
    let mut factors = [0.0; WIDTH];
    for (at, factor) in factors.iter_mut().enumerate() {
        let mut z = low.wrapping_add(at as u32) ^ key;
        z = (z ^ (z >> 16)).wrapping_mul(0x7feb_352d);
        z = z.wrapping_add(later);
        z = (z ^ (z >> 15)).wrapping_mul(0x846c_a68b);
        z ^= z >> 16;
        *factor = if ((z >> 8) as i32 as f32) < limit { 0.0 } else { kept };
    }
    V::of(factors)
}

kernel! {
    fn swiglu_row<V>(x: Source<'_>, y: Target<'_>) {
        let mut y = y;
        let width = y.len();
        let (gates, ups) = (x.part(0..width), x.part(width..2 * width));
        for at in (0..width).step_by(WIDTH) {
            let gate: V = gates.get(at);
            y.put(at, gate.times(sigmoid(gate)).times(ups.get(at)));
        }
    }
}

kernel! {
    fn swiglu_back_row<V>(x: Source<'_>, dy: Source<'_>, dx: Target<'_>) {
        let mut dx = dx;
        let width = dy.len();
        let (gates, ups) = (x.part(0..width), x.part(width..2 * width));
        for at in (0..width).step_by(WIDTH) {
            let (gate, up, dy): (V, V, V) = (gates.get(at), ups.get(at), dy.get(at));
            let open = sigmoid(gate);
            // silu' = s + x s (1 - s).
            let slope = gate.times(open).fused(V::splat(1.0).minus(open), open);
            dx.part(0..width).put(at, dy.times(up).times(slope));
            dx.part(width..2 * width).put(at, dy.times(gate.times(open)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::level::Level;

    kernel! {
        fn some_factors<V>(mask: Mask, index: u64) -> [f32; WIDTH] {
            factors::<V>(mask, index).array()
        }
    }

    #[test]
    fn factors_are_those_of_the_mask() {
        for level in Level::all() {
            for first in [0, 5, u64::from(u32::MAX) - 7, 1 << 40, u64::MAX - 3] {
                let mask = Mask { share: 0.4, key: 0x1234_5678_9abc_def0, first };
                for index in [0, 1, 100, 1 << 33] {
                    let expected: [f32; WIDTH] =
                        std::array::from_fn(|at| mask.factor(index + at as u64));
                    assert_eq!(some_factors(level, mask, index), expected, "{first} {index}");
                }
            }
        }
    }
}
