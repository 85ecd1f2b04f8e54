//! Allocation and copies.

use std::ops::Range;

use regatta_comm::DType;

use crate::tensor::{Tensor, View, ViewMut};

/// Memory of a device.
pub trait DeviceMemory: Send + Sync {
    /// Data type of parameters, their gradients, the residual stream and statistics.
    fn master_dtype(&self) -> DType;

    /// Data type of other activations.
    fn activation_dtype(&self) -> DType;

    /// Allocates zeros.
    fn zeros(&self, elements: usize, dtype: DType) -> Tensor;

    /// Allocates zeros of the master dtype.
    fn zeros_master(&self, elements: usize) -> Tensor {
        self.zeros(elements, self.master_dtype())
    }

    /// Allocates zeros of the activation dtype.
    fn zeros_activation(&self, elements: usize) -> Tensor {
        self.zeros(elements, self.activation_dtype())
    }

    /// Copies from host memory. Lengths are equal.
    fn copy_from_host(&self, from: &[f32], to: ViewMut<'_>);

    /// Copies to host memory. Lengths are equal.
    fn copy_to_host(&self, from: View<'_>, to: &mut [f32]);

    /// Copies between tensors, converting the dtype.
    fn copy(&self, from: View<'_>, to: ViewMut<'_>);

    /// Copies a range of columns of `x`, whose rows have `row_len` elements, into `y`, whose rows have
    /// just these columns. Converts the dtype.
    fn copy_from_columns(&self, x: View<'_>, row_len: usize, cols: Range<usize>, y: ViewMut<'_>);

    /// Copies the rows of `x` into a range of columns of `y`, whose rows have `row_len` elements.
    /// Other columns are unchanged.
    fn copy_to_columns(&self, x: View<'_>, y: ViewMut<'_>, row_len: usize, cols: Range<usize>);

    /// Fills with a value.
    fn fill(&self, value: f64, x: ViewMut<'_>);

    /// Fills with zeros.
    fn zero(&self, x: ViewMut<'_>) {
        self.fill(0.0, x);
    }
}
