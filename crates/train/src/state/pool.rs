//! Memory for numbers that come and go: what was given back is lent again.

use std::collections::HashMap;

use crate::parallel::Company;
use regatta_device::memory::{Format, Tensor};

/// Tensors that nobody uses now, by their lengths.
#[derive(Default)]
pub struct Pool {
    /// From whose memory numbers travel best.
    company: Company,
    free: HashMap<usize, Vec<Tensor>>,
    bytes: usize,
}

impl Pool {
    /// None yet.
    pub fn new(company: Company) -> Self {
        Self { company, ..Self::default() }
    }

    /// A tensor with whatever was in it; zeros if it is a new one.
    pub fn take(&mut self, elements: usize, format: Format) -> Tensor {
        if let Some(tensor) = self.free.get_mut(&elements).and_then(Vec::pop) {
            return tensor;
        }
        let bytes = elements * format.size();
        self.bytes += bytes;
        travelling(&self.company, elements, format)
    }

    /// Nobody uses it for now.
    pub fn give(&mut self, tensor: Tensor) {
        self.free.entry(tensor.len()).or_default().push(tensor);
    }

    /// Bytes of all that were ever taken: they stay.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Zeros in memory from which they travel best; the device's is the host's so far.
pub fn travelling(company: &Company, elements: usize, format: Format) -> Tensor {
    match company {
        Some(comm) => Tensor::from_buffer(comm.buffer(elements * format.size()), format),
        None => Tensor::zeroed(elements, format),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_taken_once() {
        let mut pool = Pool::new(None);
        let (first, second) = (pool.take(4, Format::F32), pool.take(4, Format::F32));
        let other = pool.take(2, Format::F32);
        assert_eq!(pool.bytes(), 40);
        [first, second, other].into_iter().for_each(|tensor| pool.give(tensor));
        assert_eq!((pool.take(4, Format::F32).len(), pool.bytes()), (4, 40));
    }
}
