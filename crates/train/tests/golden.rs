//! Whole models agree with PyTorch: loss, logits, gradients, and the losses of a short training.
//! `golden/make.py` made the values.

#![allow(clippy::unwrap_used)]

#[path = "../../kernels/cpu/tests/operations/numbers.rs"]
mod numbers;

use regatta_device::device::Device;
use regatta_device::optimizer::{AdamW, Sgd};
use regatta_device::precision::Precision;
use regatta_device::reference::Reference;
use regatta_kernels_cpu::Cpu;
use regatta_predict::shape::{Block, Init, Shape};
use regatta_train::model::{Given, Model};
use regatta_train::step::{Engine, Micro, Net, Outcome, Plan, Rule};
use serde::Deserialize;

use numbers::{fetch, put};

#[derive(Deserialize)]
struct Golden {
    shape: Shape,
    batch: usize,
    sequence: usize,
    /// The mean loss of the first step's tokens.
    loss: f64,
    /// The logits of the last token of the last sequence.
    last_logits: Vec<f64>,
    gradients: Vec<Gradient>,
    plan: Steps,
    losses: Vec<f64>,
    gradient_norms: Vec<f64>,
}

/// A parameter's gradient in few numbers.
#[derive(Deserialize)]
struct Gradient {
    name: String,
    length: usize,
    norm: f64,
    /// The sum, number `i` times `sin(1 + i)`.
    weighted: f64,
    picked: Vec<(usize, f64)>,
}

/// What the training's steps have in common.
#[derive(Deserialize)]
struct Steps {
    rate: f64,
    beta1: f64,
    beta2: f64,
    epsilon: f64,
    decay: f64,
    clip: f64,
}

/// How near numbers must be: a share of what they are.
#[derive(Clone, Copy)]
struct Within {
    values: f64,
    gradients: f64,
    losses: f64,
}

const EXACT: Within = Within { values: 1e-9, gradients: 1e-9, losses: 1e-7 };
const SINGLE: Within = Within { values: 1e-5, gradients: 1e-4, losses: 1e-4 };

fn plain() -> Box<dyn Device> {
    Box::new(Reference)
}

fn fast() -> Box<dyn Device> {
    Box::new(Cpu::new(2, Precision::F32))
}

#[test]
fn of_gpt2() {
    check(include_str!("golden/gpt2.json"), EXACT, plain);
    check(include_str!("golden/gpt2.json"), SINGLE, fast);
}

#[test]
fn of_gpt2_without_biases() {
    check(include_str!("golden/gpt2-without-biases.json"), EXACT, plain);
    check(include_str!("golden/gpt2-without-biases.json"), SINGLE, fast);
}

#[test]
fn of_llama() {
    check(include_str!("golden/llama.json"), EXACT, plain);
    check(include_str!("golden/llama.json"), SINGLE, fast);
}

#[test]
fn of_an_mlp() {
    check(include_str!("golden/mlp.json"), EXACT, plain);
    check(include_str!("golden/mlp.json"), SINGLE, fast);
}

fn check(text: &str, within: Within, device: fn() -> Box<dyn Device>) {
    let golden: Golden = serde_json::from_str(text).unwrap();
    let mut engine = golden.engine(device());
    golden.check_logits(&engine, within);
    golden.check_gradients(&mut engine, within);
    golden.check_training(&mut golden.engine(device()), within);
}

impl Golden {
    /// A model whose number `i` of parameter `n` is a formula.
    fn engine(&self, device: Box<dyn Device>) -> Engine {
        let net = Net::new(Model::new(self.shape.clone()), device);
        let mut engine = Engine::alone(net, 1);
        let Engine { net, state, .. } = &mut engine;
        let mut n = 0.0;
        for (number, block) in net.model.blocks.iter().enumerate() {
            for parameter in &block.parameters {
                let more = if parameter.init == Init::One { 1.0 } else { 0.0 };
                let value = |i: usize| {
                    let i = i as f64;
                    more + 0.3 * (1.0 + n + 0.37 * i + 0.011 * i * i).sin()
                };
                let numbers: Vec<f64> = (0..parameter.len()).map(value).collect();
                let mut all = state.weights.own_mut(number);
                put(&*net.device, &numbers, all.part(parameter.range()));
                n += 1.0;
            }
        }
        engine
    }

    /// The inputs and targets of a step.
    fn tokens(&self, step: usize) -> (Vec<u32>, Vec<u32>) {
        let count = self.batch * self.sequence;
        let token = |j: usize| ((j * j + j / 3) % self.shape.vocabulary) as u32;
        let from = |first: usize| (first..first + count).map(token).collect();
        (from(step * count), from(step * count + 1))
    }

