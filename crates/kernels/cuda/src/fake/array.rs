//! Elements in device memory, with checks of bounds and of the alignment of vectors.

use half::bf16;
use regatta_comm::DType;

use crate::Ptr;

/// Elements of f32 or bf16 that a kernel may access. Kernels compute in f32.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Array {
    start: *mut u8,
    dtype: DType,
    len: usize,
}

/// Alignment of vectors of 16 bytes and more.
const VECTOR_BYTES: usize = 16;

impl Array {
    pub fn new(start: Ptr, dtype: DType, len: usize) -> Self {
        assert!(matches!(dtype, DType::F32 | DType::Bf16), "an array of {dtype}");
        Self { start: start.as_raw().cast(), dtype, len }
    }

    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The elements from an index on.
    pub fn from(&self, first: usize) -> Self {
        assert!(first <= self.len, "element {first} of {}", self.len);
        let start = self.start.wrapping_add(first * self.dtype.size());
        Self { start, len: self.len - first, ..*self }
    }

    pub fn get(&self, at: usize) -> f32 {
        assert!(at < self.len, "a read of element {at} of {}", self.len);
        // SAFETY: the element is in an allocation, and aligned.
        unsafe {
            match self.dtype {
                DType::Bf16 => (*self.start.cast::<bf16>().add(at)).to_f32(),
                _ => *self.start.cast::<f32>().add(at),
            }
        }
    }

    pub fn set(&self, at: usize, value: f32) {
        assert!(at < self.len, "a write of element {at} of {}", self.len);
        // SAFETY: the element is in an allocation, and aligned. Work on a stream is not concurrent.
        unsafe {
            match self.dtype {
                DType::Bf16 => *self.start.cast::<bf16>().add(at) = bf16::from_f32(value),
                _ => *self.start.cast::<f32>().add(at) = value,
            }
        }
    }

    pub fn add(&self, at: usize, value: f32) {
        self.set(at, self.get(at) + value);
    }

    /// A row of elements, read as vectors of `width`.
    pub fn row(&self, first: usize, len: usize, width: usize) -> Vec<f32> {
        assert!(len.is_multiple_of(width), "{len} elements are not vectors of {width}");
        self.assert_vector(first, width);
        assert!(first + len <= self.len, "a read up to element {} of {}", first + len, self.len);
        (first..first + len).map(|at| self.get(at)).collect()
    }

    /// Asserts that a vector may be accessed at an index: GPUs do not support unaligned accesses.
    pub fn assert_vector(&self, at: usize, count: usize) {
        let alignment = (count * self.dtype.size()).min(VECTOR_BYTES);
        let address = self.start as usize + at * self.dtype.size();
        assert!(address.is_multiple_of(alignment), "a vector of {count} at {address:#x}");
    }
}

/// The value after it was stored.
pub(crate) fn rounded(value: f32, dtype: DType) -> f32 {
    if dtype == DType::Bf16 { bf16::from_f32(value).to_f32() } else { value }
}

/// Values of another type that a kernel may access.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Values<T> {
    start: *mut T,
    len: usize,
}

impl<T: Copy> Values<T> {
    pub fn new(start: Ptr, len: usize) -> Self {
        Self { start: start.as_raw().cast(), len }
    }

    pub fn get(&self, at: usize) -> T {
        assert!(at < self.len, "a read of value {at} of {}", self.len);
        // SAFETY: the value is in an allocation, and aligned.
        unsafe { *self.start.add(at) }
    }

    pub fn set(&self, at: usize, value: T) {
        assert!(at < self.len, "a write of value {at} of {}", self.len);
        // SAFETY: as above. Work on a stream is not concurrent.
        unsafe { *self.start.add(at) = value }
    }
}
