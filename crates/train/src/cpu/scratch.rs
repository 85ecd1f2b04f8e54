//! Memory that operations need for a moment, kept for the next one.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};

use super::lanes::WIDTH;

/// A cache line of numbers.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; WIDTH]);

/// Pieces of memory that nobody uses at the moment.
#[derive(Debug, Default)]
pub struct Pieces(Mutex<Vec<Vec<Line>>>);

/// A piece of memory, on loan. What is in it is left from before.
#[derive(Debug)]
pub struct Scratch<'a> {
    lines: Vec<Line>,
    elements: usize,
    home: &'a Pieces,
}

impl Pieces {
    /// Room for so many numbers.
    pub fn take(&self, elements: usize) -> Scratch<'_> {
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = elements.div_ceil(WIDTH);
        // The smallest that fits; else the largest is made larger.
        let fits = free.iter().position(|lines| lines.len() >= wanted);
        let mut lines = match fits {
            Some(at) => free.remove(at),
            None => free.pop().unwrap_or_default(),
        };
        drop(free);
        if lines.len() < wanted {
            lines.resize(wanted, Line([0.0; WIDTH]));
        }
        Scratch { lines, elements, home: self }
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        let lines = std::mem::take(&mut self.lines);
        let mut free = self.home.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = free.partition_point(|other| other.len() < lines.len());
        free.insert(at, lines);
    }
}

impl Deref for Scratch<'_> {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        // SAFETY: a line is so many numbers without gaps, and there are enough lines.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.elements) }
    }
}

impl DerefMut for Scratch<'_> {
    fn deref_mut(&mut self) -> &mut [f32] {
        // SAFETY: as above, and nobody else has them.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.elements) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_comes_back_and_is_used_again() {
        let pieces = Pieces::default();
        let (small, mut large) = (pieces.take(5), pieces.take(1000));
        assert_eq!((small.len(), large.len()), (5, 1000));
        large.fill(3.0);
        let address = large.as_ptr();
        assert_eq!(address.align_offset(64), 0);
        drop(small);
        drop(large);
        assert_eq!(pieces.take(900).as_ptr(), address);
        assert_eq!(pieces.take(2000).len(), 2000);
    }
}
