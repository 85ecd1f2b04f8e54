//! Element types.

use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use crate::enum_names::enum_names;

/// An element type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DType {
    /// IEEE 754 half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// Single precision.
    F32,
    /// Double precision.
    F64,
    /// Signed, 8 bits.
    I8,
    /// Signed, 16 bits.
    I16,
    /// Signed, 32 bits.
    I32,
    /// Signed, 64 bits.
    I64,
    /// Unsigned, 8 bits.
    U8,
}

impl DType {
    /// The element size in bytes.
    pub const fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::F16 | Self::Bf16 | Self::I16 => 2,
            Self::F32 | Self::I32 => 4,
            Self::F64 | Self::I64 => 8,
        }
    }
}

enum_names!(DType, "All element types.",
    F16 "f16", Bf16 "bf16", F32 "f32", F64 "f64", I8 "i8", I16 "i16", I32 "i32", I64 "i64", U8 "u8");

mod sealed {
    pub trait Sealed {}
}

/// An element of a collective: every bit pattern is valid, and there is no padding. Sealed, because
/// unsafe code relies on that.
pub trait Element: sealed::Sealed + Copy + Send + Sync + std::fmt::Debug + 'static {
    /// The run-time type.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($type:ty => $name:ident),*) => {$(
        impl sealed::Sealed for $type {}
        impl Element for $type {
            const DTYPE: DType = DType::$name;
        }
        const _: () = assert!(size_of::<$type>() == DType::$name.size());
    )*};
}

elements!(f16 => F16, bf16 => Bf16, f32 => F32, f64 => F64, i8 => I8, i16 => I16, i32 => I32, i64 => I64, u8 => U8);

/// The bytes of a slice.
pub fn bytes_of<T: Element>(elements: &[T]) -> &[u8] {
    // SAFETY: an Element has no padding, and bytes need no alignment.
    unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), size_of_val(elements)) }
}

/// The bytes of a slice, mutable.
pub fn bytes_of_mut<T: Element>(elements: &mut [T]) -> &mut [u8] {
    // SAFETY: an Element has no padding, bytes need no alignment, and every bit pattern is valid.
    unsafe { std::slice::from_raw_parts_mut(elements.as_mut_ptr().cast(), size_of_val(elements)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_alias_the_elements() {
        let mut values = [1.0f32, -2.0];
        bytes_of_mut(&mut values)[7] ^= 0x80;
        assert_eq!(values, [1.0, 2.0]);
        assert_eq!(bytes_of(&values)[..4], 1.0f32.to_ne_bytes());
    }
}
