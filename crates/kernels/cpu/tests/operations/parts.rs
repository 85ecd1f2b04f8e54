//! Parts of attention: of some heads, and of some tokens to some tokens. Whatever the parts are and
//! whatever their order, they make the whole.

use std::ops::Range;

use proptest::prelude::*;
use regatta_device::ops::{
    AttentionShape, AttentionDropout, AttentionChunkShape, AttentionChunkSaved, AttentionSaved, Device,
};
use regatta_device::tensor::Tensor;
use regatta_device::precision::Precision;
use regatta_device::random;
use regatta_device::reference::Reference;
use regatta_kernels_cpu::Cpu;

use crate::check::{
    Operation, activation, added, as_reference, begun, by_differences, near, real, some, unread,
};
use crate::slice::{fetch, short};
use crate::{mask, sizes};

/// Queries against the keys of parts, one after the other.
#[derive(Debug, Clone)]
struct Parts {
    parts: Vec<(AttentionChunkShape, Option<AttentionDropout>)>,
}

/// What queries found with all parts.
struct Found {
    y: Tensor,
    lse: Tensor,
}

impl Parts {
    fn first(&self) -> AttentionChunkShape {
        self.parts[0].0
    }

    fn found(&self, device: &dyn Device, q: &Tensor, kvs: &[Tensor]) -> Found {
        let of = self.first();
        let mut y = real(device, &unread(of.rows() * of.width()));
        let mut lse = device.real(of.rows() * of.heads);
        device.fill(f64::NEG_INFINITY, lse.view_mut());
        for ((of, drop), kv) in self.parts.iter().zip(kvs) {
            let (y, lse) = (y.view_mut(), lse.view_mut());
            device.attention_part(*of, q.view(), kv.view(), *drop, y, lse);
        }
        Found { y, lse }
    }

    fn tensors(device: &dyn Device, inputs: &[Vec<f64>]) -> (Tensor, Vec<Tensor>) {
        let kvs = inputs[1..].iter().map(|kv| activation(device, kv)).collect();
        (activation(device, &inputs[0]), kvs)
    }
}

impl Operation for Parts {
    fn inputs(&self) -> Vec<usize> {
        let kvs = self.parts.iter().map(|(of, _)| of.kv_rows() * of.kv_width());
        std::iter::once(self.first().rows() * self.first().width()).chain(kvs).collect()
    }

    fn forward(&self, device: &dyn Device, inputs: &[Vec<f64>]) -> Vec<f64> {
        let (q, kvs) = Self::tensors(device, inputs);
        fetch(device, self.found(device, &q, &kvs).y.view())
    }

    fn backward(&self, device: &dyn Device, inputs: &[Vec<f64>], dy: &[f64]) -> Vec<Vec<f64>> {
        let (q, kvs) = Self::tensors(device, inputs);
        let Found { y, lse } = self.found(device, &q, &kvs);
        let (dy, mut dq) = (activation(device, dy), begun(device, q.len()));
        let mut all = Vec::new();
        for ((of, drop), kv) in self.parts.iter().zip(&kvs) {
            let mut dkv = begun(device, kv.len());
            let (y, lse) = (y.view(), lse.view());
            let saved = AttentionChunkSaved { q: q.view(), kv: kv.view(), y, lse };
            let (dq, to) = (dq.view_mut(), dkv.view_mut());
            device.attention_part_back(*of, saved, *drop, dy.view(), dq, to);
            all.push(added(device, &dkv));
        }
        all.insert(0, added(device, &dq));
        all
    }
}

/// Queries with their own keys and with those of other chunks, in any order.
fn parts(most: usize) -> impl Strategy<Value = Parts> {
    let chunks = proptest::collection::vec(1..most, 1..4);
    (sizes(most, 1), chunks, proptest::option::of(mask()), any::<u64>()).prop_map(
        |(of, before, mask, seed)| {
            let whole = before.iter().sum::<usize>() + of.sequence;
            let drop = mask.map(|mask| AttentionDropout::whole(mask, of.heads, whole));
            let mut begin = 0;
            let mut parts = Vec::new();
            for (keys, causal) in before.iter().map(|n| (*n, false)).chain([(of.sequence, true)]) {
                let place = [0, 0, whole - of.sequence, begin];
                let part = AttentionChunkShape { keys, causal, ..of.into() };
                parts.push((part, drop.map(|drop| drop.from(place))));
                begin += keys;
            }
            shuffle(&mut parts, seed);
            Parts { parts }
        },
    )
}

