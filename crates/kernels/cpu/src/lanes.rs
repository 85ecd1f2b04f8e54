//! Vectors of sixteen f32 lanes: the type that kernels are written in, implemented for each instruction set.
//! All implementations give the same results, up to the rounding of fused multiply-add.

use crate::gemm::bf16::round_to_bf16;

/// Number of lanes.
pub const WIDTH: usize = 16;

/// Sixteen f32 lanes.
///
/// Only kernels dispatched for an instruction set may use its implementation.
pub trait Lanes: Copy {
    /// Whether there are 32 registers that hold all lanes each.
    const HAS_32_REGISTERS: bool;

    /// The same value in all lanes.
    fn splat(value: f32) -> Self;

    /// Loads, unaligned.
    ///
    /// # Safety
    /// Sixteen elements must be readable.
    unsafe fn load(from: *const f32) -> Self;

    /// Stores, unaligned.
    ///
    /// # Safety
    /// Sixteen elements must be writable.
    unsafe fn store(self, to: *mut f32);

    /// Loads bf16 elements.
    ///
    /// # Safety
    /// Sixteen elements must be readable.
    unsafe fn load_bf16(from: *const u16) -> Self;

    /// Rounds to bf16 and stores.
    ///
    /// # Safety
    /// Sixteen elements must be writable.
    unsafe fn store_bf16(self, to: *mut u16);

    /// `self + b`.
    fn add(self, b: Self) -> Self;
    /// `self - b`.
    fn sub(self, b: Self) -> Self;
    /// `self * b`.
    fn mul(self, b: Self) -> Self;
    /// `self / b`.
    fn div(self, b: Self) -> Self;
    /// `self * b + c`.
    fn mul_add(self, b: Self, c: Self) -> Self;
    /// Maximum; `b` if either is NaN.
    fn max(self, b: Self) -> Self;
    /// Minimum; `b` if either is NaN.
    fn min(self, b: Self) -> Self;
    /// Square root.
    fn sqrt(self) -> Self;
    /// Reciprocal, within 2 ulp.
    #[inline(always)]
    fn recip(self) -> Self {
        Self::splat(1.0).div(self)
    }
    /// The first `count` lanes of `self`, then those of `b`.
    fn select_first(self, count: usize, b: Self) -> Self;
    /// `self * 2ⁿ`, where `n` is in the low bits of the representation of `exponent`.
    fn scale_pow2(self, exponent: Self) -> Self;

    /// Prefetches a cache line. The address need not be valid.
    #[inline(always)]
    fn prefetch(_address: *const f32) {}

    /// The lanes as an array.
    #[inline(always)]
    fn to_array(self) -> [f32; WIDTH] {
        let mut array = [0.0; WIDTH];
        // SAFETY: there are sixteen.
        unsafe { self.store(array.as_mut_ptr()) };
        array
    }

    /// Lanes from an array.
    #[inline(always)]
    fn from_array(array: [f32; WIDTH]) -> Self {
        // SAFETY: there are sixteen.
        unsafe { Self::load(array.as_ptr()) }
    }

    /// Sum of the lanes, in the same order for every instruction set.
    #[inline(always)]
    fn sum(self) -> f32 {
        reduce(self.to_array(), |a, b| a + b)
    }

    /// Maximum of the lanes, if none is NaN.
    #[inline(always)]
    fn reduce_max(self) -> f32 {
        reduce(self.to_array(), |a, b| if a > b { a } else { b })
    }

    /// Transposes a 16 by 16 matrix.
    #[inline(always)]
    fn transpose(rows: [Self; WIDTH]) -> [Self; WIDTH] {
        let rows = rows.map(Self::to_array);
        std::array::from_fn(|column| Self::from_array(std::array::from_fn(|row| rows[row][column])))
    }
}

#[inline(always)]
fn reduce(mut array: [f32; WIDTH], op: impl Fn(f32, f32) -> f32) -> f32 {
    let mut half = WIDTH / 2;
    while half > 0 {
        for at in 0..half {
            array[at] = op(array[at], array[at + half]);
        }
        half /= 2;
    }
    array[0]
}

/// An array that the compiler vectorises for the baseline of the target.
#[derive(Clone, Copy)]
pub struct Portable([f32; WIDTH]);

impl Portable {
    #[inline(always)]
    fn zip(self, b: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Self(std::array::from_fn(|at| f(self.0[at], b.0[at])))
    }
}

/// Methods that apply an operation to pairs of lanes.
macro_rules! zip {
    ($($name:ident = |$a:ident, $b:ident| $result:expr;)*) => {$(
        #[inline(always)]
        fn $name(self, b: Self) -> Self {
            self.zip(b, |$a, $b| $result)
        }
    )*};
}

impl Lanes for Portable {
    const HAS_32_REGISTERS: bool = false;

    zip! {
        add = |a, b| a + b;
        sub = |a, b| a - b;
        mul = |a, b| a * b;
        div = |a, b| a / b;
        max = |a, b| if a > b { a } else { b };
        min = |a, b| if a < b { a } else { b };
        scale_pow2 = |a, n| f32::from_bits(a.to_bits().wrapping_add(n.to_bits() << 23));
    }

