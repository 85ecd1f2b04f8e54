//! Allocation, copies and fills.

use std::ops::Range;

use regatta_comm::DType;

use crate::Cpu;
use crate::isa::kernel;
use crate::lanes::WIDTH;
use crate::slice::{DisjointMut, Slice, SliceMut, row_count};
use regatta_device::ops::{GraphOps, SCALAR_DTYPE};
use regatta_device::precision::Precision;
use regatta_device::reference::copy_tokens;
use regatta_device::tensor::{Tensor, View, ViewMut};
use regatta_device::{DeviceError, DeviceMemory};

/// Columns of a row-major matrix.
struct ColumnRange {
    row_len: usize,
    columns: Range<usize>,
}

impl ColumnRange {
    fn row(&self, row: usize) -> Range<usize> {
        row * self.row_len + self.columns.start..row * self.row_len + self.columns.end
    }
}

impl GraphOps for Cpu {}

impl DeviceMemory for Cpu {
    fn master_dtype(&self) -> DType {
        DType::F32
    }

    fn activation_dtype(&self) -> DType {
        match self.precision {
            Precision::F32 => DType::F32,
            Precision::Bf16 => DType::Bf16,
        }
    }

    fn zeros(&self, elements: usize, dtype: DType) -> Tensor {
        Tensor::zeros(elements, dtype)
    }

    fn copy_from_host(&self, from: &[f32], to: ViewMut<'_>) {
        self.copy(View::from_slice(from), to);
    }

    fn copy_to_host(&self, from: View<'_>, to: &mut [f32]) {
        self.copy(from, ViewMut::from_slice(to));
    }

    fn copy(&self, from: View<'_>, to: ViewMut<'_>) {
        self.zip_chunks(from, to, |from, to| copy_kernel(self.isa, from, to));
    }

    fn copy_from_columns(&self, x: View<'_>, row_len: usize, cols: Range<usize>, y: ViewMut<'_>) {
        let packed = ColumnRange { row_len: cols.len(), columns: 0..cols.len() };
        self.copy_columns(x, &ColumnRange { row_len, columns: cols }, y, &packed);
    }

    fn copy_to_columns(&self, x: View<'_>, y: ViewMut<'_>, row_len: usize, cols: Range<usize>) {
        let packed = ColumnRange { row_len: cols.len(), columns: 0..cols.len() };
        self.copy_columns(x, &packed, y, &ColumnRange { row_len, columns: cols });
    }

    fn fill(&self, value: f64, x: ViewMut<'_>) {
        if x.dtype() == SCALAR_DTYPE {
            return x.as_slice::<f64>().fill(value);
        }
        self.map_chunks(x, |_, x| x.fill(value as f32));
    }

    fn copy_tokens_from_host(&self, from: &[u32], to: ViewMut<'_>) {
        copy_tokens(from, to.as_slice());
    }

    fn read_scalars(&self, scalars: View<'_>) -> Result<Vec<f64>, DeviceError> {
        Ok(scalars.as_slice().to_vec())
    }
}

impl Cpu {
    fn copy_columns(
        &self,
        from: View<'_>,
        from_columns: &ColumnRange,
        to: ViewMut<'_>,
        to_columns: &ColumnRange,
    ) {
        let columns = from_columns.columns.len();
        if columns == 0 {
            return;
        }
        let in_bounds = |range: &ColumnRange| range.columns.end <= range.row_len;
        assert!(in_bounds(from_columns) && in_bounds(to_columns), "columns are out of bounds");
        let rows = row_count(from.len(), from_columns.row_len);
        assert_eq!(rows, row_count(to.len(), to_columns.row_len), "row counts differ");
        let (from, to) = (Slice::from(from), DisjointMut::new(to));
        self.for_each_row(rows, columns, |row| {
            // SAFETY: rows are disjoint.
            let to = unsafe { to.slice(to_columns.row(row)) };
            copy_kernel(self.isa, from.slice(from_columns.row(row)), to);
        });
    }
}

kernel! {
    /// `y = x`.
    pub fn copy_kernel<V>(x: Slice<'_>, y: SliceMut<'_>) {
        for at in (0..y.len()).step_by(WIDTH) {
            y.store_partial(at, x.load_padded::<V>(at));
        }
    }
}
