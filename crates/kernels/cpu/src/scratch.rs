//! Temporary buffers that are reused from call to call.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};

use regatta_comm::Buffer;

/// Free f32 buffers, sorted by size.
#[derive(Debug, Default)]
pub struct ScratchPool(Mutex<Vec<Buffer>>);

/// A buffer of a pool, returned when dropped. Its contents are unspecified.
#[derive(Debug)]
pub struct Scratch<'a> {
    buffer: Buffer,
    len: usize,
    pool: &'a ScratchPool,
}

impl ScratchPool {
    /// A buffer of `len` elements.
    pub fn take(&self, len: usize) -> Scratch<'_> {
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = len * size_of::<f32>();
        // Best fit; otherwise the largest one is replaced by a larger one.
        let fit = free.iter().position(|buffer| buffer.len() >= bytes);
        let buffer = match fit {
            Some(at) => free.remove(at),
            None => {
                drop(free.pop());
                drop(free);
                Buffer::zeroed(bytes)
            }
        };
        Scratch { buffer, len, pool: self }
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        let buffer = std::mem::take(&mut self.buffer);
        let mut free = self.pool.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = free.partition_point(|other| other.len() < buffer.len());
        free.insert(at, buffer);
    }
}

impl Deref for Scratch<'_> {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.buffer.as_slice()[..self.len]
    }
}

impl DerefMut for Scratch<'_> {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.buffer.as_mut_slice()[..self.len]
    }
}

/// Free objects that own buffers.
#[derive(Debug, Default)]
pub struct ObjectPool<T>(Mutex<Vec<T>>);

impl<T: Default> ObjectPool<T> {
    /// A free object, or a new one.
    pub fn take(&self) -> T {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    /// Returns an object to the pool.
    pub fn put_back(&self, object: T) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(object);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_buffers_are_reused() {
        let pool = ScratchPool::default();
        let (small, mut large) = (pool.take(5), pool.take(1000));
        assert_eq!((small.len(), large.len()), (5, 1000));
        large.fill(3.0);
        let address = large.as_ptr();
        assert_eq!(address.align_offset(64), 0);
        drop(small);
        drop(large);
        assert_eq!(pool.take(900).as_ptr(), address);
        assert_eq!(pool.take(2000).len(), 2000);
    }
}
