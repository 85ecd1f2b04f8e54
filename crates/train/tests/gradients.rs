//! Gradients of whole models agree with differences of the loss, in double precision.

#![allow(clippy::unwrap_used)]

use regatta_device::optimizer::Sgd;
use regatta_device::random;
use regatta_device::reference::Reference;
use regatta_predict::shape::{Family, Shape};
use regatta_train::model::Model;
use regatta_train::step::{Engine, Micro, Net, Plan, Rule};

fn shape(family: Family) -> Shape {
    Shape {
        family,
        vocabulary: 11,
        context: 6,
        width: 8,
        layers: 2,
        heads: 4,
        kv_heads: if family == Family::Llama { 2 } else { 4 },
        feed_forward: 12,
        tied: family != Family::Llama,
        bias: family != Family::Llama,
        norm_epsilon: 1e-5,
        rope_base: 100.0,
    }
}

/// Nothing changes: what is wanted are the gradients.
fn plan(dropout: f32, recompute: bool, tokens: u64) -> Plan {
    let rule = Rule::Sgd(Sgd { rate: 0.0, momentum: 0.0, decay: 0.0, scale: 1.0 });
    Plan { step: 3, tokens, rule, clip: 0.0, dropout, seed: 9, recompute }
}

fn tokens(count: usize, seed: u64) -> Vec<u32> {
    (0..count as u64).map(|i| (random::mix(seed ^ (i << 8)) % 11) as u32).collect()
}

/// A model with parameters large enough that every part of it matters.
fn engine(shape: &Shape) -> Engine {
    let net = Net::new(Model::new(shape.clone()), Box::new(Reference));
    let mut engine = Engine::alone(net, 1);
    for (number, block) in engine.net.model.blocks.iter().enumerate() {
        for parameter in &block.parameters {
            let mut all = engine.state.weights.own_mut(number);
            let numbers = all.part(parameter.range()).host::<f64>();
            for (i, number) in (0..).zip(numbers) {
                *number += 0.4 * random::normal(77, i + 1000 * parameter.start as u64);
            }
        }
    }
    engine
}

const BATCH: usize = 4;

fn step(engine: &mut Engine, plan: &Plan, passes: usize) -> f64 {
    let sequence = 5;
    let (inputs, targets) = (tokens(BATCH * sequence, 1), tokens(BATCH * sequence, 2));
    let each = BATCH / passes;
    let micro = |pass: usize| {
        let here = pass * each * sequence..(pass + 1) * each * sequence;
        let (inputs, targets) = (&inputs[here.clone()], &targets[here]);
        Micro { inputs, targets, batch: each, first: (pass * each) as u64 }
    };
    let outcome = engine.step(plan, (0..passes).map(micro)).unwrap();
    outcome.loss_sum / plan.tokens as f64
}

fn gradients(engine: &Engine) -> Vec<Vec<f64>> {
    let numbers = |block| engine.state.gradients.own(block).host::<f64>().to_vec();
    engine.state.held().map(numbers).collect()
}

/// Differences for a few numbers of every parameter.
fn check(shape: &Shape, plan: &Plan) {
    let mut engine = engine(shape);
    step(&mut engine, plan, 1);
    let found = gradients(&engine);
    let blocks = engine.net.model.blocks.clone();
    let tiny = 1e-5;
    for (number, block) in blocks.iter().enumerate() {
        for parameter in &block.parameters {
            for pick in 0..4 {
                let at = random::mix(pick) as usize % parameter.len() + parameter.start;
                let mut moved = |by: f64| {
                    engine.state.weights.own_mut(number).host::<f64>()[at] += by;
                    let loss = step(&mut engine, plan, 1);
                    engine.state.weights.own_mut(number).host::<f64>()[at] -= by;
                    loss
                };
                let expected = (moved(tiny) - moved(-tiny)) / (2.0 * tiny);
                let found = found[number][at];
                let off = (found - expected).abs();
                let name = &parameter.name;
                assert!(off < 1e-8 + 1e-5 * expected.abs(), "{name}[{at}]: {found} != {expected}");
            }
        }
    }
}

#[test]
fn of_gpt2() {
    check(&shape(Family::Gpt2), &plan(0.0, false, 20));
}

#[test]
fn of_llama_with_shared_keys_and_its_own_head() {
    check(&shape(Family::Llama), &plan(0.0, false, 20));
}

#[test]
fn of_llama_with_a_tied_head() {
    check(&Shape { tied: true, ..shape(Family::Llama) }, &plan(0.0, true, 20));
}

#[test]
fn of_gpt2_without_biases() {
    check(&Shape { bias: false, ..shape(Family::Gpt2) }, &plan(0.0, false, 20));
}

#[test]
fn of_an_mlp() {
    check(&shape(Family::Mlp), &plan(0.0, false, 20));
}

#[test]
fn with_dropout_and_recomputation() {
    check(&shape(Family::Gpt2), &plan(0.3, true, 20));
    check(&shape(Family::Llama), &plan(0.3, false, 20));
}

/// What is computed again, or in more passes, is the same.
#[test]
fn recomputation_and_accumulation_change_nothing() {
    for family in [Family::Gpt2, Family::Llama, Family::Mlp] {
        let shape = shape(family);
        let mut plain = engine(&shape);
        let loss = step(&mut plain, &plan(0.2, false, 20), 1);
        for (recompute, passes) in [(true, 1), (false, 2), (true, 4)] {
            let mut other = engine(&shape);
            let same = step(&mut other, &plan(0.2, recompute, 20), passes);
            assert!((loss - same).abs() < 1e-12, "{loss} {same}");
            let pairs = gradients(&plain).concat().into_iter().zip(gradients(&other).concat());
            let most = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(most < 1e-12, "{family:?} {recompute} {passes}: {most}");
        }
    }
}
