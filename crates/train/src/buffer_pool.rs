//! Reusable tensor buffers: a step needs the same sizes as the step before, and fresh memory from the
//! system costs more than many operations.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::parallel::ProcessGroup;
use regatta_comm::{DType, MemorySpace};
use regatta_device::ops::Device;
use regatta_device::tensor::Tensor;

/// A pool of buffers, keyed by length and dtype.
#[derive(Clone)]
pub struct BufferPool {
    device: Arc<dyn Device>,
    /// Buffers are allocated for communication in this group.
    group: ProcessGroup,
    free: FreeList,
}

type FreeList = Arc<Mutex<Free>>;

#[derive(Debug, Default)]
struct Free {
    tensors: HashMap<(usize, DType), Vec<Tensor>>,
    /// Bytes of all buffers, in use or free.
    bytes: usize,
    peak_bytes: usize,
    /// Buffers that were taken and not returned.
    in_use: usize,
    trims: u64,
}

fn lock(free: &FreeList) -> MutexGuard<'_, Free> {
    free.lock().unwrap_or_else(PoisonError::into_inner)
}

fn give(free: &FreeList, tensor: Tensor) {
    let mut free = lock(free);
    free.in_use = free.in_use.saturating_sub(1);
    free.tensors.entry((tensor.len(), tensor.dtype())).or_default().push(tensor);
}

impl BufferPool {
    /// An empty pool of device memory.
    pub fn new(device: Arc<dyn Device>) -> Self {
        Self::for_group(device, None)
    }

    /// An empty pool of memory that the communicator of `group` can use directly.
    pub fn for_group(device: Arc<dyn Device>, group: ProcessGroup) -> Self {
        Self { device, group, free: FreeList::default() }
    }

    /// Takes a buffer with arbitrary contents; a newly allocated one is zeroed.
    pub fn take(&self, elements: usize, dtype: DType) -> Tensor {
        let mut free = lock(&self.free);
        free.in_use += 1;
        if let Some(tensor) = free.tensors.get_mut(&(elements, dtype)).and_then(Vec::pop) {
            return tensor;
        }
        free.bytes += elements * dtype.size();
        free.peak_bytes = free.peak_bytes.max(free.bytes);
        drop(free);
        self.alloc(elements, dtype)
    }

    /// Allocates zeros that do not belong to the pool.
    pub fn alloc(&self, elements: usize, dtype: DType) -> Tensor {
        alloc_comm_buffer(&*self.device, &self.group, elements, dtype)
    }

    /// Returns a buffer that was taken.
    pub fn give(&self, tensor: Tensor) {
        give(&self.free, tensor);
    }

    /// Takes a buffer that returns to the pool when dropped.
    pub fn get(&self, elements: usize, dtype: DType) -> PooledTensor {
        let tensor = Some(self.take(elements, dtype));
        PooledTensor { tensor, free: self.free.clone() }
    }

    /// Frees unused buffers, before a phase that needs other sizes.
    pub fn trim(&self) {
        let mut free = lock(&self.free);
        let unused: usize = free.tensors.values().flatten().map(byte_len).sum();
        free.tensors.clear();
        free.bytes -= unused;
        free.trims += 1;
    }

    /// Whether all buffers are free.
    pub fn is_idle(&self) -> bool {
        lock(&self.free).in_use == 0
    }

    /// Number of calls of [`BufferPool::trim`]: buffers stay allocated until the next.
    pub fn trims(&self) -> u64 {
        lock(&self.free).trims
    }

    /// Peak bytes of all buffers of the pool.
    pub fn peak_bytes(&self) -> usize {
        lock(&self.free).peak_bytes
    }
}

/// Allocates zeros in memory that the communicator of `group` can use directly; without a group, in
/// device memory.
pub fn alloc_comm_buffer(
    device: &dyn Device,
    group: &ProcessGroup,
    elements: usize,
    dtype: DType,
) -> Tensor {
    match group {
        Some(comm) if device.memory_space() == MemorySpace::Host => {
            Tensor::from_buffer(comm.buffer(elements * dtype.size()), dtype)
        }
        _ => device.zeros(elements, dtype),
    }
}

/// Bytes of a tensor.
pub fn byte_len(tensor: &Tensor) -> usize {
    tensor.len() * tensor.dtype().size()
}

/// A tensor that returns to its pool when dropped.
#[derive(Debug)]
pub struct PooledTensor {
    /// `None` only after [`PooledTensor::take`].
    tensor: Option<Tensor>,
    free: FreeList,
}

/// The pool of a tensor that was taken out of its [`PooledTensor`].
#[derive(Debug)]
pub struct PoolSlot(FreeList);

impl PoolSlot {
    /// Puts the tensor back into a [`PooledTensor`].
    pub fn fill(self, tensor: Tensor) -> PooledTensor {
        PooledTensor { tensor: Some(tensor), free: self.0 }
    }
}

const REMOVED: &str = "only `take` and `drop` remove the tensor";

impl PooledTensor {
    /// Takes the tensor, for a collective that needs to own it.
    pub fn take(mut self) -> (Tensor, PoolSlot) {
        let Some(tensor) = self.tensor.take() else { unreachable!("{REMOVED}") };
        (tensor, PoolSlot(self.free.clone()))
    }
}

impl Deref for PooledTensor {
    type Target = Tensor;

    fn deref(&self) -> &Tensor {
        let Some(tensor) = &self.tensor else { unreachable!("{REMOVED}") };
        tensor
    }
}

impl DerefMut for PooledTensor {
    fn deref_mut(&mut self) -> &mut Tensor {
        let Some(tensor) = &mut self.tensor else { unreachable!("{REMOVED}") };
        tensor
    }
}

impl Drop for PooledTensor {
    fn drop(&mut self) {
        if let Some(tensor) = self.tensor.take() {
            give(&self.free, tensor);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use regatta_device::reference::Reference;

    const F64_BYTES: usize = size_of::<f64>();

    #[test]
    fn buffers_are_reused_by_length() {
        let pool = BufferPool::new(Arc::new(Reference));
        let take = |elements| pool.take(elements, DType::F64);
        let (first, second, other) = (take(4), take(4), take(2));
        assert_eq!(pool.peak_bytes(), 10 * F64_BYTES);
        [first, second, other].into_iter().for_each(|tensor| pool.give(tensor));
        assert_eq!((take(4).len(), pool.peak_bytes()), (4, 10 * F64_BYTES));
    }

    #[test]
    fn dropped_tensors_return_to_the_pool_until_it_is_trimmed() {
        let pool = BufferPool::new(Arc::new(Reference));
        let get = |elements| pool.get(elements, DType::F64);
        let mut first = get(4);
        first.view_mut().as_slice::<f64>()[0] = 5.0;
        let second = get(4);
        assert_eq!(second.view().as_slice::<f64>()[0], 0.0);
        assert!(!pool.is_idle());
        drop(first);
        assert_eq!(get(4).view().as_slice::<f64>()[0], 5.0);
        assert_eq!(get(3).len(), 3);
        assert_eq!(pool.peak_bytes(), (4 + 4 + 3) * F64_BYTES);
        pool.trim();
        drop((second, get(4)));
        assert!(pool.is_idle() && pool.trims() == 1);
        assert_eq!(pool.peak_bytes(), (4 + 4 + 3) * F64_BYTES);
    }
}
