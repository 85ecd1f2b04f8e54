//! Tensors own elements in a device's memory; views borrow them. Only a device accesses their contents.

use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;

use regatta_comm::{Buffer, DType, Element, MemorySpace};

/// A flat tensor: elements of one dtype in one memory space.
#[derive(Debug)]
pub struct Tensor {
    buffer: Buffer,
    dtype: DType,
}

impl Tensor {
    /// Zeros in host memory.
    pub fn zeros(elements: usize, dtype: DType) -> Self {
        Self { buffer: Buffer::zeroed(elements * dtype.size()), dtype }
    }

    /// Wraps a buffer.
    pub fn from_buffer(buffer: Buffer, dtype: DType) -> Self {
        Self { buffer, dtype }
    }

    /// The buffer, for a collective.
    pub fn into_buffer(self) -> Buffer {
        self.buffer
    }

    /// The bytes.
    ///
    /// # Panics
    /// If the tensor is not in host memory.
    pub fn host_bytes_mut(&mut self) -> &mut [u8] {
        self.buffer.bytes_mut()
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.buffer.len() / self.dtype.size()
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Data type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Borrows it.
    pub fn view(&self) -> View<'_> {
        let (start, space) = (self.buffer.address(), self.buffer.space());
        View { start, len: self.len(), dtype: self.dtype, space, lifetime: PhantomData }
    }

    /// Borrows it mutably.
    pub fn view_mut(&mut self) -> ViewMut<'_> {
        ViewMut { view: self.view(), exclusive: PhantomData }
    }
}

/// Borrowed elements.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    start: NonNull<u8>,
    len: usize,
    dtype: DType,
    space: MemorySpace,
    lifetime: PhantomData<&'a [u8]>,
}

// SAFETY: it is a shared slice of elements that are Sync.
unsafe impl Send for View<'_> {}
// SAFETY: as above.
unsafe impl Sync for View<'_> {}

impl<'a> View<'a> {
    /// Borrows host memory.
    pub fn from_slice<E: Element>(elements: &'a [E]) -> Self {
        let start = NonNull::from(elements).cast();
        let (len, dtype) = (elements.len(), E::DTYPE);
        Self { start, len, dtype, space: MemorySpace::Host, lifetime: PhantomData }
    }

    /// Number of elements.
    pub fn len(self) -> usize {
        self.len
    }

    /// Whether it has no elements.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Data type.
    pub fn dtype(self) -> DType {
        self.dtype
    }

    /// The memory the elements are in.
    pub fn space(self) -> MemorySpace {
        self.space
    }

    /// The address of the first element, in host or device memory.
    pub fn address(self) -> NonNull<u8> {
        self.start
    }

    /// A range of the elements.
    ///
    /// # Panics
    /// If the range is out of bounds.
    pub fn slice(self, range: Range<usize>) -> Self {
        let len = self.len;
        let in_bounds = range.start <= range.end && range.end <= len;
        assert!(in_bounds, "range {range:?} is out of bounds for {len} elements");
        // SAFETY: it stays in bounds, or one past the end.
        let start = unsafe { self.start.add(range.start * self.dtype.size()) };
        Self { start, len: range.len(), ..self }
    }

    /// The elements as a host slice.
    ///
    /// # Panics
    /// If they have another dtype or are not in host memory.
    pub fn as_slice<E: Element>(self) -> &'a [E] {
        self.assert_host::<E>();
        // SAFETY: initialised elements of this type, aligned as tensors and slices are, borrowed for 'a.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.len) }
    }

    fn assert_host<E: Element>(self) {
        let (space, dtype, wanted) = (self.space, self.dtype, E::DTYPE);
        assert!(space == MemorySpace::Host, "the elements are in {space}, not in host memory");
        assert!(dtype == wanted, "the elements are {dtype}, not {wanted}");
    }
}

/// Mutably borrowed elements.
#[derive(Debug)]
pub struct ViewMut<'a> {
    view: View<'a>,
    exclusive: PhantomData<&'a mut [u8]>,
}

// SAFETY: it is an exclusive slice of elements that are Send.
unsafe impl Send for ViewMut<'_> {}
// SAFETY: a shared reference to it can only read.
unsafe impl Sync for ViewMut<'_> {}

impl<'a> ViewMut<'a> {
    /// Borrows host memory mutably.
    pub fn from_slice<E: Element>(elements: &'a mut [E]) -> Self {
        let (len, dtype, space) = (elements.len(), E::DTYPE, MemorySpace::Host);
        let start = NonNull::from(elements).cast();
        let view = View { start, len, dtype, space, lifetime: PhantomData };
        Self { view, exclusive: PhantomData }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.view.len
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.view.len == 0
    }

    /// Data type.
    pub fn dtype(&self) -> DType {
        self.view.dtype
    }

    /// Reborrows it as shared.
    pub fn view(&self) -> View<'_> {
        self.view
    }

    /// Reborrows it.
    pub fn reborrow(&mut self) -> ViewMut<'_> {
        ViewMut { view: self.view, exclusive: PhantomData }
    }

    /// A range of the elements.
    ///
    /// # Panics
    /// If the range is out of bounds.
    pub fn slice(&mut self, range: Range<usize>) -> ViewMut<'_> {
        ViewMut { view: self.view.slice(range), exclusive: PhantomData }
    }

    /// The elements before and from an index on.
    ///
    /// # Panics
    /// If the index is out of bounds.
    pub fn split_at(self, index: usize) -> (ViewMut<'a>, ViewMut<'a>) {
        let part = |range| ViewMut { view: self.view.slice(range), exclusive: PhantomData };
        (part(0..index), part(index..self.len()))
    }

    /// The elements as a host slice.
    ///
    /// # Panics
    /// If they have another dtype or are not in host memory.
    pub fn as_slice<E: Element>(self) -> &'a mut [E] {
        self.view.assert_host::<E>();
        // SAFETY: initialised elements of this type, aligned as tensors and slices are, borrowed
        // exclusively for 'a.
        unsafe { std::slice::from_raw_parts_mut(self.view.start.as_ptr().cast(), self.view.len) }
    }
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

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;

    #[test]
    fn slices_alias_the_tensor() {
        let mut tensor = Tensor::zeros(6, DType::F32);
        tensor.view_mut().slice(2..4).as_slice::<f32>().fill(7.0);
        assert_eq!(tensor.view().as_slice::<f32>(), [0.0, 0.0, 7.0, 7.0, 0.0, 0.0]);
        let (before, after) = tensor.view_mut().split_at(3);
        assert_eq!((before.len(), after.as_slice::<f32>()[0]), (3, 7.0));
        let back = Tensor::from_buffer(tensor.into_buffer(), DType::F32);
        assert_eq!(back.view().slice(3..5).as_slice::<f32>(), [7.0, 0.0]);
    }

    #[test]
    #[should_panic(expected = "range 2..7 is out of bounds for 6 elements")]
    fn out_of_bounds_slices_panic() {
        Tensor::zeros(6, DType::F32).view().slice(2..7);
    }

    #[test]
    #[should_panic(expected = "are f32, not bf16")]
    fn wrong_dtypes_panic() {
        Tensor::zeros(6, DType::F32).view().as_slice::<bf16>();
    }
}
