//! Vectorised functions, accurate to a few ulp.

use std::f32::consts::LOG2_E;

use crate::lanes::Lanes;

/// Adding it to a small value leaves the nearest integer in the low bits of the mantissa.
const ROUND_TO_INT: f32 = 12_582_912.0;

/// ln 2 in two parts (Cody-Waite): products of the first with small integers are exact.
const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];

/// `eˣ`, clamped to about 1e-38 .. 3e38.
#[inline(always)]
pub fn exp<V: Lanes>(x: V) -> V {
    let x = V::splat(88.37).min(V::splat(-87.33).max(x));
    let rounded = x.mul_add(V::splat(LOG2_E), V::splat(ROUND_TO_INT));
    let n = rounded.sub(V::splat(ROUND_TO_INT));
    let r = n.mul_add(V::splat(-LN_2[0]), x);
    let r = n.mul_add(V::splat(-LN_2[1]), r);
    // Taylor series: for |r| <= ln 2 / 2 the next term is below 1e-8.
    let p = V::splat(1.0 / 5040.0);
    let p = p.mul_add(r, V::splat(1.0 / 720.0));
    let p = p.mul_add(r, V::splat(1.0 / 120.0));
    let p = p.mul_add(r, V::splat(1.0 / 24.0));
    let p = p.mul_add(r, V::splat(1.0 / 6.0));
    let p = p.mul_add(r, V::splat(0.5));
    let p = p.mul_add(r.mul(r), r).add(V::splat(1.0));
    p.scale_pow2(rounded)
}

/// `1 / (1 + e⁻ˣ)`.
#[inline(always)]
pub fn sigmoid<V: Lanes>(x: V) -> V {
    let one = V::splat(1.0);
    one.add(exp(V::splat(0.0).sub(x))).recip()
}

/// `√(2/π)`.
const GELU_SCALE: f32 = 0.797_884_6;
/// Coefficient of the cube.
const GELU_CUBE: f32 = 0.044_715;

/// GELU (tanh approximation) and its derivative.
///
/// It is `x` times `(1 + tanh(u)) / 2` with `u = √(2/π) (x + 0.044715 x³)`, and that factor is `sigmoid(2 u)`.
#[inline(always)]
pub fn gelu<V: Lanes>(x: V) -> [V; 2] {
    let (square, scaled) = (x.mul(x), x.mul(V::splat(2.0 * GELU_SCALE)));
    let gate = sigmoid(square.mul_add(V::splat(GELU_CUBE), V::splat(1.0)).mul(scaled));
    let x_du = square.mul_add(V::splat(3.0 * GELU_CUBE), V::splat(1.0)).mul(scaled);
    // gate' = gate (1 - gate) 2 u', and the derivative is x gate' + gate.
    let gate_derivative = gate.mul(V::splat(1.0).sub(gate));
    [x.mul(gate), gate_derivative.mul_add(x_du, gate)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::{Isa, kernel};
    use crate::lanes::WIDTH;

    kernel! {
        fn apply<V>(which: usize, x: &mut [f32; WIDTH]) {
            let lanes = V::from_array(*x);
            *x = match which {
                0 => exp(lanes),
                1 => sigmoid(lanes),
                2 => gelu(lanes)[0],
                _ => gelu(lanes)[1],
            }
            .to_array();
        }
    }

    fn expected(which: usize, x: f64) -> f64 {
        let (scale, cube) = ((2.0 / std::f64::consts::PI).sqrt(), 0.044715);
        let gate = 0.5 * (1.0 + (scale * (x + cube * x * x * x)).tanh());
        match which {
            0 => x.exp(),
            1 => 1.0 / (1.0 + (-x).exp()),
            2 => x * gate,
            _ => gate + x * 2.0 * gate * (1.0 - gate) * scale * (1.0 + 3.0 * cube * x * x),
        }
    }

    /// Maximum error over a range, relative to the result or to `floor` if that is larger.
    fn error(isa: Isa, which: usize, from: f64, to: f64, floor: f64) -> f64 {
        let mut worst: f64 = 0.0;
        let steps = 20_000;
        for step in 0..steps {
            let at = |lane: usize| {
                from + (to - from) * (step * WIDTH + lane) as f64 / (steps * WIDTH) as f64
            };
            let inputs: [f32; WIDTH] = std::array::from_fn(|lane| at(lane) as f32);
            let mut found = inputs;
            apply(isa, which, &mut found);
            for (x, found) in inputs.into_iter().zip(found) {
                let expected = expected(which, f64::from(x));
                worst = worst.max((f64::from(found) - expected).abs() / expected.abs().max(floor));
            }
        }
        worst
    }

    #[test]
    fn functions_are_accurate_to_a_few_ulp() {
        for isa in Isa::all() {
            for (which, from, to, floor) in [
                (0, -87.0, 88.0, 0.0),
                (0, -1.0, 1.0, 0.0),
                (1, -80.0, 80.0, 0.0),
                (2, -10.0, 10.0, 1e-3),
                (2, -1.0, 1.0, 1e-3),
                // Cancellation near its zero at -0.75.
                (3, -10.0, 10.0, 0.1),
            ] {
                let error = error(isa, which, from, to, floor);
                let limit = if which == 0 { 3e-7 } else { 2e-6 };
                assert!(error < limit, "{isa:?} {which} from {from} to {to}: {error:e}");
            }
        }
    }

    #[test]
    fn large_inputs_stay_finite_and_nan_propagates() {
        for isa in Isa::all() {
            for which in 0..4 {
                let mut x = [0.0; WIDTH];
                x[..5].copy_from_slice(&[1e30, -1e30, f32::INFINITY, -3e4, 3e4]);
                apply(isa, which, &mut x);
                // The cube in GELU overflows.
                assert!(which >= 2 || x.iter().all(|x| x.is_finite()), "{isa:?} {x:?}");
                assert!(x[3].is_finite() && x[4].is_finite());
                let mut x = [f32::NAN; WIDTH];
                apply(isa, which, &mut x);
                assert!(x.iter().all(|x| x.is_nan()), "{isa:?} {which} {x:?}");
            }
        }
    }
}
