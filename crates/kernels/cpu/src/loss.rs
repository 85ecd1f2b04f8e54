//! Cross-entropy, also vocabulary-parallel.

use std::ops::Range;
use std::sync::Mutex;

use crate::Cpu;
use crate::isa::kernel;
use crate::lanes::{Lanes, WIDTH};
use crate::math::exp;
use crate::slice::{DisjointMut, Slice, SliceMut};
use crate::thread_pool::task_range;
use regatta_device::LossOps;
use regatta_device::ops::{
    CrossEntropyArgs, CrossEntropyBackwardArgs, CrossEntropyPartial, CrossEntropyPartialsArgs,
    logit_row_len, merge_partials,
};
use regatta_device::tensor::{View, ViewMut, row_count};

/// Logits that are worth another thread: exponentials take longer than other elementwise operations.
const MIN_LOGITS_PER_THREAD: usize = 2 * 1024;

impl LossOps for Cpu {
    fn cross_entropy(&self, args: CrossEntropyArgs<'_>) {
        let _timer = self.timer("cross_entropy");
        let CrossEntropyArgs { targets, vocab, logits, grad_scale, loss } = args;
        let targets = targets.as_slice::<i32>();
        if targets.is_empty() {
            return;
        }
        let row_len = logit_row_len(logits.len(), targets.len(), vocab);
        let (logits, scale) = (DisjointMut::new(logits), grad_scale.map(|scale| scale as f32));
        loss.as_slice::<f64>()[0] += self.sum_rows(targets.len(), vocab, |range| {
            // SAFETY: ranges are disjoint.
            let logits = unsafe { logits.slice(range.start * row_len..range.end * row_len) };
            cross_entropy_kernel(self.isa, &targets[range], vocab, logits, scale)
        });
    }

    fn cross_entropy_partials(&self, args: CrossEntropyPartialsArgs<'_>) {
        let _timer = self.timer("cross_entropy_partials");
        let CrossEntropyPartialsArgs { targets, vocab, logits, partials } = args;
        let targets = targets.as_slice::<i32>();
        assert_eq!(partials.len(), 3 * targets.len(), "partials have three elements per row");
        if targets.is_empty() {
            return;
        }
        let row_len = logit_row_len(logits.len(), targets.len(), vocab.len());
        let (logits, partials) = (Slice::from(logits), DisjointMut::new(partials));
        let min_rows = MIN_LOGITS_PER_THREAD.div_ceil(row_len);
        self.pool.run_ranges(targets.len(), min_rows, 1, |range| {
            let logits = logits.slice(range.start * row_len..range.end * row_len);
            // SAFETY: ranges are disjoint.
            let partials = unsafe { partials.slice_f32(3 * range.start..3 * range.end) };
            partials_kernel(self.isa, &targets[range], &vocab, logits, partials);
        });
    }

    fn merge_cross_entropy_partials(
        &self,
        partials: View<'_>,
        merged: ViewMut<'_>,
        loss: Option<ViewMut<'_>>,
    ) {
        let _timer = self.timer("merge_cross_entropy_partials");
        if merged.is_empty() {
            return;
        }
        let rows = row_count(merged.len(), 3);
        let sets = row_count(partials.len(), 3 * rows);
        let (partials, merged) = (partials.as_slice::<f32>(), DisjointMut::new(merged));
        let sum = self.sum_rows(rows, 8 * sets, |range| {
            // SAFETY: ranges are disjoint.
            let merged = unsafe { merged.slice_f32(3 * range.start..3 * range.end) };
            let merge_row = |(row, merged): (usize, &mut [f32])| {
                let partial = merge_partials(partials.chunks_exact(3 * rows).map(|set| {
                    CrossEntropyPartial::from([0, 1, 2].map(|at| f64::from(set[3 * row + at])))
                }));
                let CrossEntropyPartial { max, sum_exp, target_logit } = partial;
                merged.copy_from_slice(&[max, sum_exp, target_logit].map(|x| x as f32));
                partial.loss()
            };
            range.zip(merged.chunks_exact_mut(3)).map(merge_row).sum()
        });
        loss.into_iter().for_each(|loss| loss.as_slice::<f64>()[0] += sum);
    }

    fn cross_entropy_backward(&self, args: CrossEntropyBackwardArgs<'_>) {
        let _timer = self.timer("cross_entropy_backward");
        let CrossEntropyBackwardArgs { targets, vocab, merged, logits, grad_scale } = args;
        let targets = targets.as_slice::<i32>();
        assert_eq!(merged.len(), 3 * targets.len(), "partials have three elements per row");
        if targets.is_empty() {
            return;
        }
        let row_len = logit_row_len(logits.len(), targets.len(), vocab.len());
        let (merged, logits) = (merged.as_slice::<f32>(), DisjointMut::new(logits));
        let min_rows = MIN_LOGITS_PER_THREAD.div_ceil(row_len);
        self.pool.run_ranges(targets.len(), min_rows, 1, |range| {
            // SAFETY: ranges are disjoint.
            let logits = unsafe { logits.slice(range.start * row_len..range.end * row_len) };
            let merged = &merged[3 * range.start..3 * range.end];
            backward_kernel(self.isa, &targets[range], &vocab, merged, logits, grad_scale as f32);
        });
    }
}

