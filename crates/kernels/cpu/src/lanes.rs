//! Sixteen numbers at once, and what can be done with them: the kernels' alphabet. Each level of
//! instructions has its own; all give the same results, but for the rounding of fused operations.

/// How many numbers there are in [`Lanes`].
pub const WIDTH: usize = 16;

/// Sixteen single-precision numbers.
///
/// Only a kernel that was chosen for the level may use the lanes of the level.
pub trait Lanes: Copy {
    /// Whether there are 32 registers for them, each a whole one.
    const WIDE: bool;

    /// All the same.
    fn splat(number: f32) -> Self;

    /// # Safety
    /// Sixteen numbers must be there to be read.
    unsafe fn load(from: *const f32) -> Self;

    /// # Safety
    /// There must be room for sixteen numbers.
    unsafe fn store(self, to: *mut f32);

    /// As [`Self::load`], of brain floats.
    ///
    /// # Safety
    /// Sixteen numbers must be there to be read.
    unsafe fn load_half(from: *const u16) -> Self;

    /// As [`Self::store`], rounded to brain floats.
    ///
    /// # Safety
    /// There must be room for sixteen numbers.
    unsafe fn store_half(self, to: *mut u16);

    /// `self + b`.
    fn plus(self, b: Self) -> Self;
    /// `self - b`.
    fn minus(self, b: Self) -> Self;
    /// `self * b`.
    fn times(self, b: Self) -> Self;
    /// `self / b`.
    fn over(self, b: Self) -> Self;
    /// `self * b + c`.
    fn fused(self, b: Self, c: Self) -> Self;
    /// The larger ones; `b` where that is not a number.
    fn most(self, b: Self) -> Self;
    /// The smaller ones; `b` where that is not a number.
    fn least(self, b: Self) -> Self;
    /// The roots.
    fn root(self) -> Self;
    /// One over each, right to two units of the last place.
    #[inline(always)]
    fn inverse(self) -> Self {
        Self::splat(1.0).over(self)
    }
    /// The first `count` of these, at most all, then those of `b`.
    fn first(self, count: usize, b: Self) -> Self;
    /// `self * 2ⁿ`, where `n` is in the lowest bits of `by`'s representation.
    fn shifted(self, by: Self) -> Self;

    /// Has the memory there brought near, for it is used soon. A hint: it may be anywhere.
    #[inline(always)]
    fn expect(_there: *const f32) {}

    /// The numbers one by one.
    #[inline(always)]
    fn array(self) -> [f32; WIDTH] {
        let mut array = [0.0; WIDTH];
        // SAFETY: there is room.
        unsafe { self.store(array.as_mut_ptr()) };
        array
    }

    /// From the numbers one by one.
    #[inline(always)]
    fn of(array: [f32; WIDTH]) -> Self {
        // SAFETY: they are there.
        unsafe { Self::load(array.as_ptr()) }
    }

    /// Their sum, in the same order whatever the instructions.
    #[inline(always)]
    fn sum(self) -> f32 {
        fold(self.array(), |a, b| a + b)
    }

    /// The largest, if all are numbers.
    #[inline(always)]
    fn largest(self) -> f32 {
        fold(self.array(), |a, b| if a > b { a } else { b })
    }

    /// Columns of sixteen rows.
    #[inline(always)]
    fn transposed(rows: [Self; WIDTH]) -> [Self; WIDTH] {
        let rows = rows.map(Self::array);
        std::array::from_fn(|column| Self::of(std::array::from_fn(|row| rows[row][column])))
    }
}

#[inline(always)]
fn fold(mut array: [f32; WIDTH], with: impl Fn(f32, f32) -> f32) -> f32 {
    let mut half = WIDTH / 2;
    while half > 0 {
        for at in 0..half {
            array[at] = with(array[at], array[at + half]);
        }
        half /= 2;
    }
    array[0]
}

/// Without any instructions in particular. The compiler makes the best of it.
#[derive(Clone, Copy)]
pub struct Plain([f32; WIDTH]);

impl Plain {
    #[inline(always)]
    fn with(self, b: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Self(std::array::from_fn(|at| f(self.0[at], b.0[at])))
    }
}

impl Lanes for Plain {
    const WIDE: bool = false;

