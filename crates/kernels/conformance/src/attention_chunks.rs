//! Attention by chunks of tokens, merged in any order, and by shards of heads: equal to full attention.

use std::ops::Range;

use proptest::prelude::*;
use regatta_device::ops::{
    AttentionChunkArgs, AttentionChunkBackwardArgs, AttentionChunkShape, AttentionDropout,
    AttentionShape, Device,
};
use regatta_device::random;

use crate::attention::CausalAttention;
use crate::gradient_check::{Operation, assert_close, exact_values, random_values};
use crate::guarded::{Guarded, accumulated, activation, initial_grad, master_output};
use crate::strategies::{attention_shape, dropout_mask};

/// Attention of queries to chunks of keys, one after the other. Inputs are q and the kv of each chunk.
#[derive(Debug, Clone)]
pub struct ChunkedAttention {
    chunks: Vec<(AttentionChunkShape, Option<AttentionDropout>)>,
}

impl ChunkedAttention {
    fn first_shape(&self) -> AttentionChunkShape {
        self.chunks[0].0
    }

    /// Output and log-sum-exp over all chunks.
    fn merge_chunks(&self, device: &dyn Device, q: &Guarded, kvs: &[Guarded]) -> [Guarded; 2] {
        let shape = self.first_shape();
        let mut y = master_output(device, shape.rows() * shape.out_dim());
        let mut lse = master_output(device, shape.rows() * shape.heads);
        device.fill(f64::NEG_INFINITY, lse.view_mut());
        for ((shape, dropout), kv) in self.chunks.iter().zip(kvs) {
            let (shape, dropout, y, lse) = (*shape, *dropout, y.view_mut(), lse.view_mut());
            let (q, kv) = (q.view(), kv.view());
            device.attention_chunk(AttentionChunkArgs { shape, q, kv, dropout, y, lse });
        }
        [y, lse]
    }

    fn tensors(device: &dyn Device, inputs: &[Vec<f64>]) -> (Guarded, Vec<Guarded>) {
        let kvs = inputs[1..].iter().map(|kv| activation(device, kv)).collect();
        (activation(device, &inputs[0]), kvs)
    }
}

impl Operation for ChunkedAttention {
    fn input_lens(&self) -> Vec<usize> {
        let shape = self.first_shape();
        let kv_lens = self.chunks.iter().map(|(shape, _)| shape.kv_rows() * shape.kv_dim());
        std::iter::once(shape.rows() * shape.out_dim()).chain(kv_lens).collect()
    }

    fn forward(&self, device: &dyn Device, inputs: &[Vec<f64>]) -> Vec<f64> {
        let (q, kvs) = Self::tensors(device, inputs);
        self.merge_chunks(device, &q, &kvs)[0].read(device)
    }

    fn backward(&self, device: &dyn Device, inputs: &[Vec<f64>], dy: &[f64]) -> Vec<Vec<f64>> {
        let (q, kvs) = Self::tensors(device, inputs);
        let [y, lse] = self.merge_chunks(device, &q, &kvs);
        let (dy, mut dq) = (activation(device, dy), initial_grad(device, q.len()));
        let mut gradients = Vec::new();
        for ((shape, dropout), kv) in self.chunks.iter().zip(&kvs) {
            let mut dkv = initial_grad(device, kv.len());
            device.attention_chunk_backward(AttentionChunkBackwardArgs {
                shape: *shape,
                q: q.view(),
                kv: kv.view(),
                y: y.view(),
                lse: lse.view(),
                dropout: *dropout,
                dy: dy.view(),
                dq: dq.view_mut(),
                dkv: dkv.view_mut(),
            });
            gradients.push(accumulated(device, &dkv));
        }
        gradients.insert(0, accumulated(device, &dq));
        gradients
    }
}

