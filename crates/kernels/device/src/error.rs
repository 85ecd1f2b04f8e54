//! Errors of a device.

/// A failed operation of a device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{device}: {operation} failed: {cause}")]
pub struct DeviceError {
    /// The device, such as `NVIDIA H200 (device 0)`.
    pub device: String,
    /// The operation or kernel.
    pub operation: String,
    /// The cause, and the fix where one is known.
    pub cause: String,
}
