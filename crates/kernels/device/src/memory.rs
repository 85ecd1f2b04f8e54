//! Numbers in a device's memory: tensors own them, views lend them. Only a device looks inside.

use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;

use half::bf16;
use regatta_comm::{Buffer, DType, Space};

/// How a number is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// Double precision: what results are checked by.
    F64,
    /// Single precision.
    F32,
    /// Brain float: half the bytes, an eighth of the digits.
    Bf16,
}

impl Format {
    /// Bytes of a number.
    pub fn size(self) -> usize {
        DType::from(self).size()
    }
}

impl From<Format> for DType {
    fn from(format: Format) -> Self {
        match format {
            Format::F64 => Self::F64,
            Format::F32 => Self::F32,
            Format::Bf16 => Self::Bf16,
        }
    }
}

/// A type that the host knows numbers by.
pub trait Stored: Copy + Send + Sync + 'static {
    /// How they are stored.
    const FORMAT: Format;
}

impl Stored for f64 {
    const FORMAT: Format = Format::F64;
}
impl Stored for f32 {
    const FORMAT: Format = Format::F32;
}
impl Stored for bf16 {
    const FORMAT: Format = Format::Bf16;
}

/// Numbers of one format in one place. What they are is for whoever has them to know.
#[derive(Debug)]
pub struct Tensor {
    buffer: Buffer,
    format: Format,
}

impl Tensor {
    /// Zeros in host memory.
    pub fn zeroed(elements: usize, format: Format) -> Self {
        Self { buffer: Buffer::zeroed(elements * format.size()), format }
    }

    /// Numbers that are in a buffer already.
    pub fn from_buffer(buffer: Buffer, format: Format) -> Self {
        Self { buffer, format }
    }

    /// The buffer, for a collective.
    pub fn into_buffer(self) -> Buffer {
        self.buffer
    }

    /// How many numbers there are.
    pub fn len(&self) -> usize {
        self.buffer.len() / self.format.size()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How they are stored.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Lends them.
    pub fn view(&self) -> View<'_> {
        let (start, space) = (self.buffer.address(), self.buffer.space());
        View { start, elements: self.len(), format: self.format, space, life: PhantomData }
    }

    /// Lends them to be written.
    pub fn view_mut(&mut self) -> ViewMut<'_> {
        let (start, space) = (self.buffer.address(), self.buffer.space());
        ViewMut { start, elements: self.len(), format: self.format, space, life: PhantomData }
    }
}

/// Numbers to read.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    start: NonNull<u8>,
    elements: usize,
    format: Format,
    space: Space,
    life: PhantomData<&'a [u8]>,
}

// SAFETY: it is a shared slice, of numbers that are Sync, wherever they lie.
unsafe impl Send for View<'_> {}
// SAFETY: as above.
unsafe impl Sync for View<'_> {}

impl<'a> View<'a> {
    /// Numbers of the host's.
    pub fn of<E: Stored>(numbers: &'a [E]) -> Self {
        let start = NonNull::from(numbers).cast();
        let (elements, format) = (numbers.len(), E::FORMAT);
        Self { start, elements, format, space: Space::Host, life: PhantomData }
    }

    /// How many there are.
    pub fn len(self) -> usize {
        self.elements
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.elements == 0
    }

    /// How they are stored.
    pub fn format(self) -> Format {
        self.format
    }

    /// Some of them.
    ///
    /// # Panics
    /// If they are not there.
    pub fn part(self, range: Range<usize>) -> Self {
        let (start, elements) = within(self.start, self.elements, self.format, &range);
        Self { start, elements, ..self }
    }

    /// As the host sees them.
    ///
    /// # Panics
    /// If they are stored otherwise, or lie on a device.
    pub fn host<E: Stored>(self) -> &'a [E] {
        assert_host(self.space, self.format, E::FORMAT);
        // SAFETY: they are initialised, of this type, aligned as tensors and slices are, and
        // borrowed for this long.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.elements) }
    }
}

