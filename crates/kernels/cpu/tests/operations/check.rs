//! What an operation is to these tests, and how its gradients are checked.

use std::fmt::Debug;

use regatta_device::ops::Device;
use regatta_device::tensor::Tensor;
use regatta_device::random;
use regatta_device::reference::Reference;

use crate::slice::{fetch, short, tensor};

/// Slice in, numbers out, and gradients back.
pub trait Operation: Debug {
    /// How many numbers each input has.
    fn inputs(&self) -> Vec<usize>;

    /// What comes out.
    fn forward(&self, device: &dyn Device, inputs: &[Vec<f64>]) -> Vec<f64>;

    /// The gradient of each input, from that of what comes out.
    fn backward(&self, device: &dyn Device, inputs: &[Vec<f64>], dy: &[f64]) -> Vec<Vec<f64>>;
}

/// Random numbers.
pub fn some(count: usize, seed: u64) -> Vec<f64> {
    (0..count as u64).map(|index| random::normal(random::key(seed, &[7]), index)).collect()
}

/// Random inputs of an operation.
pub fn inputs(operation: &dyn Operation, seed: u64) -> Vec<Vec<f64>> {
    let counts = operation.inputs();
    (0..).zip(counts).map(|(which, count)| some(count, random::key(seed, &[which]))).collect()
}

/// A tensor of the stream or of parameters.
pub fn real(device: &dyn Device, numbers: &[f64]) -> Tensor {
    tensor(device, numbers, device.real_format())
}

/// A tensor of activations.
pub fn activation(device: &dyn Device, numbers: &[f64]) -> Tensor {
    tensor(device, numbers, device.activation_format())
}

/// Memory that is written and not read: nothing may come of what is there.
pub fn unread(count: usize) -> Vec<f64> {
    vec![f64::NAN; count]
}

/// What was in a gradient before an operation added to it.
const BEFORE: f64 = 0.5;

/// A gradient that something was added to already.
pub fn begun(device: &dyn Device, count: usize) -> Tensor {
    real(device, &vec![BEFORE; count])
}

/// What an operation added to it.
pub fn added(device: &dyn Device, gradient: &Tensor) -> Vec<f64> {
    fetch(device, gradient.view()).iter().map(|sum| sum - BEFORE).collect()
}

/// Every number of every input: its gradient is the slope of what comes out along `dy`.
pub fn by_differences(device: &dyn Device, operation: &dyn Operation, seed: u64) {
    let mut inputs = inputs(operation, seed);
    let dy = some(operation.forward(device, &inputs).len(), seed ^ 1);
    let gradients = operation.backward(device, &inputs, &dy);
    assert_eq!(gradients.len(), inputs.len());
    let tiny = 1e-4;
    for (which, gradient) in gradients.iter().enumerate() {
        assert_eq!(gradient.len(), inputs[which].len());
        for (at, found) in gradient.iter().enumerate() {
            let mut moved = |by: f64| {
                let before = inputs[which][at];
                inputs[which][at] = before + by;
                let y = operation.forward(device, &inputs);
                inputs[which][at] = before;
                y.iter().zip(&dy).map(|(y, dy)| y * dy).sum::<f64>()
            };
            let (near, far) = (moved(tiny) - moved(-tiny), moved(2.0 * tiny) - moved(-2.0 * tiny));
            // Exact up to the fourth power of the step.
            let expected = (8.0 * near - far) / (12.0 * tiny);
            let off = (found - expected).abs();
            assert!(
                off < 1e-8 * (1.0 + expected.abs()),
                "{operation:?}: gradient {at} of input {which} is {found}, the slope {expected}"
            );
        }
    }
}

/// What comes out and the gradients are those of the plain device, within a share of the greatest.
pub fn as_reference(device: &dyn Device, operation: &dyn Operation, seed: u64, within: f64) {
    let mut inputs = inputs(operation, seed);
    inputs.iter_mut().flatten().for_each(|x| *x = short(*x));
    let expected = operation.forward(&Reference, &inputs);
    let mut dy = some(expected.len(), seed ^ 1);
    dy.iter_mut().for_each(|dy| *dy = short(*dy));
    let found = operation.forward(device, &inputs);
    near(&found, &expected, within, &format!("{operation:?}: what comes out"));
    let gradients = operation.backward(device, &inputs, &dy);
    let all = gradients.iter().zip(operation.backward(&Reference, &inputs, &dy));
    for (which, (found, expected)) in all.enumerate() {
        near(found, &expected, within, &format!("{operation:?}: the gradient of input {which}"));
    }
}

/// Each number is the other's within a share of the greatest, or of 1. What is no number is not near.
pub fn near(found: &[f64], expected: &[f64], within: f64, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let most = expected.iter().fold(1.0, |most: f64, x| most.max(x.abs()));
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        let close = (found - expected).abs() <= within * most;
        assert!(close, "{what}: number {at} is {found}, not {expected}");
    }
}
