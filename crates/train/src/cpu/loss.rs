//! The loss.

use std::sync::Mutex;

use super::Cpu;
use super::elementwise::rows;
use super::lanes::{Lanes, WIDTH};
use super::level::kernel;
use super::math::exp;
use super::numbers::{Apart, Source, Target};
use super::pool::cut;
use crate::memory::ViewMut;

/// A thread gets at least so many numbers.
const LEAST: usize = 8 * 1024;

impl Cpu {
    pub(super) fn loss(&self, targets: &[u32], logits: ViewMut<'_>, scale: Option<f64>) -> f64 {
        if targets.is_empty() {
            return 0.0;
        }
        let kinds = rows(logits.len(), targets.len());
        let logits = Apart::new(logits);
        let parts = self.pool.parts(targets.len(), LEAST.div_ceil(4 * kinds));
        let losses = Mutex::new(vec![0.0; parts]);
        self.pool.run(parts, |part| {
            let range = cut(targets.len(), parts, part, 1);
            // SAFETY: ranges are disjoint.
            let logits = unsafe { logits.part(range.start * kinds..range.end * kinds) };
            let loss = cross_entropy(self.level, &targets[range], logits, scale.map(|s| s as f32));
            if let Ok(mut losses) = losses.lock() {
                losses[part] = loss;
            }
        });
        losses.into_inner().unwrap_or_default().into_iter().sum()
    }
}

kernel! {
    /// The sum of the losses of rows, which become gradients if there is a scale.
    fn cross_entropy<V>(targets: &[u32], logits: Target<'_>, scale: Option<f32>) -> f64 {
        let mut logits = logits;
        let Some(kinds) = logits.len().checked_div(targets.len()) else { return 0.0 };
        let mut loss = 0.0;
        for (row, target) in targets.iter().enumerate() {
            let mut logits = logits.part(row * kinds..(row + 1) * kinds);
            let target = *target as usize;
            let wanted = logits.source().one(target);
            let most = largest::<V>(logits.source());
            let sum = exp_sum::<V>(logits.source(), most);
            loss += f64::from(most - wanted) + f64::from(sum).ln();
            if let Some(scale) = scale {
                let by = V::splat(scale / sum);
                for at in (0..kinds).step_by(WIDTH) {
                    let share = exp(logits.get::<V>(at).minus(V::splat(most)));
                    logits.put(at, share.times(by));
                }
                let one = logits.source().one(target);
                // In single precision, from what was wanted: brain floats were rounded.
                let exact = ((wanted - most).exp() / sum - 1.0) * scale;
                match &mut logits {
                    Target::F32(logits) => logits[target] = one - scale,
                    Target::Bf16(logits) => logits[target] = half::bf16::from_f32(exact),
                }
            }
        }
        loss
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
