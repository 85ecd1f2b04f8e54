//! Element types and binary reduction functions of the kernels.

/// An element at any address.
#[derive(Clone, Copy)]
#[repr(C, packed)]
pub struct Unaligned<T>(pub T);

/// An element type that can be reduced.
///
/// # Safety
/// Every bit pattern must be a valid value, because buffers are reinterpreted as elements.
pub unsafe trait Reducible: Copy {
    fn reduce_sum(self, other: Self) -> Self;
    fn reduce_product(self, other: Self) -> Self;
    fn reduce_min(self, other: Self) -> Self;
    fn reduce_max(self, other: Self) -> Self;
    fn div_by(self, by: u32) -> Self;
}

/// Reinterprets bytes as elements, without a trailing partial element.
#[inline(always)]
pub fn elements<T: Reducible>(bytes: &[u8]) -> &[Unaligned<T>] {
    // SAFETY: any bytes are valid elements, and `Unaligned` has no alignment.
    unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / size_of::<T>()) }
}

/// Mutable [`elements`].
#[inline(always)]
pub fn elements_mut<T: Reducible>(bytes: &mut [u8]) -> &mut [Unaligned<T>] {
    let count = bytes.len() / size_of::<T>();
    // SAFETY: as in `elements`; elements have no padding.
    unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), count) }
}

/// A binary reduction function.
pub trait ReduceFn {
    fn apply<T: Reducible>(a: T, b: T) -> T;
}

macro_rules! reduce_fns {
    ($($name:ident => $method:ident),*) => {$(
        pub struct $name;
        impl ReduceFn for $name {
            #[inline(always)]
            fn apply<T: Reducible>(a: T, b: T) -> T {
                a.$method(b)
            }
        }
    )*};
}

reduce_fns!(Sum => reduce_sum, Product => reduce_product, Min => reduce_min, Max => reduce_max);

macro_rules! integers {
    ($($type:ty),*) => {$(
        // SAFETY: every bit pattern is an integer.
        unsafe impl Reducible for $type {
            #[inline(always)]
            fn reduce_sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn reduce_product(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            #[inline(always)]
            fn reduce_min(self, other: Self) -> Self {
                self.min(other)
            }
            #[inline(always)]
            fn reduce_max(self, other: Self) -> Self {
                self.max(other)
            }
            #[inline(always)]
            fn div_by(self, by: u32) -> Self {
                (i64::from(self) / i64::from(by)) as Self
            }
        }
    )*};
}

integers!(i8, i16, i32, i64, u8);

macro_rules! floats {
    ($($type:ty),*) => {$(
        // SAFETY: every bit pattern is a float.
        unsafe impl Reducible for $type {
            #[inline(always)]
            fn reduce_sum(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn reduce_product(self, other: Self) -> Self {
                self * other
            }
            // NaN propagates from either side, and -0 orders before +0, so that the operation is
            // commutative bit for bit.
            #[inline(always)]
            fn reduce_min(self, other: Self) -> Self {
                let less = if self < other || self.is_nan() { self } else { other };
                let both = Self::from_bits(self.to_bits() | other.to_bits());
                if self == other { both } else { less }
            }
            #[inline(always)]
            fn reduce_max(self, other: Self) -> Self {
                let more = if self > other || self.is_nan() { self } else { other };
                let both = Self::from_bits(self.to_bits() & other.to_bits());
                if self == other { both } else { more }
            }
            #[inline(always)]
            fn div_by(self, by: u32) -> Self {
                self / by as $type
            }
        }
    )*};
}

floats!(f32, f64);

/// bf16, the upper half of an f32. Not `half::bf16`, whose conversions branch on NaN: they make
/// these loops about half as fast with AVX2 and two thirds as fast with AVX-512.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Bf16(u16);

impl Bf16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }

    /// Rounds to nearest even. A NaN must not round to infinity.
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        let bits = value.to_bits();
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
        let quiet = bits | 0x0040_0000;
        Self(((if value.is_nan() { quiet } else { rounded }) >> 16) as u16)
    }
}

// SAFETY: every bit pattern is a bf16.
unsafe impl Reducible for Bf16 {
    #[inline(always)]
    fn reduce_sum(self, other: Self) -> Self {
        Self::from_f32(self.to_f32() + other.to_f32())
    }
    #[inline(always)]
    fn reduce_product(self, other: Self) -> Self {
        Self::from_f32(self.to_f32() * other.to_f32())
    }
    #[inline(always)]
    fn reduce_min(self, other: Self) -> Self {
        Self::from_f32(self.to_f32().reduce_min(other.to_f32()))
    }
    #[inline(always)]
    fn reduce_max(self, other: Self) -> Self {
        Self::from_f32(self.to_f32().reduce_max(other.to_f32()))
    }
    #[inline(always)]
    fn div_by(self, by: u32) -> Self {
        Self::from_f32(self.to_f32() / by as f32)
    }
}
