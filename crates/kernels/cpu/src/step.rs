//! How parameters follow their gradients, in one pass over memory.

use std::sync::Mutex;

use crate::Cpu;
use crate::lanes::WIDTH;
use crate::level::kernel;
use crate::numbers::{Apart, Source, get, put};
use regatta_device::memory::{View, ViewMut};
use regatta_device::optimizer::{AdamW, Sgd};

const LEAST: usize = 4 * 1024;

/// So many squares are summed in single precision: few, so that nothing is lost.
const SQUARES: usize = 1024;

impl Cpu {
    pub(super) fn adamw_step(
        &self,
        how: &AdamW,
        gradients: View<'_>,
        state: [ViewMut<'_>; 2],
        parameters: ViewMut<'_>,
    ) {
        let elements = parameters.len();
        let [mean, square] = state;
        let fit = gradients.len() == elements && mean.len() == elements;
        assert!(fit && square.len() == elements, "tensors of different lengths");
        let gradients = gradients.host::<f32>();
        let (parameters, mean, square) =
            (Apart::new(parameters), Apart::new(mean), Apart::new(square));
        self.pool.run_ranges(elements, LEAST, WIDTH, |range| {
            // SAFETY: ranges are disjoint.
            let [mean, square, parameters] =
                unsafe { [mean, square, parameters].map(|all| all.reals(range.clone())) };
            adamw(self.level, how, &gradients[range], mean, square, parameters);
        });
    }

    pub(super) fn sgd_step(
        &self,
        how: &Sgd,
        gradients: View<'_>,
        momentum: ViewMut<'_>,
        parameters: ViewMut<'_>,
    ) {
        let elements = parameters.len();
        let fit = gradients.len() == elements && momentum.len() == elements;
        assert!(fit, "tensors of different lengths");
        let gradients = gradients.host::<f32>();
        let (parameters, momentum) = (Apart::new(parameters), Apart::new(momentum));
        self.pool.run_ranges(elements, LEAST, WIDTH, |range| {
            // SAFETY: ranges are disjoint.
            let [momentum, parameters] =
                unsafe { [momentum, parameters].map(|all| all.reals(range.clone())) };
            sgd(self.level, how, &gradients[range], momentum, parameters);
        });
    }

    /// The same whatever the number of threads: each chunk has its sum, and they are added in order.
    pub(super) fn sum_of_squares(&self, x: View<'_>) -> f64 {
        let x = Source::from(x);
        let chunks = x.len().div_ceil(SQUARES);
        let sums = Mutex::new(vec![0.0; chunks]);
        self.pool.run_ranges(chunks, LEAST / SQUARES, 1, |range| {
            let mine: Vec<f64> = range
                .clone()
                .map(|chunk| {
                    let end = x.len().min((chunk + 1) * SQUARES);
                    f64::from(squares(self.level, x.part(chunk * SQUARES..end)))
                })
                .collect();
            if let Ok(mut sums) = sums.lock() {
                sums[range].copy_from_slice(&mine);
            }
        });
        sums.into_inner().unwrap_or_default().into_iter().sum()
    }
}

kernel! {
    fn adamw<V>(
        how: &AdamW, gradients: &[f32], mean: &mut [f32], square: &mut [f32], parameters: &mut [f32],
    ) {
        let factors = how.factors();
        let splat = |number: f64| V::splat(number as f32);
        let (beta1, rest1) = (splat(how.beta1), splat(1.0 - how.beta1));
        let (beta2, rest2) = (splat(how.beta2), splat(1.0 - how.beta2));
        let (scale, epsilon) = (splat(how.scale), splat(how.epsilon));
        let (pace, root, kept) = (splat(-factors.pace), splat(factors.root), splat(factors.kept));
        for at in (0..parameters.len()).step_by(WIDTH) {
            let gradient = get::<V>(gradients, at).times(scale);
            let m = get::<V>(mean, at).fused(beta1, gradient.times(rest1));
            let v = get::<V>(square, at).fused(beta2, gradient.times(gradient).times(rest2));
            let step = m.over(v.root().fused(root, epsilon));
            let parameter = get::<V>(parameters, at).times(kept);
            put(mean, at, m);
            put(square, at, v);
            put(parameters, at, step.fused(pace, parameter));
        }
    }
}

kernel! {
    fn sgd<V>(how: &Sgd, gradients: &[f32], momentum: &mut [f32], parameters: &mut [f32]) {
        let splat = |number: f64| V::splat(number as f32);
        let (keep, decay) = (splat(how.momentum), splat(how.decay));
        let (scale, rate) = (splat(how.scale), splat(-how.rate));
        for at in (0..parameters.len()).step_by(WIDTH) {
            let parameter: V = get(parameters, at);
            let gradient = get::<V>(gradients, at).fused(scale, parameter.times(decay));
            let m = get::<V>(momentum, at).fused(keep, gradient);
            put(momentum, at, m);
            put(parameters, at, m.fused(rate, parameter));
        }
    }
}

kernel! {
    fn squares<V>(x: Source<'_>) -> f32 {
        let mut sums = [V::splat(0.0); 2];
        for at in (0..x.len()).step_by(2 * WIDTH) {
            let first: V = x.get(at);
            sums[0] = first.fused(first, sums[0]);
            if at + WIDTH < x.len() {
                let second: V = x.get(at + WIDTH);
                sums[1] = second.fused(second, sums[1]);
            }
        }
        sums[0].plus(sums[1]).sum()
    }
}
