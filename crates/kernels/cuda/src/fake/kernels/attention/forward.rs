//! Forward pass.

use regatta_comm::DType;

use super::super::super::array::Array;
use super::super::super::launch::Launch;
use super::{BlockLayout, Dropout, Operands, Sizes, add_row, dot, extent};

pub(super) fn run(launch: &Launch<'_>, layout: BlockLayout) {
    let mut args = launch.args();
    let [q, k, v, y, lse] = [(); 5].map(|()| args.ptr());
    let [queries, keys, heads, kv_heads] = [(); 4].map(|()| args.size32());
    let (q_stride, kv_stride, scale) = (args.size(), args.size(), args.f32());
    let dropout = Dropout::new(launch, &mut args);
    let batch = layout.batch(launch, queries, heads);
    let head_dim = launch.define("HEAD_DIM");
    let dtype = if layout.is_mma { DType::Bf16 } else { launch.dtype("IN_BF16") };
    let key_extent = extent(batch * keys, kv_stride, kv_heads * head_dim);
    let operands = Operands {
        q: launch.array(q, dtype, extent(batch * queries, q_stride, heads * head_dim)),
        k: launch.array(k, dtype, key_extent),
        v: launch.array(v, dtype, key_extent),
        sizes: Sizes { batch, queries, keys, heads, kv_heads },
        q_stride,
        kv_stride,
        head_dim,
        is_causal: launch.define("CAUSAL") == 1,
        scale,
        dropout,
        is_mma: layout.is_mma,
    };
    let is_merged = launch.define("MERGE") == 1;
    let out = match (layout.is_mma, is_merged) {
        (true, true) => DType::F32,
        (true, false) => DType::Bf16,
        (false, _) => launch.dtype("OUT_BF16"),
    };
    let rows = batch * queries * heads;
    let y = launch.array(y, out, rows * head_dim);
    let lse = launch.array(lse, DType::F32, rows);
    for sequence in 0..batch {
        for head in 0..heads {
            let kv_head = operands.kv_head(head);
            let keys = operands.rows_of_head(operands.k, sequence, kv_head);
            let values = operands.rows_of_head(operands.v, sequence, kv_head);
            for query in 0..queries {
                let row = attend(&operands, &keys, &values, [sequence, head, query]);
                let row_head = (sequence * queries + query) * heads + head;
                let head_row = (sequence * heads + head) * queries + query;
                let lse_at = if is_merged { row_head } else { head_row };
                row.store(y.from(row_head * head_dim), lse.from(lse_at), is_merged);
            }
        }
    }
}

/// The output of a query, and its log-sum-exp.
struct AttentionRow {
    output: Vec<f32>,
    lse: f32,
}

fn attend(
    operands: &Operands,
    keys: &[Vec<f32>],
    values: &[Vec<f32>],
    index: [usize; 3],
) -> AttentionRow {
    let query = operands.query(index);
    let visible = &keys[..operands.visible_keys(index[2])];
    let scores: Vec<f32> = visible.iter().map(|key| dot(&query, key) * operands.scale).collect();
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let (mut sum, mut output) = (0.0f64, vec![0.0; query.len()]);
    for (key, (score, value)) in scores.iter().zip(values).enumerate() {
        let p = (score - max).exp();
        sum += f64::from(p);
        if !operands.dropout.drops(index, key) {
            add_row(&mut output, operands.operand(p), value);
        }
    }
    let factor = operands.dropout.scale / sum as f32;
    output.iter_mut().for_each(|x| *x *= factor);
    AttentionRow { output, lse: max + (sum as f32).ln() }
}

impl AttentionRow {
    /// Writes the row, or merges it with earlier ones, whose `y` is undefined if their `lse` is -inf.
    fn store(self, y: Array, lse: Array, is_merged: bool) {
        let (mut keep, mut factor, mut total) = (0.0, 1.0, self.lse);
        if is_merged {
            let old = lse.get(0);
            let larger = old.max(self.lse);
            total = larger + ((old - larger).exp() + (self.lse - larger).exp()).ln();
            (keep, factor) = ((old - total).exp(), (self.lse - total).exp());
        }
        for (at, x) in self.output.into_iter().enumerate() {
            let old = if keep == 0.0 { 0.0 } else { y.get(at) * keep };
            y.set(at, old + x * factor);
        }
        lse.set(0, total);
    }
}
