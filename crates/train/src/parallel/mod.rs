//! How ranks share the work: one file an axis.

mod alone;
pub mod context;
mod data;
mod groups;
mod message;
pub mod pipeline;
pub mod tensor;
mod waits;
pub mod zero;

pub use alone::Alone;
pub use data::DataParallel;
pub use groups::{Company, Groups, Link};
pub use waits::Waits;
pub use zero::Zero;

use regatta_comm::CommError;

use regatta_device::device::Device;
use regatta_device::memory::Tensor;

/// How gradients get from what each rank has to what all have together, while the backward pass
/// goes on.
pub trait Exchange: Send {
    /// Memory for gradients, from which they travel best.
    fn memory(&self, device: &dyn Device, elements: usize) -> Tensor;

    /// This rank's gradients of a block are complete.
    fn ready(
        &mut self,
        device: &dyn Device,
        block: usize,
        gradients: Tensor,
    ) -> Result<(), CommError>;

    /// Waits until the sums of all ranks are here, and gives them back with their blocks.
    fn finish(&mut self, device: &dyn Device) -> Result<Vec<(usize, Tensor)>, CommError>;

    /// Bytes of memory of its own, beside the gradients'.
    fn bytes(&self) -> usize {
        0
    }
}
