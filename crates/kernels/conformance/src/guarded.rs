//! Tensors with the dtypes of the training engine, between guard elements.

use regatta_comm::DType;
use regatta_device::ops::Device;
use regatta_device::tensor::{Tensor, View, ViewMut};

use crate::host_copy::{copy_from_f64, copy_to_f64};

/// Guard elements on each side: few, but enough to keep the alignment of vector loads.
const GUARD: usize = 64;

/// Elements of a tensor between others that are NaN, so that results of reads out of bounds are NaN and
/// writes out of bounds are detected.
#[derive(Debug)]
pub struct Guarded {
    tensor: Tensor,
}

impl Guarded {
    /// Elements that are NaN: an output, which an operation must not read.
    pub fn output(device: &dyn Device, len: usize, dtype: DType) -> Self {
        let mut tensor = device.zeros(GUARD + len + GUARD, dtype);
        device.fill(f64::NAN, tensor.view_mut());
        Self { tensor }
    }

    /// Elements with these values.
    pub fn new(device: &dyn Device, values: &[f64], dtype: DType) -> Self {
        let mut guarded = Self::output(device, values.len(), dtype);
        copy_from_f64(device, values, guarded.view_mut());
        guarded
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.tensor.len() - 2 * GUARD
    }

    /// Borrows the elements.
    pub fn view(&self) -> View<'_> {
        self.tensor.view().slice(GUARD..GUARD + self.len())
    }

    /// Borrows the elements mutably.
    pub fn view_mut(&mut self) -> ViewMut<'_> {
        let len = self.len();
        self.tensor.view_mut().split_at(GUARD).1.split_at(len).0
    }

    /// The elements.
    ///
    /// # Panics
    /// If a guard element is no longer NaN.
    pub fn read(&self, device: &dyn Device) -> Vec<f64> {
        let mut all = copy_to_f64(device, self.tensor.view());
        let after = all.split_off(GUARD + self.len());
        let elements = all.split_off(GUARD);
        let untouched = all.iter().chain(&after).all(|guard| guard.is_nan());
        assert!(untouched, "a write out of bounds of {} elements", elements.len());
        elements
    }
}

/// Statistics, gradients of parameters.
pub fn master(device: &dyn Device, values: &[f64]) -> Guarded {
    Guarded::new(device, values, device.master_dtype())
}

/// An output like [`master`].
pub fn master_output(device: &dyn Device, len: usize) -> Guarded {
    Guarded::output(device, len, device.master_dtype())
}

/// The residual stream.
pub fn residual(device: &dyn Device, values: &[f64]) -> Guarded {
    Guarded::new(device, values, device.residual_dtype())
}

/// An output like [`residual`].
pub fn residual_output(device: &dyn Device, len: usize) -> Guarded {
    Guarded::output(device, len, device.residual_dtype())
}

/// The gradient of the residual stream.
pub fn residual_grad(device: &dyn Device, values: &[f64]) -> Guarded {
    Guarded::new(device, values, device.residual_grad_dtype())
}

/// Activations and their gradients.
pub fn activation(device: &dyn Device, values: &[f64]) -> Guarded {
    Guarded::new(device, values, device.activation_dtype())
}

/// An output like [`activation`].
pub fn activation_output(device: &dyn Device, len: usize) -> Guarded {
    Guarded::output(device, len, device.activation_dtype())
}

/// Parameters that passes read.
pub fn weight(device: &dyn Device, values: &[f64]) -> Guarded {
    Guarded::new(device, values, device.weight_dtype())
}

/// Logits.
pub fn logits(device: &dyn Device, values: &[f64]) -> Guarded {
    Guarded::new(device, values, device.logit_dtype())
}

/// An operand of a GEMM, which has this dtype if the device allows any.
pub fn gemm_operand(device: &dyn Device, values: &[f64], dtype: DType) -> Guarded {
    Guarded::new(device, values, device.gemm_dtype().unwrap_or(dtype))
}

/// Initial value of accumulated gradients.
const INITIAL_GRAD: f64 = 0.5;

/// A gradient that an operation accumulates into.
pub fn initial_grad(device: &dyn Device, len: usize) -> Guarded {
    master(device, &vec![INITIAL_GRAD; len])
}

/// The same for the gradient of the residual stream.
pub fn initial_residual_grad(device: &dyn Device, len: usize) -> Guarded {
    residual_grad(device, &vec![INITIAL_GRAD; len])
}

/// What was accumulated into it.
pub fn accumulated(device: &dyn Device, gradient: &Guarded) -> Vec<f64> {
    gradient.read(device).iter().map(|sum| sum - INITIAL_GRAD).collect()
}

#[cfg(test)]
mod tests {
    use regatta_device::DeviceMemory;
    use regatta_device::reference::Reference;

    use super::*;

    #[test]
    fn elements_are_those_between_the_guards() {
        let mut x = master(&Reference, &[1.0, 2.0]);
        Reference.fill(3.0, x.view_mut());
        assert_eq!((x.len(), x.read(&Reference)), (2, vec![3.0, 3.0]));
    }

    #[test]
    #[should_panic(expected = "a write out of bounds of 2 elements")]
    fn a_write_past_the_end_panics() {
        let mut x = master(&Reference, &[1.0, 2.0]);
        Reference.fill(3.0, x.tensor.view_mut().slice(GUARD..GUARD + 3));
        x.read(&Reference);
    }
}
