//! The device interface of the training engine: tensors in a device's memory, the fused operations
//! that training consists of ([`Device`](device::Device)), and a reference device in f64.

pub mod device;
pub mod memory;
pub mod optimizer;
pub mod precision;
pub mod random;
pub mod reference;
