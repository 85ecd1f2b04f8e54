//! Linear layers.

use crate::Cpu;
use crate::gemm::bf16::MatrixSlice;
use crate::gemm::{Epilogue, GemmArgs, GemmShape};
use crate::isa::kernel;
use crate::lanes::WIDTH;
use crate::memory::copy_kernel;
use crate::slice::{DisjointMut, Slice, SliceMut, load_padded, store_partial};
use crate::thread_pool::MIN_ELEMENTS_PER_THREAD;
use regatta_device::LinearOps;
use regatta_device::ops::{
    LinearArgs, LinearBackwardInputArgs, LinearBackwardWeightArgs, LinearShape,
};
use regatta_device::tensor::{View, ViewMut, row_count};

impl LinearOps for Cpu {
    fn linear(&self, args: LinearArgs<'_>) {
        let LinearArgs { shape: LinearShape { rows, inputs, outputs }, x, weight, bias, y } = args;
        let shape = GemmShape { m: rows, n: outputs, k: inputs };
        let a = MatrixSlice::row_major(x, inputs);
        let b = MatrixSlice::row_major(weight, inputs).transposed();
        let epilogue = bias.map_or(Epilogue::Store, |bias| Epilogue::Bias(bias.as_slice()));
        self.gemm(GemmArgs { shape, a, b, epilogue }, y);
    }

    fn linear_backward_input(&self, args: LinearBackwardInputArgs<'_>) {
        let LinearBackwardInputArgs { shape, dy, weight, dx, accumulate } = args;
        let LinearShape { rows, inputs, outputs } = shape;
        let shape = GemmShape { m: rows, n: inputs, k: outputs };
        let a = MatrixSlice::row_major(dy, outputs);
        let b = MatrixSlice::row_major(weight, inputs);
        let epilogue = if accumulate { Epilogue::Accumulate } else { Epilogue::Store };
        self.gemm(GemmArgs { shape, a, b, epilogue }, dx);
    }

    fn linear_backward_weight(&self, args: LinearBackwardWeightArgs<'_>) {
        let LinearBackwardWeightArgs { shape, x, dy, dweight, dbias } = args;
        let LinearShape { rows, inputs, outputs } = shape;
        if let Some(dbias) = dbias {
            self.add_column_sums(rows, dy, dbias);
        }
        let shape = GemmShape { m: outputs, n: inputs, k: rows };
        let a = MatrixSlice::row_major(dy, outputs).transposed();
        let b = MatrixSlice::row_major(x, inputs);
        self.gemm(GemmArgs { shape, a, b, epilogue: Epilogue::Accumulate }, dweight);
    }
}

impl Cpu {
    /// Copies `row` to every row of `y`.
    pub(crate) fn broadcast_row(&self, row: &[f32], y: ViewMut<'_>) {
        let columns = row.len();
        let rows = row_count(y.len(), columns);
        let y = DisjointMut::new(y);
        self.for_each_row(rows, columns, |at| {
            // SAFETY: rows are disjoint.
            match unsafe { y.slice(at * columns..(at + 1) * columns) } {
                SliceMut::F32(y) => y.copy_from_slice(row),
                y => copy_kernel(self.isa, Slice::F32(row), y),
            }
        });
    }

    /// Adds the column sums of `x` to `sums`. Split by columns, so that the order of additions does not
    /// depend on the number of threads.
    pub(crate) fn add_column_sums(&self, rows: usize, x: View<'_>, sums: ViewMut<'_>) {
        let _timer = self.timer("add_column_sums");
        let columns = sums.len();
        assert_eq!(x.len(), rows * columns, "dy does not have the layer's shape");
        let (x, sums) = (Slice::from(x), DisjointMut::new(sums));
        let min_columns = MIN_ELEMENTS_PER_THREAD.div_ceil(rows.max(1));
        self.pool.run_ranges(columns, min_columns, WIDTH, |range| {
            // SAFETY: columns are disjoint.
            let sums = unsafe { sums.slice_f32(range.clone()) };
            column_sums_kernel(self.isa, x, columns, range.start, sums);
        });
    }
}

kernel! {
    /// Adds to `sums` the columns from `first` on of `x`, four vectors of columns at a time.
    fn column_sums_kernel<V>(x: Slice<'_>, row_len: usize, first: usize, sums: &mut [f32]) {
        const UNROLLED: usize = 4 * WIDTH;
        let rows = x.len() / row_len.max(1);
        let unrolled = sums.len() / UNROLLED * UNROLLED;
        for at in (0..unrolled).step_by(UNROLLED) {
            let mut acc: [V; 4] = std::array::from_fn(|v| load_padded(sums, at + v * WIDTH));
            for row in 0..rows {
                let start = row * row_len + first + at;
                let x = x.slice(start..start + UNROLLED);
                for (v, sum) in acc.iter_mut().enumerate() {
                    *sum = sum.add(x.load_padded(v * WIDTH));
                }
            }
            for (v, sum) in acc.into_iter().enumerate() {
                store_partial(sums, at + v * WIDTH, sum);
            }
        }
        for at in (unrolled..sums.len()).step_by(WIDTH) {
            let end = sums.len().min(at + WIDTH);
            let mut sum: V = load_padded(sums, at);
            for row in 0..rows {
                let start = row * row_len + first;
                sum = sum.add(x.slice(start + at..start + end).load_padded(0));
            }
            store_partial(sums, at, sum);
        }
    }
}
