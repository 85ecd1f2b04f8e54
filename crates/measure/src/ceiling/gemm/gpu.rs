//! Products on a GPU, by the vendor's library.

use regatta_comm::dtype::bytes_of;

use super::super::gpu::{Blas, Device, GpuError, Number};
use super::super::timing::time;
use super::super::{Cases, Row};
use super::cpu::noise;
use super::{Settings, row};

/// Different elements of a matrix. They repeat after a prime number, so no two rows are alike.
const DIFFERENT: usize = 65_521;

/// A GPU that multiplies.
pub(super) struct Products {
    /// Before the device, whose stream it uses, in the order of their ends.
    blas: Blas,
    device: Device,
}

impl Products {
    /// Opens the library for a device.
    pub(super) fn open(device: Device) -> Result<Self, GpuError> {
        let blas = Blas::open(&device)?;
        Ok(Self { blas, device })
    }

    fn numbers(&self) -> impl Iterator<Item = Number> {
        Number::ALL.into_iter().filter(|number| self.blas.has(*number))
    }

    /// How many cases there are.
    pub(super) fn cases(&self, settings: &Settings) -> usize {
        self.numbers().count() * settings.gpu_sizes.len()
    }

    /// Measures all sizes and types.
    pub(super) fn measure(
        &self,
        cases: &mut Cases<'_>,
        settings: &Settings,
    ) -> Result<(), GpuError> {
        for number in self.numbers() {
            for &size in &settings.gpu_sizes {
                let what = format!("{} {size}", number.name());
                cases.case(&what, |stop| {
                    let bytes = size * size * number.bytes();
                    let left = self.device.memory(bytes)?;
                    let right = self.device.memory(bytes)?;
                    let result = self.device.memory(bytes)?;
                    self.device.put(&left, &matrix(number, size, 0))?;
                    self.device.put(&right, &matrix(number, size, DIFFERENT))?;
                    let timed = time(&settings.effort, stop, |calls| {
                        self.device.time(calls, || {
                            self.blas.product(&self.device, number, size, [&left, &right, &result])
                        })
                    })?;
                    Ok::<_, GpuError>(timed.map(|timed| Row {
                        device: self.device.name().to_owned(),
                        device_number: Some(self.device.number()),
                        ..row(&timed, what.clone(), size)
                    }))
                })?;
            }
        }
        Ok(())
    }
}

/// The bytes of a matrix of numbers that look like nothing.
fn matrix(number: Number, size: usize, seed: usize) -> Vec<u8> {
    let some = (size * size).min(DIFFERENT);
    let values = (0..some).map(|at| noise(seed + at));
    let piece = match number {
        Number::F64 => bytes_of(&values.collect::<Vec<_>>()).to_vec(),
        Number::F32 | Number::Tf32 => {
            bytes_of(&values.map(|v| v as f32).collect::<Vec<_>>()).to_vec()
        }
        Number::F16 => bytes_of(&values.map(half::f16::from_f64).collect::<Vec<_>>()).to_vec(),
        Number::Bf16 => bytes_of(&values.map(half::bf16::from_f64).collect::<Vec<_>>()).to_vec(),
    };
    let bytes = size * size * number.bytes();
    let mut all = piece.repeat(bytes.div_ceil(piece.len().max(1)));
    all.truncate(bytes);
    all
}

#[cfg(test)]
#[path = "gpu_tests.rs"]
mod tests;