impl Cpu {
    /// Sum over ranges of rows, in the order of the ranges.
    fn sum_rows(&self, rows: usize, len: usize, sum: impl Fn(Range<usize>) -> f64 + Sync) -> f64 {
        let tasks = self.pool.tasks(rows, MIN_LOGITS_PER_THREAD.div_ceil(len));
        let sums = Mutex::new(vec![0.0; tasks]);
        self.pool.run(tasks, |task| {
            let sum = sum(task_range(rows, tasks, task, 1));
            if let Ok(mut sums) = sums.lock() {
                sums[task] = sum;
            }
        });
        sums.into_inner().unwrap_or_default().into_iter().sum()
    }
}

kernel! {
    /// Sum of the losses. With a scale, `logits` become their gradient.
    fn cross_entropy_kernel<V>(
        targets: &[i32], vocab: usize, logits: SliceMut<'_>, scale: Option<f32>,
    ) -> f64 {
        let Some(row_len) = logits.len().checked_div(targets.len()) else { return 0.0 };
        let mut loss = 0.0;
        for (row, target) in targets.iter().enumerate() {
            let first = row * row_len;
            let row_logits = logits.slice(first..first + vocab);
            let target = Some(*target as usize);
            let [max, sum_exp, target_logit] = row_partial::<V>(row_logits.as_slice(), target);
            loss += f64::from(max - target_logit) + f64::from(sum_exp).ln();
            if let Some(scale) = scale {
                row_gradient::<V>(row_logits, target, [max, sum_exp], scale);
                logits.slice(first + vocab..first + row_len).fill(0.0);
            }
        }
        loss
    }

    fn partials_kernel<V>(
        targets: &[i32], vocab: &Range<usize>, logits: Slice<'_>, partials: &mut [f32],
    ) {
        let Some(row_len) = logits.len().checked_div(targets.len()) else { return };
        for (row, (target, partial)) in targets.iter().zip(partials.chunks_exact_mut(3)).enumerate() {
            let logits = logits.slice(row * row_len..row * row_len + vocab.len());
            partial.copy_from_slice(&row_partial::<V>(logits, local_column(*target, vocab)));
        }
    }

    fn backward_kernel<V>(
        targets: &[i32], vocab: &Range<usize>, merged: &[f32], logits: SliceMut<'_>, scale: f32,
    ) {
        let Some(row_len) = logits.len().checked_div(targets.len()) else { return };
        for (row, target) in targets.iter().enumerate() {
            let (first, target) = (row * row_len, local_column(*target, vocab));
            let row_logits = logits.slice(first..first + vocab.len());
            row_gradient::<V>(row_logits, target, [merged[3 * row], merged[3 * row + 1]], scale);
            logits.slice(first + vocab.len()..first + row_len).fill(0.0);
        }
    }
}

/// The target's column, if it is one of the local ones.
#[inline(always)]
fn local_column(target: i32, vocab: &Range<usize>) -> Option<usize> {
    (target as usize).checked_sub(vocab.start).filter(|column| *column < vocab.len())
}

/// Maximum logit, sum of `exp(logit - max)`, and the target's logit.
#[inline(always)]
fn row_partial<V: Lanes>(logits: Slice<'_>, target: Option<usize>) -> [f32; 3] {
    let max = row_max::<V>(logits);
    [max, sum_exp::<V>(logits, max), target.map_or(0.0, |target| logits.get(target))]
}

/// Replaces a row of logits by its gradient times the scale.
#[inline(always)]
fn row_gradient<V: Lanes>(
    mut logits: SliceMut<'_>,
    target: Option<usize>,
    [max, sum_exp]: [f32; 2],
    scale: f32,
) {
    let target = target.map(|target| (target, logits.as_slice().get(target)));
    let by = V::splat(scale / sum_exp);
    for at in (0..logits.len()).step_by(WIDTH) {
        let exp_logit = exp(logits.load_padded::<V>(at).sub(V::splat(max)));
        logits.store_partial(at, exp_logit.mul(by));
    }
    let Some((target, target_logit)) = target else { return };
    match &mut logits {
        SliceMut::F32(logits) => logits[target] -= scale,
        // From the logit in f32, because the probability was already rounded to bf16.
        SliceMut::Bf16(logits) => {
            let gradient = ((target_logit - max).exp() / sum_exp - 1.0) * scale;
            logits[target] = half::bf16::from_f32(gradient);
        }
    }
}

/// Maximum of a row, which is not empty.
#[inline(always)]
fn row_max<V: Lanes>(x: Slice<'_>) -> f32 {
    let vectorised = x.len() / WIDTH * WIDTH;
    let mut max = V::splat(f32::NEG_INFINITY);
    for at in (0..vectorised).step_by(WIDTH) {
        max = max.max(x.load_padded(at));
    }
    (vectorised..x.len()).map(|at| x.get(at)).fold(max.reduce_max(), f32::max)
}

#[inline(always)]
fn sum_exp<V: Lanes>(x: Slice<'_>, max: f32) -> f32 {
    let mut sum = V::splat(0.0);
    let vectorised = x.len() / WIDTH * WIDTH;
    for at in (0..vectorised).step_by(WIDTH) {
        sum = sum.add(exp(x.load_padded::<V>(at).sub(V::splat(max))));
    }
    let mut sum = sum.sum();
    if vectorised < x.len() {
        let tail = exp(x.load_padded::<V>(vectorised).sub(V::splat(max))).to_array();
        sum += tail[..x.len() - vectorised].iter().sum::<f32>();
    }
    sum
}
