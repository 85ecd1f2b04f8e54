//! Every operation of a device: gradients agree with differences in double precision, and what has
//! no gradient agrees with its formula.

#![allow(clippy::unwrap_used)]

mod check;
mod slice;
mod parts;
mod gemm;
mod tokens;

use proptest::prelude::*;
use regatta_device::ops::{AttentionShape, AttentionDropout, Device, LinearShape, Norm};
use regatta_device::optimizer::{AdamW, Sgd};
use regatta_device::precision::Precision;
use regatta_device::random::DropoutMask;
use regatta_device::reference::Reference;
use regatta_kernels_cpu::Cpu;

use check::{Operation, activation, as_reference, by_differences, near, real, some, unread};
use slice::fetch;
use products::{Gelu, Product, Scaling, Swiglu};
use tokens::{Attending, Dropping, Embedding, Loss, Positions, Rope, SharedLoss};

/// GemmShape below `most`, as everywhere here.
fn product(most: usize) -> impl Strategy<Value = Product> {
    (1..most, 1..most, 1..most, any::<bool>(), any::<bool>()).prop_map(
        |(rows, inputs, outputs, bias, add)| Product {
            of: LinearShape { rows, inputs, outputs },
            bias,
            add,
        },
    )
}

/// With a large epsilon: rows of almost equal numbers are too steep for differences.
fn scaling(most: usize) -> impl Strategy<Value = Scaling> {
    (any::<bool>(), 0.1..0.5, 1..most, 1..most, any::<bool>()).prop_map(
        |(layer, epsilon, rows, width, bias)| {
            let how = if layer { Norm::Layer { epsilon } } else { Norm::Rms { epsilon } };
            Scaling { how, rows, width, bias }
        },
    )
}

fn mask() -> impl Strategy<Value = DropoutMask> {
    (0.0f32..0.9, any::<u64>(), 0u64..1 << 33).prop_map(|(share, key, first)| DropoutMask {
        share,
        key,
        first,
    })
}

/// Heads of this many pairs or single numbers.
fn sizes(most: usize, unit: usize) -> impl Strategy<Value = AttentionShape> {
    (1usize..3, 1..most, 1usize..3, 1usize..4, 1..most).prop_map(
        move |(batch, sequence, kv_heads, shared, width)| {
            let (heads, head_dim) = (kv_heads * shared, width * unit);
            AttentionShape { batch, sequence, heads, kv_heads, head_dim }
        },
    )
}

/// Strides of a whole that what is here is a part of.
fn drop(of: AttentionShape) -> impl Strategy<Value = Option<AttentionDropout>> {
    let one = (mask(), 0usize..3, 0usize..9).prop_map(move |(mask, heads, tokens)| {
        AttentionDropout::whole(mask, of.heads + heads, of.sequence + tokens)
            .from([0, heads, tokens, 0])
    });
    proptest::option::of(one)
}

fn attending(most: usize) -> impl Strategy<Value = Attending> {
    sizes(most, 1).prop_flat_map(|of| drop(of).prop_map(move |drop| Attending { of, drop }))
}

fn rope(most: usize) -> impl Strategy<Value = Rope> {
    (sizes(most, 2), 10.0..10_000.0, any::<u64>()).prop_map(|(of, base, seed)| Rope {
        of,
        base,
        seed,
    })
}

/// A range of at least one of so many.
fn part(of: usize) -> impl Strategy<Value = (usize, usize)> {
    (0..of).prop_flat_map(move |first| (Just(first), 1..=of - first))
}

fn embedding(most: usize) -> impl Strategy<Value = Embedding> {
    let vocabulary = (1..most).prop_flat_map(|vocabulary| (Just(vocabulary), part(vocabulary)));
    (1..most, vocabulary, 1..most, any::<u64>()).prop_map(
        |(rows, (vocabulary, (first, here)), width, seed)| Embedding {
            rows,
            vocabulary,
            first,
            here,
            width,
            seed,
        },
    )
}