fn shuffle<T>(all: &mut [T], seed: u64) {
    for at in (1..all.len()).rev() {
        all.swap(at, random::mix(seed ^ at as u64) as usize % (at + 1));
    }
}

proptest! {
    #[test]
    fn gradients_of_parts_agree_with_differences(of in parts(5), seed: u64) {
        by_differences(&Reference, &of, seed);
    }

    #[test]
    fn the_fast_device_is_right_for_parts(of in parts(40), seed: u64) {
        let threads = 1 + seed as usize % 2;
        as_reference(&Cpu::new(threads, Precision::F32), &of, seed, 1e-5);
        as_reference(&Cpu::new(threads, Precision::Bf16), &of, seed, 2e-2);
    }

    #[test]
    fn chunks_in_any_order_are_the_whole(of in sizes(40, 1), case in case(), seed: u64) {
        chunks_are_the_whole(&Reference, of, &case, seed, 1e-12);
        chunks_are_the_whole(&Cpu::new(2, Precision::F32), of, &case, seed, 1e-5);
        chunks_are_the_whole(&Cpu::new(1, Precision::Bf16), of, &case, seed, 2e-2);
    }

    #[test]
    fn some_heads_are_those_of_the_whole(of in sizes(20, 1), case in case(), seed: u64) {
        some_heads_are_those(&Reference, of, &case, seed, 1e-12);
        some_heads_are_those(&Cpu::new(2, Precision::F32), of, &case, seed, 1e-5);
    }
}

/// Where sequences are cut, as shares of them, and what is dropped.
#[derive(Debug)]
struct Case {
    cuts: Vec<f64>,
    mask: Option<random::DropoutMask>,
}

fn case() -> impl Strategy<Value = Case> {
    (proptest::collection::vec(0.0..1.0, 0..5), proptest::option::of(mask()))
        .prop_map(|(cuts, mask)| Case { cuts, mask })
}

impl Case {
    fn drop(&self, of: AttentionShape) -> Option<AttentionDropout> {
        self.mask.map(|mask| AttentionDropout::whole(mask, of.heads, of.sequence))
    }

    /// Tokens in chunks, none of them empty.
    fn chunks(&self, sequence: usize) -> Vec<Range<usize>> {
        let mut cuts: Vec<usize> =
            self.cuts.iter().map(|cut| (cut * sequence as f64) as usize).collect();
        cuts.extend([0, sequence]);
        cuts.sort_unstable();
        cuts.dedup();
        cuts.windows(2).map(|pair| pair[0]..pair[1]).collect()
    }
}

/// What comes out of the whole, and the gradient of its queries, keys and values.
fn whole(
    device: &dyn Device,
    of: AttentionShape,
    drop: Option<AttentionDropout>,
    qkv: &[f64],
    dy: &[f64],
) -> [Vec<f64>; 2] {
    let (qkv, dy) = (activation(device, qkv), activation(device, dy));
    let mut y = activation(device, &unread(of.rows() * of.width()));
    let mut lse = real(device, &unread(of.rows() * of.heads));
    device.attention(of, qkv.view(), drop, y.view_mut(), lse.view_mut());
    let mut dqkv = activation(device, &unread(qkv.len()));
    let saved = AttentionSaved { qkv: qkv.view(), y: y.view(), lse: lse.view() };
    device.attention_back(of, saved, drop, dy.view(), dqkv.view_mut());
    [y, dqkv].map(|tensor| fetch(device, tensor.view()))
}

/// Some tokens of each sequence, and some columns of them.
struct Block {
    sequence: usize,
    tokens: Range<usize>,
    wide: usize,
    columns: Range<usize>,
}

impl Block {
    /// Where its rows are in the whole.
    fn rows(&self, whole: usize) -> impl Iterator<Item = Range<usize>> + '_ {
        let tokens =
            (0..whole / self.wide).filter(|row| self.tokens.contains(&(row % self.sequence)));
        tokens.map(|row| row * self.wide).map(|at| at + self.columns.start..at + self.columns.end)
    }

    fn take(&self, from: &[f64]) -> Vec<f64> {
        self.rows(from.len()).flat_map(|row| from[row].to_vec()).collect()
    }

    fn put(&self, from: &[f64], to: &mut [f64]) {
        for (row, from) in self.rows(to.len()).zip(from.chunks_exact(self.columns.len())) {
            to[row].copy_from_slice(from);
        }
    }

    fn add(&self, from: &[f64], to: &mut [f64]) {
        let sum: Vec<f64> = self.take(to).iter().zip(from).map(|(a, b)| a + b).collect();
        self.put(&sum, to);
    }
}