/// Queries with their own keys and those of earlier chunks, in any order.
pub fn chunked_attention(max: usize) -> impl Strategy<Value = ChunkedAttention> {
    let earlier = proptest::collection::vec(1..max, 1..4);
    let mask = proptest::option::of(dropout_mask());
    let fields = (attention_shape(max, 1), earlier, mask, any::<u64>());
    fields.prop_map(|(shape, earlier, mask, seed)| {
        let first_query = earlier.iter().sum::<usize>();
        let seq_len = first_query + shape.seq_len;
        let dropout = mask.map(|mask| AttentionDropout::new(mask, shape.heads, seq_len));
        let (mut first_key, mut chunks) = (0, Vec::new());
        let own = (shape.seq_len, true);
        for (keys, causal) in earlier.iter().map(|keys| (*keys, false)).chain([own]) {
            let start = [0, 0, first_query, first_key];
            let chunk = AttentionChunkShape { keys, causal, ..shape.into() };
            chunks.push((chunk, dropout.map(|dropout| dropout.shard(start))));
            first_key += keys;
        }
        shuffle(&mut chunks, seed);
        ChunkedAttention { chunks }
    })
}

fn shuffle<T>(all: &mut [T], seed: u64) {
    for at in (1..all.len()).rev() {
        all.swap(at, random::mix(seed ^ at as u64) as usize % (at + 1));
    }
}

/// A shape, where its sequences are split, as fractions of their length, and dropout.
#[derive(Debug)]
pub struct SplitCase {
    /// Shape of full attention.
    pub shape: AttentionShape,
    /// Where sequences are split.
    pub splits: Vec<f64>,
    /// Dropout of full attention.
    pub dropout: Option<AttentionDropout>,
}

/// Shapes with up to four splits. Sizes are below `max`.
pub fn split_case(max: usize) -> impl Strategy<Value = SplitCase> {
    let splits = proptest::collection::vec(0.0..1.0, 0..5);
    let fields = (attention_shape(max, 1), splits, proptest::option::of(dropout_mask()));
    fields.prop_map(|(shape, splits, mask)| {
        let dropout = mask.map(|mask| AttentionDropout::new(mask, shape.heads, shape.seq_len));
        SplitCase { shape, splits, dropout }
    })
}

impl SplitCase {
    /// Non-empty chunks of tokens.
    fn chunks(&self) -> Vec<Range<usize>> {
        let seq_len = self.shape.seq_len;
        let mut bounds: Vec<usize> =
            self.splits.iter().map(|split| (split * seq_len as f64) as usize).collect();
        bounds.extend([0, seq_len]);
        bounds.sort_unstable();
        bounds.dedup();
        bounds.windows(2).map(|pair| pair[0]..pair[1]).collect()
    }
}

/// Output of full attention, and gradient of qkv.
fn full_attention(
    attention: CausalAttention,
    device: &dyn Device,
    qkv: Vec<f64>,
    dy: &[f64],
) -> [Vec<f64>; 2] {
    let inputs = [qkv];
    let gradient = attention.backward(device, &inputs, dy).remove(0);
    [attention.forward(device, &inputs), gradient]
}

/// Some tokens of each sequence, and some of their columns.
struct TokenBlock {
    seq_len: usize,
    tokens: Range<usize>,
    row_len: usize,
    columns: Range<usize>,
}

impl TokenBlock {
    /// Its ranges in a tensor of `len` elements.
    fn rows(&self, len: usize) -> impl Iterator<Item = Range<usize>> + '_ {
        let rows = (0..len / self.row_len).filter(|at| self.tokens.contains(&(at % self.seq_len)));
        rows.map(|row| row * self.row_len).map(|at| at + self.columns.start..at + self.columns.end)
    }

    fn get(&self, from: &[f64]) -> Vec<f64> {
        self.rows(from.len()).flat_map(|row| from[row].to_vec()).collect()
    }

    fn set(&self, from: &[f64], to: &mut [f64]) {
        for (row, from) in self.rows(to.len()).zip(from.chunks_exact(self.columns.len())) {
            to[row].copy_from_slice(from);
        }
    }

    fn add(&self, from: &[f64], to: &mut [f64]) {
        let sum: Vec<f64> = self.get(to).iter().zip(from).map(|(a, b)| a + b).collect();
        self.set(&sum, to);
    }
}