    #[inline(always)]
    fn splat(value: f32) -> Self {
        Self([value; WIDTH])
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { from.cast::<[f32; WIDTH]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<[f32; WIDTH]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self {
        // SAFETY: the caller's promise.
        let bits = unsafe { from.cast::<[u16; WIDTH]>().read_unaligned() };
        Self(bits.map(|bits| f32::from_bits(u32::from(bits) << 16)))
    }

    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut u16) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<[u16; WIDTH]>().write_unaligned(self.0.map(round_to_bf16)) }
    }

    #[inline(always)]
    fn mul_add(self, b: Self, c: Self) -> Self {
        if cfg!(target_arch = "aarch64") {
            return Self(std::array::from_fn(|at| self.0[at].mul_add(b.0[at], c.0[at])));
        }
        self.mul(b).add(c)
    }

    #[inline(always)]
    fn sqrt(self) -> Self {
        Self(self.0.map(f32::sqrt))
    }

    #[inline(always)]
    fn select_first(self, count: usize, b: Self) -> Self {
        Self(std::array::from_fn(|at| if at < count { self.0[at] } else { b.0[at] }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::{Isa, kernel};

    kernel! {
        fn transpose<V>(rows: [[f32; WIDTH]; WIDTH]) -> [[f32; WIDTH]; WIDTH] {
            V::transpose(rows.map(V::from_array)).map(V::to_array)
        }

        fn reduce<V>(lanes: [f32; WIDTH]) -> [f32; 2] {
            [V::from_array(lanes).sum(), V::from_array(lanes).reduce_max()]
        }

        fn to_bf16<V>(lanes: [f32; WIDTH]) -> [u16; WIDTH] {
            let mut bits = [0; WIDTH];
            // SAFETY: there are sixteen.
            unsafe { V::from_array(lanes).store_bf16(bits.as_mut_ptr()) };
            bits
        }
    }

    #[test]
    fn transpose_swaps_rows_and_columns() {
        let rows: [[f32; WIDTH]; WIDTH] =
            std::array::from_fn(|row| std::array::from_fn(|column| (100 * row + column) as f32));
        for isa in Isa::all() {
            let columns = transpose(isa, rows);
            let expected = std::array::from_fn(|column| rows.map(|row| row[column]));
            assert_eq!(columns, expected, "{isa:?}");
        }
    }

    #[test]
    fn reductions_give_the_same_bits_on_every_isa() {
        let lanes = std::array::from_fn(|at| ((at * 7) % 16) as f32 - 3.0);
        let inexact = std::array::from_fn(|at| (1.0 + at as f32).recip());
        let expected = reduce(Isa::PORTABLE, inexact);
        for isa in Isa::all() {
            assert_eq!(reduce(isa, lanes), [120.0 - 48.0, 12.0], "{isa:?}");
            assert_eq!(reduce(isa, inexact), expected, "{isa:?}: order of additions");
        }
    }

    kernel! {
        fn select<V>(lanes: [f32; WIDTH], count: usize) -> [f32; WIDTH] {
            V::from_array(lanes).select_first(count, V::splat(-1.0)).to_array()
        }

        fn recip<V>(lanes: [f32; WIDTH]) -> [f32; WIDTH] {
            V::from_array(lanes).recip().to_array()
        }
    }

    #[test]
    fn select_first_takes_the_first_lanes() {
        let lanes = std::array::from_fn(|at| at as f32);
        for isa in Isa::all() {
            for count in 0..=WIDTH {
                let expected = std::array::from_fn(|at| if at < count { at as f32 } else { -1.0 });
                assert_eq!(select(isa, lanes, count), expected, "{isa:?} {count}");
            }
        }
    }

    #[test]
    fn recip_is_within_two_ulp() {
        for isa in Isa::all() {
            for step in 0..20_000 {
                let exponent = (step as f32 / 20_000.0).mul_add(240.0, -120.0);
                let lanes = std::array::from_fn(|at| (1.0 + at as f32 / 16.0) * exponent.exp2());
                for (x, found) in lanes.into_iter().zip(recip(isa, lanes)) {
                    let expected = 1.0 / f64::from(x);
                    let error = (f64::from(found) - expected).abs() / expected;
                    assert!(error < 2.4e-7, "{isa:?}: 1 / {x} = {found}");
                }
            }
            let special = std::array::from_fn(|at| [f32::NAN, f32::INFINITY][at % 2]);
            let found = recip(isa, special);
            assert!(found[0].is_nan() && found[1] == 0.0, "{isa:?} {found:?}");
        }
    }

    #[test]
    fn bf16_rounding_matches_the_half_crate() {
        let bits: [u32; WIDTH] = [
            0,
            0x8000_0000,
            0x3f80_0000,
            0x3f80_8000,
            0x3f81_8000,
            0x3f80_7fff,
            0x3f80_8001,
            0x7f7f_ffff,
            0x7f80_0000,
            0xff80_0000,
            0x7fc0_0000,
            0x7fff_ffff,
            0xffff_ffff,
            0x7f80_0001,
            1,
            0x4049_0fdb,
        ];
        let expected = bits.map(|bits| half::bf16::from_f32(f32::from_bits(bits)).to_bits());
        for isa in Isa::all() {
            assert_eq!(to_bf16(isa, bits.map(f32::from_bits)), expected, "{isa:?}");
        }
    }
}
