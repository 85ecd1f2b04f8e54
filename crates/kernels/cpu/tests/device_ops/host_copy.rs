//! Copies between f64 host memory and any device, exact if the device stores f64.

use half::bf16;
use regatta_comm::DType;
use regatta_device::ops::Device;
use regatta_device::tensor::{Tensor, View, ViewMut};

/// Copies values to the device.
pub fn copy_from_f64(device: &dyn Device, from: &[f64], to: ViewMut<'_>) {
    match to.dtype() {
        DType::F64 => to.as_slice::<f64>().copy_from_slice(from),
        _ => device.copy_from_host(&from.iter().map(|x| *x as f32).collect::<Vec<_>>(), to),
    }
}

/// Copies values from the device.
pub fn copy_to_f64(device: &dyn Device, from: View<'_>) -> Vec<f64> {
    if from.dtype() == DType::F64 {
        return from.as_slice::<f64>().to_vec();
    }
    let mut to = vec![0.0f32; from.len()];
    device.copy_to_host(from, &mut to);
    to.into_iter().map(f64::from).collect()
}

/// A tensor with these values.
#[allow(dead_code, reason = "not every test creates tensors")]
pub fn tensor(device: &dyn Device, values: &[f64], dtype: DType) -> Tensor {
    let mut tensor = device.zeros(values.len(), dtype);
    copy_from_f64(device, values, tensor.view_mut());
    tensor
}

/// The nearest value that is exact in every dtype.
#[allow(dead_code, reason = "not every test compares dtypes")]
pub fn round_bf16(value: f64) -> f64 {
    bf16::from_f64(value).to_f64()
}
