//! Slices of f32 or bf16 elements that kernels load and store sixteen lanes at a time.

use std::marker::PhantomData;
use std::ops::Range;

use half::bf16;
use regatta_comm::DType;

use crate::gemm::bf16::Element;
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

/// Evaluates an expression for elements of either type.
macro_rules! either {
    ($slice:expr, $elements:ident => $result:expr) => {
        match $slice {
            Self::F32($elements) => $result,
            Self::Bf16($elements) => $result,
        }
    };
}

impl Slice<'_> {
    /// Number of elements.
    #[inline(always)]
    pub(crate) fn len(self) -> usize {
        either!(self, elements => elements.len())
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
        either!(self, elements => load_padded(elements, at))
    }

    /// Loads sixteen elements. Without a branch for the end, loops keep their accumulators in registers.
    ///
    /// # Safety
    /// They must be in bounds.
    #[inline(always)]
    pub unsafe fn load<V: Lanes>(self, at: usize) -> V {
        debug_assert!(at + WIDTH <= self.len());
        // SAFETY: the caller's promise.
        either!(self, elements => unsafe { Element::load(elements.as_ptr().add(at)) })
    }

    /// One element.
    #[inline(always)]
    pub fn get(self, at: usize) -> f32 {
        either!(self, elements => Element::to_f32(elements[at]))
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

    /// Pointer to the first element.
    #[inline(always)]
    pub fn as_mut_ptr(&mut self) -> ElementPtr {
        match self {
            Self::F32(elements) => ElementPtr::F32(elements.as_mut_ptr()),
            Self::Bf16(elements) => ElementPtr::Bf16(elements.as_mut_ptr()),
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
        either!(self, elements => elements.fill(Element::from_f32(value)));
    }

    /// Stores sixteen elements. Without a branch for the end, loops keep their accumulators in registers.
    ///
    /// # Safety
    /// They must be in bounds.
    #[inline(always)]
    pub unsafe fn store<V: Lanes>(&mut self, at: usize, lanes: V) {
        debug_assert!(at + WIDTH <= self.len());
        // SAFETY: the caller's promise.
        either!(self, elements => unsafe { Element::store(lanes, elements.as_mut_ptr().add(at)) });
    }

    /// Stores those of sixteen elements that are in bounds.
    #[inline(always)]
    pub fn store_partial<V: Lanes>(&mut self, at: usize, lanes: V) {
        either!(self, elements => store_partial(elements, at, lanes));
    }
}

/// Loads sixteen elements, with zeros past the end.
#[inline(always)]
pub fn load_padded<V: Lanes>(elements: &[impl Element], at: usize) -> V {
    let tail = &elements[at..];
    if tail.len() >= WIDTH {
        // SAFETY: there are sixteen.
        return unsafe { Element::load(tail.as_ptr()) };
    }
    let mut padded = [Default::default(); WIDTH];
    padded[..tail.len()].copy_from_slice(tail);
    // SAFETY: there are sixteen.
    unsafe { Element::load(padded.as_ptr()) }
}

/// Stores those of sixteen elements that are in bounds.
#[inline(always)]
pub fn store_partial<V: Lanes>(elements: &mut [impl Element], at: usize, lanes: V) {
    let tail = &mut elements[at..];
    if tail.len() >= WIDTH {
        // SAFETY: there are sixteen.
        return unsafe { Element::store(lanes, tail.as_mut_ptr()) };
    }
    let mut padded = [Default::default(); WIDTH];
    // SAFETY: there are sixteen.
    unsafe { Element::store(lanes, padded.as_mut_ptr()) };
    tail.copy_from_slice(&padded[..tail.len()]);
}

/// Pointer to elements.
#[derive(Debug, Clone, Copy)]
pub enum ElementPtr {
    F32(*mut f32),
    Bf16(*mut bf16),
}

impl ElementPtr {
    /// Further elements, which may be out of bounds.
    #[inline(always)]
    pub fn wrapping_add(self, count: usize) -> Self {
        match self {
            Self::F32(start) => Self::F32(start.wrapping_add(count)),
            Self::Bf16(start) => Self::Bf16(start.wrapping_add(count)),
        }
    }
}

/// Mutably borrowed elements of which the threads of a pool take disjoint ranges.
#[derive(Debug, Clone, Copy)]
pub struct DisjointMut<'a> {
    start: ElementPtr,
    len: usize,
    lifetime: PhantomData<&'a mut [u8]>,
}

// SAFETY: elements are reached only by `slice`, whose callers promise disjoint ranges, and by raw pointers.
unsafe impl Send for DisjointMut<'_> {}
// SAFETY: as above.
unsafe impl Sync for DisjointMut<'_> {}

impl<'a> DisjointMut<'a> {
    /// Of all these elements.
    pub fn new(elements: impl Into<SliceMut<'a>>) -> Self {
        let mut elements = elements.into();
        Self { start: elements.as_mut_ptr(), len: elements.len(), lifetime: PhantomData }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether they are f32.
    pub fn is_f32(&self) -> bool {
        matches!(self.start, ElementPtr::F32(_))
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
            match self.start.wrapping_add(range.start) {
                ElementPtr::F32(start) => {
                    SliceMut::F32(std::slice::from_raw_parts_mut(start, range.len()))
                }
                ElementPtr::Bf16(start) => {
                    SliceMut::Bf16(std::slice::from_raw_parts_mut(start, range.len()))
                }
            }
        }
    }

    /// Pointer to an f32 element.
    ///
    /// # Panics
    /// If it is out of bounds, or the elements are not f32.
    pub fn ptr_f32(&self, at: usize) -> *mut f32 {
        match self.ptr(at) {
            ElementPtr::F32(element) => element,
            ElementPtr::Bf16(_) => panic!("expected f32 elements, got bf16"),
        }
    }

    /// Pointer to an element.
    ///
    /// # Panics
    /// If it is out of bounds.
    pub fn ptr(&self, at: usize) -> ElementPtr {
        assert!(at < self.len, "{at} of {}", self.len);
        self.start.wrapping_add(at)
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
