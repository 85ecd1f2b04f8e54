//! Attention to some of the keys, merged with that to others.

use super::attention::{add, dot, kept, softmax};
use crate::device::{AttentionDrop, AttentionPart, AttentionPartSaved};

/// Where the numbers of one head's query are, and those of the keys that it sees.
struct Query {
    /// Its numbers in `q`, `y` and their gradients.
    numbers: std::ops::Range<usize>,
    sum: usize,
    /// Where its keys and its values begin in `kv`, those that it sees.
    keys: Vec<[usize; 2]>,
    /// Sequence, head and query.
    place: [usize; 3],
}

impl Query {
    fn all(of: AttentionPart) -> impl Iterator<Item = Self> {
        let heads = move |row: usize| (0..of.heads).map(move |head| (row, head));
        (0..of.rows()).flat_map(heads).map(move |(row, head)| Self::new(of, row, head))
    }

    fn new(of: AttentionPart, row: usize, head: usize) -> Self {
        let (sequence, query, d) = (row / of.queries, row % of.queries, of.head_width);
        let shared = head / (of.heads / of.kv_heads);
        let start = row * of.width() + head * d;
        let key = |key: usize| {
            let row = (sequence * of.keys + key) * of.kv_width();
            [row + shared * d, row + (of.kv_heads + shared) * d]
        };
        Self {
            numbers: start..start + d,
            sum: row * of.heads + head,
            keys: (0..of.seen(query)).map(key).collect(),
            place: [sequence, head, query],
        }
    }

    fn scores(&self, q: &[f64], kv: &[f64]) -> Vec<f64> {
        let d = self.numbers.len();
        let q = &q[self.numbers.clone()];
        let score = |key: &[usize; 2]| dot(q, &kv[key[0]..key[0] + d]) / (d as f64).sqrt();
        self.keys.iter().map(score).collect()
    }

    fn kept(&self, drop: Option<AttentionDrop>, key: usize) -> f64 {
        let [sequence, head, query] = self.place;
        kept(drop, [sequence, head, query, key])
    }
}

fn check(of: AttentionPart, q: &[f64], kv: &[f64], y: &[f64], sums: &[f64]) {
    assert_eq!((q.len(), y.len()), (of.rows() * of.width(), of.rows() * of.width()));
    assert_eq!(kv.len(), of.kv_rows() * of.kv_width());
    assert_eq!(sums.len(), of.rows() * of.heads);
}

pub fn forward(
    of: AttentionPart,
    q: &[f64],
    kv: &[f64],
    drop: Option<AttentionDrop>,
    y: &mut [f64],
    sums: &mut [f64],
) {
    check(of, q, kv, y, sums);
    let d = of.head_width;
    for query in Query::all(of).filter(|query| !query.keys.is_empty()) {
        let (probabilities, new) = softmax(query.scores(q, kv));
        let (y, old) = (&mut y[query.numbers.clone()], sums[query.sum]);
        let most = old.max(new);
        let sum = most + ((old - most).exp() + (new - most).exp()).ln();
        match old == f64::NEG_INFINITY {
            true => y.fill(0.0),
            false => y.iter_mut().for_each(|y| *y *= (old - sum).exp()),
        }
        for (at, (p, [_, value])) in probabilities.iter().zip(&query.keys).enumerate() {
            let share = p * query.kept(drop, at) * (new - sum).exp();
            add(y, &kv[*value..value + d], share);
        }
        sums[query.sum] = sum;
    }
}

pub fn backward(
    of: AttentionPart,
    saved: AttentionPartSaved<'_>,
    drop: Option<AttentionDrop>,
    dy: &[f64],
    dq: &mut [f64],
    dkv: &mut [f64],
) {
    let (q, kv) = (saved.q.host::<f64>(), saved.kv.host::<f64>());
    let (y, sums) = (saved.y.host::<f64>(), saved.log_sums.host::<f64>());
    check(of, q, kv, y, sums);
    assert_eq!((dy.len(), dq.len(), dkv.len()), (y.len(), q.len(), kv.len()));
    let (d, scale) = (of.head_width, 1.0 / (of.head_width as f64).sqrt());
    for query in Query::all(of) {
        let here = query.numbers.clone();
        let dy = &dy[here.clone()];
        // The sum over all keys of a number times its gradient: those of other parts count, too.
        let mean = dot(dy, &y[here.clone()]);
        let scores = query.scores(q, kv);
        for (at, (score, [key, value])) in scores.iter().zip(&query.keys).enumerate() {
            let (p, kept) = ((score - sums[query.sum]).exp(), query.kept(drop, at));
            let ds = p * (dot(dy, &kv[*value..value + d]) * kept - mean) * scale;
            add(&mut dq[here.clone()], &kv[*key..key + d], ds);
            add(&mut dkv[*key..key + d], &q[here.clone()], ds);
            add(&mut dkv[*value..value + d], dy, p * kept);
        }
    }
}
