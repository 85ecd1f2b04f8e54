//! Every operation of a device: gradients agree with finite differences in f64, and other operations with
//! their formulas.

#![allow(clippy::unwrap_used)]

mod attention;
mod attention_chunks;
mod embedding_loss;
mod gradient_check;
mod host_copy;
mod layers;

use proptest::prelude::*;
use regatta_device::ops::{AttentionDropout, AttentionShape, Device, LinearShape, Norm};
use regatta_device::optimizer::{AdamW, Sgd};
use regatta_device::precision::Precision;
use regatta_device::random::DropoutMask;
use regatta_device::reference::Reference;
use regatta_kernels_cpu::Cpu;

use attention::{CausalAttention, Rope};
use embedding_loss::{CrossEntropy, Embedding, PositionEmbedding, VocabParallelCrossEntropy};
use gradient_check::{
    Operation, activation, assert_close, check_finite_differences, check_reference, master, nans,
    random_values,
};
use host_copy::{copy_to_f64, round_bf16};
use layers::{Dropout, Gelu, Linear, NormLayer, Swiglu};

/// Sizes are below `max`, here and below.
fn linear(max: usize) -> impl Strategy<Value = Linear> {
    let fields = (1..max, 1..max, 1..max, any::<bool>(), any::<bool>());
    fields.prop_map(|(rows, inputs, outputs, bias, accumulate)| {
        let shape = LinearShape { rows, inputs, outputs };
        Linear { shape, bias, accumulate }
    })
}

/// With a large eps: rows of almost equal elements are too steep for finite differences.
fn norm(max: usize) -> impl Strategy<Value = NormLayer> {
    let fields = (any::<bool>(), 0.1..0.5, 1..max, 1..max, any::<bool>());
    fields.prop_map(|(layer, eps, rows, dim, bias)| {
        let norm = if layer { Norm::Layer { eps } } else { Norm::Rms { eps } };
        NormLayer { norm, rows, dim, bias }
    })
}

fn dropout_mask() -> impl Strategy<Value = DropoutMask> {
    let fields = (0.0f32..0.9, any::<u64>(), 0u64..1 << 33);
    fields.prop_map(|(p, key, offset)| DropoutMask { p, key, offset })
}

/// `head_dim` is a multiple of `unit`.
fn attention_shape(max: usize, unit: usize) -> impl Strategy<Value = AttentionShape> {
    let fields = (1usize..3, 1..max, 1usize..3, 1usize..4, 1..max);
    fields.prop_map(move |(batch, seq_len, kv_heads, group, units)| {
        let (heads, head_dim) = (kv_heads * group, units * unit);
        AttentionShape { batch, seq_len, heads, kv_heads, head_dim }
    })
}

/// Dropout of a shard.
fn attention_dropout(shape: AttentionShape) -> impl Strategy<Value = Option<AttentionDropout>> {
    let shard = (dropout_mask(), 0usize..3, 0usize..9).prop_map(move |(mask, heads, tokens)| {
        AttentionDropout::new(mask, shape.heads + heads, shape.seq_len + tokens)
            .shard([0, heads, tokens, 0])
    });
    proptest::option::of(shard)
}

fn attention(max: usize) -> impl Strategy<Value = CausalAttention> {
    attention_shape(max, 1).prop_flat_map(|shape| {
        attention_dropout(shape).prop_map(move |dropout| CausalAttention { shape, dropout })
    })
}

fn rope(max: usize) -> impl Strategy<Value = Rope> {
    let fields = (attention_shape(max, 2), 10.0..10_000.0, any::<u64>());
    fields.prop_map(|(shape, theta, seed)| Rope { shape, theta, seed })
}

/// Start and length of a non-empty subrange of `0..len`.
fn subrange(len: usize) -> impl Strategy<Value = (usize, usize)> {
    (0..len).prop_flat_map(move |first| (Just(first), 1..=len - first))
}

fn embedding(max: usize) -> impl Strategy<Value = Embedding> {
    let vocab = (1..max).prop_flat_map(|vocab| (Just(vocab), subrange(vocab)));
    let fields = (1..max, vocab, 1..max, any::<u64>());
    fields.prop_map(|(rows, (vocab, (first, local_vocab)), dim, seed)| Embedding {
        rows,
        vocab,
        first,
        local_vocab,
        dim,
        seed,
    })
}

