//! Attention of full sequences, of chunks and of one token, and RoPE.

use super::embedding_loss::random_tokens;
use super::*;
use regatta_device::AttentionOps;
use regatta_device::ops::{
    AttentionArgs, AttentionBackwardArgs, AttentionChunkArgs, AttentionChunkBackwardArgs,
    AttentionChunkShape, AttentionDropout, AttentionSaved, AttentionShape, DecodeAttentionArgs,
    RopeArgs, RopeDirection,
};
use regatta_device::random::DropoutMask;

/// Batch, tokens, heads, key/value heads, head_dim.
const SHAPES: [[usize; 5]; 13] = [
    [1, 1, 1, 1, 1],
    [2, 1, 2, 1, 16],
    [3, 5, 2, 2, 6],
    [1, 16, 4, 2, 8],
    [2, 17, 3, 1, 16],
    [1, 48, 2, 2, 32],
    [2, 49, 2, 2, 32],
    [1, 64, 4, 4, 64],
    [1, 103, 4, 2, 20],
    [1, 150, 2, 1, 48],
    [1, 17, 2, 1, 64],
    [2, 64, 3, 3, 24],
    [1, 100, 4, 2, 40],
];

fn attention_shape([batch, seq_len, heads, kv_heads, head_dim]: [usize; 5]) -> AttentionShape {
    AttentionShape { batch, seq_len, heads, kv_heads, head_dim }
}

/// No dropout, that of all heads and tokens, and that of a shard.
fn dropouts(shape: AttentionShape) -> [Option<AttentionDropout>; 3] {
    let mask = DropoutMask { p: 0.3, key: key(5, &[1]), offset: 1000 };
    let global = AttentionDropout::new(mask, 3 * shape.heads, shape.seq_len + 9);
    let full = AttentionDropout::new(mask, shape.heads, shape.seq_len);
    [None, Some(full), Some(global.shard([0, shape.heads, 9, 0]))]
}

#[test]
fn attention_matches_reference() {
    for shape in SHAPES.map(attention_shape) {
        let (qkv_len, out_len) = (shape.rows() * shape.qkv_dim(), shape.rows() * shape.out_dim());
        let lse_len = shape.rows() * shape.heads;
        for dropout in dropouts(shape) {
            let what = format!("{shape:?} {dropout:?}");
            let specs = [Act(qkv_len), Act(out_len), Master(lse_len)];
            check_reference(&what, specs, |device, [qkv, y, lse]| {
                device.attention(AttentionArgs { shape, qkv: qkv.view(), dropout, y, lse })
            });
            let specs = [Act(qkv_len), Act(out_len), Master(lse_len), Act(out_len), Act(qkv_len)];
            check_reference(&what, specs, |device, [qkv, mut y, mut lse, dy, dqkv]| {
                let (qkv, to) = (qkv.view(), (y.reborrow(), lse.reborrow()));
                device.attention(AttentionArgs { shape, qkv, dropout, y: to.0, lse: to.1 });
                let saved = AttentionSaved { qkv, y: y.view(), lse: lse.view() };
                let dy = dy.view();
                let args = AttentionBackwardArgs { shape, saved, dropout, dy, dqkv };
                device.attention_backward(args);
            });
        }
    }
}

/// Bits of the output and of all gradients.
fn attention_bits(
    device: &Cpu,
    shape: AttentionShape,
    dropout: Option<AttentionDropout>,
) -> Vec<Vec<u32>> {
    let (qkv_len, out_len) = (shape.rows() * shape.qkv_dim(), shape.rows() * shape.out_dim());
    let lse = Master(shape.rows() * shape.heads);
    let mut all = tensors(device, &[Act(qkv_len), Act(out_len), lse, Act(out_len), Act(qkv_len)]);
    let [qkv, y, lse, dy, dqkv] = &mut all[..] else { unreachable!() };
    let (input, to) = (qkv.view(), (y.view_mut(), lse.view_mut()));
    device.attention(AttentionArgs { shape, qkv: input, dropout, y: to.0, lse: to.1 });
    let saved = AttentionSaved { qkv: input, y: y.view(), lse: lse.view() };
    let (dy, to) = (dy.view(), dqkv.view_mut());
    device.attention_backward(AttentionBackwardArgs { shape, saved, dropout, dy, dqkv: to });
    let bits = |values: Vec<f32>| values.iter().map(|x| x.to_bits()).collect();
    to_host(device, &all).into_iter().map(bits).collect()
}

