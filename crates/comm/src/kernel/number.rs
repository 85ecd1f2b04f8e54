//! What the loops are over: types of numbers, and ways to make one of two.

/// A number that may begin at any byte.
#[derive(Clone, Copy)]
#[repr(C, packed)]
pub struct Unaligned<T>(pub T);

/// A type whose every bit pattern is a value.
///
/// # Safety
/// It must be so: bytes of a buffer are taken as it.
pub unsafe trait Number: Copy {
    fn sum(self, other: Self) -> Self;
    fn product(self, other: Self) -> Self;
    fn least(self, other: Self) -> Self;
    fn greatest(self, other: Self) -> Self;
    fn divided(self, by: u32) -> Self;
}

/// Bytes as numbers; what does not fill one is left out.
#[inline(always)]
pub fn lanes<T: Number>(bytes: &[u8]) -> &[Unaligned<T>] {
    // SAFETY: any bytes are a Number, and these may begin anywhere.
    unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / size_of::<T>()) }
}

/// The same, to be written.
#[inline(always)]
pub fn lanes_mut<T: Number>(bytes: &mut [u8]) -> &mut [Unaligned<T>] {
    let count = bytes.len() / size_of::<T>();
    // SAFETY: as before, and a Number has no bytes that are none of its value.
    unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), count) }
}

/// A way to make one number of two.
pub trait Fold {
    fn two<T: Number>(a: T, b: T) -> T;
}

pub struct Sum;
pub struct Product;
pub struct Least;
pub struct Greatest;

impl Fold for Sum {
    #[inline(always)]
    fn two<T: Number>(a: T, b: T) -> T {
        a.sum(b)
    }
}

impl Fold for Product {
    #[inline(always)]
    fn two<T: Number>(a: T, b: T) -> T {
        a.product(b)
    }
}

impl Fold for Least {
    #[inline(always)]
    fn two<T: Number>(a: T, b: T) -> T {
        a.least(b)
    }
}

impl Fold for Greatest {
    #[inline(always)]
    fn two<T: Number>(a: T, b: T) -> T {
        a.greatest(b)
    }
}

macro_rules! integers {
    ($($type:ty),*) => {$(
        // SAFETY: any bits are an integer.
        unsafe impl Number for $type {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn product(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            #[inline(always)]
            fn least(self, other: Self) -> Self {
                self.min(other)
            }
            #[inline(always)]
            fn greatest(self, other: Self) -> Self {
                self.max(other)
            }
            #[inline(always)]
            fn divided(self, by: u32) -> Self {
                (i64::from(self) / i64::from(by)) as Self
            }
        }
    )*};
}

integers!(i8, i16, i32, i64, u8);

macro_rules! floats {
    ($($type:ty),*) => {$(
        // SAFETY: any bits are a float.
        unsafe impl Number for $type {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn product(self, other: Self) -> Self {
                self * other
            }
            // What is not a number is in no order: it must win from either side. Of two zeros the
            // negative one is less, or who reduces them the other way round gets other bits.
            #[inline(always)]
            fn least(self, other: Self) -> Self {
                let less = if self < other || self.is_nan() { self } else { other };
                let both = Self::from_bits(self.to_bits() | other.to_bits());
                if self == other { both } else { less }
            }
            #[inline(always)]
            fn greatest(self, other: Self) -> Self {
                let more = if self > other || self.is_nan() { self } else { other };
                let both = Self::from_bits(self.to_bits() & other.to_bits());
                if self == other { both } else { more }
            }
            #[inline(always)]
            fn divided(self, by: u32) -> Self {
                self / by as $type
            }
        }
    )*};
}

floats!(f32, f64);

/// The upper half of a single-precision number.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Bf16(u16);

impl Bf16 {
    #[inline(always)]
    fn wide(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }

    /// To nearest even. What is not a number must not round to infinity.
    #[inline(always)]
    fn narrow(wide: f32) -> Self {
        let bits = wide.to_bits();
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
        let quiet = bits | 0x0040_0000;
        Self(((if wide.is_nan() { quiet } else { rounded }) >> 16) as u16)
    }
}

// SAFETY: any bits are one.
unsafe impl Number for Bf16 {
    #[inline(always)]
    fn sum(self, other: Self) -> Self {
        Self::narrow(self.wide() + other.wide())
    }
    #[inline(always)]
    fn product(self, other: Self) -> Self {
        Self::narrow(self.wide() * other.wide())
    }
    #[inline(always)]
    fn least(self, other: Self) -> Self {
        Self::narrow(self.wide().least(other.wide()))
    }
    #[inline(always)]
    fn greatest(self, other: Self) -> Self {
        Self::narrow(self.wide().greatest(other.wide()))
    }
    #[inline(always)]
    fn divided(self, by: u32) -> Self {
        Self::narrow(self.wide() / by as f32)
    }
}
