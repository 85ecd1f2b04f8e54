//! Host memory in f64.

use regatta_comm::DType;

use super::Reference;
use crate::ops::{ColumnRange, DeviceMemory, GraphOps, column_copy_rows};
use crate::tensor::{View, ViewMut};

impl GraphOps for Reference {}

impl DeviceMemory for Reference {
    fn master_dtype(&self) -> DType {
        DType::F64
    }

    fn activation_dtype(&self) -> DType {
        DType::F64
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

    fn copy_columns(&self, x: View<'_>, from: ColumnRange, y: ViewMut<'_>, to: ColumnRange) {
        let rows = column_copy_rows(x, &from, y.view(), &to);
        let (x, y) = (x.as_slice::<f64>(), y.as_slice::<f64>());
        (0..rows).for_each(|row| y[to.of_row(row)].copy_from_slice(&x[from.of_row(row)]));
    }

    fn fill(&self, value: f64, x: ViewMut<'_>) {
        x.as_slice::<f64>().fill(value);
    }
}
