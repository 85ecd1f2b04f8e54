//! Slices of f32 or bf16 elements that kernels load and store sixteen lanes at a time.

use std::marker::PhantomData;
use std::ops::Range;

use half::bf16;
use regatta_comm::DType;

use crate::lanes::{Lanes, WIDTH};
use regatta_device::tensor::{View, ViewMut};

/// Borrowed elements.
#[derive(Debug, Clone, Copy)]
pub enum Slice<'a> {
    /// f32.
    F32(&'a [f32]),
    /// bf16.
    Bf16(&'a [bf16]),
}

/// Mutably borrowed elements.
#[derive(Debug)]
pub enum SliceMut<'a> {
    /// f32.
    F32(&'a mut [f32]),
    /// bf16.
    Bf16(&'a mut [bf16]),
}

impl<'a> From<View<'a>> for Slice<'a> {
    /// # Panics
    /// If the dtype is neither f32 nor bf16, or the elements are not in host memory.
    fn from(view: View<'a>) -> Self {
        match view.dtype() {
            DType::Bf16 => Self::Bf16(view.as_slice()),
            _ => Self::F32(view.as_slice()),
        }
    }
}

impl<'a> From<ViewMut<'a>> for SliceMut<'a> {
    /// # Panics
    /// If the dtype is neither f32 nor bf16, or the elements are not in host memory.
    fn from(view: ViewMut<'a>) -> Self {
        match view.dtype() {
            DType::Bf16 => Self::Bf16(view.as_slice()),
            _ => Self::F32(view.as_slice()),
        }
    }
}

impl<'a> From<&'a [f32]> for Slice<'a> {
    fn from(elements: &'a [f32]) -> Self {
        Self::F32(elements)
    }
}

impl<'a> From<&'a mut [f32]> for SliceMut<'a> {
    fn from(elements: &'a mut [f32]) -> Self {
        Self::F32(elements)
    }
}

impl Slice<'_> {
    /// Number of elements.
    #[inline(always)]
    pub(crate) fn len(self) -> usize {
        match self {
            Self::F32(elements) => elements.len(),
            Self::Bf16(elements) => elements.len(),
        }
    }

    /// A range of the elements.
    #[inline(always)]
    pub fn slice(self, range: Range<usize>) -> Self {
        match self {
            Self::F32(elements) => Self::F32(&elements[range]),
            Self::Bf16(elements) => Self::Bf16(&elements[range]),
        }
    }

    /// Loads sixteen elements, with zeros past the end.
    #[inline(always)]
    pub fn load_padded<V: Lanes>(self, at: usize) -> V {
        match self {
            Self::F32(elements) => load_padded(elements, at),
            Self::Bf16(elements) => load_padded_bf16(elements, at),
        }
    }

    /// Loads sixteen elements. Without a branch for the end, loops keep their accumulators in registers.
    ///
    /// # Safety
    /// They must be in bounds.
    #[inline(always)]
    pub unsafe fn load<V: Lanes>(self, at: usize) -> V {
        debug_assert!(at + WIDTH <= self.len());
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::F32(elements) => V::load(elements.as_ptr().add(at)),
                Self::Bf16(elements) => V::load_bf16(elements.as_ptr().add(at).cast()),
            }
        }
    }

    /// One element.
    #[inline(always)]
    pub fn get(self, at: usize) -> f32 {
        match self {
            Self::F32(elements) => elements[at],
            Self::Bf16(elements) => elements[at].to_f32(),
        }
    }
}

impl SliceMut<'_> {
    /// Number of elements.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.as_slice().len()
    }

    /// Reborrows it as shared.
    #[inline(always)]
    pub fn as_slice(&self) -> Slice<'_> {
        match self {
            Self::F32(elements) => Slice::F32(elements),
            Self::Bf16(elements) => Slice::Bf16(elements),
        }
    }

    /// A range of the elements.
    #[inline(always)]
    pub fn slice(&mut self, range: Range<usize>) -> SliceMut<'_> {
        match self {
            Self::F32(elements) => SliceMut::F32(&mut elements[range]),
            Self::Bf16(elements) => SliceMut::Bf16(&mut elements[range]),
        }
    }

    /// Loads sixteen elements, with zeros past the end.
    #[inline(always)]
    pub fn load_padded<V: Lanes>(&self, at: usize) -> V {
        self.as_slice().load_padded(at)
    }

    /// Fills with a value.
    pub fn fill(self, value: f32) {
        match self {
            Self::F32(elements) => elements.fill(value),
            Self::Bf16(elements) => elements.fill(bf16::from_f32(value)),
        }
    }

    /// Stores sixteen elements. Without a branch for the end, loops keep their accumulators in registers.
    ///
    /// # Safety
    /// They must be in bounds.
    #[inline(always)]
    pub unsafe fn store<V: Lanes>(&mut self, at: usize, lanes: V) {
        debug_assert!(at + WIDTH <= self.len());
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::F32(elements) => lanes.store(elements.as_mut_ptr().add(at)),
                Self::Bf16(elements) => lanes.store_bf16(elements.as_mut_ptr().add(at).cast()),
            }
        }
    }

    /// Stores those of sixteen elements that are in bounds.
    #[inline(always)]
    pub fn store_partial<V: Lanes>(&mut self, at: usize, lanes: V) {
        match self {
            Self::F32(elements) => store_partial(elements, at, lanes),
            Self::Bf16(elements) => store_partial_bf16(elements, at, lanes),
        }
    }
}

