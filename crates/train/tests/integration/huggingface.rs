//! Imported models have the logits and losses that transformers computes. The fixtures are written by
//! `fixtures/make_huggingface.py`.

use std::path::Path;

use regatta_device::ops::Device;
use regatta_device::precision::Precision;
use regatta_device::reference::Reference;
use regatta_device::tensor::Tensor;
use regatta_kernels_cpu::Cpu;
use regatta_train::generate::Generator;
use regatta_train::load::load;
use regatta_train::model::Model;
use regatta_train::step::{DeviceModel, MicroBatch};
use serde::Deserialize;

#[derive(Deserialize)]
struct Expected {
    tokens: Vec<Vec<u32>>,
    loss: f64,
    logits: Vec<Vec<Vec<f32>>>,
}

fn check(name: &str, device: Box<dyn Device>, tolerance: f32) {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/huggingface");
    let folder = fixtures.join(name);
    let text = std::fs::read_to_string(folder.join("expected.json")).unwrap();
    let expected: Expected = serde_json::from_str(&text).unwrap();
    let loaded = load(&folder, &*device).unwrap();
    let device_model = DeviceModel::new(Model::new(loaded.shape), device);
    let params: Vec<_> = loaded.parameters.iter().map(Tensor::view).collect();
    for (tokens, logits) in expected.tokens.iter().zip(&expected.logits) {
        for length in 1..=tokens.len() {
            let mut generator = Generator::new(&device_model, params.clone());
            generator.prefill(&tokens[..length]).unwrap();
            let pairs = generator.logits().iter().zip(&logits[length - 1]);
            let off = pairs.map(|(found, expected)| (found - expected).abs()).fold(0.0, f32::max);
            assert!(off < tolerance, "{name}: {off} after {length} tokens");
        }
    }
    // transformers shifts the labels, so the last token has no target.
    let inputs: Vec<u32> = expected.tokens.iter().flat_map(|t| t[..t.len() - 1].to_vec()).collect();
    let targets: Vec<u32> = expected.tokens.iter().flat_map(|t| t[1..].to_vec()).collect();
    let (batch, first_sequence) = (expected.tokens.len(), 0);
    let micro = MicroBatch { inputs: &inputs, targets: &targets, batch, first_sequence };
    let loss = device_model.loss(&params, &micro).unwrap() / targets.len() as f64;
    let off = (loss - expected.loss).abs();
    assert!(off < f64::from(tolerance), "{name}: {loss} != {}", expected.loss);
}

#[test]
fn gpt2_matches_transformers() {
    check("gpt2", Box::new(Reference), 2e-5);
    check("gpt2", Box::new(Cpu::new(2, Precision::F32)), 2e-5);
}

#[test]
fn llama_matches_transformers() {
    check("llama", Box::new(Reference), 2e-5);
    check("llama", Box::new(Cpu::new(1, Precision::F32)), 2e-5);
}
