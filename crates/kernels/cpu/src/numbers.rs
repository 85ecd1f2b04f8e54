//! What kernels read and write: numbers of either format, sixteen at a time, the last ones fewer.

use std::marker::PhantomData;
use std::ops::Range;

use half::bf16;

use crate::bf16::Numbers;
use crate::lanes::{Lanes, WIDTH};
use regatta_device::memory::{Format, View, ViewMut};

/// Numbers to read.
#[derive(Debug, Clone, Copy)]
pub enum Source<'a> {
    /// Single precision.
    F32(&'a [f32]),
    /// Brain floats.
    Bf16(&'a [bf16]),
}

/// Numbers to write.
#[derive(Debug)]
pub enum Target<'a> {
    /// Single precision.
    F32(&'a mut [f32]),
    /// Brain floats.
    Bf16(&'a mut [bf16]),
}

impl<'a> From<View<'a>> for Source<'a> {
    /// # Panics
    /// If they are stored as this device does not store any, or lie elsewhere.
    fn from(view: View<'a>) -> Self {
        match view.format() {
            Format::Bf16 => Self::Bf16(view.host()),
            _ => Self::F32(view.host()),
        }
    }
}

impl<'a> From<ViewMut<'a>> for Target<'a> {
    /// # Panics
    /// If they are stored as this device does not store any, or lie elsewhere.
    fn from(view: ViewMut<'a>) -> Self {
        match view.format() {
            Format::Bf16 => Self::Bf16(view.host()),
            _ => Self::F32(view.host()),
        }
    }
}

impl<'a> From<Source<'a>> for Numbers<'a> {
    fn from(source: Source<'a>) -> Self {
        match source {
            Source::F32(numbers) => Self::F32(numbers),
            Source::Bf16(numbers) => Self::Bf16(numbers),
        }
    }
}

impl<'a> Source<'a> {
    /// How many there are.
    #[inline(always)]
    pub fn len(self) -> usize {
        match self {
            Self::F32(numbers) => numbers.len(),
            Self::Bf16(numbers) => numbers.len(),
        }
    }

    /// Some of them.
    #[inline(always)]
    pub fn part(self, range: Range<usize>) -> Self {
        match self {
            Self::F32(numbers) => Self::F32(&numbers[range]),
            Self::Bf16(numbers) => Self::Bf16(&numbers[range]),
        }
    }

    /// Sixteen from a place on; zeros behind the end.
    #[inline(always)]
    pub fn get<V: Lanes>(self, at: usize) -> V {
        match self {
            Self::F32(numbers) => get(numbers, at),
            Self::Bf16(numbers) => get_half(numbers, at),
        }
    }

    /// Sixteen from a place on: no branch for an end, so that loops keep all in registers.
    ///
    /// # Safety
    /// They must be there.
    #[inline(always)]
    pub unsafe fn load<V: Lanes>(self, at: usize) -> V {
        debug_assert!(at + WIDTH <= self.len());
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::F32(numbers) => V::load(numbers.as_ptr().add(at)),
                Self::Bf16(numbers) => V::load_half(numbers.as_ptr().add(at).cast()),
            }
        }
    }

    /// One of them.
    #[inline(always)]
    pub fn one(self, at: usize) -> f32 {
        match self {
            Self::F32(numbers) => numbers[at],
            Self::Bf16(numbers) => numbers[at].to_f32(),
        }
    }
}

impl Target<'_> {
    /// How many there are.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.source().len()
    }

    /// Lends them to be read.
    #[inline(always)]
    pub fn source(&self) -> Source<'_> {
        match self {
            Self::F32(numbers) => Source::F32(numbers),
            Self::Bf16(numbers) => Source::Bf16(numbers),
        }
    }

    /// Lends some of them on.
    #[inline(always)]
    pub fn part(&mut self, range: Range<usize>) -> Target<'_> {
        match self {
            Self::F32(numbers) => Target::F32(&mut numbers[range]),
            Self::Bf16(numbers) => Target::Bf16(&mut numbers[range]),
        }
    }

    /// Sixteen from a place on; zeros behind the end.
    #[inline(always)]
    pub fn get<V: Lanes>(&self, at: usize) -> V {
        self.source().get(at)
    }

    /// All become this number.
    pub fn fill(self, number: f32) {
        match self {
            Self::F32(numbers) => numbers.fill(number),
            Self::Bf16(numbers) => numbers.fill(bf16::from_f32(number)),
        }
    }

    /// Writes sixteen from a place on: no branch for an end, so that loops keep all in registers.
    ///
    /// # Safety
    /// There must be room.
    #[inline(always)]
    pub unsafe fn store<V: Lanes>(&mut self, at: usize, lanes: V) {
        debug_assert!(at + WIDTH <= self.len());
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::F32(numbers) => lanes.store(numbers.as_mut_ptr().add(at)),
                Self::Bf16(numbers) => lanes.store_half(numbers.as_mut_ptr().add(at).cast()),
            }
        }
    }

    /// Writes sixteen from a place on, as far as there is room.
    #[inline(always)]
    pub fn put<V: Lanes>(&mut self, at: usize, lanes: V) {
        match self {
            Self::F32(numbers) => put(numbers, at, lanes),
            Self::Bf16(numbers) => put_half(numbers, at, lanes),
        }
    }
}

