//! The GEMM peak of a device.

use std::time::Instant;

use regatta_device::ops::LinearShape;
use regatta_device::{DeviceMemory, LinearOps};

use crate::CudaDevice;

/// Rows and columns: large enough for all multiprocessors.
const SIZE: usize = 8192;

/// Products per measurement, and measurements: the first ones select an algorithm and raise the clock.
const PRODUCTS: usize = 4;
const MEASUREMENTS: usize = 4;

impl CudaDevice {
    /// GEMM throughput in the device's precision in FLOP/s; 0 if it cannot be measured.
    pub fn measure_gemm(&self) -> f64 {
        let shape = LinearShape { rows: SIZE, inputs: SIZE, outputs: SIZE };
        let tensor = || self.zeros_activation(SIZE * SIZE);
        let (mut x, mut weight, mut y) = (tensor(), tensor(), tensor());
        // Zeros would need less power, and the clock would be higher than in training.
        self.fill(0.7, x.view_mut());
        self.fill(-0.3, weight.view_mut());
        let mut best = 0.0f64;
        for _ in 0..MEASUREMENTS {
            if self.synchronize().is_err() {
                return 0.0;
            }
            let start = Instant::now();
            for _ in 0..PRODUCTS {
                self.linear(shape, x.view(), weight.view(), None, y.view_mut());
            }
            if self.synchronize().is_err() {
                return 0.0;
            }
            let flops = 2.0 * (SIZE as f64).powi(3) * PRODUCTS as f64;
            best = best.max(flops / start.elapsed().as_secs_f64());
        }
        best
    }
}
