//! The loss, of whole rows and of some of their columns.

use std::ops::Range;
use std::sync::Mutex;

use crate::Cpu;
use crate::elementwise::rows;
use crate::lanes::{Lanes, WIDTH};
use crate::level::kernel;
use crate::math::exp;
use crate::numbers::{Apart, Source, Target};
use crate::pool::cut;
use regatta_device::device::{EntropyPart, merge_entropies};
use regatta_device::memory::{View, ViewMut};

/// A thread gets at least so many numbers.
const LEAST: usize = 8 * 1024;

impl Cpu {
    pub(super) fn loss(&self, targets: &[u32], logits: ViewMut<'_>, scale: Option<f64>) -> f64 {
        if targets.is_empty() {
            return 0.0;
        }
        let kinds = rows(logits.len(), targets.len());
        let (logits, scale) = (Apart::new(logits), scale.map(|scale| scale as f32));
        self.sum_of_rows(targets.len(), kinds, |range| {
            // SAFETY: ranges are disjoint.
            let logits = unsafe { logits.part(range.start * kinds..range.end * kinds) };
            cross_entropy(self.level, &targets[range], logits, scale)
        })
    }

    /// The sum of what is found of ranges of rows, each as wide. The same for a number of threads.
    fn sum_of_rows(
        &self,
        rows: usize,
        width: usize,
        of: impl Fn(Range<usize>) -> f64 + Sync,
    ) -> f64 {
        let parts = self.pool.parts(rows, LEAST.div_ceil(4 * width));
        let sums = Mutex::new(vec![0.0; parts]);
        self.pool.run(parts, |part| {
            let sum = of(cut(rows, parts, part, 1));
            if let Ok(mut sums) = sums.lock() {
                sums[part] = sum;
            }
        });
        sums.into_inner().unwrap_or_default().into_iter().sum()
    }

    pub(super) fn loss_part(
        &self,
        targets: &[u32],
        first: usize,
        logits: View<'_>,
        parts: ViewMut<'_>,
    ) {
        assert_eq!(parts.len(), 3 * targets.len(), "three numbers a row");
        if targets.is_empty() {
            return;
        }
        let columns = rows(logits.len(), targets.len());
        let (logits, parts) = (Source::from(logits), Apart::new(parts));
        self.pool.run_ranges(targets.len(), LEAST.div_ceil(4 * columns), 1, |range| {
            let logits = logits.part(range.start * columns..range.end * columns);
            // SAFETY: ranges are disjoint.
            let parts = unsafe { parts.reals(3 * range.start..3 * range.end) };
            parts_of_rows(self.level, &targets[range], first, logits, parts);
        });
    }

    pub(super) fn loss_whole(&self, parts: View<'_>, whole: ViewMut<'_>) -> f64 {
        if whole.is_empty() {
            return 0.0;
        }
        let count = rows(whole.len(), 3);
        let ranks = rows(parts.len(), 3 * count);
        let (parts, whole) = (parts.host::<f32>(), Apart::new(whole));
        self.sum_of_rows(count, 8 * ranks, |range| {
            // SAFETY: ranges are disjoint.
            let whole = unsafe { whole.reals(3 * range.start..3 * range.end) };
            let one = |(row, whole): (usize, &mut [f32])| {
                let merged = merge_entropies(parts.chunks_exact(3 * count).map(|part| {
                    let numbers = [0, 1, 2].map(|at| f64::from(part[3 * row + at]));
                    EntropyPart::from(numbers)
                }));
                let EntropyPart { most, sum, wanted } = merged;
                whole.copy_from_slice(&[most, sum, wanted].map(|number| number as f32));
                merged.loss()
            };
            range.zip(whole.chunks_exact_mut(3)).map(one).sum()
        })
    }

    pub(super) fn loss_back(
        &self,
        targets: &[u32],
        first: usize,
        whole: View<'_>,
        logits: ViewMut<'_>,
        scale: f64,
    ) {
        assert_eq!(whole.len(), 3 * targets.len(), "three numbers a row");
        if targets.is_empty() {
            return;
        }
        let columns = rows(logits.len(), targets.len());
        let (whole, logits) = (whole.host::<f32>(), Apart::new(logits));
        self.pool.run_ranges(targets.len(), LEAST.div_ceil(4 * columns), 1, |range| {
            // SAFETY: ranges are disjoint.
            let logits = unsafe { logits.part(range.start * columns..range.end * columns) };
            let whole = &whole[3 * range.start..3 * range.end];
            gradients_of_rows(self.level, &targets[range], first, whole, logits, scale as f32);
        });
    }
}

