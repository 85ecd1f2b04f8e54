//! Host memory in f64.

use std::ops::Range;

use regatta_comm::DType;

use super::Reference;
use crate::DeviceError;
use crate::ops::{DeviceMemory, GraphOps};
use crate::tensor::{Tensor, View, ViewMut};

impl GraphOps for Reference {}

impl DeviceMemory for Reference {
    fn master_dtype(&self) -> DType {
        DType::F64
    }

    fn activation_dtype(&self) -> DType {
        DType::F64
    }

    fn zeros(&self, elements: usize, dtype: DType) -> Tensor {
        Tensor::zeros(elements, dtype)
    }

    fn copy_from_host(&self, from: &[f32], to: ViewMut<'_>) {
        let to = to.as_slice::<f64>();
        assert_eq!(from.len(), to.len());
        to.iter_mut().zip(from).for_each(|(to, from)| *to = f64::from(*from));
    }

    fn copy_to_host(&self, from: View<'_>, to: &mut [f32]) {
        let from = from.as_slice::<f64>();
        assert_eq!(from.len(), to.len());
        to.iter_mut().zip(from).for_each(|(to, from)| *to = *from as f32);
    }

    fn copy(&self, from: View<'_>, to: ViewMut<'_>) {
        to.as_slice::<f64>().copy_from_slice(from.as_slice());
    }

    fn copy_from_columns(&self, x: View<'_>, row_len: usize, cols: Range<usize>, y: ViewMut<'_>) {
        let (x, y) = (x.as_slice::<f64>(), y.as_slice::<f64>());
        assert_eq!(x.len() * cols.len(), y.len() * row_len);
        for (row, x) in x.chunks_exact(row_len).enumerate() {
            let local = row * cols.len()..(row + 1) * cols.len();
            y[local].copy_from_slice(&x[cols.clone()]);
        }
    }

    fn copy_to_columns(&self, x: View<'_>, y: ViewMut<'_>, row_len: usize, cols: Range<usize>) {
        let (x, y) = (x.as_slice::<f64>(), y.as_slice::<f64>());
        assert_eq!(y.len() * cols.len(), x.len() * row_len);
        for (row, y) in y.chunks_exact_mut(row_len).enumerate() {
            let local = row * cols.len()..(row + 1) * cols.len();
            y[cols.clone()].copy_from_slice(&x[local]);
        }
    }

    fn fill(&self, value: f64, x: ViewMut<'_>) {
        x.as_slice::<f64>().fill(value);
    }

    fn copy_tokens_from_host(&self, from: &[u32], to: ViewMut<'_>) {
        copy_tokens(from, to.as_slice());
    }

    fn read_scalars(&self, scalars: View<'_>) -> Result<Vec<f64>, DeviceError> {
        Ok(scalars.as_slice().to_vec())
    }
}

/// Converts token ids. Vocabularies are far smaller than an i32.
pub fn copy_tokens(from: &[u32], to: &mut [i32]) {
    assert_eq!(from.len(), to.len());
    to.iter_mut().zip(from).for_each(|(to, from)| *to = *from as i32);
}