    #[inline(always)]
    fn splat(number: f32) -> Self {
        Self([number; WIDTH])
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller sees to it.
        Self(unsafe { from.cast::<[f32; WIDTH]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller sees to it.
        unsafe { to.cast::<[f32; WIDTH]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    unsafe fn load_half(from: *const u16) -> Self {
        // SAFETY: the caller sees to it.
        let bits = unsafe { from.cast::<[u16; WIDTH]>().read_unaligned() };
        Self(bits.map(|bits| f32::from_bits(u32::from(bits) << 16)))
    }

    #[inline(always)]
    unsafe fn store_half(self, to: *mut u16) {
        // SAFETY: the caller sees to it.
        unsafe { to.cast::<[u16; WIDTH]>().write_unaligned(self.0.map(round)) }
    }

    #[inline(always)]
    fn plus(self, b: Self) -> Self {
        self.with(b, |a, b| a + b)
    }

    #[inline(always)]
    fn minus(self, b: Self) -> Self {
        self.with(b, |a, b| a - b)
    }

    #[inline(always)]
    fn times(self, b: Self) -> Self {
        self.with(b, |a, b| a * b)
    }

    #[inline(always)]
    fn over(self, b: Self) -> Self {
        self.with(b, |a, b| a / b)
    }

    #[inline(always)]
    fn fused(self, b: Self, c: Self) -> Self {
        if cfg!(target_arch = "aarch64") {
            return Self(std::array::from_fn(|at| self.0[at].mul_add(b.0[at], c.0[at])));
        }
        self.times(b).plus(c)
    }

    #[inline(always)]
    fn most(self, b: Self) -> Self {
        self.with(b, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn least(self, b: Self) -> Self {
        self.with(b, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn root(self) -> Self {
        Self(self.0.map(f32::sqrt))
    }

    #[inline(always)]
    fn first(self, count: usize, b: Self) -> Self {
        Self(std::array::from_fn(|at| if at < count { self.0[at] } else { b.0[at] }))
    }

    #[inline(always)]
    fn shifted(self, by: Self) -> Self {
        self.with(by, |a, by| f32::from_bits(a.to_bits().wrapping_add(by.to_bits() << 23)))
    }
}

/// To the nearest brain float, to the even one of two. What is not a number stays so.
#[inline(always)]
fn round(number: f32) -> u16 {
    let bits = number.to_bits();
    let odd = (bits >> 16) & 1;
    let rounded = bits.wrapping_add(0x7fff + odd) >> 16;
    (if number.is_nan() { (bits >> 16) | 0x40 } else { rounded }) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::level::{Level, kernel};

    kernel! {
        fn turn<V>(rows: [[f32; WIDTH]; WIDTH]) -> [[f32; WIDTH]; WIDTH] {
            V::transposed(rows.map(V::of)).map(V::array)
        }
    }

    kernel! {
        fn reduce<V>(numbers: [f32; WIDTH]) -> [f32; 2] {
            [V::of(numbers).sum(), V::of(numbers).largest()]
        }
    }

    kernel! {
        fn halve<V>(numbers: [f32; WIDTH]) -> [u16; WIDTH] {
            let mut halves = [0; WIDTH];
            // SAFETY: there is room for sixteen.
            unsafe { V::of(numbers).store_half(halves.as_mut_ptr()) };
            halves
        }
    }

    #[test]
    fn rows_become_columns() {
        let rows: [[f32; WIDTH]; WIDTH] =
            std::array::from_fn(|row| std::array::from_fn(|column| (100 * row + column) as f32));
        for level in Level::all() {
            let turned = turn(level, rows);
            let right = |row: usize, column: usize| turned[column][row] == rows[row][column];
            assert!((0..WIDTH).all(|row| (0..WIDTH).all(|column| right(row, column))), "{level:?}");
        }
    }

    #[test]
    fn sums_and_maxima_are_of_all_lanes() {
        let numbers = std::array::from_fn(|at| ((at * 7) % 16) as f32 - 3.0);
        let inexact = std::array::from_fn(|at| (1.0 + at as f32).recip());
        let expected = reduce(Level::Plain, inexact);
        for level in Level::all() {
            assert_eq!(reduce(level, numbers), [120.0 - 48.0, 12.0], "{level:?}");
            assert_eq!(reduce(level, inexact), expected, "{level:?} adds in another order");
        }
    }

    kernel! {
        fn keep<V>(numbers: [f32; WIDTH], count: usize) -> [f32; WIDTH] {
            V::of(numbers).first(count, V::splat(-1.0)).array()
        }
    }

    kernel! {
        fn invert<V>(numbers: [f32; WIDTH]) -> [f32; WIDTH] {
            V::of(numbers).inverse().array()
        }
    }

    #[test]
    fn the_first_lanes_are_kept() {
        let numbers = std::array::from_fn(|at| at as f32);
        for level in Level::all() {
            for count in 0..=WIDTH {
                let expected = std::array::from_fn(|at| if at < count { at as f32 } else { -1.0 });
                assert_eq!(keep(level, numbers, count), expected, "{level:?} {count}");
            }
        }
    }

    #[test]
    fn inverses_are_right_to_two_units_of_the_last_place() {
        for level in Level::all() {
            for step in 0..20_000 {
                let exponent = (step as f32 / 20_000.0).mul_add(240.0, -120.0);
                let numbers = std::array::from_fn(|at| (1.0 + at as f32 / 16.0) * exponent.exp2());
                for (number, found) in numbers.into_iter().zip(invert(level, numbers)) {
                    let expected = 1.0 / f64::from(number);
                    let error = (f64::from(found) - expected).abs() / expected;
                    assert!(error < 2.4e-7, "{level:?}: 1 / {number} = {found}");
                }
            }
            let strange = std::array::from_fn(|at| [f32::NAN, f32::INFINITY][at % 2]);
            let found = invert(level, strange);
            assert!(found[0].is_nan() && found[1] == 0.0, "{level:?} {found:?}");
        }
    }

    #[test]
    fn brain_floats_are_rounded_as_they_should() {
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
        for level in Level::all() {
            assert_eq!(halve(level, bits.map(f32::from_bits)), expected, "{level:?}");
        }
    }
}
