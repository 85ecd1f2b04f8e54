//! Packed memory: whole lines of the cache.

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
pub struct Lines(Vec<Line>);

impl Lines {
    /// As many lines as are asked for, with whatever was in them.
    pub fn at_least(&mut self, count: usize) -> &mut [Line] {
        if self.0.len() < count {
            self.0.resize(count, Line::ZERO);
        }
        &mut self.0[..count]
    }

    /// All there are.
    pub fn all(&self) -> &[Line] {
        &self.0
    }
}