/// Loads sixteen elements, with zeros past the end.
#[inline(always)]
pub fn load_padded<V: Lanes>(elements: &[f32], at: usize) -> V {
    let tail = &elements[at..];
    if tail.len() >= WIDTH {
        // SAFETY: there are sixteen.
        return unsafe { V::load(tail.as_ptr()) };
    }
    let mut padded = [0.0; WIDTH];
    padded[..tail.len()].copy_from_slice(tail);
    V::from_array(padded)
}

#[inline(always)]
fn load_padded_bf16<V: Lanes>(elements: &[bf16], at: usize) -> V {
    let tail = &elements[at..];
    if tail.len() >= WIDTH {
        // SAFETY: there are sixteen.
        return unsafe { V::load_bf16(tail.as_ptr().cast()) };
    }
    let mut padded = [bf16::ZERO; WIDTH];
    padded[..tail.len()].copy_from_slice(tail);
    // SAFETY: there are sixteen.
    unsafe { V::load_bf16(padded.as_ptr().cast()) }
}

/// Stores those of sixteen elements that are in bounds.
#[inline(always)]
pub fn store_partial<V: Lanes>(elements: &mut [f32], at: usize, lanes: V) {
    let tail = &mut elements[at..];
    if tail.len() >= WIDTH {
        // SAFETY: there are sixteen.
        return unsafe { lanes.store(tail.as_mut_ptr()) };
    }
    let len = tail.len();
    tail.copy_from_slice(&lanes.to_array()[..len]);
}

#[inline(always)]
fn store_partial_bf16<V: Lanes>(elements: &mut [bf16], at: usize, lanes: V) {
    let tail = &mut elements[at..];
    if tail.len() >= WIDTH {
        // SAFETY: there are sixteen.
        return unsafe { lanes.store_bf16(tail.as_mut_ptr().cast()) };
    }
    let mut padded = [bf16::ZERO; WIDTH];
    // SAFETY: there are sixteen.
    unsafe { lanes.store_bf16(padded.as_mut_ptr().cast()) };
    let len = tail.len();
    tail.copy_from_slice(&padded[..len]);
}

/// Number of rows of a length.
///
/// # Panics
/// If the elements are not a multiple of it.
pub fn row_count(elements: usize, row_len: usize) -> usize {
    assert!(
        row_len > 0 && elements.is_multiple_of(row_len),
        "{elements} elements are not a multiple of the row length {row_len}"
    );
    elements / row_len
}

/// Mutably borrowed elements of which the threads of a pool take disjoint ranges.
#[derive(Debug, Clone, Copy)]
pub struct DisjointMut<'a> {
    start: *mut u8,
    len: usize,
    dtype: DType,
    lifetime: PhantomData<&'a mut [u8]>,
}

// SAFETY: elements are reached only by `slice`, whose callers promise disjoint ranges, and by raw pointers.
unsafe impl Send for DisjointMut<'_> {}
// SAFETY: as above.
unsafe impl Sync for DisjointMut<'_> {}

impl<'a> DisjointMut<'a> {
    /// Of all these elements.
    pub fn new(elements: impl Into<SliceMut<'a>>) -> Self {
        let (start, len, dtype) = match elements.into() {
            SliceMut::F32(elements) => (elements.as_mut_ptr().cast(), elements.len(), DType::F32),
            SliceMut::Bf16(elements) => (elements.as_mut_ptr().cast(), elements.len(), DType::Bf16),
        };
        Self { start, len, dtype, lifetime: PhantomData }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether they are f32.
    pub fn is_f32(&self) -> bool {
        self.dtype == DType::F32
    }

    /// A range of the elements.
    ///
    /// # Safety
    /// No other reference to these elements may exist.
    ///
    /// # Panics
    /// If the range is out of bounds.
    #[inline(always)]
    pub unsafe fn slice(&self, range: Range<usize>) -> SliceMut<'a> {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        // SAFETY: the range is in bounds; the caller promises exclusive access.
        unsafe {
            let start = self.start.add(range.start * self.dtype.size());
            match self.dtype {
                DType::Bf16 => {
                    SliceMut::Bf16(std::slice::from_raw_parts_mut(start.cast(), range.len()))
                }
                _ => SliceMut::F32(std::slice::from_raw_parts_mut(start.cast(), range.len())),
            }
        }
    }

    /// Pointer to an f32 element.
    ///
    /// # Panics
    /// If it is out of bounds, or the elements are not f32.
    pub fn ptr_f32(&self, at: usize) -> *mut f32 {
        assert!(at < self.len && self.is_f32(), "{at} of {} {}", self.len, self.dtype);
        // SAFETY: it is in bounds.
        unsafe { self.start.cast::<f32>().add(at) }
    }

    /// A range of f32 elements.
    ///
    /// # Safety
    /// As [`Self::slice`].
    ///
    /// # Panics
    /// If the range is out of bounds, or the elements are not f32.
    pub unsafe fn slice_f32(&self, range: Range<usize>) -> &'a mut [f32] {
        // SAFETY: the caller's promise.
        match unsafe { self.slice(range) } {
            SliceMut::F32(elements) => elements,
            SliceMut::Bf16(_) => panic!("expected f32 elements, got bf16"),
        }
    }
}