kernel! {
    /// The sum of the losses of rows, which become gradients if there is a scale.
    fn cross_entropy<V>(targets: &[u32], logits: Target<'_>, scale: Option<f32>) -> f64 {
        let mut logits = logits;
        let Some(kinds) = logits.len().checked_div(targets.len()) else { return 0.0 };
        let mut loss = 0.0;
        for (row, target) in targets.iter().enumerate() {
            let logits = logits.part(row * kinds..(row + 1) * kinds);
            let target = Some(*target as usize);
            let [most, sum, wanted] = row_part::<V>(logits.source(), target);
            loss += f64::from(most - wanted) + f64::from(sum).ln();
            if let Some(scale) = scale {
                row_gradient::<V>(logits, target, [most, sum], scale);
            }
        }
        loss
    }
}

kernel! {
    fn parts_of_rows<V>(targets: &[u32], first: usize, logits: Source<'_>, parts: &mut [f32]) {
        let Some(columns) = logits.len().checked_div(targets.len()) else { return };
        for (row, (target, part)) in targets.iter().zip(parts.chunks_exact_mut(3)).enumerate() {
            let logits = logits.part(row * columns..(row + 1) * columns);
            part.copy_from_slice(&row_part::<V>(logits, column(*target, first, columns)));
        }
    }
}

kernel! {
    fn gradients_of_rows<V>(
        targets: &[u32],
        first: usize,
        whole: &[f32],
        logits: Target<'_>,
        scale: f32,
    ) {
        let mut logits = logits;
        let Some(columns) = logits.len().checked_div(targets.len()) else { return };
        for (row, target) in targets.iter().enumerate() {
            let logits = logits.part(row * columns..(row + 1) * columns);
            let target = column(*target, first, columns);
            row_gradient::<V>(logits, target, [whole[3 * row], whole[3 * row + 1]], scale);
        }
    }
}

/// The column of a target, if it is here.
#[inline(always)]
fn column(target: u32, first: usize, columns: usize) -> Option<usize> {
    (target as usize).checked_sub(first).filter(|column| *column < columns)
}

/// The largest of a row, the sum of the exponentials of all less the largest, and the target's logit.
#[inline(always)]
fn row_part<V: Lanes>(logits: Source<'_>, target: Option<usize>) -> [f32; 3] {
    let most = largest::<V>(logits);
    [most, exp_sum::<V>(logits, most), target.map_or(0.0, |target| logits.one(target))]
}

/// A row becomes its gradient, times the scale.
#[inline(always)]
fn row_gradient<V: Lanes>(
    mut logits: Target<'_>,
    target: Option<usize>,
    [most, sum]: [f32; 2],
    scale: f32,
) {
    let wanted = target.map(|target| (target, logits.source().one(target)));
    let by = V::splat(scale / sum);
    for at in (0..logits.len()).step_by(WIDTH) {
        let share = exp(logits.get::<V>(at).minus(V::splat(most)));
        logits.put(at, share.times(by));
    }
    let Some((target, wanted)) = wanted else { return };
    match &mut logits {
        Target::F32(logits) => logits[target] -= scale,
        // In single precision, from what was wanted: brain floats were rounded.
        Target::Bf16(logits) => {
            let exact = ((wanted - most).exp() / sum - 1.0) * scale;
            logits[target] = half::bf16::from_f32(exact);
        }
    }
}

/// The largest of a row, which is not empty.
#[inline(always)]
pub(super) fn largest<V: Lanes>(x: Source<'_>) -> f32 {
    let whole = x.len() / WIDTH * WIDTH;
    let mut most = V::splat(f32::NEG_INFINITY);
    for at in (0..whole).step_by(WIDTH) {
        most = most.most(x.get(at));
    }
    (whole..x.len()).map(|at| x.one(at)).fold(most.largest(), f32::max)
}

#[inline(always)]
fn exp_sum<V: Lanes>(x: Source<'_>, most: f32) -> f32 {
    let mut sum = V::splat(0.0);
    let whole = x.len() / WIDTH * WIDTH;
    for at in (0..whole).step_by(WIDTH) {
        sum = sum.plus(exp(x.get::<V>(at).minus(V::splat(most))));
    }
    let mut all = sum.sum();
    if whole < x.len() {
        let rest = exp(x.get::<V>(whole).minus(V::splat(most))).array();
        all += rest[..x.len() - whole].iter().sum::<f32>();
    }
    all
}
