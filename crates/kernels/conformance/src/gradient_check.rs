//! Operations as functions with gradients, and checks of both.

use std::fmt::Debug;

use regatta_device::ops::Device;
use regatta_device::random;
use regatta_device::reference::Reference;

use crate::host_copy::round_bf16;

/// A differentiable operation.
pub trait Operation: Debug {
    /// Length of each input.
    fn input_lens(&self) -> Vec<usize>;

    /// The output.
    fn forward(&self, device: &dyn Device, inputs: &[Vec<f64>]) -> Vec<f64>;

    /// The gradient of each input, given that of the output.
    fn backward(&self, device: &dyn Device, inputs: &[Vec<f64>], dy: &[f64]) -> Vec<Vec<f64>>;
}

/// Values with mean 0 and variance 1, nearly normal: sums of four uniform ones, which take a tenth of the time
/// of logarithms and cosines.
pub fn random_values(count: usize, seed: u64) -> Vec<f64> {
    let key = random::key(seed, &[7]);
    let value = |index| {
        let bits = random::mix(key ^ random::mix(index));
        let sum: u64 = (0..4).map(|word| (bits >> (16 * word)) & 0xffff).sum();
        (sum as f64 / 65_536.0 - 2.0) * 3f64.sqrt()
    };
    (0..count as u64).map(value).collect()
}

/// Normally distributed values that are exact in every dtype.
pub fn exact_values(count: usize, seed: u64) -> Vec<f64> {
    random_values(count, seed).into_iter().map(round_bf16).collect()
}

/// Inputs of an operation, given values by length and seed.
fn inputs(
    operation: &dyn Operation,
    seed: u64,
    values: fn(usize, u64) -> Vec<f64>,
) -> Vec<Vec<f64>> {
    let lens = operation.input_lens();
    (0..).zip(lens).map(|(index, len)| values(len, random::key(seed, &[index]))).collect()
}

/// Asserts that gradients agree with finite differences.
pub fn check_finite_differences(device: &dyn Device, operation: &dyn Operation, seed: u64) {
    let mut inputs = inputs(operation, seed, random_values);
    let dy = random_values(operation.forward(device, &inputs).len(), seed ^ 1);
    let gradients = operation.backward(device, &inputs, &dy);
    assert_eq!(gradients.len(), inputs.len());
    let step = 1e-4;
    for (input, gradient) in gradients.iter().enumerate() {
        assert_eq!(gradient.len(), inputs[input].len());
        for (at, found) in gradient.iter().enumerate() {
            let mut displaced = |by: f64| {
                let original = inputs[input][at];
                inputs[input][at] = original + by;
                let y = operation.forward(device, &inputs);
                inputs[input][at] = original;
                y.iter().zip(&dy).map(|(y, dy)| y * dy).sum::<f64>()
            };
            let near = displaced(step) - displaced(-step);
            let far = displaced(2.0 * step) - displaced(-2.0 * step);
            // Fourth-order central difference.
            let expected = (8.0 * near - far) / (12.0 * step);
            let error = (found - expected).abs();
            assert!(
                error < 1e-8 * (1.0 + expected.abs()),
                "{operation:?}: gradient {at} of input {input} is {found}, expected {expected}"
            );
        }
    }
}

/// Asserts that output and gradients agree with the reference device.
pub fn check_reference(device: &dyn Device, operation: &dyn Operation, seed: u64, tolerance: f64) {
    check_inputs(device, operation, &inputs(operation, seed, exact_values), seed, tolerance);
}

/// As [`check_reference`], with inputs `scale` times as large: a power of two.
pub fn check_scaled(
    device: &dyn Device,
    operation: &dyn Operation,
    scale: f64,
    seed: u64,
    tolerance: f64,
) {
    let mut inputs = inputs(operation, seed, exact_values);
    inputs.iter_mut().flatten().for_each(|x| *x *= scale);
    check_inputs(device, operation, &inputs, seed, tolerance);
}

fn check_inputs(
    device: &dyn Device,
    operation: &dyn Operation,
    inputs: &[Vec<f64>],
    seed: u64,
    tolerance: f64,
) {
    let expected = operation.forward(&Reference, inputs);
    let dy = exact_values(expected.len(), seed ^ 1);
    let found = operation.forward(device, inputs);
    assert_close(&found, &expected, tolerance, &format!("{operation:?}: output"));
    let gradients = operation.backward(device, inputs, &dy);
    let expected = operation.backward(&Reference, inputs, &dy);
    assert_eq!(gradients.len(), expected.len(), "{operation:?}");
    for (input, (found, expected)) in gradients.iter().zip(&expected).enumerate() {
        let what = format!("{operation:?}: gradient of input {input}");
        assert_close(found, expected, tolerance, &what);
    }
}

/// Asserts that the positive gradients of an operation with one output agree with the reference device.
/// These are the softmax probabilities of cross-entropy, which are negligible beside the gradients of the
/// targets.
pub fn check_positive_gradients(
    device: &dyn Device,
    operation: &dyn Operation,
    seed: u64,
    tolerance: f64,
) {
    let inputs = inputs(operation, seed, exact_values);
    let gradients = operation.backward(device, &inputs, &[1.0]);
    let expected = operation.backward(&Reference, &inputs, &[1.0]);
    let pairs = gradients.iter().flatten().zip(expected.iter().flatten());
    let (found, expected): (Vec<f64>, Vec<f64>) =
        pairs.filter(|(_, expected)| **expected > 0.0).unzip();
    let scale = 1.0 / expected.iter().fold(0.0, |max: f64, x| max.max(*x));
    let scaled = |all: Vec<f64>| -> Vec<f64> { all.iter().map(|x| x * scale).collect() };
    let what = format!("{operation:?}: positive gradients, scaled by {scale}");
    assert_close(&scaled(found), &scaled(expected), tolerance, &what);
}

/// Asserts equality within a tolerance relative to the largest element, at least 1. NaN fails.
pub fn assert_close(found: &[f64], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let max = expected.iter().fold(1.0, |max: f64, x| max.max(x.abs()));
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        let close = (found - expected).abs() <= tolerance * max;
        assert!(close, "{what}: element {at} is {found}, expected {expected}");
    }
}

/// Asserts equality of all elements. Names the first that differs.
pub fn assert_same(found: &[f64], expected: &[f64], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    if let Some(at) = (0..found.len()).find(|at| found[*at] != expected[*at]) {
        panic!("{what}: element {at} is {}, expected {}", found[at], expected[at]);
    }
}