/// Sixteen from a place on; zeros behind the end.
#[inline(always)]
pub fn get<V: Lanes>(numbers: &[f32], at: usize) -> V {
    let rest = &numbers[at..];
    if rest.len() >= WIDTH {
        // SAFETY: there are sixteen.
        return unsafe { V::load(rest.as_ptr()) };
    }
    let mut whole = [0.0; WIDTH];
    whole[..rest.len()].copy_from_slice(rest);
    V::of(whole)
}

#[inline(always)]
fn get_half<V: Lanes>(numbers: &[bf16], at: usize) -> V {
    let rest = &numbers[at..];
    if rest.len() >= WIDTH {
        // SAFETY: there are sixteen.
        return unsafe { V::load_half(rest.as_ptr().cast()) };
    }
    let mut whole = [bf16::ZERO; WIDTH];
    whole[..rest.len()].copy_from_slice(rest);
    // SAFETY: there are sixteen.
    unsafe { V::load_half(whole.as_ptr().cast()) }
}

/// Writes sixteen from a place on, as far as there is room.
#[inline(always)]
pub fn put<V: Lanes>(numbers: &mut [f32], at: usize, lanes: V) {
    let rest = &mut numbers[at..];
    if rest.len() >= WIDTH {
        // SAFETY: there is room for sixteen.
        return unsafe { lanes.store(rest.as_mut_ptr()) };
    }
    let room = rest.len();
    rest.copy_from_slice(&lanes.array()[..room]);
}

#[inline(always)]
fn put_half<V: Lanes>(numbers: &mut [bf16], at: usize, lanes: V) {
    let rest = &mut numbers[at..];
    if rest.len() >= WIDTH {
        // SAFETY: there is room for sixteen.
        return unsafe { lanes.store_half(rest.as_mut_ptr().cast()) };
    }
    let mut whole = [bf16::ZERO; WIDTH];
    // SAFETY: there is room for sixteen.
    unsafe { lanes.store_half(whole.as_mut_ptr().cast()) };
    let room = rest.len();
    rest.copy_from_slice(&whole[..room]);
}

/// Numbers that the threads of a pool write, each its own part.
#[derive(Debug, Clone, Copy)]
pub struct Apart<'a> {
    start: *mut u8,
    elements: usize,
    format: Format,
    life: PhantomData<&'a mut [u8]>,
}

// SAFETY: it gives nothing out but by `part`, whose callers see to it that parts are disjoint.
unsafe impl Send for Apart<'_> {}
// SAFETY: as above.
unsafe impl Sync for Apart<'_> {}

impl<'a> Apart<'a> {
    /// Of all these numbers.
    pub fn new(numbers: impl Into<Target<'a>>) -> Self {
        let (start, elements, format) = match numbers.into() {
            Target::F32(numbers) => (numbers.as_mut_ptr().cast(), numbers.len(), Format::F32),
            Target::Bf16(numbers) => (numbers.as_mut_ptr().cast(), numbers.len(), Format::Bf16),
        };
        Self { start, elements, format, life: PhantomData }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.elements
    }

    /// Whether they are in single precision.
    pub fn is_real(&self) -> bool {
        self.format == Format::F32
    }

    /// Some of them.
    ///
    /// # Safety
    /// Nobody else may have any of these meanwhile.
    ///
    /// # Panics
    /// If they are not there.
    #[inline(always)]
    pub unsafe fn part(&self, range: Range<usize>) -> Target<'a> {
        assert!(range.start <= range.end && range.end <= self.elements, "{range:?}");
        // SAFETY: they are there, and the caller's alone.
        unsafe {
            let start = self.start.add(range.start * self.format.size());
            match self.format {
                Format::Bf16 => {
                    Target::Bf16(std::slice::from_raw_parts_mut(start.cast(), range.len()))
                }
                _ => Target::F32(std::slice::from_raw_parts_mut(start.cast(), range.len())),
            }
        }
    }

    /// Where a number is, in single precision.
    ///
    /// # Panics
    /// If it is not there, or is stored otherwise.
    pub fn address(&self, at: usize) -> *mut f32 {
        assert!(at < self.elements && self.format == Format::F32, "{at} of {}", self.elements);
        // SAFETY: it stays inside.
        unsafe { self.start.cast::<f32>().add(at) }
    }

    /// Some of them, which are in single precision.
    ///
    /// # Safety
    /// As [`Self::part`].
    ///
    /// # Panics
    /// If they are not there, or are stored otherwise.
    pub unsafe fn reals(&self, range: Range<usize>) -> &'a mut [f32] {
        // SAFETY: the caller's promise.
        match unsafe { self.part(range) } {
            Target::F32(numbers) => numbers,
            Target::Bf16(_) => panic!("brain floats where single precision is needed"),
        }
    }
}

impl<'a> From<&'a mut [f32]> for Target<'a> {
    fn from(numbers: &'a mut [f32]) -> Self {
        Self::F32(numbers)
    }
}