fn position_embedding(max: usize) -> impl Strategy<Value = PositionEmbedding> {
    let fields = (1usize..4, 1..max, 1..max, 1..max, any::<u64>());
    fields.prop_map(|(batch, seq_len, max_positions, dim, seed)| PositionEmbedding {
        batch,
        seq_len,
        max_positions,
        dim,
        seed,
    })
}

fn cross_entropy(max: usize) -> impl Strategy<Value = CrossEntropy> {
    let fields = (1..max, 1..max, any::<u64>());
    fields.prop_map(|(rows, vocab, seed)| CrossEntropy { rows, vocab, seed })
}

fn vocab_parallel(max: usize) -> impl Strategy<Value = VocabParallelCrossEntropy> {
    (1..max, 1..max, 1..max, any::<u64>()).prop_map(|(rows, split, rest, seed)| {
        let full = CrossEntropy { rows, vocab: split + rest, seed };
        VocabParallelCrossEntropy { full, split }
    })
}

fn dropout(max: usize) -> impl Strategy<Value = Dropout> {
    (1..max * max, dropout_mask()).prop_map(|(len, mask)| Dropout { len, mask })
}

fn swiglu(max: usize) -> impl Strategy<Value = Swiglu> {
    (1..max, 1..max).prop_map(|(rows, dim)| Swiglu { rows, dim })
}