#[test]
fn attention_does_not_depend_on_the_number_of_threads() {
    let shape = attention_shape([2, 100, 6, 3, 40]);
    for dropout in dropouts(shape) {
        let mut all: Vec<(String, Vec<Vec<u32>>)> = Vec::new();
        for device in devices() {
            let name = device.describe();
            let kernel = name.split_once(", ").unwrap().1.to_owned();
            let found = attention_bits(&device, shape, dropout);
            match all.iter().find(|(other, _)| *other == kernel) {
                Some((_, expected)) => assert!(*expected == found, "{name} differs"),
                None => all.push((kernel, found)),
            }
        }
        assert!(all.len() < devices().len());
    }
}

#[test]
fn decode_attention_matches_reference() {
    for [_, tokens, heads, kv_heads, head_dim] in SHAPES {
        let shape = AttentionShape { batch: 1, seq_len: 1, heads, kv_heads, head_dim };
        let cache_len = tokens * kv_heads * head_dim;
        let specs = [Act(shape.out_dim()), Act(cache_len), Act(cache_len), Act(shape.out_dim())];
        check_reference(&format!("{shape:?}"), specs, |device, [q, keys, values, y]| {
            let (q, keys, values) = (q.view(), keys.view(), values.view());
            device.decode_attention(DecodeAttentionArgs { shape, q, keys, values, y })
        });
    }
}

#[test]
fn rope_matches_reference() {
    for shape in SHAPES.map(attention_shape).into_iter().filter(|shape| shape.head_dim % 2 == 0) {
        let scattered = random_tokens(4, shape.seq_len, 300);
        let in_order: Vec<u32> = (0..shape.seq_len as u32).collect();
        use RopeDirection::{Forward, Inverse};
        let cases = [(&in_order, Forward), (&scattered, Forward), (&scattered, Inverse)];
        for (positions, direction) in cases {
            let what = format!("{shape:?} {positions:?} {direction:?}");
            check_reference(&what, [Act(shape.rows() * shape.qkv_dim())], |device, [qkv]| {
                let (theta, positions) = (10_000.0, tokens(device, positions));
                let positions = positions.view();
                device.apply_rope(RopeArgs { shape, theta, positions, direction, qkv });
            });
        }
    }
}

/// Batch, queries, keys, heads, key/value heads, head_dim.
const CHUNKS: [[usize; 6]; 9] = [
    [1, 1, 1, 1, 1, 1],
    [2, 3, 5, 2, 1, 6],
    [1, 5, 3, 4, 2, 16],
    [2, 16, 48, 2, 2, 32],
    [1, 50, 17, 3, 1, 20],
    [1, 17, 50, 2, 2, 64],
    [2, 49, 49, 4, 2, 16],
    [1, 103, 103, 2, 1, 8],
    [1, 150, 64, 2, 1, 48],
];

/// Earlier chunks are merged; where `lse` is -∞, the contents of `y` are ignored.
#[test]
fn attention_chunk_matches_reference() {
    for [batch, queries, keys, heads, kv_heads, head_dim] in CHUNKS {
        for causal in [false, true] {
            let full = attention_shape([batch, queries, heads, kv_heads, head_dim]);
            let shape = AttentionChunkShape { keys, causal, ..full.into() };
            let mask = DropoutMask { p: 0.3, key: key(5, &[1]), offset: 1000 };
            let dropout = AttentionDropout::new(mask, heads, 300).shard([0, 0, 64, 32]);
            for dropout in [None, Some(dropout)] {
                check_chunk(shape, dropout);
            }
        }
    }
}

fn check_chunk(shape: AttentionChunkShape, dropout: Option<AttentionDropout>) {
    let (out_len, kv_len) = (shape.rows() * shape.out_dim(), shape.kv_rows() * shape.kv_dim());
    let (q, kv, lse) = (Act(out_len), Act(kv_len), Master(shape.rows() * shape.heads));
    let what = format!("{shape:?} {dropout:?}");
    check_reference(&what, [q, kv, Master(out_len), lse], |device, [q, kv, y, lse]| {
        let (q, kv) = (q.view(), kv.view());
        device.attention_chunk(AttentionChunkArgs { shape, q, kv, dropout, y, lse })
    });
    let specs = [q, kv, Master(out_len), lse, Act(out_len), Master(out_len), Master(kv_len)];
    check_reference(&what, specs, |device, [q, kv, mut y, mut lse, dy, dq, dkv]| {
        device.fill(f64::NEG_INFINITY, lse.reborrow());
        device.fill(f64::NAN, y.reborrow());
        let (q, kv, to) = (q.view(), kv.view(), (y.reborrow(), lse.reborrow()));
        device.attention_chunk(AttentionChunkArgs { shape, q, kv, dropout, y: to.0, lse: to.1 });
        let (y, lse, dy) = (y.view(), lse.view(), dy.view());
        let args = AttentionChunkBackwardArgs { shape, q, kv, y, lse, dropout, dy, dq, dkv };
        device.attention_chunk_backward(args);
    });
}
