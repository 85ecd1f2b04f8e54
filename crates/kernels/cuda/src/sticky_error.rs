//! The first error of a device.

use std::sync::OnceLock;

use regatta_device::DeviceError;

/// The first error of a device: later operations would only report its consequences.
#[derive(Debug, Default)]
pub struct StickyError {
    first: OnceLock<DeviceError>,
}

impl StickyError {
    /// Records an error, unless there is one.
    pub fn set(&self, error: DeviceError) {
        let _ = self.first.set(error);
    }

    /// Whether an operation has failed.
    pub fn is_set(&self) -> bool {
        self.first.get().is_some()
    }

    /// The first error, if any.
    pub fn check(&self) -> Result<(), DeviceError> {
        self.first.get().map_or(Ok(()), |error| Err(error.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_error_is_kept() {
        let error = |operation: &str| DeviceError {
            device: "GPU 0".to_owned(),
            operation: operation.to_owned(),
            cause: "out of memory".to_owned(),
        };
        let sticky = StickyError::default();
        assert!(!sticky.is_set() && sticky.check().is_ok());
        sticky.set(error("add"));
        sticky.set(error("scale"));
        assert_eq!(sticky.check().unwrap_err(), error("add"));
        assert_eq!(error("add").to_string(), "GPU 0: add failed: out of memory");
    }
}