fn any_operation(max: usize) -> impl Strategy<Value = Box<dyn Operation>> {
    fn boxed(operation: impl Operation + 'static) -> Box<dyn Operation> {
        Box::new(operation)
    }
    prop_oneof![
        linear(max).prop_map(boxed),
        norm(max).prop_map(boxed),
        attention(max).prop_map(boxed),
        rope(max).prop_map(boxed),
        embedding(max).prop_map(boxed),
        position_embedding(max).prop_map(boxed),
        cross_entropy(max).prop_map(boxed),
        vocab_parallel(max).prop_map(boxed),
        dropout(max).prop_map(boxed),
        swiglu(max).prop_map(boxed),
        (1..max * max).prop_map(|len| boxed(Gelu { len })),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn gradients_agree_with_finite_differences(operation in any_operation(6), seed: u64) {
        check_finite_differences(&Reference, &*operation, seed);
    }
}

proptest! {
    #[test]
    fn cpu_matches_reference_in_f32(operation in any_operation(40), seed: u64) {
        let device = Cpu::new(1 + seed as usize % 2, Precision::F32);
        check_reference(&device, &*operation, seed, 1e-5);
    }

    #[test]
    fn cpu_matches_reference_in_bf16(operation in any_operation(40), seed: u64) {
        let device = Cpu::new(1 + seed as usize % 2, Precision::Bf16);
        check_reference(&device, &*operation, seed, 2e-2);
    }

    #[test]
    fn decode_attention_equals_the_last_row_of_attention(
        shape in attention_shape(6, 1), seed: u64,
    ) {
        let shape = AttentionShape { batch: 1, ..shape };
        check_decode_attention(&Reference, shape, seed, 1e-14);
        check_decode_attention(&Cpu::new(1, Precision::F32), shape, seed, 1e-5);
    }

    #[test]
    fn vocab_parallel_loss_equals_the_loss(operation in vocab_parallel(20), seed: u64) {
        check_vocab_parallel_loss(&Reference, operation, seed, 1e-13);
        check_vocab_parallel_loss(&Cpu::new(1, Precision::F32), operation, seed, 1e-5);
    }

    #[test]
    fn column_copies_leave_other_columns_unchanged(
        rows in 1usize..20,
        (row_len, columns) in (1usize..50).prop_flat_map(|len| (Just(len), subrange(len))),
        seed: u64,
    ) {
        check_column_copies(&Reference, rows, row_len, columns, seed);
        check_column_copies(&Cpu::new(1, Precision::F32), rows, row_len, columns, seed);
    }

    #[test]
    fn optimizers_and_elementwise_operations_match_their_formulas(len in 1usize..100, seed: u64) {
        for check in [check_adamw, check_sgd, check_elementwise] {
            check(&Reference, len, seed, 1e-13);
            check(&Cpu::new(1, Precision::F32), len, seed, 1e-5);
        }
    }
}

fn check_decode_attention(device: &dyn Device, shape: AttentionShape, seed: u64, tolerance: f64) {
    let qkv = random_values(shape.seq_len * shape.qkv_dim(), seed);
    let full = CausalAttention { shape, dropout: None };
    let expected = full.forward(device, std::slice::from_ref(&qkv));
    let (q_dim, k_dim) = (shape.out_dim(), shape.kv_heads * shape.head_dim);
    let rows = || qkv.chunks_exact(shape.qkv_dim());
    let columns = |first: usize, count: usize| -> Vec<f64> {
        rows().flat_map(|row| row[first..first + count].to_vec()).collect()
    };
    let q = activation(device, &rows().next_back().unwrap()[..q_dim]);
    let k = activation(device, &columns(q_dim, k_dim));
    let v = activation(device, &columns(q_dim + k_dim, k_dim));
    let mut y = activation(device, &nans(q_dim));
    device.decode_attention(shape, q.view(), k.view(), v.view(), y.view_mut());
    let last = &expected[expected.len() - q_dim..];
    assert_close(&copy_to_f64(device, y.view()), last, tolerance, "decode_attention");
}

fn check_vocab_parallel_loss(
    device: &dyn Device,
    operation: VocabParallelCrossEntropy,
    seed: u64,
    tolerance: f64,
) {
    let VocabParallelCrossEntropy { full, split } = operation;
    let logits = random_values(full.rows * full.vocab, seed);
    let columns = |range: std::ops::Range<usize>| -> Vec<f64> {
        logits.chunks_exact(full.vocab).flat_map(|row| row[range.clone()].to_vec()).collect()
    };
    let shards = [columns(0..split), columns(split..full.vocab)];
    let expected = full.forward(device, std::slice::from_ref(&logits));
    assert_close(&operation.forward(device, &shards), &expected, tolerance, "loss");
}

fn check_column_copies(
    device: &dyn Device,
    rows: usize,
    row_len: usize,
    (first, count): (usize, usize),
    seed: u64,
) {
    let columns = first..first + count;
    let values = random_values(rows * row_len, seed);
    let values: Vec<f64> = values.into_iter().map(round_bf16).collect();
    let full = master(device, &values);
    let mut packed = activation(device, &nans(rows * count));
    device.copy_from_columns(full.view(), row_len, columns.clone(), packed.view_mut());
    let found = copy_to_f64(device, packed.view());
    let mut expected_full = vec![0.5; rows * row_len];
    for row in 0..rows {
        let found = &found[row * count..(row + 1) * count];
        let columns = row * row_len + first..row * row_len + first + count;
        assert_eq!(found, &values[columns.clone()]);
        expected_full[columns].copy_from_slice(found);
    }
    let mut full = master(device, &vec![0.5; rows * row_len]);
    device.copy_to_columns(packed.view(), full.view_mut(), row_len, columns);
    assert_eq!(copy_to_f64(device, full.view()), expected_full);
}

/// Gradients of a step, some of them zero, as those of tokens that do not occur.
fn gradients(len: usize, seed: u64, step: u64) -> Vec<f64> {
    let mut all = random_values(len, seed ^ (step << 32));
    all.iter_mut().step_by(5).for_each(|g| *g = 0.0);
    all
}

fn check_adamw(device: &dyn Device, len: usize, seed: u64, tolerance: f64) {
    let (lr, beta1, beta2, eps, weight_decay, grad_scale) = (0.01, 0.9, 0.95, 1e-8, 0.1, 0.7);
    let mut expected = random_values(len, seed);
    let (mut expected_m, mut expected_v) = (vec![0.0; len], vec![0.0; len]);
    let mut params = master(device, &expected);
    let [mut m, mut v] = [(); 2].map(|()| device.zeros_master(len));
    for step in 1..=6 {
        let given = gradients(len, seed, step);
        let config = AdamW { lr, beta1, beta2, eps, weight_decay, step, grad_scale };
        let (moments, grads) = ([m.view_mut(), v.view_mut()], master(device, &given));
        device.adamw(&config, grads.view(), moments, params.view_mut());
        for i in 0..len {
            let g = given[i] * grad_scale;
            expected_m[i] = beta1 * expected_m[i] + (1.0 - beta1) * g;
            expected_v[i] = beta2 * expected_v[i] + (1.0 - beta2) * g * g;
            let m_hat = expected_m[i] / (1.0 - beta1.powi(step as i32));
            let v_hat: f64 = expected_v[i] / (1.0 - beta2.powi(step as i32));
            expected[i] -= lr * weight_decay * expected[i];
            expected[i] -= lr * m_hat / (v_hat.sqrt() + eps);
        }
        assert_close(&copy_to_f64(device, params.view()), &expected, tolerance, "params");
        assert_close(&copy_to_f64(device, m.view()), &expected_m, tolerance, "first moment");
        assert_close(&copy_to_f64(device, v.view()), &expected_v, tolerance, "second moment");
    }
}

fn check_sgd(device: &dyn Device, len: usize, seed: u64, tolerance: f64) {
    let (lr, momentum, weight_decay, grad_scale) = (0.05, 0.9, 0.01, 0.3);
    let mut expected = random_values(len, seed);
    let mut velocity = vec![0.0; len];
    let (mut params, mut m) = (master(device, &expected), device.zeros_master(len));
    for step in 1..=6 {
        let given = gradients(len, seed, step);
        let config = Sgd { lr, momentum, weight_decay, grad_scale };
        let grads = master(device, &given);
        device.sgd(&config, grads.view(), m.view_mut(), params.view_mut());
        for i in 0..len {
            let g = given[i] * grad_scale + weight_decay * expected[i];
            velocity[i] = momentum * velocity[i] + g;
            expected[i] -= lr * velocity[i];
        }
        assert_close(&copy_to_f64(device, params.view()), &expected, tolerance, "params");
        assert_close(&copy_to_f64(device, m.view()), &velocity, tolerance, "momentum");
    }
}

/// Copies, fills, `add`, `add_assign`, `scale` and `sum_of_squares`.
fn check_elementwise(device: &dyn Device, len: usize, seed: u64, tolerance: f64) {
    let (a, b) = (random_values(len, seed), random_values(len, seed ^ 5));
    let (x, y) = (master(device, &a), activation(device, &b));
    let zip = |f: &dyn Fn(f64, f64) -> f64| -> Vec<f64> {
        a.iter().zip(&b).map(|(a, b)| f(*a, *b)).collect()
    };
    let mut z = master(device, &nans(len));
    device.add(x.view(), y.view(), z.view_mut());
    assert_close(&copy_to_f64(device, z.view()), &zip(&|a, b| a + b), tolerance, "add");
    device.add_assign(x.view(), z.view_mut());
    let expected = zip(&|a, b| 2.0 * a + b);
    assert_close(&copy_to_f64(device, z.view()), &expected, tolerance, "add_assign");
    device.scale(-0.3, z.view_mut());
    let expected = zip(&|a, b| -0.3 * (2.0 * a + b));
    assert_close(&copy_to_f64(device, z.view()), &expected, tolerance, "scale");
    let squares: f64 = expected.iter().map(|z| z * z).sum();
    let found = device.sum_of_squares(z.view());
    assert_close(&[found], &[squares], tolerance * 4.0, "sum_of_squares");
    let mut copied = activation(device, &nans(len));
    device.copy(x.view(), copied.view_mut());
    assert_close(&copy_to_f64(device, copied.view()), &a, tolerance, "copy");
    device.zero(z.view_mut());
    assert_eq!(copy_to_f64(device, z.view()), vec![0.0; len]);
    device.fill(f64::NEG_INFINITY, z.view_mut());
    assert_eq!(copy_to_f64(device, z.view()), vec![f64::NEG_INFINITY; len]);
    let values: Vec<f32> = a.iter().map(|a| *a as f32).collect();
    let mut back = vec![f32::NAN; len];
    device.copy_from_host(&values, z.view_mut());
    device.copy_to_host(z.view(), &mut back);
    assert_eq!(back, values);
}