/// Asserts that attention by chunks of tokens equals full attention.
pub fn check_chunks(device: &dyn Device, case: &SplitCase, seed: u64, tolerance: f64) {
    let SplitCase { shape, dropout, .. } = *case;
    let (qkv_dim, out_dim, seq_len) = (shape.qkv_dim(), shape.out_dim(), shape.seq_len);
    let qkv = exact_values(shape.rows() * qkv_dim, seed);
    let dy = exact_values(shape.rows() * out_dim, seed ^ 1);
    let [expected, gradient] =
        full_attention(CausalAttention { shape, dropout }, device, qkv.clone(), &dy);
    let (mut y, mut dqkv) = (vec![0.0; expected.len()], vec![0.0; gradient.len()]);
    for queries in case.chunks() {
        let mut visible = case.chunks();
        visible.retain(|keys| keys.start <= queries.start);
        shuffle(&mut visible, seed);
        let chunk = |keys: &Range<usize>| {
            let chunk = AttentionChunkShape {
                queries: queries.len(),
                keys: keys.len(),
                causal: *keys == queries,
                ..AttentionChunkShape::from(shape)
            };
            (chunk, dropout.map(|dropout| dropout.shard([0, 0, queries.start, keys.start])))
        };
        let operation = ChunkedAttention { chunks: visible.iter().map(chunk).collect() };
        let block = |tokens: &Range<usize>, row_len: usize, columns: Range<usize>| TokenBlock {
            seq_len,
            tokens: tokens.clone(),
            row_len,
            columns,
        };
        let q = block(&queries, qkv_dim, 0..out_dim);
        let out = block(&queries, out_dim, 0..out_dim);
        let kv = |keys: &Range<usize>| block(keys, qkv_dim, out_dim..qkv_dim);
        let kvs = visible.iter().map(|keys| kv(keys).get(&qkv));
        let inputs: Vec<_> = std::iter::once(q.get(&qkv)).chain(kvs).collect();
        out.set(&operation.forward(device, &inputs), &mut y);
        let gradients = operation.backward(device, &inputs, &out.get(&dy));
        q.add(&gradients[0], &mut dqkv);
        visible.iter().zip(&gradients[1..]).for_each(|(keys, dkv)| kv(keys).add(dkv, &mut dqkv));
    }
    assert_close(&y, &expected, tolerance, "output");
    assert_close(&dqkv, &gradient, tolerance, "gradient");
}

/// Asserts that attention by shards of one key/value head each equals full attention.
pub fn check_head_shards(device: &dyn Device, case: &SplitCase, seed: u64, tolerance: f64) {
    let SplitCase { shape, dropout, .. } = *case;
    let (qkv_dim, out_dim, seq_len) = (shape.qkv_dim(), shape.out_dim(), shape.seq_len);
    let qkv = random_values(shape.rows() * qkv_dim, seed);
    let dy = random_values(shape.rows() * out_dim, seed ^ 1);
    let [expected, gradient] =
        full_attention(CausalAttention { shape, dropout }, device, qkv.clone(), &dy);
    let heads = shape.heads / shape.kv_heads;
    for rank in 0..shape.kv_heads {
        let local = AttentionShape { heads, kv_heads: 1, ..shape };
        let block = |row_len, first_head: usize, heads: usize| {
            let columns = first_head * shape.head_dim..(first_head + heads) * shape.head_dim;
            TokenBlock { seq_len, tokens: 0..seq_len, row_len, columns }
        };
        let mut local_qkv = vec![0.0; shape.rows() * local.qkv_dim()];
        let mut local_gradient = local_qkv.clone();
        let qkv_heads = [
            (rank * heads, 0, heads),
            (shape.heads + rank, heads, 1),
            (shape.heads + shape.kv_heads + rank, heads + 1, 1),
        ];
        for (from, to, count) in qkv_heads {
            let (from, to) = (block(qkv_dim, from, count), block(local.qkv_dim(), to, count));
            to.set(&from.get(&qkv), &mut local_qkv);
            to.set(&from.get(&gradient), &mut local_gradient);
        }
        let out = block(out_dim, rank * heads, heads);
        let dropout = dropout.map(|dropout| dropout.shard([0, rank * heads, 0, 0]));
        let local = CausalAttention { shape: local, dropout };
        let [y, dqkv] = full_attention(local, device, local_qkv, &out.get(&dy));
        assert_close(&y, &out.get(&expected), tolerance, "output of a head shard");
        assert_close(&dqkv, &local_gradient, tolerance, "gradient of a head shard");
    }
}
