//! The GEMM peak of a device.

use std::time::Instant;

use regatta_device::ops::{LinearArgs, LinearShape};
use regatta_device::random;
use regatta_device::tensor::Tensor;
use regatta_device::{DeviceMemory, LinearOps};

use crate::CudaDevice;

/// Rows and columns: large enough for all multiprocessors.
const SIZE: usize = 8192;

/// Random values that are generated on the host and repeated.
const RANDOM_VALUES: usize = 1 << 16;

/// Products per measurement, and measurements: the first ones select an algorithm and raise the clock.
const PRODUCTS: usize = 4;
const MEASUREMENTS: usize = 4;

impl CudaDevice {
    /// GEMM throughput in the device's precision in FLOP/s; 0 if it cannot be measured.
    pub fn measure_gemm(&self) -> f64 {
        let shape = LinearShape { rows: SIZE, inputs: SIZE, outputs: SIZE };
        let tensor = || self.zeros_activation(SIZE * SIZE);
        let (mut x, mut weight, mut y) = (tensor(), tensor(), tensor());
        self.fill_random(1, &mut x);
        self.fill_random(2, &mut weight);
        let mut best = 0.0f64;
        for _ in 0..MEASUREMENTS {
            if self.synchronize().is_err() {
                return 0.0;
            }
            let start = Instant::now();
            for _ in 0..PRODUCTS {
                let (x, weight, y) = (x.view(), weight.view(), y.view_mut());
                self.linear(LinearArgs { shape, x, weight, bias: None, y });
            }
            if self.synchronize().is_err() {
                return 0.0;
            }
            let flops = 2.0 * (SIZE as f64).powi(3) * PRODUCTS as f64;
            best = best.max(flops / start.elapsed().as_secs_f64());
        }
        best
    }

    /// Fills with random values: equal ones need less power, so that the clock would be higher than in
    /// training.
    fn fill_random(&self, seed: u64, to: &mut Tensor) {
        let key = random::key(seed, &[]);
        let values = (0..RANDOM_VALUES as u64).map(|index| random::normal(key, index) as f32);
        let values: Vec<f32> = values.collect();
        let mut filled = RANDOM_VALUES.min(to.len());
        self.copy_from_host(&values[..filled], to.view_mut().slice(0..filled));
        while filled < to.len() {
            let count = filled.min(to.len() - filled);
            let (from, rest) = to.view_mut().split_at(filled);
            self.copy(from.view().slice(0..count), rest.split_at(count).0);
            filled += count;
        }
    }
}
