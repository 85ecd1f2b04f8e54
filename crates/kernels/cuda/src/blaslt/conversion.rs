//! bf16 copies of f32 operands, which are needed only if the dtypes of a GEMM's tensors differ.

use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use regatta_comm::DType;
use regatta_device::tensor::{Tensor, View};

use super::device_buffer::DeviceBuffer;
use crate::{CudaDevice, Ptr};

/// One grow-only tensor per operand.
#[derive(Default)]
pub(crate) struct Conversions(Mutex<[Conversion; 2]>);

#[derive(Default)]
struct Conversion {
    tensor: Option<Tensor>,
    /// Smaller tensors stay valid for captured graphs. Each is at most half as large as the next.
    outgrown: Vec<Tensor>,
}

impl Conversions {
    /// A copy of operand `index` as bf16, valid until the next copy of the same operand. `None` if there
    /// is no memory for it, which is the device's error.
    pub fn to_bf16(&self, device: &CudaDevice, index: usize, x: View<'_>) -> Option<Ptr> {
        let mut conversions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let tensor = conversions[index].reserve(device, x.len())?;
        let mut view = tensor.view_mut();
        let copy = view.slice(0..x.len());
        let address = Ptr::of_mut(&copy);
        device.convert(x, copy);
        Some(address)
    }
}

impl Conversion {
    /// A tensor of at least this many elements.
    fn reserve(&mut self, device: &CudaDevice, elements: usize) -> Option<&mut Tensor> {
        let len = self.tensor.as_ref().map_or(0, Tensor::len);
        if len < elements {
            let tensor = allocate(device, elements.max(2 * len))?;
            self.outgrown.extend(self.tensor.replace(tensor));
        }
        self.tensor.as_mut()
    }
}

fn allocate(device: &CudaDevice, elements: usize) -> Option<Tensor> {
    if device.has_failed() || !device.make_current() {
        return None;
    }
    let bytes = elements * DType::Bf16.size();
    let memory = match DeviceBuffer::allocate(&device.runtime, bytes) {
        Ok(memory) => memory,
        Err(code) => {
            let cause = device.runtime.error_string(code);
            device.fail("allocating memory for the bf16 copy of an operand", cause);
            return None;
        }
    };
    let start = NonNull::new(memory.ptr().as_raw().cast())?;
    // SAFETY: the owner keeps the memory valid; accesses are ordered by the stream.
    let buffer = unsafe { device.gpu.adopt(start, bytes, Box::new(memory)) };
    Some(Tensor::from_buffer(buffer, DType::Bf16))
}
