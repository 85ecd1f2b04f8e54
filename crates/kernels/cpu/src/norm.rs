//! LayerNorm and RMSNorm.

use crate::Cpu;
use crate::isa::kernel;
use crate::lanes::{Lanes, WIDTH};
use crate::slice::{DisjointMut, Slice, SliceMut, load_padded, store_partial};
use crate::thread_pool::{MIN_ELEMENTS_PER_THREAD, task_range};
use regatta_device::ops::{Norm, NormArgs, NormBackwardArgs, NormInputGrad};
use regatta_device::tensor::{View, row_count};
use regatta_device::{DeviceMemory, NormOps};

impl NormOps for Cpu {
    fn norm(&self, args: NormArgs<'_>) {
        let _timer = self.timer("norm");
        let NormArgs { norm, x, weight, bias, y, mean_rstd } = args;
        let dim = weight.len();
        let rows = row_count(x.len(), dim);
        assert!(y.len() == x.len() && mean_rstd.len() == 2 * rows, "row counts differ");
        assert!(bias.is_none_or(|bias| bias.len() == dim), "weight and bias lengths differ");
        let (weight, bias) = (weight.as_slice::<f32>(), bias.map(View::as_slice::<f32>));
        let (x, y, mean_rstd) = (Slice::from(x), DisjointMut::new(y), DisjointMut::new(mean_rstd));
        self.pool.run_ranges(rows, MIN_ELEMENTS_PER_THREAD.div_ceil(dim), 1, |range| {
            // SAFETY: ranges are disjoint.
            let (y, mean_rstd) = unsafe {
                let y = y.slice(range.start * dim..range.end * dim);
                (y, mean_rstd.slice_f32(2 * range.start..2 * range.end))
            };
            let x = x.slice(range.start * dim..range.end * dim);
            norm_kernel(self.isa, norm, x, weight, bias, y, mean_rstd);
        });
    }

    /// Each task sums the parameter gradients of its rows; these partial sums are added in order.
    fn norm_backward(&self, args: NormBackwardArgs<'_>) {
        let _timer = self.timer("norm_backward");
        let NormBackwardArgs { norm, x, weight, mean_rstd, dy, input_grad, dweight, dbias } = args;
        let NormInputGrad { mut dx, copy, column_sums } = input_grad;
        let dim = weight.len();
        let rows = row_count(dy.len(), dim);
        let lengths_match = x.len() == dy.len() && dx.len() == dy.len();
        assert!(lengths_match && mean_rstd.len() == 2 * rows, "row counts differ");
        let (x, dy) = (Slice::from(x), Slice::from(dy));
        let disjoint_dx = DisjointMut::new(dx.reborrow());
        let [weight, mean_rstd] = [weight, mean_rstd].map(View::as_slice::<f32>);
        let tasks = self.pool.tasks(rows, MIN_ELEMENTS_PER_THREAD.div_ceil(dim));
        let mut partial = self.scratch(tasks * 2 * dim);
        partial.fill(0.0);
        let partial_of_tasks = DisjointMut::new(&mut partial[..]);
        self.pool.run(tasks, |task| {
            let range = task_range(rows, tasks, task, 1);
            let elements = range.start * dim..range.end * dim;
            // SAFETY: tasks are disjoint.
            let (dx, partial) = unsafe {
                let dx = disjoint_dx.slice(elements.clone());
                (dx, partial_of_tasks.slice_f32(2 * task * dim..2 * (task + 1) * dim))
            };
            let (dweight, dbias) = partial.split_at_mut(dim);
            let (x, dy) = (x.slice(elements.clone()), dy.slice(elements));
            let mean_rstd = &mean_rstd[2 * range.start..2 * range.end];
            norm_backward_kernel(self.isa, norm, weight, mean_rstd, x, dy, dx, dweight, dbias);
        });
        let accumulate = |grad: &mut [f32], offset: usize| {
            assert_eq!(grad.len(), dim, "parameter and gradient lengths differ");
            for task in 0..tasks {
                let partial = &partial[task * 2 * dim + offset..][..dim];
                grad.iter_mut().zip(partial).for_each(|(grad, partial)| *grad += partial);
            }
        };
        accumulate(dweight.as_slice(), 0);
        if let Some(dbias) = dbias {
            accumulate(dbias.as_slice(), dim);
        }
        if let Some(copy) = copy {
            self.copy(dx.view(), copy);
        }
        if let Some(mut sums) = column_sums {
            self.zero(sums.reborrow());
            self.add_column_sums(rows, dx.view(), sums);
        }
    }
}

