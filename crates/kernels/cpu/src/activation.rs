//! GELU and SwiGLU.

use crate::Cpu;
use crate::isa::kernel;
use crate::lanes::WIDTH;
use crate::math::{gelu, sigmoid};
use crate::slice::{DisjointMut, Slice, SliceMut};
use crate::thread_pool::MIN_ELEMENTS_PER_THREAD;
use regatta_device::ActivationOps;
use regatta_device::tensor::{View, ViewMut, row_count};

impl ActivationOps for Cpu {
    fn gelu(&self, x: ViewMut<'_>, y: ViewMut<'_>) {
        let _timer = self.timer("gelu");
        assert_eq!(x.len(), y.len(), "tensor lengths differ");
        let (x, y) = (DisjointMut::new(x), DisjointMut::new(y));
        self.pool.run_balanced(y.len(), MIN_ELEMENTS_PER_THREAD, WIDTH, |range| {
            // SAFETY: ranges are disjoint.
            let (x, y) = unsafe { (x.slice(range.clone()), y.slice(range)) };
            gelu_kernel(self.isa, x, y);
        });
    }

    fn gelu_backward(&self, derivative: View<'_>, mut dy: ViewMut<'_>, dbias: Option<ViewMut<'_>>) {
        let _timer = self.timer("gelu_backward");
        self.zip_chunks(derivative, dy.reborrow(), |by, dy| mul_assign_kernel(self.isa, by, dy));
        if let Some(dbias) = dbias {
            self.add_column_sums(row_count(dy.len(), dbias.len()), dy.view(), dbias);
        }
    }

    fn swiglu(&self, dim: usize, x: View<'_>, y: ViewMut<'_>) {
        let _timer = self.timer("swiglu");
        assert_eq!(x.len(), 2 * y.len(), "a row of x has a gate and an up element per output");
        let (rows, x, y) = (row_count(y.len(), dim), Slice::from(x), DisjointMut::new(y));
        self.for_each_row(rows, dim, |row| {
            // SAFETY: rows are disjoint.
            let y = unsafe { y.slice(row * dim..(row + 1) * dim) };
            swiglu_kernel(self.isa, x.slice(2 * row * dim..2 * (row + 1) * dim), y);
        });
    }

    fn swiglu_backward(&self, dim: usize, x: View<'_>, dy: View<'_>, dx: ViewMut<'_>) {
        let _timer = self.timer("swiglu_backward");
        let lengths_match = x.len() == dx.len() && x.len() == 2 * dy.len();
        assert!(lengths_match, "a row of x has a gate and an up element per output");
        let rows = row_count(dy.len(), dim);
        let (x, dy, dx) = (Slice::from(x), Slice::from(dy), DisjointMut::new(dx));
        self.for_each_row(rows, dim, |row| {
            let gate_up = 2 * row * dim..2 * (row + 1) * dim;
            // SAFETY: rows are disjoint.
            let dx = unsafe { dx.slice(gate_up.clone()) };
            let dy = dy.slice(row * dim..(row + 1) * dim);
            swiglu_backward_kernel(self.isa, x.slice(gate_up), dy, dx);
        });
    }
}

kernel! {
    /// `y = gelu(x)`; `x` becomes the derivative.
    fn gelu_kernel<V>(x: SliceMut<'_>, y: SliceMut<'_>) {
        for at in (0..y.len()).step_by(WIDTH) {
            let [activation, derivative] = gelu(x.load_padded::<V>(at));
            y.store_partial(at, activation);
            x.store_partial(at, derivative);
        }
    }

    fn mul_assign_kernel<V>(x: Slice<'_>, y: SliceMut<'_>) {
        for at in (0..y.len()).step_by(WIDTH) {
            y.store_partial(at, y.load_padded::<V>(at).mul(x.load_padded(at)));
        }
    }

    fn swiglu_kernel<V>(x: Slice<'_>, y: SliceMut<'_>) {
        let dim = y.len();
        let (gates, ups) = (x.slice(0..dim), x.slice(dim..2 * dim));
        for at in (0..dim).step_by(WIDTH) {
            let gate: V = gates.load_padded(at);
            y.store_partial(at, gate.mul(sigmoid(gate)).mul(ups.load_padded(at)));
        }
    }

    fn swiglu_backward_kernel<V>(x: Slice<'_>, dy: Slice<'_>, dx: SliceMut<'_>) {
        let dim = dy.len();
        let (gates, ups) = (x.slice(0..dim), x.slice(dim..2 * dim));
        for at in (0..dim).step_by(WIDTH) {
            let gate: V = gates.load_padded(at);
            let (up, dy): (V, V) = (ups.load_padded(at), dy.load_padded(at));
            let s = sigmoid(gate);
            // silu' = s + x s (1 - s).
            let derivative = gate.mul(s).mul_add(V::splat(1.0).sub(s), s);
            dx.slice(0..dim).store_partial(at, dy.mul(up).mul(derivative));
            dx.slice(dim..2 * dim).store_partial(at, dy.mul(gate.mul(s)));
        }
    }
}
