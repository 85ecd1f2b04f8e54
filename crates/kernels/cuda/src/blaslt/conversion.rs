//! bf16 copies of f32 operands, which are needed only if the dtypes of a GEMM's tensors differ.

use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use regatta_comm::DType;
use regatta_device::tensor::{Tensor, View};

use crate::runtime_memory::RuntimeMemory;
use crate::{CudaDevice, Ptr};

/// The last tensor of each operand holds its copy. Smaller tensors stay valid for captured graphs; each is at most
/// half as large as the next.
#[derive(Default)]
pub(crate) struct Conversions(Mutex<[Vec<Tensor>; 2]>);

impl Conversions {
    /// A copy of operand `index` as bf16, valid until the next copy of the same operand. `None` if there
    /// is no memory for it, which is the device's error.
    pub fn to_bf16(&self, device: &CudaDevice, index: usize, x: View<'_>) -> Option<Ptr> {
        let mut conversions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let tensors = &mut conversions[index];
        let len = tensors.last().map_or(0, Tensor::len);
        if len < x.len() {
            tensors.push(allocate(device, x.len().max(2 * len))?);
        }
        let mut view = tensors.last_mut()?.view_mut();
        let copy = view.slice(0..x.len());
        let address = Ptr::of_mut(&copy);
        device.convert(x, copy);
        Some(address)
    }
}

fn allocate(device: &CudaDevice, elements: usize) -> Option<Tensor> {
    if device.has_failed() || !device.make_current() {
        return None;
    }
    let bytes = elements * DType::Bf16.size();
    let memory = match RuntimeMemory::device(&device.runtime, bytes) {
        Ok(memory) => memory,
        Err(code) => {
            let cause = device.runtime.error_string(code);
            device.fail("allocating memory for the bf16 copy of an operand", cause);
            return None;
        }
    };
    let start = NonNull::new(memory.start.cast())?;
    // SAFETY: the owner keeps the memory valid; accesses are ordered by the stream.
    let buffer = unsafe { device.gpu.adopt(start, bytes, Box::new(memory)) };
    Some(Tensor::from_buffer(buffer, DType::Bf16))
}