fn positions(most: usize) -> impl Strategy<Value = Positions> {
    (1usize..4, 1..most, 1..most, 1..most, any::<u64>()).prop_map(
        |(batch, sequence, context, width, seed)| Positions {
            batch,
            sequence,
            context,
            width,
            seed,
        },
    )
}

fn loss(most: usize) -> impl Strategy<Value = Loss> {
    (1..most, 1..most, any::<u64>()).prop_map(|(rows, vocabulary, seed)| Loss {
        rows,
        vocabulary,
        seed,
    })
}

fn shared_loss(most: usize) -> impl Strategy<Value = SharedLoss> {
    (1..most, 1..most, 1..most, any::<u64>()).prop_map(|(rows, cut, rest, seed)| SharedLoss {
        of: Loss { rows, vocabulary: cut + rest, seed },
        cut,
    })
}

fn dropping(most: usize) -> impl Strategy<Value = Dropping> {
    (1..most * most, mask()).prop_map(|(count, mask)| Dropping { count, mask })
}

fn swiglu(most: usize) -> impl Strategy<Value = Swiglu> {
    (1..most, 1..most).prop_map(|(rows, width)| Swiglu { rows, width })
}

fn any_operation(most: usize) -> impl Strategy<Value = Box<dyn Operation>> {
    fn boxed(operation: impl Operation + 'static) -> Box<dyn Operation> {
        Box::new(operation)
    }
    prop_oneof![
        product(most).prop_map(boxed),
        scaling(most).prop_map(boxed),
        attending(most).prop_map(boxed),
        rope(most).prop_map(boxed),
        embedding(most).prop_map(boxed),
        positions(most).prop_map(boxed),
        loss(most).prop_map(boxed),
        shared_loss(most).prop_map(boxed),
        dropping(most).prop_map(boxed),
        swiglu(most).prop_map(boxed),
        (1..most * most).prop_map(|count| boxed(Gelu { count })),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn gradients_agree_with_differences(operation in any_operation(6), seed: u64) {
        by_differences(&Reference, &*operation, seed);
    }
}

proptest! {
    #[test]
    fn the_fast_device_is_right_in_single_precision(operation in any_operation(40), seed: u64) {
        let device = Cpu::new(1 + seed as usize % 2, Precision::F32);
        as_reference(&device, &*operation, seed, 1e-5);
    }

    #[test]
    fn the_fast_device_is_right_with_brain_floats(operation in any_operation(40), seed: u64) {
        let device = Cpu::new(1 + seed as usize % 2, Precision::Bf16);
        as_reference(&device, &*operation, seed, 2e-2);
    }

    #[test]
    fn attend_is_the_last_row_of_attention(of in sizes(6, 1), seed: u64) {
        attend_is_the_last_row(&Reference, AttentionShape { batch: 1, ..of }, seed, 1e-14);
        attend_is_the_last_row(&Cpu::new(1, Precision::F32), AttentionShape { batch: 1, ..of }, seed, 1e-5);
    }

    #[test]
    fn a_shared_loss_is_the_loss_of_the_whole(of in shared_loss(20), seed: u64) {
        shared_loss_is_the_loss(&Reference, of, seed, 1e-13);
        shared_loss_is_the_loss(&Cpu::new(1, Precision::F32), of, seed, 1e-5);
    }

    #[test]
    fn columns_are_copied_and_others_stay(rows in 1usize..20, (wide, part) in wide(), seed: u64) {
        columns(&Reference, rows, wide, part, seed);
        columns(&Cpu::new(1, Precision::F32), rows, wide, part, seed);
    }

    #[test]
    fn adamw_is_its_formula(count in 1usize..100, seed: u64) {
        adamw_is(&Reference, count, seed, 1e-13);
        adamw_is(&Cpu::new(1, Precision::F32), count, seed, 1e-5);
    }

    #[test]
    fn sgd_is_its_formula(count in 1usize..100, seed: u64) {
        sgd_is(&Reference, count, seed, 1e-13);
        sgd_is(&Cpu::new(1, Precision::F32), count, seed, 1e-5);
    }

    #[test]
    fn the_rest_is_what_it_says(count in 1usize..100, seed: u64) {
        elementwise(&Reference, count, seed, 1e-13);
        elementwise(&Cpu::new(1, Precision::F32), count, seed, 1e-5);
    }
}

fn attend_is_the_last_row(device: &dyn Device, of: AttentionShape, seed: u64, within: f64) {
    let qkv = some(of.sequence * of.qkv_width(), seed);
    let all = Attending { of, drop: None }.forward(device, std::slice::from_ref(&qkv));
    let (queries, keys) = (of.width(), of.kv_heads * of.head_dim);
    let rows = || qkv.chunks_exact(of.qkv_width());
    let column = |from: usize, width: usize| -> Vec<f64> {
        rows().flat_map(|row| row[from..from + width].to_vec()).collect()
    };
    let q = activation(device, &rows().next_back().unwrap()[..queries]);
    let k = activation(device, &column(queries, keys));
    let v = activation(device, &column(queries + keys, keys));
    let mut y = activation(device, &unread(queries));
    device.attend(of, q.view(), k.view(), v.view(), y.view_mut());
    let last = &all[all.len() - queries..];
    near(&fetch(device, y.view()), last, within, "attend");
}

fn shared_loss_is_the_loss(device: &dyn Device, of: SharedLoss, seed: u64, within: f64) {
    let (rows, vocabulary) = (of.of.rows, of.of.vocabulary);
    let whole = some(rows * vocabulary, seed);
    let columns = |range: std::ops::Range<usize>| -> Vec<f64> {
        whole.chunks_exact(vocabulary).flat_map(|row| row[range.clone()].to_vec()).collect()
    };
    let parts = [columns(0..of.cut), columns(of.cut..vocabulary)];
    let expected = of.of.forward(device, std::slice::from_ref(&whole));
    near(&of.forward(device, &parts), &expected, within, "the loss");
}

/// A width, and the first and the number of some columns.
fn wide() -> impl Strategy<Value = (usize, (usize, usize))> {
    (1usize..50).prop_flat_map(|wide| (Just(wide), part(wide)))
}

fn columns(
    device: &dyn Device,
    rows: usize,
    wide: usize,
    (first, count): (usize, usize),
    seed: u64,
) {
    let numbers = some(rows * wide, seed).into_iter().map(slice::short).collect::<Vec<_>>();
    let whole = real(device, &numbers);
    let mut part = activation(device, &unread(rows * count));
    device.take_columns(whole.view(), wide, first..first + count, part.view_mut());
    let taken = fetch(device, part.view());
    let mut other = vec![0.5; rows * wide];
    for (row, (taken, other)) in
        taken.chunks_exact(count).zip(other.chunks_exact_mut(wide)).enumerate()
    {
        let expected = &numbers[row * wide + first..row * wide + first + count];
        assert_eq!(taken, expected);
        other[first..first + count].copy_from_slice(expected);
    }
    let mut back = real(device, &vec![0.5; rows * wide]);
    device.put_columns(part.view(), back.view_mut(), wide, first..first + count);
    assert_eq!(fetch(device, back.view()), other);
}

/// Gradients of each step: some are nothing, as those of tokens that did not occur.
fn gradients(count: usize, seed: u64, step: u64) -> Vec<f64> {
    let mut all = some(count, seed ^ (step << 32));
    all.iter_mut().step_by(5).for_each(|g| *g = 0.0);
    all
}

fn adamw_is(device: &dyn Device, count: usize, seed: u64, within: f64) {
    let (rate, beta1, beta2, epsilon, decay, scale) = (0.01, 0.9, 0.95, 1e-8, 0.1, 0.7);
    let mut expected = some(count, seed);
    let (mut mean, mut squares) = (vec![0.0; count], vec![0.0; count]);
    let mut parameters = real(device, &expected);
    let [mut m, mut v] = [(); 2].map(|()| device.real(count));
    for step in 1..=6 {
        let given = gradients(count, seed, step);
        let how = AdamW { rate, beta1, beta2, epsilon, decay, step, scale };
        let (state, tensor) = ([m.view_mut(), v.view_mut()], real(device, &given));
        device.adamw(&how, tensor.view(), state, parameters.view_mut());
        for i in 0..count {
            let g = given[i] * scale;
            mean[i] = beta1 * mean[i] + (1.0 - beta1) * g;
            squares[i] = beta2 * squares[i] + (1.0 - beta2) * g * g;
            let unbiased_mean = mean[i] / (1.0 - beta1.powi(step as i32));
            let unbiased_squares: f64 = squares[i] / (1.0 - beta2.powi(step as i32));
            expected[i] -= rate * decay * expected[i];
            expected[i] -= rate * unbiased_mean / (unbiased_squares.sqrt() + epsilon);
        }
        near(&fetch(device, parameters.view()), &expected, within, "parameters");
        near(&fetch(device, m.view()), &mean, within, "the mean");
        near(&fetch(device, v.view()), &squares, within, "the mean of squares");
    }
}

fn sgd_is(device: &dyn Device, count: usize, seed: u64, within: f64) {
    let (rate, momentum, decay, scale) = (0.05, 0.9, 0.01, 0.3);
    let mut expected = some(count, seed);
    let mut speed = vec![0.0; count];
    let (mut parameters, mut m) = (real(device, &expected), device.real(count));
    for step in 1..=6 {
        let given = gradients(count, seed, step);
        let how = Sgd { rate, momentum, decay, scale };
        let tensor = real(device, &given);
        device.sgd(&how, tensor.view(), m.view_mut(), parameters.view_mut());
        for i in 0..count {
            speed[i] = momentum * speed[i] + (given[i] * scale + decay * expected[i]);
            expected[i] -= rate * speed[i];
        }
        near(&fetch(device, parameters.view()), &expected, within, "parameters");
        near(&fetch(device, m.view()), &speed, within, "momentum");
    }
}

/// `put`, `fetch`, `copy`, `clear`, `sum`, `add`, `scale` and `square_sum`.
fn elementwise(device: &dyn Device, count: usize, seed: u64, within: f64) {
    let (a, b) = (some(count, seed), some(count, seed ^ 5));
    let (x, y) = (real(device, &a), activation(device, &b));
    let each = |f: &dyn Fn(f64, f64) -> f64| -> Vec<f64> {
        a.iter().zip(&b).map(|(a, b)| f(*a, *b)).collect()
    };
    let mut z = real(device, &unread(count));
    device.sum(x.view(), y.view(), z.view_mut());
    near(&fetch(device, z.view()), &each(&|a, b| a + b), within, "sum");
    device.add(x.view(), z.view_mut());
    near(&fetch(device, z.view()), &each(&|a, b| 2.0 * a + b), within, "add");
    device.scale(-0.3, z.view_mut());
    let expected = each(&|a, b| -0.3 * (2.0 * a + b));
    near(&fetch(device, z.view()), &expected, within, "scale");
    let squares: f64 = expected.iter().map(|z| z * z).sum();
    near(&[device.square_sum(z.view())], &[squares], within * 4.0, "the sum of squares");
    let mut copied = activation(device, &unread(count));
    device.copy(x.view(), copied.view_mut());
    near(&fetch(device, copied.view()), &a, within, "copy");
    device.clear(z.view_mut());
    assert_eq!(fetch(device, z.view()), vec![0.0; count]);
    device.fill(f64::NEG_INFINITY, z.view_mut());
    assert_eq!(fetch(device, z.view()), vec![f64::NEG_INFINITY; count]);
    let short: Vec<f32> = a.iter().map(|a| *a as f32).collect();
    let mut back = unread(count).iter().map(|x| *x as f32).collect::<Vec<_>>();
    device.put(&short, z.view_mut());
    device.fetch(z.view(), &mut back);
    assert_eq!(back, short);
}
