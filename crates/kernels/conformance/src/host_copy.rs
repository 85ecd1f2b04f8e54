//! Copies between host memory and any device, exact if the device stores f64.

use half::bf16;
use regatta_comm::DType;
use regatta_device::ops::{Device, SCALAR_DTYPE, TOKEN_DTYPE};
use regatta_device::tensor::{Tensor, View, ViewMut};

/// Copies values to the device.
pub fn copy_from_f64(device: &dyn Device, from: &[f64], to: ViewMut<'_>) {
    match to.dtype() {
        // Devices that store tensors in f64 copy from host memory.
        DType::F64 => device.copy(View::from_slice(from), to),
        _ => device.copy_from_host(&from.iter().map(|x| *x as f32).collect::<Vec<_>>(), to),
    }
}

/// Copies values from the device.
pub fn copy_to_f64(device: &dyn Device, from: View<'_>) -> Vec<f64> {
    if from.dtype() == DType::F64 {
        return device.read_scalars(from).unwrap();
    }
    let mut to = vec![0.0f32; from.len()];
    device.copy_to_host(from, &mut to);
    to.into_iter().map(f64::from).collect()
}

/// A tensor of token ids or positions.
pub fn tokens(device: &dyn Device, values: &[u32]) -> Tensor {
    let mut tensor = device.zeros(values.len(), TOKEN_DTYPE);
    device.copy_tokens_from_host(values, tensor.view_mut());
    tensor
}

/// A scalar with a value that is exact in f32.
pub fn scalar(device: &dyn Device, value: f64) -> Tensor {
    assert_eq!(value, f64::from(value as f32), "devices may fill with f32 values");
    let mut tensor = device.zeros(1, SCALAR_DTYPE);
    device.fill(value, tensor.view_mut());
    tensor
}

/// The value of a scalar.
pub fn read_scalar(device: &dyn Device, scalar: &Tensor) -> f64 {
    device.read_scalars(scalar.view()).unwrap()[0]
}

/// The nearest value that is exact in every dtype.
pub fn round_bf16(value: f64) -> f64 {
    bf16::from_f64(value).to_f64()
}

/// The values that a device stores in a dtype, given f64 values or values that it stores in f32.
pub fn rounded(values: &[f64], dtype: DType) -> Vec<f64> {
    let round = |value: &f64| match dtype {
        DType::F64 => *value,
        DType::Bf16 => f64::from(bf16::from_f32(*value as f32)),
        _ => f64::from(*value as f32),
    };
    values.iter().map(round).collect()
}
