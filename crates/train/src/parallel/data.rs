//! Data parallel: every rank has all parameters and a part of the batch; gradients are summed.
//!
//! The gradients of a block begin their way as soon as its backward pass is over, while those of the
//! blocks before it are still computed.

use std::sync::Arc;

use regatta_comm::{Comm, CommError, Pending};

use super::Exchange;
use super::zero::{ended, sum};
use regatta_device::device::Device;
use regatta_device::memory::{Format, Tensor};

/// Ranks with a copy of the model each.
pub struct DataParallel {
    comm: Arc<dyn Comm>,
    under_way: Vec<(usize, Format, Pending)>,
}

impl DataParallel {
    /// Among the ranks of a communicator.
    pub fn new(comm: Arc<dyn Comm>) -> Self {
        Self { comm, under_way: Vec::new() }
    }
}

impl Exchange for DataParallel {
    fn memory(&self, device: &dyn Device, elements: usize) -> Tensor {
        let format = device.real_format();
        Tensor::from_buffer(self.comm.buffer(elements * format.size()), format)
    }

    fn ready(&mut self, _: &dyn Device, block: usize, gradients: Tensor) -> Result<(), CommError> {
        let format = gradients.format();
        self.under_way.push((block, format, sum(&*self.comm, gradients)));
        Ok(())
    }

    fn finish(&mut self, _: &dyn Device) -> Result<Vec<(usize, Tensor)>, CommError> {
        let wait = |(block, format, pending): (usize, Format, Pending)| {
            Ok((block, ended(pending, format)?))
        };
        self.under_way.drain(..).map(wait).collect()
    }
}
