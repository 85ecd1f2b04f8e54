//! Rows brought to the same scale.

use crate::Cpu;
use crate::elementwise::rows;
use crate::lanes::{Lanes, WIDTH};
use crate::level::kernel;
use crate::numbers::{Apart, Source, Target, get, put};
use regatta_device::device::{Norm, NormGrads, NormSaved};
use regatta_device::memory::{View, ViewMut};

/// A thread gets at least so many numbers.
const LEAST: usize = 8 * 1024;

impl Cpu {
    pub(super) fn norm_forward(
        &self,
        how: Norm,
        x: View<'_>,
        weight: View<'_>,
        bias: Option<View<'_>>,
        y: ViewMut<'_>,
        statistics: ViewMut<'_>,
    ) {
        let width = weight.len();
        let rows = rows(x.len(), width);
        assert!(y.len() == x.len() && statistics.len() == 2 * rows, "rows of different numbers");
        assert!(bias.is_none_or(|bias| bias.len() == width), "a bias of another width");
        let (weight, bias) = (weight.host::<f32>(), bias.map(View::host::<f32>));
        let (x, y, statistics) = (Source::from(x), Apart::new(y), Apart::new(statistics));
        self.pool.run_ranges(rows, LEAST.div_ceil(width), 1, |range| {
            // SAFETY: ranges are disjoint.
            let (y, statistics) = unsafe {
                let y = y.part(range.start * width..range.end * width);
                (y, statistics.reals(2 * range.start..2 * range.end))
            };
            let x = x.part(range.start * width..range.end * width);
            forward(self.level, how, x, weight, bias, y, statistics);
        });
    }

    /// Each part of the rows has its own sums for the parameters, which are added in order.
    pub(super) fn norm_backward(
        &self,
        how: Norm,
        saved: NormSaved<'_>,
        dy: View<'_>,
        dx: ViewMut<'_>,
        grads: NormGrads<'_>,
    ) {
        let width = saved.weight.len();
        let rows = rows(dy.len(), width);
        let fit = saved.x.len() == dy.len() && dx.len() == dy.len();
        assert!(fit && saved.statistics.len() == 2 * rows, "rows of different numbers");
        let (x, dy, dx) = (Source::from(saved.x), Source::from(dy), Apart::new(dx));
        let (weight, statistics) = (saved.weight.host::<f32>(), saved.statistics.host::<f32>());
        let parts = self.pool.parts(rows, LEAST.div_ceil(width));
        let mut sums = self.scratch(parts * 2 * width);
        sums.fill(0.0);
        let apart = Apart::new(&mut sums[..]);
        self.pool.run(parts, |part| {
            let range = super::pool::cut(rows, parts, part, 1);
            // SAFETY: parts are disjoint.
            let (dx, sums) = unsafe {
                let dx = dx.part(range.start * width..range.end * width);
                (dx, apart.reals(2 * part * width..2 * (part + 1) * width))
            };
            let (dweight, dbias) = sums.split_at_mut(width);
            let both = range.start * width..range.end * width;
            let (x, dy) = (x.part(both.clone()), dy.part(both));
            let statistics = &statistics[2 * range.start..2 * range.end];
            backward(self.level, how, weight, statistics, x, dy, dx, dweight, dbias);
        });
        let add = |to: &mut [f32], first: usize| {
            assert_eq!(to.len(), width, "a gradient of another width");
            for part in 0..parts {
                let sums = &sums[part * 2 * width + first..][..width];
                to.iter_mut().zip(sums).for_each(|(to, sum)| *to += sum);
            }
        };
        add(grads.weight.host(), 0);
        if let Some(bias) = grads.bias {
            add(bias.host(), width);
        }
    }
}

kernel! {
    fn forward<V>(
        how: Norm,
        x: Source<'_>,
        weight: &[f32],
        bias: Option<&[f32]>,
        y: Target<'_>,
        statistics: &mut [f32],
    ) {
        let mut y = y;
        let width = weight.len();
        for (row, statistics) in statistics.chunks_exact_mut(2).enumerate() {
            let range = row * width..(row + 1) * width;
            let (x, mut y) = (x.part(range.clone()), y.part(range));
            let (mean, scale) = spread::<V>(how, x);
            statistics.copy_from_slice(&[mean, scale]);
            let (mean, scale) = (V::splat(mean), V::splat(scale));
            for at in (0..width).step_by(WIDTH) {
                let normal = x.get::<V>(at).minus(mean).times(scale);
                let shift = bias.map_or(V::splat(0.0), |bias| get(bias, at));
                y.put(at, normal.fused(get(weight, at), shift));
            }
        }
    }
}

/// The mean of a row (0 for RMS) and one over its deviation.
#[inline(always)]
fn spread<V: Lanes>(how: Norm, x: Source<'_>) -> (f32, f32) {
    let width = x.len() as f32;
    let whole = x.len() / WIDTH * WIDTH;
    let (mean, epsilon) = match how {
        Norm::Rms { epsilon } => (0.0, epsilon),
        Norm::Layer { epsilon } => {
            let mut sum = V::splat(0.0);
            for at in (0..x.len()).step_by(WIDTH) {
                sum = sum.plus(x.get(at));
            }
            (sum.sum() / width, epsilon)
        }
    };
    // In a second pass: the difference of large squares would be inexact.
    let mut sum = V::splat(0.0);
    for at in (0..whole).step_by(WIDTH) {
        let away = x.get::<V>(at).minus(V::splat(mean));
        sum = away.fused(away, sum);
    }
    let rest: f32 = (whole..x.len()).map(|at| (x.one(at) - mean) * (x.one(at) - mean)).sum();
    let variance = (sum.sum() + rest) / width;
    (mean, 1.0 / (variance + epsilon as f32).sqrt())
}

kernel! {
    fn backward<V>(
        how: Norm,
        weight: &[f32],
        statistics: &[f32],
        x: Source<'_>,
        dy: Source<'_>,
        dx: Target<'_>,
        dweight: &mut [f32],
        dbias: &mut [f32],
    ) {
        let mut dx = dx;
        let width = weight.len();
        for (row, statistics) in statistics.chunks_exact(2).enumerate() {
            let range = row * width..(row + 1) * width;
            let (x, dy, mut dx) = (x.part(range.clone()), dy.part(range.clone()), dx.part(range));
            let (mean, scale) = (V::splat(statistics[0]), V::splat(statistics[1]));
            let (mut sum, mut product) = (V::splat(0.0), V::splat(0.0));
            for at in (0..width).step_by(WIDTH) {
                let normal = x.get::<V>(at).minus(mean).times(scale);
                let slope: V = dy.get(at);
                put(dweight, at, slope.fused(normal, get(dweight, at)));
                put(dbias, at, slope.plus(get(dbias, at)));
                let slope = slope.times(get(weight, at));
                sum = sum.plus(slope);
                product = slope.fused(normal, product);
            }
            let sum = match how {
                Norm::Layer { .. } => sum.sum() / width as f32,
                Norm::Rms { .. } => 0.0,
            };
            let (sum, product) = (V::splat(sum), V::splat(product.sum() / width as f32));
            for at in (0..width).step_by(WIDTH) {
                let normal = x.get::<V>(at).minus(mean).times(scale);
                let slope = dy.get::<V>(at).times(get(weight, at)).minus(sum);
                let slope = slope.minus(normal.times(product));
                dx.put(at, slope.fused(scale, dx.get(at)));
            }
        }
    }
}
