//! Slice into and out of any device, without loss where it knows double precision.

use half::bf16;
use regatta_device::ops::Device;
use regatta_device::tensor::{DType, Tensor, View, ViewMut};

/// Copies numbers to the device.
pub fn put(device: &dyn Device, from: &[f64], to: ViewMut<'_>) {
    match to.format() {
        DType::F64 => to.host::<f64>().copy_from_slice(from),
        _ => device.put(&from.iter().map(|x| *x as f32).collect::<Vec<_>>(), to),
    }
}

/// Copies numbers from the device.
pub fn fetch(device: &dyn Device, from: View<'_>) -> Vec<f64> {
    if from.format() == DType::F64 {
        return from.host::<f64>().to_vec();
    }
    let mut to = vec![0.0f32; from.len()];
    device.fetch(from, &mut to);
    to.into_iter().map(f64::from).collect()
}

/// A tensor with these numbers.
#[allow(dead_code, reason = "not every test makes tensors")]
pub fn tensor(device: &dyn Device, numbers: &[f64], format: DType) -> Tensor {
    let mut tensor = device.zeros(numbers.len(), format);
    put(device, numbers, tensor.view_mut());
    tensor
}

/// The nearest number that every format has.
#[allow(dead_code, reason = "not every test compares formats")]
pub fn short(number: f64) -> f64 {
    bf16::from_f64(number).to_f64()
}
