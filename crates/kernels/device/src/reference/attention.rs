//! Causal attention, head by head.

use crate::device::{Attention, AttentionDrop, Turn};

/// Where the queries, keys and values of one head begin in the first row of its sequence.
struct Head {
    first_row: usize,
    width: usize,
    row: usize,
    q: usize,
    k: usize,
    v: usize,
}

impl Head {
    fn new(of: Attention, sequence: usize, head: usize) -> Self {
        let d = of.head_width;
        let shared = head / (of.heads / of.kv_heads);
        let (k, v) = ((of.heads + shared) * d, (of.heads + of.kv_heads + shared) * d);
        let first_row = sequence * of.sequence;
        Self { first_row, width: d, row: of.qkv_width(), q: head * d, k, v }
    }

    /// The numbers of a token that begin at `part` in its row.
    fn at(&self, token: usize, part: usize) -> std::ops::Range<usize> {
        let start = (self.first_row + token) * self.row + part;
        start..start + self.width
    }

    /// The softmax over the keys up to a query's, and the logarithm of its sum.
    fn probabilities(&self, qkv: &[f64], query: usize) -> (Vec<f64>, f64) {
        let q = &qkv[self.at(query, self.q)];
        let score = |key: usize| dot(q, &qkv[self.at(key, self.k)]) / (self.width as f64).sqrt();
        softmax((0..=query).map(score).collect())
    }
}

pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

pub(super) fn softmax(scores: Vec<f64>) -> (Vec<f64>, f64) {
    let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = scores.iter().map(|s| (s - most).exp()).sum();
    (scores.iter().map(|s| (s - most).exp() / sum).collect(), most + sum.ln())
}

/// `to += from * by`.
pub(super) fn add(to: &mut [f64], from: &[f64], by: f64) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to += from * by);
}

/// What a softmax's number is multiplied by.
pub(super) fn kept(drop: Option<AttentionDrop>, place: [usize; 4]) -> f64 {
    drop.map_or(1.0, |drop| f64::from(drop.mask.factor(drop.index(place))))
}

pub fn forward(
    of: Attention,
    qkv: &[f64],
    drop: Option<AttentionDrop>,
    y: &mut [f64],
    sums: &mut [f64],
) {
    y.fill(0.0);
    for (b, h) in (0..of.batch).flat_map(|b| (0..of.heads).map(move |h| (b, h))) {
        let head = Head::new(of, b, h);
        for query in 0..of.sequence {
            let (probabilities, sum) = head.probabilities(qkv, query);
            sums[(b * of.heads + h) * of.sequence + query] = sum;
            let start = (head.first_row + query) * of.width() + head.q;
            let y = &mut y[start..start + of.head_width];
            for (key, p) in probabilities.iter().enumerate() {
                add(y, &qkv[head.at(key, head.v)], p * kept(drop, [b, h, query, key]));
            }
        }
    }
}

pub fn backward(
    of: Attention,
    qkv: &[f64],
    drop: Option<AttentionDrop>,
    dy: &[f64],
    dqkv: &mut [f64],
) {
    dqkv.fill(0.0);
    let scale = 1.0 / (of.head_width as f64).sqrt();
    for (b, h) in (0..of.batch).flat_map(|b| (0..of.heads).map(move |h| (b, h))) {
        let head = Head::new(of, b, h);
        for query in 0..of.sequence {
            let (p, _) = head.probabilities(qkv, query);
            let start = (head.first_row + query) * of.width() + head.q;
            let dy = &dy[start..start + of.head_width];
            let kept = |key| kept(drop, [b, h, query, key]);
            let dp: Vec<f64> =
                (0..=query).map(|key| dot(dy, &qkv[head.at(key, head.v)]) * kept(key)).collect();
            let mean = dot(&dp, &p);
            for key in 0..=query {
                let ds = p[key] * (dp[key] - mean) * scale;
                add(&mut dqkv[head.at(query, head.q)], &qkv[head.at(key, head.k)], ds);
                add(&mut dqkv[head.at(key, head.k)], &qkv[head.at(query, head.q)], ds);
                add(&mut dqkv[head.at(key, head.v)], dy, p[key] * kept(key));
            }
        }
    }
}

pub fn attend(of: Attention, q: &[f64], keys: &[f64], values: &[f64], y: &mut [f64]) {
    let (d, row) = (of.head_width, of.kv_heads * of.head_width);
    y.fill(0.0);
    for head in 0..of.heads {
        let shared = head / (of.heads / of.kv_heads) * d..(head / (of.heads / of.kv_heads) + 1) * d;
        let here = head * d..(head + 1) * d;
        let score = |key: &[f64]| dot(&q[here.clone()], &key[shared.clone()]) / (d as f64).sqrt();
        let (p, _) = softmax(keys.chunks_exact(row).map(score).collect());
        for (p, value) in p.iter().zip(values.chunks_exact(row)) {
            add(&mut y[here.clone()], &value[shared.clone()], *p);
        }
    }
}

pub fn rope(of: Attention, base: f64, places: &[u32], turn: Turn, qkv: &mut [f64]) {
    assert_eq!(places.len(), of.sequence);
    let half = of.head_width / 2;
    for (row, numbers) in qkv.chunks_exact_mut(of.qkv_width()).enumerate() {
        let position = f64::from(places[row % of.sequence]);
        for head in numbers.chunks_exact_mut(of.head_width).take(of.heads + of.kv_heads) {
            for i in 0..half {
                let angle = position * base.powf(-(i as f64) / half as f64);
                let (sin, cos) = angle.sin_cos();
                let sin = if turn == Turn::There { sin } else { -sin };
                let (a, b) = (head[i], head[i + half]);
                head[i] = a * cos - b * sin;
                head[i + half] = b * cos + a * sin;
            }
        }
    }
}
