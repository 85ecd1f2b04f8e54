//! Cache-line-aligned memory of packed operands.

use regatta_comm::Buffer;

/// 32-bit words of a line.
pub const WORDS: usize = 16;

/// A cache line of sixteen words, each a pair of bf16 elements with the first one in the low half.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct CacheLine(pub [u32; WORDS]);

impl CacheLine {
    /// Zeros.
    pub const ZERO: Self = Self([0; WORDS]);
}

/// A growing buffer of lines, reused from call to call.
#[derive(Debug, Default)]
pub struct AlignedLines(Buffer);

impl AlignedLines {
    /// The first `count` lines, with unspecified contents. Reallocates if there are fewer.
    pub fn at_least(&mut self, count: usize) -> &mut [CacheLine] {
        if self.as_slice().len() < count {
            self.0 = Buffer::default();
            self.0 = Buffer::zeroed(count * size_of::<CacheLine>());
        }
        let start = self.0.address().as_ptr().cast();
        // SAFETY: buffers have the alignment of a line, any bits are a valid line, and there are `count`.
        unsafe { std::slice::from_raw_parts_mut(start, count) }
    }

    /// All lines.
    pub fn as_slice(&self) -> &[CacheLine] {
        let count = self.0.len() / size_of::<CacheLine>();
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.0.address().as_ptr().cast(), count) }
    }
}
