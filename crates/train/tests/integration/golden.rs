//! Loss, logits, gradients and a short training agree with PyTorch. `golden/make.py` generates the
//! expected values, `golden/make_bf16.py` those of training in bf16. A GPU is tested, too, if there is
//! one.

use regatta_comm::gpu_runtime::Vendor;
use regatta_device::ops::Device;
use regatta_device::optimizer::{AdamW, Sgd};
use regatta_device::precision::Precision;
use regatta_device::reference::Reference;
use regatta_device_conformance::host_copy::{copy_from_f64, copy_to_f64, tokens};
use regatta_kernels_cpu::Cpu;
use regatta_kernels_cuda::{CudaDevice, device_count, fake};
use regatta_predict::shape::{Init, ModelShape, ParamBlock};
use regatta_train::model::{Model, ResidentParams, Residual};
use regatta_train::step::{DeviceModel, Engine, MicroBatch, OptimizerStep, StepConfig, StepResult};
use serde::Deserialize;

#[derive(Deserialize)]
struct Golden {
    #[serde(flatten)]
    training: Training,
    /// Mean loss of the first step.
    loss: f64,
    /// Logits of the last token of the last sequence.
    last_logits: Vec<f64>,
    gradients: Vec<Gradient>,
}

/// A short training.
#[derive(Deserialize)]
struct Training {
    shape: ModelShape,
    batch: usize,
    seq_len: usize,
    /// Of the formula of the parameters.
    #[serde(default = "default_amplitude")]
    amplitude: f64,
    optimizer: Hyperparameters,
    losses: Vec<f64>,
    gradient_norms: Vec<f64>,
}

fn default_amplitude() -> f64 {
    0.3
}

/// Summary of a parameter's gradient.
#[derive(Deserialize)]
struct Gradient {
    name: String,
    length: usize,
    norm: f64,
    /// Sum of element `i` times `sin(1 + i)`.
    weighted: f64,
    /// Some elements, with their indices.
    picked: Vec<(usize, f64)>,
}

/// Hyperparameters of the training.
#[derive(Deserialize)]
struct Hyperparameters {
    lr: f64,
    beta1: f64,
    beta2: f64,
    eps: f64,
    weight_decay: f64,
    grad_clip: f64,
}

/// Relative tolerances.
#[derive(Clone, Copy)]
struct Tolerance {
    values: f64,
    gradients: f64,
    losses: f64,
    norms: f64,
}

const F64: Tolerance = Tolerance { values: 1e-9, gradients: 1e-9, losses: 1e-7, norms: 1e-6 };
const F32: Tolerance = Tolerance { values: 1e-5, gradients: 1e-4, losses: 1e-4, norms: 1e-3 };

/// PyTorch's bf16 losses are within 2.1e-3 of f64, its gradient norms within 2.1e-2 (`make_bf16.py` prints
/// these). Values of another implementation, which rounds at other points, are on either side of f64: gradient
/// norms of an H200 differ from PyTorch's by up to 4.1e-2.
const BF16: Tolerance = Tolerance { values: 1e-2, gradients: 1e-2, losses: 4e-3, norms: 6e-2 };

#[test]
fn gpt2_matches_pytorch() {
    check(include_str!("../golden/gpt2.json"));
}

#[test]
fn gpt2_without_biases_matches_pytorch() {
    check(include_str!("../golden/gpt2-without-biases.json"));
}

#[test]
fn llama_matches_pytorch() {
    check(include_str!("../golden/llama.json"));
}

#[test]
fn mlp_matches_pytorch() {
    check(include_str!("../golden/mlp.json"));
}

#[test]
fn gpt2_in_bf16_matches_pytorch() {
    check_bf16(include_str!("../golden/gpt2-bf16.json"));
}

#[test]
fn llama_in_bf16_matches_pytorch() {
    check_bf16(include_str!("../golden/llama-bf16.json"));
}

fn check(text: &str) {
    let golden: Golden = serde_json::from_str(text).unwrap();
    golden.check_on(F64, || Box::new(Reference));
    golden.check_on(F32, || Box::new(Cpu::new(2, Precision::F32)));
    if has_gpu() {
        golden.check_on(F32, || Box::new(CudaDevice::open(0, Precision::F32).unwrap()));
    }
}

