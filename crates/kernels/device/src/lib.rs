//! The device interface of the training engine: tensors in a device's memory, the fused operations of
//! training grouped into sub-traits of [`Device`], and a reference device in f64.
//!
//! Conventions: a tensor of activations has one row per token. Parameters, gradients of
//! parameters and statistics have the device's [`DeviceMemory::master_dtype`], the residual stream has its
//! [`DeviceMemory::residual_dtype`], and the gradient of that its
//! [`DeviceMemory::residual_grad_dtype`]; other activations and their gradients have its
//! [`DeviceMemory::activation_dtype`], which may be narrower.
//! Operations accept either, by the dtype of the view. Gradients of parameters are accumulated into their
//! buffer. Scalars that operations produce stay in device memory. Wrong lengths are bugs of the caller and
//! panic.

pub mod e4m3;
mod error;
mod host_tensor;
pub mod ops;
pub mod optimizer;
pub mod precision;
pub mod random;
pub mod reference;
pub mod tensor;

pub use error::DeviceError;
pub use host_tensor::HostTensor;
pub use ops::{
    ActivationOps, AttentionOps, Device, DeviceMemory, ElementwiseOps, EmbeddingOps, Fp8Ops,
    GraphOps, LinearOps, LossOps, NormOps, OptimizerOps,
};
