//! Memory that operations need for a moment, kept for the next one.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};

use regatta_comm::Buffer;

/// Pieces of memory that nobody uses at the moment.
#[derive(Debug, Default)]
pub struct Pieces(Mutex<Vec<Buffer>>);

/// A piece of memory, on loan. What is in it is left from before.
#[derive(Debug)]
pub struct Scratch<'a> {
    memory: Buffer,
    elements: usize,
    home: &'a Pieces,
}

impl Pieces {
    /// Room for so many numbers.
    pub fn take(&self, elements: usize) -> Scratch<'_> {
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = elements * size_of::<f32>();
        // The smallest that fits; else the largest is made larger.
        let fits = free.iter().position(|memory| memory.len() >= wanted);
        let memory = match fits {
            Some(at) => free.remove(at),
            None => {
                drop(free.pop());
                drop(free);
                Buffer::zeroed(wanted)
            }
        };
        Scratch { memory, elements, home: self }
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        let memory = std::mem::take(&mut self.memory);
        let mut free = self.home.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = free.partition_point(|other| other.len() < memory.len());
        free.insert(at, memory);
    }
}

impl Deref for Scratch<'_> {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.memory.as_slice()[..self.elements]
    }
}

impl DerefMut for Scratch<'_> {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.memory.as_mut_slice()[..self.elements]
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