fn check_bf16(text: &str) {
    let training: Training = serde_json::from_str(text).unwrap();
    let check = |device: Box<dyn Device>| training.check(&mut training.engine(device), BF16);
    check(Box::new(Cpu::new(2, Precision::Bf16)));
    // The gradient of the residual stream is that of the golden values, or rounded.
    check(Box::new(fake::device(Precision::Bf16).with_residual_gradient(Precision::F32)));
    check(Box::new(fake::device(Precision::Bf16)));
    if has_gpu() {
        check(Box::new(CudaDevice::open(0, Precision::Bf16).unwrap()));
        check(Box::new(CudaDevice::open(0, Precision::Bf16).unwrap().deterministic_results()));
    }
}

fn has_gpu() -> bool {
    let has_gpu = device_count(Vendor::Nvidia) > 0;
    if !has_gpu {
        eprintln!("skipped on a GPU: there is no NVIDIA GPU");
    }
    has_gpu
}

impl Training {
    /// A model whose element `i` of parameter `n` is given by a formula.
    fn engine(&self, device: Box<dyn Device>) -> Engine {
        let device_model = DeviceModel::new(Model::new(self.shape.clone()), device);
        let mut engine = Engine::single_rank(device_model, 1);
        let Engine { device_model, state, .. } = &mut engine;
        let mut n = 0.0;
        for (index, block) in device_model.model.blocks.iter().enumerate() {
            for parameter in &block.parameters {
                let offset = if parameter.init == Init::One { 1.0 } else { 0.0 };
                let value = |i: usize| {
                    let i = i as f64;
                    offset + self.amplitude * (1.0 + n + 0.37 * i + 0.011 * i * i).sin()
                };
                let values: Vec<f64> = (0..parameter.len()).map(value).collect();
                let mut params = state.param_shard_mut(index);
                copy_from_f64(&*device_model.device, &values, params.slice(parameter.range()));
                n += 1.0;
            }
            state.all_gather_updated(index).unwrap();
        }
        engine
    }

    /// The inputs and targets of a step.
    fn tokens(&self, step: usize) -> (Vec<u32>, Vec<u32>) {
        let count = self.batch * self.seq_len;
        let token = |j: usize| ((j * j + j / 3) % self.shape.vocab_size) as u32;
        let from = |first: usize| (first..first + count).map(token).collect();
        (from(step * count), from(step * count + 1))
    }

    fn step(
        &self,
        engine: &mut Engine,
        step: usize,
        optimizer: OptimizerStep,
        grad_clip: f64,
    ) -> StepResult {
        let (inputs, targets) = self.tokens(step);
        let (batch, first_sequence) = (self.batch, 0);
        let micro_batch = MicroBatch { inputs: &inputs, targets: &targets, batch, first_sequence };
        let config = StepConfig {
            step: step as u64,
            tokens: inputs.len() as u64,
            optimizer,
            grad_clip,
            dropout: 0.0,
            seed: 1,
            recompute: false,
        };
        engine.step(&config, std::iter::once(micro_batch)).unwrap()
    }

    fn check(&self, engine: &mut Engine, tolerance: Tolerance) {
        let Hyperparameters { lr, beta1, beta2, eps, weight_decay, grad_clip } = self.optimizer;
        assert_eq!((self.losses.len(), self.gradient_norms.len()), (20, 20));
        for (at, (loss, norm)) in self.losses.iter().zip(&self.gradient_norms).enumerate() {
            let step = at as u64 + 1;
            let adamw = AdamW { lr, beta1, beta2, eps, weight_decay, step };
            let result = self.step(engine, at, OptimizerStep::AdamW(adamw), grad_clip);
            let found = result.loss_sum / (self.batch * self.seq_len) as f64;
            assert_near(&format!("loss {at}"), found, *loss, tolerance.losses * loss);
            let max_error = tolerance.norms * norm;
            assert_near(&format!("gradient norm {at}"), result.grad_norm, *norm, max_error);
        }
    }
}

