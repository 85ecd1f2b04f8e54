//! Packed memory: whole lines of the cache.

use regatta_comm::Buffer;

/// Words of a line.
pub const WORDS: usize = 16;

/// Sixteen words, each two brain floats: the first of the pair in the low half.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Line(pub [u32; WORDS]);

impl Line {
    /// Zeros.
    pub const ZERO: Self = Self([0; WORDS]);
}

/// Lines that are kept from call to call.
#[derive(Debug, Default)]
pub struct Lines(Buffer);

impl Lines {
    /// As many lines as are asked for, with whatever is in them.
    pub fn at_least(&mut self, count: usize) -> &mut [Line] {
        if self.all().len() < count {
            self.0 = Buffer::default();
            self.0 = Buffer::zeroed(count * size_of::<Line>());
        }
        let start = self.0.address().as_ptr().cast();
        // SAFETY: a buffer is aligned as a line is, any words are one, and there are so many.
        unsafe { std::slice::from_raw_parts_mut(start, count) }
    }

    /// All there are.
    pub fn all(&self) -> &[Line] {
        let count = self.0.len() / size_of::<Line>();
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.0.address().as_ptr().cast(), count) }
    }
}
