//! Functions of sixteen numbers at once, right to a few units of the last place.

use std::f32::consts::LOG2_E;

use crate::lanes::Lanes;

/// Added to a small number, it leaves the nearest whole number in the lowest bits.
const WHOLE: f32 = 12_582_912.0;

/// The logarithm of 2 in two parts: products of the first with small whole numbers are exact.
const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];

/// `eˣ`. What would overflow stays below 3e38; below e⁻⁸⁷ it is about 1e-38.
#[inline(always)]
pub fn exp<V: Lanes>(x: V) -> V {
    let x = V::splat(88.37).least(V::splat(-87.33).most(x));
    let whole = x.fused(V::splat(LOG2_E), V::splat(WHOLE));
    let n = whole.minus(V::splat(WHOLE));
    let rest = n.fused(V::splat(-LN_2[0]), x);
    let rest = n.fused(V::splat(-LN_2[1]), rest);
    // From -ln 2 / 2 to ln 2 / 2 the next term of the series is below 1e-8.
    let p = V::splat(1.0 / 5040.0);
    let p = p.fused(rest, V::splat(1.0 / 720.0));
    let p = p.fused(rest, V::splat(1.0 / 120.0));
    let p = p.fused(rest, V::splat(1.0 / 24.0));
    let p = p.fused(rest, V::splat(1.0 / 6.0));
    let p = p.fused(rest, V::splat(0.5));
    let p = p.fused(rest.times(rest), rest).plus(V::splat(1.0));
    p.shifted(whole)
}

/// One over `1 + e⁻ˣ`.
#[inline(always)]
pub fn sigmoid<V: Lanes>(x: V) -> V {
    let one = V::splat(1.0);
    one.plus(exp(V::splat(0.0).minus(x))).inverse()
}

/// `√(2/π)`.
const GELU_SCALE: f32 = 0.797_884_6;
/// Of the cube.
const GELU_CUBE: f32 = 0.044_715;

/// Gelu, in the form with the hyperbolic tangent, and its derivative.
///
/// It is `x` times a gate, `(1 + tanh(√(2/π) (x + 0.044715 x³))) / 2`, which is a sigmoid of twice what
/// the tangent is of.
#[inline(always)]
pub fn gelu<V: Lanes>(x: V) -> [V; 2] {
    let (square, by) = (x.times(x), x.times(V::splat(2.0 * GELU_SCALE)));
    let gate = sigmoid(square.fused(V::splat(GELU_CUBE), V::splat(1.0)).times(by));
    let steepness = square.fused(V::splat(3.0 * GELU_CUBE), V::splat(1.0)).times(by);
    // gate' = gate (1 - gate) steepness / x, so x gate' + gate:
    let rest = gate.times(V::splat(1.0).minus(gate));
    [x.times(gate), rest.fused(steepness, gate)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lanes::WIDTH;
    use crate::level::{Level, kernel};

    kernel! {
        fn apply<V>(which: usize, x: &mut [f32; WIDTH]) {
            let lanes = V::of(*x);
            *x = match which {
                0 => exp(lanes),
                1 => sigmoid(lanes),
                2 => gelu(lanes)[0],
                _ => gelu(lanes)[1],
            }
            .array();
        }
    }

    fn expected(which: usize, x: f64) -> f64 {
        let gate =
            |x: f64| 0.5 * (1.0 + (0.797_884_560_802_865_4 * (x + 0.044715 * x * x * x)).tanh());
        match which {
            0 => x.exp(),
            1 => 1.0 / (1.0 + (-x).exp()),
            2 => x * gate(x),
            _ => {
                let (gate, by) =
                    (gate(x), 0.797_884_560_802_865_4 * (1.0 + 3.0 * 0.044715 * x * x));
                gate + x * 2.0 * gate * (1.0 - gate) * by
            }
        }
    }

    /// The largest error over a range, relative to the result but no less than to `floor`.
    fn error(level: Level, which: usize, from: f64, to: f64, floor: f64) -> f64 {
        let mut worst: f64 = 0.0;
        let steps = 20_000;
        for step in 0..steps {
            let at = |lane: usize| {
                from + (to - from) * (step * WIDTH + lane) as f64 / (steps * WIDTH) as f64
            };
            let inputs: [f32; WIDTH] = std::array::from_fn(|lane| at(lane) as f32);
            let mut found = inputs;
            apply(level, which, &mut found);
            for (x, found) in inputs.into_iter().zip(found) {
                let expected = expected(which, f64::from(x));
                worst = worst.max((f64::from(found) - expected).abs() / expected.abs().max(floor));
            }
        }
        worst
    }

    #[test]
    fn functions_are_right_to_a_few_units_of_the_last_place() {
        for level in Level::all() {
            for (which, from, to, floor) in [
                (0, -87.0, 88.0, 0.0),
                (0, -1.0, 1.0, 0.0),
                (1, -80.0, 80.0, 0.0),
                (2, -10.0, 10.0, 1e-3),
                (2, -1.0, 1.0, 1e-3),
                // It is zero at -0.75, as the difference of larger numbers.
                (3, -10.0, 10.0, 0.1),
            ] {
                let error = error(level, which, from, to, floor);
                let limit = if which == 0 { 3e-7 } else { 2e-6 };
                assert!(error < limit, "{level:?} {which} from {from} to {to}: {error:e}");
            }
        }
    }

    #[test]
    fn extremes_stay_numbers_and_others_do_not_become_any() {
        for level in Level::all() {
            for which in 0..4 {
                let mut x = [0.0; WIDTH];
                x[..5].copy_from_slice(&[1e30, -1e30, f32::INFINITY, -3e4, 3e4]);
                let skip = usize::from(which >= 2);
                apply(level, which, &mut x);
                let finite = |x: &&f32| !x.is_finite();
                // Gelu cubes: what overflows there has no better answer.
                assert!(skip == 1 || x.iter().filter(finite).count() == 0, "{level:?} {x:?}");
                assert!(x[3].is_finite() && x[4].is_finite());
                let mut x = [f32::NAN; WIDTH];
                apply(level, which, &mut x);
                assert!(x.iter().all(|x| x.is_nan()), "{level:?} {which} {x:?}");
            }
        }
    }
}