impl Golden {
    fn check_on(&self, tolerance: Tolerance, device: fn() -> Box<dyn Device>) {
        let mut engine = self.training.engine(device());
        self.check_logits(&engine, tolerance);
        self.check_gradients(&mut engine, tolerance);
        self.training.check(&mut self.training.engine(device()), tolerance);
    }

    fn check_logits(&self, engine: &Engine, tolerance: Tolerance) {
        let (device_model, params) = (&engine.device_model, engine.state.all_params().unwrap());
        let Training { batch, seq_len, .. } = self.training;
        let (ctx, (inputs, _)) = (device_model.pass_ctx(batch, seq_len), self.training.tokens(0));
        let params = |block| ResidentParams { all: &params, block };
        let inputs = tokens(&*device_model.device, &inputs);
        let x = device_model.model.embedding.forward(&ctx, &mut params(0), inputs.view()).unwrap();
        let mut x = Residual::new(x);
        let head = device_model.model.head_block();
        for block in 1..head {
            x = device_model.model.layer(block).forward(&ctx, &mut params(block), x).unwrap().0;
        }
        let last = ctx.rows() - 1..ctx.rows();
        let logits = device_model.model.head.logits(&ctx, &mut params(head), x, last).unwrap();
        let logits = copy_to_f64(&*device_model.device, logits.view());
        assert_eq!(logits.len(), self.last_logits.len());
        for (found, expected) in logits.iter().zip(&self.last_logits) {
            let tolerance = tolerance.values * expected.abs().max(1.0);
            assert_near("a logit", *found, *expected, tolerance);
        }
    }

    /// Gradients of a step with a learning rate of 0.
    fn check_gradients(&self, engine: &mut Engine, tolerance: Tolerance) {
        let optimizer = OptimizerStep::Sgd(Sgd { lr: 0.0, momentum: 0.0, weight_decay: 0.0 });
        let result = self.training.step(engine, 0, optimizer, 0.0);
        let Training { batch, seq_len, .. } = self.training;
        let loss = result.loss_sum / (batch * seq_len) as f64;
        assert_near("the loss", loss, self.loss, tolerance.values * self.loss);
        let found = gradients(engine);
        assert_eq!(found.len(), self.gradients.len());
        for ((name, elements), expected) in found.iter().zip(&self.gradients) {
            assert_eq!((name, elements.len()), (&expected.name, expected.length));
            expected.check(elements, tolerance);
        }
    }
}

impl Gradient {
    fn check(&self, elements: &[f64], tolerance: Tolerance) {
        let (name, max_error) = (&self.name, tolerance.gradients * self.norm);
        let norm = elements.iter().map(|g| g * g).sum::<f64>().sqrt();
        assert_near(&format!("the norm of {name}"), norm, self.norm, max_error);
        let weighted = elements.iter().enumerate().map(|(i, g)| g * (1.0 + i as f64).sin()).sum();
        // The errors of all elements add up.
        let all = max_error * (elements.len() as f64).sqrt();
        assert_near(&format!("the sum of {name}"), weighted, self.weighted, all);
        for (at, expected) in &self.picked {
            assert_near(&format!("{name}[{at}]"), elements[*at], *expected, max_error);
        }
    }
}

/// The gradient of each parameter, with its name.
fn gradients(engine: &Engine) -> Vec<(String, Vec<f64>)> {
    let Engine { device_model, state, .. } = engine;
    let of_block = |(index, block): (usize, &ParamBlock)| -> Vec<(String, Vec<f64>)> {
        let all = copy_to_f64(&*device_model.device, state.grads.shard(index));
        let of = |p: &regatta_predict::shape::ParamSpec| (p.name.clone(), all[p.range()].to_vec());
        block.parameters.iter().map(of).collect()
    };
    device_model.model.blocks.iter().enumerate().flat_map(of_block).collect()
}

/// Fails for NaN, too.
fn assert_near(what: &str, found: f64, expected: f64, max_error: f64) {
    let is_near = (found - expected).abs() <= max_error;
    assert!(is_near, "{what} is {found}, in PyTorch {expected}");
}