fn chunks_are_the_whole(device: &dyn Device, of: AttentionShape, case: &Case, seed: u64, within: f64) {
    let drop = case.drop(of);
    let (wide, width, sequence) = (of.qkv_width(), of.width(), of.sequence);
    let numbers = |count, seed| some(count, seed).into_iter().map(short).collect::<Vec<_>>();
    let (qkv, dy) = (numbers(of.rows() * wide, seed), numbers(of.rows() * width, seed ^ 1));
    let [expected, gradient] = whole(device, of, drop, &qkv, &dy);
    let (mut y, mut dqkv) = (vec![0.0; expected.len()], vec![0.0; gradient.len()]);
    for queries in case.chunks(sequence) {
        let mut before = case.chunks(sequence);
        before.retain(|keys| keys.start <= queries.start);
        shuffle(&mut before, seed);
        let part = |keys: &Range<usize>| {
            let (causal, keys, begin) = (*keys == queries, keys.len(), keys.start);
            let part =
                AttentionChunkShape { queries: queries.len(), keys, causal, ..AttentionChunkShape::from(of) };
            (part, drop.map(|drop| drop.from([0, 0, queries.start, begin])))
        };
        let ring = Parts { parts: before.iter().map(part).collect() };
        let block = |tokens: &Range<usize>, wide: usize, columns: Range<usize>| Block {
            sequence,
            tokens: tokens.clone(),
            wide,
            columns,
        };
        let (q, out) = (block(&queries, wide, 0..width), block(&queries, width, 0..width));
        let kv = |keys: &Range<usize>| block(keys, wide, width..wide);
        let inputs: Vec<_> = std::iter::once(q.take(&qkv))
            .chain(before.iter().map(|keys| kv(keys).take(&qkv)))
            .collect();
        out.put(&ring.forward(device, &inputs), &mut y);
        let gradients = ring.backward(device, &inputs, &out.take(&dy));
        q.add(&gradients[0], &mut dqkv);
        before.iter().zip(&gradients[1..]).for_each(|(keys, dkv)| kv(keys).add(dkv, &mut dqkv));
    }
    near(&y, &expected, within, "what comes out");
    near(&dqkv, &gradient, within, "the gradient");
}

/// A rank for each head of keys, with the queries that share it.
fn some_heads_are_those(device: &dyn Device, of: AttentionShape, case: &Case, seed: u64, within: f64) {
    let (wide, width, sequence, d) = (of.qkv_width(), of.width(), of.sequence, of.head_dim);
    let (qkv, dy) = (some(of.rows() * wide, seed), some(of.rows() * width, seed ^ 1));
    let [expected, gradient] = whole(device, of, case.drop(of), &qkv, &dy);
    let each = of.heads / of.kv_heads;
    for rank in 0..of.kv_heads {
        let here = AttentionShape { heads: each, kv_heads: 1, ..of };
        let block = |wide, first: usize, count: usize| {
            let columns = first * d..(first + count) * d;
            Block { sequence, tokens: 0..sequence, wide, columns }
        };
        let mut own = vec![0.0; of.rows() * here.qkv_width()];
        let mut own_gradient = own.clone();
        let pieces = [
            (rank * each, 0, each),
            (of.heads + rank, each, 1),
            (of.heads + of.kv_heads + rank, each + 1, 1),
        ];
        for (from, to, count) in pieces {
            let (from, to) = (block(wide, from, count), block(here.qkv_width(), to, count));
            to.put(&from.take(&qkv), &mut own);
            to.put(&from.take(&gradient), &mut own_gradient);
        }
        let results = block(width, rank * each, each);
        let drop = case.drop(of).map(|drop| drop.from([0, rank * each, 0, 0]));
        let [y, dqkv] = whole(device, here, drop, &own, &results.take(&dy));
        near(&y, &results.take(&expected), within, "what comes out of some heads");
        near(&dqkv, &own_gradient, within, "their gradient");
    }
}
