//! GEMM on a GPU with cuBLAS or rocBLAS.

use regatta_comm::dtype::{Element, bytes_of};

use super::super::gpu::{Blas, GemmType, GpuError, GpuResult, RooflineGpu};
use super::super::timing::time;
use super::super::{Cases, RooflineRow, RooflineSettings};
use super::cpu::pseudo_random;
use super::row;

/// Distinct elements of a matrix: a prime, so that no two rows are equal.
const PATTERN_ELEMENTS: usize = 65_521;

pub struct GpuGemm {
    /// Dropped before the device, whose stream it uses.
    blas: Blas,
    device: RooflineGpu,
}

impl GpuGemm {
    /// Opens the BLAS library for a device.
    pub fn open(device: RooflineGpu) -> GpuResult<Self> {
        Ok(Self { blas: Blas::open(&device)?, device })
    }

    fn dtypes(&self) -> impl Iterator<Item = GemmType> {
        GemmType::ALL.into_iter().filter(|dtype| self.blas.supports(*dtype))
    }

    pub fn cases(&self, settings: &RooflineSettings) -> usize {
        self.dtypes().count() * settings.gpu_sizes.len()
    }

    /// Measures those of the types that the GPU supports.
    pub fn measure(
        &self,
        cases: &mut Cases<'_>,
        settings: &RooflineSettings,
        dtypes: &[GemmType],
    ) -> GpuResult {
        for dtype in self.dtypes().filter(|dtype| dtypes.contains(dtype)) {
            for &size in &settings.gpu_sizes {
                let what = format!("{} {size}", dtype.name());
                cases.case(&what, || {
                    let (device, bytes) = (&self.device, size * size * dtype.bytes());
                    let (left, right) = (device.alloc(bytes)?, device.alloc(bytes)?);
                    let result = device.alloc(bytes)?;
                    device.copy_from_host(&left, &matrix(dtype, size, 0))?;
                    device.copy_from_host(&right, &matrix(dtype, size, PATTERN_ELEMENTS))?;
                    let gemm = || self.blas.gemm(device, dtype, size, [&left, &right, &result]);
                    let timed = time(&settings.timing, |calls| device.time(calls, gemm))?;
                    Ok::<_, GpuError>(RooflineRow {
                        device: device.name().to_owned(),
                        device_index: Some(device.index()),
                        ..row(&timed, what.clone(), size)
                    })
                })?;
            }
        }
        Ok(())
    }
}

/// A pseudo-random matrix, encoded.
fn matrix(dtype: GemmType, size: usize, seed: usize) -> Vec<u8> {
    let some = (size * size).min(PATTERN_ELEMENTS);
    let values = (0..some).map(|at| pseudo_random(seed + at));
    fn encode<T: Element>(values: impl Iterator<Item = T>) -> Vec<u8> {
        bytes_of(&values.collect::<Vec<_>>()).to_vec()
    }
    let piece = match dtype {
        GemmType::F64 => encode(values),
        GemmType::F32 | GemmType::Tf32 => encode(values.map(|value| value as f32)),
        GemmType::F16 => encode(values.map(half::f16::from_f64)),
        GemmType::Bf16 => encode(values.map(half::bf16::from_f64)),
    };
    let bytes = size * size * dtype.bytes();
    let mut all = piece.repeat(bytes.div_ceil(piece.len().max(1)));
    all.truncate(bytes);
    all
}

#[cfg(test)]
#[path = "gpu_tests.rs"]
mod tests;