    fn step(&self, engine: &mut Engine, step: usize, rule: Rule, clip: f64) -> Outcome {
        let (inputs, targets) = self.tokens(step);
        let micro = Micro { inputs: &inputs, targets: &targets, batch: self.batch, first: 0 };
        let (tokens, dropout, recompute) = (inputs.len() as u64, 0.0, false);
        let plan = Plan { step: step as u64, tokens, rule, clip, dropout, seed: 1, recompute };
        engine.step(&plan, std::iter::once(micro)).unwrap()
    }

    fn check_logits(&self, engine: &Engine, within: Within) {
        let (net, params) = (&engine.net, engine.state.weights.whole().unwrap());
        let (run, (inputs, _)) = (net.run(self.batch, self.sequence), self.tokens(0));
        let given = |block| Given { all: &params, block };
        let mut x = net.model.embedding.forward(&run, &mut given(0), &inputs).unwrap();
        for (number, layer) in net.model.layers.iter().enumerate() {
            x = layer.forward(&run, &mut given(number + 1), x).unwrap().0;
        }
        let last = run.rows() - 1..run.rows();
        let logits = net.model.head.logits(&run, &mut given(net.model.last()), &x, last).unwrap();
        let logits = fetch(&*net.device, logits.view());
        assert_eq!(logits.len(), self.last_logits.len());
        for (found, expected) in logits.iter().zip(&self.last_logits) {
            assert_near("a logit", *found, *expected, within.values * expected.abs().max(1.0));
        }
    }

    /// Of a step that changes nothing.
    fn check_gradients(&self, engine: &mut Engine, within: Within) {
        let rule = Rule::Sgd(Sgd { rate: 0.0, momentum: 0.0, decay: 0.0, scale: 1.0 });
        let outcome = self.step(engine, 0, rule, 0.0);
        let loss = outcome.loss_sum / (self.batch * self.sequence) as f64;
        assert_near("the loss", loss, self.loss, within.values * self.loss);
        let found = gradients(engine);
        assert_eq!(found.len(), self.gradients.len());
        for ((name, numbers), expected) in found.iter().zip(&self.gradients) {
            assert_eq!((name, numbers.len()), (&expected.name, expected.length));
            expected.check(numbers, within);
        }
    }

    fn check_training(&self, engine: &mut Engine, within: Within) {
        let Steps { rate, beta1, beta2, epsilon, decay, clip } = self.plan;
        assert_eq!((self.losses.len(), self.gradient_norms.len()), (20, 20));
        for (at, (loss, norm)) in self.losses.iter().zip(&self.gradient_norms).enumerate() {
            let step = at as u64 + 1;
            let how = AdamW { rate, beta1, beta2, epsilon, decay, step, scale: 1.0 };
            let outcome = self.step(engine, at, Rule::AdamW(how), clip);
            let found = outcome.loss_sum / (self.batch * self.sequence) as f64;
            assert_near(&format!("loss {at}"), found, *loss, within.losses * loss);
            let found = outcome.gradient_norm;
            assert_near(&format!("gradient norm {at}"), found, *norm, within.losses * 10.0 * norm);
        }
    }
}

impl Gradient {
    fn check(&self, numbers: &[f64], within: Within) {
        let (name, most) = (&self.name, within.gradients * self.norm);
        let norm = numbers.iter().map(|g| g * g).sum::<f64>().sqrt();
        assert_near(&format!("the norm of {name}"), norm, self.norm, most);
        let weighted = numbers.iter().enumerate().map(|(i, g)| g * (1.0 + i as f64).sin()).sum();
        // As far as the errors of all numbers can add up.
        let all = most * (numbers.len() as f64).sqrt();
        assert_near(&format!("the sum of {name}"), weighted, self.weighted, all);
        for (at, expected) in &self.picked {
            assert_near(&format!("{name}[{at}]"), numbers[*at], *expected, most);
        }
    }
}

/// The gradient of each parameter, with its name.
fn gradients(engine: &Engine) -> Vec<(String, Vec<f64>)> {
    let Engine { net, state, .. } = engine;
    let of_block = |(number, block): (usize, &Block)| -> Vec<(String, Vec<f64>)> {
        let all = fetch(&*net.device, state.gradients.own(number));
        let of = |p: &regatta_predict::shape::Parameter| (p.name.clone(), all[p.range()].to_vec());
        block.parameters.iter().map(of).collect()
    };
    net.model.blocks.iter().enumerate().flat_map(of_block).collect()
}

/// What is no number is not near.
fn assert_near(what: &str, found: f64, expected: f64, within: f64) {
    let near = (found - expected).abs() <= within;
    assert!(near, "{what} is {found}, PyTorch's {expected}");
}
