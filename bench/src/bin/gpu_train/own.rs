//! The training engine on a GPU.

use std::time::Instant;

use anyhow::Result;
use regatta_device::optimizer::AdamW;
use regatta_device::precision::Precision;
use regatta_device::random;
use regatta_kernels_cuda::CudaDevice;
use regatta_train::model::Model;
use regatta_train::step::{DeviceModel, Engine, MicroBatch, OptimizerStep, StepConfig};

use crate::case::Case;
use crate::options::Settings;

pub struct Trainer {
    engine: Engine,
    inputs: Vec<u32>,
    targets: Vec<u32>,
    batch: usize,
    dropout: f32,
    recompute: bool,
    step: u64,
    description: String,
    pub last_loss: f64,
}

impl Trainer {
    pub fn new(case: &Case, settings: Settings) -> Result<Self> {
        let device = CudaDevice::open(0, Precision::Bf16)?
            .with_residual(settings.residual)
            .with_residual_gradient(settings.residual_gradient)
            .with_fp8(settings.fp8)?;
        let description = device.describe();
        let device_model = DeviceModel::new(Model::new(case.shape.clone()), Box::new(device));
        let tokens = case.tokens() as u64;
        let vocab_size = case.shape.vocab_size as u64;
        let token = |key: u64, i: u64| (random::mix(random::key(key, &[i])) % vocab_size) as u32;
        let stream = |key| (0..tokens).map(|i| token(key, i)).collect();
        let mut engine = Engine::single_rank(device_model, 1);
        if settings.graphs {
            engine.enable_graphs();
        }
        Ok(Self {
            engine,
            dropout: case.dropout,
            inputs: stream(1),
            targets: stream(2),
            batch: case.batch,
            recompute: case.recompute,
            step: 0,
            description,
            last_loss: f64::NAN,
        })
    }

    /// Notes about graphs since the last call.
    pub fn take_notes(&mut self) -> Vec<String> {
        self.engine.take_notes()
    }

    pub fn describe(&self) -> &str {
        &self.description
    }

    /// Peak memory of parameters, gradients, optimizer state and activations.
    pub fn state_and_activation_bytes(&self) -> u64 {
        let activations = self.engine.device_model.pool.peak_bytes();
        self.engine.state.memory().state() + activations as u64
    }

    /// Memory of the GPU that is in use, by this process and others.
    pub fn memory_in_use(&self) -> u64 {
        self.engine.device_model.device.memory_use().map_or(0, |memory| memory.used)
    }

    /// Runs steps and returns their times in seconds.
    pub fn run(&mut self, steps: usize) -> Result<Vec<f64>> {
        (0..steps).map(|_| self.run_step()).collect()
    }

    fn run_step(&mut self) -> Result<f64> {
        let start = Instant::now();
        let Self { inputs, targets, batch, step, recompute, .. } = self;
        let micro = MicroBatch { inputs, targets, batch: *batch, first_sequence: 0 };
        let optimizer = OptimizerStep::AdamW(AdamW {
            lr: 3e-4,
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
            weight_decay: 0.1,
            step: *step + 1,
        });
        let tokens = inputs.len() as u64;
        let (grad_clip, dropout, seed, recompute) = (1.0, self.dropout, 1, *recompute);
        let config =
            StepConfig { step: *step, tokens, optimizer, grad_clip, dropout, seed, recompute };
        let result = self.engine.step(&config, std::iter::once(micro))?;
        self.step += 1;
        self.last_loss = result.loss_sum / tokens as f64;
        Ok(start.elapsed().as_secs_f64())
    }

    /// Prints the time of each kernel in a step.
    pub fn print_kernels(&mut self, steps: usize) -> Result<()> {
        self.run(5)?;
        let plain: f64 = self.run(steps)?.iter().sum::<f64>() / steps as f64;
        self.engine.device_model.device.start_kernel_times();
        let timed: f64 = self.run(steps)?.iter().sum::<f64>() / steps as f64;
        let mut kernels = self.engine.device_model.device.take_kernel_times();
        kernels.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        let total: f64 = kernels.iter().map(|kernel| kernel.seconds).sum::<f64>() / steps as f64;
        println!(
            "  {:.2} ms/step, {:.2} ms with timing, kernels {:.2} ms",
            1e3 * plain,
            1e3 * timed,
            1e3 * total
        );
        for kernel in kernels {
            let (seconds, calls) =
                (kernel.seconds / steps as f64, kernel.calls as f64 / steps as f64);
            println!(
                "  {:44} {:8.3} ms {:5.1} % {:6.1} calls {:8.1} us",
                kernel.name,
                1e3 * seconds,
                100.0 * seconds / total,
                calls,
                1e6 * seconds / calls
            );
        }
        Ok(())
    }
}
