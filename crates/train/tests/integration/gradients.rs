//! Gradients of whole models agree with finite differences of the loss, in double precision.

use regatta_device::optimizer::Sgd;
use regatta_device::random;
use regatta_device::reference::Reference;
use regatta_predict::shape::{Family, ModelShape};
use regatta_predict::testing;
use regatta_train::model::Model;
use regatta_train::step::{DeviceModel, Engine, MicroBatch, OptimizerStep, StepConfig};

fn shape(family: Family) -> ModelShape {
    ModelShape {
        vocab_size: 11,
        seq_len: 6,
        num_heads: 4,
        num_kv_heads: if family == Family::Llama { 2 } else { 4 },
        intermediate_size: 12,
        tie_embeddings: family != Family::Llama,
        bias: family != Family::Llama,
        ..testing::shape(family)
    }
}

/// A step with a learning rate of 0.
fn config(dropout: f32, recompute: bool, tokens: u64) -> StepConfig {
    let optimizer = OptimizerStep::Sgd(Sgd { lr: 0.0, momentum: 0.0, weight_decay: 0.0 });
    StepConfig { step: 3, tokens, optimizer, grad_clip: 0.0, dropout, seed: 9, recompute }
}

fn tokens(count: usize, seed: u64) -> Vec<u32> {
    (0..count as u64).map(|i| (random::mix(seed ^ (i << 8)) % 11) as u32).collect()
}

/// A model with parameters large enough that each affects the loss.
fn engine(shape: &ModelShape) -> Engine {
    let device_model = DeviceModel::new(Model::new(shape.clone()), Box::new(Reference));
    let mut engine = Engine::single_rank(device_model, 1);
    for (index, block) in engine.device_model.model.blocks.iter().enumerate() {
        for parameter in &block.parameters {
            let mut params = engine.state.param_shard_mut(index);
            let elements = params.slice(parameter.range()).as_slice::<f64>();
            for (i, element) in (0..).zip(elements) {
                *element += 0.4 * random::normal(77, i + 1000 * parameter.offset as u64);
            }
        }
    }
    engine
}

const BATCH: usize = 4;

fn step(engine: &mut Engine, config: &StepConfig, micro_batches: usize) -> f64 {
    let sequence = 5;
    let (inputs, targets) = (tokens(BATCH * sequence, 1), tokens(BATCH * sequence, 2));
    let batch = BATCH / micro_batches;
    let micro_batch = |index: usize| {
        let range = index * batch * sequence..(index + 1) * batch * sequence;
        let (inputs, targets) = (&inputs[range.clone()], &targets[range]);
        MicroBatch { inputs, targets, batch, first_sequence: (index * batch) as u64 }
    };
    let result = engine.step(config, (0..micro_batches).map(micro_batch)).unwrap();
    result.loss_sum / config.tokens as f64
}

fn gradients(engine: &Engine) -> Vec<Vec<f64>> {
    let grads = |block| engine.state.grads.shard(block).as_slice::<f64>().to_vec();
    engine.state.local_blocks().map(grads).collect()
}

/// Central differences for a few elements of every parameter.
fn check(shape: &ModelShape, config: &StepConfig) {
    let mut engine = engine(shape);
    step(&mut engine, config, 1);
    let found = gradients(&engine);
    let blocks = engine.device_model.model.blocks.clone();
    let delta = 1e-5;
    for (index, block) in blocks.iter().enumerate() {
        for parameter in &block.parameters {
            for pick in 0..4 {
                let at = random::mix(pick) as usize % parameter.len() + parameter.offset;
                let mut loss_at = |delta: f64| {
                    engine.state.param_shard_mut(index).as_slice::<f64>()[at] += delta;
                    let loss = step(&mut engine, config, 1);
                    engine.state.param_shard_mut(index).as_slice::<f64>()[at] -= delta;
                    loss
                };
                let expected = (loss_at(delta) - loss_at(-delta)) / (2.0 * delta);
                let found = found[index][at];
                let (name, max_error) = (&parameter.name, 1e-8 + 1e-5 * expected.abs());
                let error = (found - expected).abs();
                assert!(error < max_error, "{name}[{at}]: {found} != {expected}");
            }
        }
    }
}

#[test]
fn gpt2_gradients_match() {
    check(&shape(Family::Gpt2), &config(0.0, false, 20));
}

#[test]
fn llama_gradients_match_with_grouped_queries_and_untied_head() {
    check(&shape(Family::Llama), &config(0.0, false, 20));
}

#[test]
fn llama_gradients_match_with_tied_head() {
    check(&ModelShape { tie_embeddings: true, ..shape(Family::Llama) }, &config(0.0, true, 20));
}

#[test]
fn gpt2_gradients_match_without_biases() {
    check(&ModelShape { bias: false, ..shape(Family::Gpt2) }, &config(0.0, false, 20));
}

#[test]
fn mlp_gradients_match() {
    check(&shape(Family::Mlp), &config(0.0, false, 20));
}

#[test]
fn gradients_match_with_dropout_and_recomputation() {
    check(&shape(Family::Gpt2), &config(0.3, true, 20));
    check(&shape(Family::Llama), &config(0.3, false, 20));
}

#[test]
fn recomputation_and_gradient_accumulation_do_not_change_gradients() {
    for family in [Family::Gpt2, Family::Llama, Family::Mlp] {
        let shape = shape(family);
        let mut plain = engine(&shape);
        let loss = step(&mut plain, &config(0.2, false, 20), 1);
        for (recompute, micro_batches) in [(true, 1), (false, 2), (true, 4)] {
            let mut other = engine(&shape);
            let same = step(&mut other, &config(0.2, recompute, 20), micro_batches);
            assert!((loss - same).abs() < 1e-12, "{loss} {same}");
            let max = max_difference(&plain, &other);
            assert!(max < 1e-12, "{family:?} {recompute} {micro_batches}: {max}");
        }
    }
}

#[test]
fn chunks_of_logits_do_not_change_gradients() {
    let shape = shape(Family::Gpt2);
    let (mut whole, mut chunked) = (engine(&shape), engine(&shape));
    // 20 rows of 11 logits in chunks of 3 rows.
    chunked.device_model.model.head.logit_chunks.max_logits = 35;
    let losses = [&mut whole, &mut chunked].map(|engine| step(engine, &config(0.0, false, 20), 1));
    assert!((losses[0] - losses[1]).abs() < 1e-12, "{losses:?}");
    assert!(max_difference(&whole, &chunked) < 1e-12);
}

fn max_difference(one: &Engine, other: &Engine) -> f64 {
    let pairs = gradients(one).concat().into_iter().zip(gradients(other).concat());
    pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}
