//! Operations as functions with gradients, and checks of both.

use std::fmt::Debug;

use regatta_device::ops::Device;
use regatta_device::random;
use regatta_device::reference::Reference;
use regatta_device::tensor::Tensor;

use crate::host_copy::{copy_to_f64, round_bf16, tensor};

/// A differentiable operation.
pub trait Operation: Debug {
    /// Length of each input.
    fn input_lens(&self) -> Vec<usize>;

    /// The output.
    fn forward(&self, device: &dyn Device, inputs: &[Vec<f64>]) -> Vec<f64>;

    /// The gradient of each input, given that of the output.
    fn backward(&self, device: &dyn Device, inputs: &[Vec<f64>], dy: &[f64]) -> Vec<Vec<f64>>;
}

/// Normally distributed values.
pub fn random_values(count: usize, seed: u64) -> Vec<f64> {
    (0..count as u64).map(|index| random::normal(random::key(seed, &[7]), index)).collect()
}

/// Random inputs of an operation.
pub fn random_inputs(operation: &dyn Operation, seed: u64) -> Vec<Vec<f64>> {
    let lens = operation.input_lens();
    (0..).zip(lens).map(|(index, len)| random_values(len, random::key(seed, &[index]))).collect()
}

/// A tensor of the master dtype.
pub fn master(device: &dyn Device, values: &[f64]) -> Tensor {
    tensor(device, values, device.master_dtype())
}

/// A tensor of the activation dtype.
pub fn activation(device: &dyn Device, values: &[f64]) -> Tensor {
    tensor(device, values, device.activation_dtype())
}

/// Initial values of an output, to detect reads.
pub fn nans(count: usize) -> Vec<f64> {
    vec![f64::NAN; count]
}

/// Initial value of accumulated gradients.
const INITIAL_GRAD: f64 = 0.5;

/// A gradient that an operation accumulates into.
pub fn initial_grad(device: &dyn Device, count: usize) -> Tensor {
    master(device, &vec![INITIAL_GRAD; count])
}

/// What was accumulated into it.
pub fn accumulated(device: &dyn Device, gradient: &Tensor) -> Vec<f64> {
    copy_to_f64(device, gradient.view()).iter().map(|sum| sum - INITIAL_GRAD).collect()
}

/// Asserts that gradients agree with finite differences.
pub fn check_finite_differences(device: &dyn Device, operation: &dyn Operation, seed: u64) {
    let mut inputs = random_inputs(operation, seed);
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
    let mut inputs = random_inputs(operation, seed);
    inputs.iter_mut().flatten().for_each(|x| *x = round_bf16(*x));
    let expected = operation.forward(&Reference, &inputs);
    let mut dy = random_values(expected.len(), seed ^ 1);
    dy.iter_mut().for_each(|dy| *dy = round_bf16(*dy));
    let found = operation.forward(device, &inputs);
    assert_close(&found, &expected, tolerance, &format!("{operation:?}: output"));
    let gradients = operation.backward(device, &inputs, &dy);
    let pairs = gradients.iter().zip(operation.backward(&Reference, &inputs, &dy));
    for (input, (found, expected)) in pairs.enumerate() {
        let what = format!("{operation:?}: gradient of input {input}");
        assert_close(found, &expected, tolerance, &what);
    }
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