/// Numbers to read and write, by nobody else meanwhile.
#[derive(Debug)]
pub struct ViewMut<'a> {
    start: NonNull<u8>,
    elements: usize,
    format: Format,
    space: Space,
    life: PhantomData<&'a mut [u8]>,
}

// SAFETY: it is an exclusive slice of numbers that are Send, wherever they lie.
unsafe impl Send for ViewMut<'_> {}
// SAFETY: a shared one can only be read.
unsafe impl Sync for ViewMut<'_> {}

impl<'a> ViewMut<'a> {
    /// Numbers of the host's.
    pub fn of<E: Stored>(numbers: &'a mut [E]) -> Self {
        let (elements, format) = (numbers.len(), E::FORMAT);
        let start = NonNull::from(numbers).cast();
        Self { start, elements, format, space: Space::Host, life: PhantomData }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.elements
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.elements == 0
    }

    /// How they are stored.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Lends them on to be read.
    pub fn view(&self) -> View<'_> {
        let Self { start, elements, format, space, .. } = *self;
        View { start, elements, format, space, life: PhantomData }
    }

    /// Lends them on to be written.
    pub fn again(&mut self) -> ViewMut<'_> {
        let Self { start, elements, format, space, .. } = *self;
        ViewMut { start, elements, format, space, life: PhantomData }
    }

    /// Lends some of them on.
    ///
    /// # Panics
    /// If they are not there.
    pub fn part(&mut self, range: Range<usize>) -> ViewMut<'_> {
        let (start, elements) = within(self.start, self.elements, self.format, &range);
        ViewMut { start, elements, ..self.again() }
    }

    /// Those before and from a place on.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn split_at(self, middle: usize) -> (ViewMut<'a>, ViewMut<'a>) {
        let (first, before) = within(self.start, self.elements, self.format, &(0..middle));
        let (second, after) =
            within(self.start, self.elements, self.format, &(middle..self.elements));
        let Self { format, space, life, .. } = self;
        let one = |start, elements| ViewMut { start, elements, format, space, life };
        (one(first, before), one(second, after))
    }

    /// As the host sees them.
    ///
    /// # Panics
    /// If they are stored otherwise, or lie on a device.
    pub fn host<E: Stored>(self) -> &'a mut [E] {
        assert_host(self.space, self.format, E::FORMAT);
        // SAFETY: they are initialised, of this type, aligned as tensors and slices are, and
        // nobody else's for this long.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().cast(), self.elements) }
    }
}

fn within(
    start: NonNull<u8>,
    elements: usize,
    format: Format,
    range: &Range<usize>,
) -> (NonNull<u8>, usize) {
    assert!(
        range.start <= range.end && range.end <= elements,
        "numbers {range:?} of {elements} do not exist"
    );
    // SAFETY: it stays inside, or one behind the end.
    let start = unsafe { start.add(range.start * format.size()) };
    (start, range.len())
}

fn assert_host(space: Space, format: Format, wanted: Format) {
    assert!(space == Space::Host, "the numbers lie in {space}");
    assert!(format == wanted, "the numbers are {format:?}, not {wanted:?}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_the_same_memory() {
        let mut tensor = Tensor::zeroed(6, Format::F32);
        tensor.view_mut().part(2..4).host::<f32>().fill(7.0);
        assert_eq!(tensor.view().host::<f32>(), [0.0, 0.0, 7.0, 7.0, 0.0, 0.0]);
        let (before, after) = tensor.view_mut().split_at(3);
        assert_eq!((before.len(), after.host::<f32>()[0]), (3, 7.0));
        let back = Tensor::from_buffer(tensor.into_buffer(), Format::F32);
        assert_eq!(back.view().part(3..5).host::<f32>(), [7.0, 0.0]);
    }

    #[test]
    #[should_panic(expected = "numbers 2..7 of 6 do not exist")]
    fn what_is_not_there_is_not_lent() {
        Tensor::zeroed(6, Format::F32).view().part(2..7);
    }

    #[test]
    #[should_panic(expected = "are F32, not Bf16")]
    fn numbers_are_not_mistaken_for_others() {
        Tensor::zeroed(6, Format::F32).view().host::<bf16>();
    }
}