kernel! {
    fn norm_kernel<V>(
        norm: Norm, x: Slice<'_>, weight: &[f32], bias: Option<&[f32]>,
        y: SliceMut<'_>, mean_rstd: &mut [f32],
    ) {
        let dim = weight.len();
        for (row, mean_rstd) in mean_rstd.chunks_exact_mut(2).enumerate() {
            let range = row * dim..(row + 1) * dim;
            let (x, mut y) = (x.slice(range.clone()), y.slice(range));
            let (mean, rstd) = moments::<V>(norm, x);
            mean_rstd.copy_from_slice(&[mean, rstd]);
            let (mean, rstd) = (V::splat(mean), V::splat(rstd));
            for at in (0..dim).step_by(WIDTH) {
                let x_hat = x.load_padded::<V>(at).sub(mean).mul(rstd);
                let bias = bias.map_or(V::splat(0.0), |bias| load_padded(bias, at));
                y.store_partial(at, x_hat.mul_add(load_padded(weight, at), bias));
            }
        }
    }
}

/// Mean (0 for RMSNorm) and reciprocal standard deviation of a row.
#[inline(always)]
fn moments<V: Lanes>(norm: Norm, x: Slice<'_>) -> (f32, f32) {
    let dim = x.len() as f32;
    let vectorised = x.len() / WIDTH * WIDTH;
    let (mean, eps) = match norm {
        Norm::Rms { eps } => (0.0, eps),
        Norm::Layer { eps } => {
            let mut sum = V::splat(0.0);
            for at in (0..x.len()).step_by(WIDTH) {
                sum = sum.add(x.load_padded(at));
            }
            (sum.sum() / dim, eps)
        }
    };
    // A second pass: the difference of large squares would cancel.
    let mut sum = V::splat(0.0);
    for at in (0..vectorised).step_by(WIDTH) {
        let deviation = x.load_padded::<V>(at).sub(V::splat(mean));
        sum = deviation.mul_add(deviation, sum);
    }
    let tail: f32 = (vectorised..x.len()).map(|at| (x.get(at) - mean) * (x.get(at) - mean)).sum();
    let variance = (sum.sum() + tail) / dim;
    (mean, 1.0 / (variance + eps as f32).sqrt())
}

kernel! {
    fn norm_backward_kernel<V>(
        norm: Norm, weight: &[f32], mean_rstd: &[f32], x: Slice<'_>, dy: Slice<'_>,
        dx: SliceMut<'_>, dweight: &mut [f32], dbias: &mut [f32],
    ) {
        let dim = weight.len();
        for (row, mean_rstd) in mean_rstd.chunks_exact(2).enumerate() {
            let range = row * dim..(row + 1) * dim;
            let (x, dy, mut dx) = (x.slice(range.clone()), dy.slice(range.clone()), dx.slice(range));
            let (mean, rstd) = (V::splat(mean_rstd[0]), V::splat(mean_rstd[1]));
            let (mut sum, mut dot) = (V::splat(0.0), V::splat(0.0));
            for at in (0..dim).step_by(WIDTH) {
                let x_hat = x.load_padded::<V>(at).sub(mean).mul(rstd);
                let grad: V = dy.load_padded(at);
                store_partial(dweight, at, grad.mul_add(x_hat, load_padded(dweight, at)));
                store_partial(dbias, at, grad.add(load_padded(dbias, at)));
                let grad = grad.mul(load_padded(weight, at));
                sum = sum.add(grad);
                dot = grad.mul_add(x_hat, dot);
            }
            let mean_grad = match norm {
                Norm::Layer { .. } => sum.sum() / dim as f32,
                Norm::Rms { .. } => 0.0,
            };
            let (mean_grad, mean_dot) = (V::splat(mean_grad), V::splat(dot.sum() / dim as f32));
            for at in (0..dim).step_by(WIDTH) {
                let x_hat = x.load_padded::<V>(at).sub(mean).mul(rstd);
                let grad = dy.load_padded::<V>(at).mul(load_padded(weight, at)).sub(mean_grad);
                let grad = grad.sub(x_hat.mul(mean_dot));
                dx.store_partial(at, grad.mul_add(rstd, dx.load_padded(at)));
            }
        }
    }
}
