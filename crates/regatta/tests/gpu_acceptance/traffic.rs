//! The bytes that ranks send per step over NCCL are those of the cost model, and of the formulas of
//! the parallel axes.

use serde_json::Value;

use crate::harness::Harness;
use crate::rows::check_rows;

const LAYERS: f64 = 4.0;
const HIDDEN: f64 = 256.0;
const TOKENS: f64 = 8.0 * 128.0;

/// One micro-batch per step. Two steps, because counts are means per step.
const MODEL: &str = "family=gpt2 num_layers=4 num_heads=4 hidden_size=256 seq_len=128 batch=8 \
                     train.steps=2 eval_interval=0 checkpoint.interval=0 metrics.tensorboard=false";

/// Bytes of an element of activations, of the gradient of the residual stream and of the parameters
/// that passes read, and the number of parameters.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    activation: f64,
    residual_gradient: f64,
    weight: f64,
    parameters: f64,
}

/// A layout with the bytes that its two ranks send together per step on an axis.
type Row = (&'static str, &'static str, fn(Sizes) -> f64);

/// All-reduce: reduce-scatter and all-gather of f32 gradients.
fn data_parallel(sizes: Sizes) -> f64 {
    2.0 * 4.0 * sizes.parameters
}

/// Reduce-scatter of f32 gradients, all-gather of updated parameters.
fn zero_2(sizes: Sizes) -> f64 {
    (4.0 + sizes.weight) * sizes.parameters
}

/// Reduce-scatter of f32 gradients, all-gather of parameters in the forward and the backward pass.
fn zero_3(sizes: Sizes) -> f64 {
    (4.0 + 2.0 * sizes.weight) * sizes.parameters
}

/// Attention and MLP of each layer all-reduce activations in both passes, as does the head; the
/// embedding all-reduces the residual stream in f32 in the forward pass.
fn tensor_parallel(sizes: Sizes) -> f64 {
    let per_token = (4.0 * LAYERS + 1.0) * sizes.activation + 4.0;
    2.0 * TOKENS * HIDDEN * per_token
}

/// A reduce-scatter and an all-gather replace each all-reduce. Those of the embedding are the
/// reduce-scatter of the residual stream and the all-gather of its gradient.
fn sequence_parallel(sizes: Sizes) -> f64 {
    let embedding = (4.0 + sizes.residual_gradient) / 2.0;
    let per_token = (4.0 * LAYERS + 1.0) * sizes.activation + embedding;
    2.0 * TOKENS * HIDDEN * per_token
}

const ROWS: &[Row] = &[
    ("dp=2", "data", data_parallel),
    ("zero=1", "shard", zero_2),
    ("zero=2", "shard", zero_2),
    ("zero=3", "shard", zero_3),
    ("tp=2 sequence_parallel=false", "tensor", tensor_parallel),
    ("tp=2 sequence_parallel=true", "tensor", sequence_parallel),
];

/// The formulas leave out padding, norm gradients of sequence parallelism and partial sums of the
/// vocabulary-parallel loss.
const FORMULA_TOLERANCE: f64 = 0.02;

/// The content of the last event of a kind in the output of `--json`.
fn last_event(output: &str, kind: &str) -> Value {
    let events = output.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    events.filter_map(|event| event.get(kind).cloned()).next_back().unwrap()
}

fn check_traffic(precision: &str, bytes: f64) {
    let Some(harness) = Harness::or_skip() else { return };
    // Only GPUs have a bf16 copy of the parameters and a bf16 gradient of the residual stream.
    let gpu_bytes = if harness.target == crate::harness::Target::Gpu { bytes } else { 4.0 };
    check_rows(
        ROWS,
        |row| format!("{precision}, {}", row.0),
        |(layout, axis, formula)| {
            let run = layout.replace([' ', '='], "-");
            let words = format!("{MODEL} precision={precision} {layout} --json --run-dir {run}");
            let output = harness.run(2, &words).ok();
            let parameters = last_event(&output, "start")["parameters"].as_f64().unwrap();
            let end = last_event(&output, "end");
            let mut total = 0;
            for rank in end["ranks"].as_array().unwrap() {
                for sent in rank["sent"].as_array().unwrap() {
                    if sent["measured"] != sent["expected"] {
                        return Err(format!("differs from the cost model: {rank}"));
                    }
                    let is_axis = sent["axis"] == *axis;
                    total += if is_axis { sent["measured"].as_u64().unwrap() } else { 0 };
                }
            }
            let expected = formula(Sizes {
                activation: bytes,
                residual_gradient: gpu_bytes,
                weight: gpu_bytes,
                parameters,
            });
            let error = total as f64 / expected - 1.0;
            let text = format!("{total} bytes, formula {expected} ({:+.2} %)", 100.0 * error);
            if error.abs() <= FORMULA_TOLERANCE { Ok(text) } else { Err(text) }
        },
    );
}

#[test]
fn bytes_sent_match_the_formulas_in_f32() {
    check_traffic("f32", 4.0);
}

#[test]
fn bytes_sent_match_the_formulas_in_bf16() {
    check_traffic("bf16", 2.0);
}
