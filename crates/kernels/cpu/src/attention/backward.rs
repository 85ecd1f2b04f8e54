//! Backward pass of attention. Probabilities are recomputed from the log-sum-exp.

use std::ops::Range;

use super::{AttentionHead, BLOCK_QUERIES, QkvLayout, blocks, take};
use crate::Cpu;
use crate::elementwise::dropout_factors;
use crate::gemm::GemmShape;
use crate::gemm::small_f32::{MatrixPtr, MatrixPtrMut, ROWS, gemm_small, transpose};
use crate::isa::kernel;
use crate::lanes::{Lanes, WIDTH};
use crate::math::exp;
use crate::slice::{DisjointMut, Slice};
use regatta_device::ops::{AttentionChunkShape, AttentionDropout};
use regatta_device::random::DropoutMask;

/// Inputs and outputs of all heads.
#[derive(Clone, Copy)]
pub(super) struct BackwardArgs<'a> {
    pub q: Slice<'a>,
    pub kv: Slice<'a>,
    pub y: Slice<'a>,
    pub lse: &'a [f32],
    pub dropout: Option<AttentionDropout>,
    pub dy: Slice<'a>,
    pub dq: DisjointMut<'a>,
    pub dkv: DisjointMut<'a>,
    /// Whether gradients are accumulated.
    pub accumulate: bool,
}

/// Keys and values of a group of heads, and their gradients.
struct KvOperands {
    k: MatrixPtr,
    k_transposed: MatrixPtrMut,
    v_transposed: MatrixPtrMut,
    dk: MatrixPtrMut,
    dv: MatrixPtrMut,
    accumulate: bool,
}

/// Queries of a head, their gradient, and the gradient of the output.
struct QueryOperands<'a> {
    head: AttentionHead,
    args: BackwardArgs<'a>,
    q: MatrixPtr,
    dy: MatrixPtr,
    dq: MatrixPtrMut,
}

/// Probabilities of a block of queries, and the gradient of their scores.
struct ScoreGradients {
    queries: Range<usize>,
    p: MatrixPtrMut,
    ds: MatrixPtrMut,
}

impl Cpu {
    pub(super) fn backward_groups(
        &self,
        shape: AttentionChunkShape,
        layout: QkvLayout,
        args: BackwardArgs<'_>,
    ) {
        // Query heads that share a key/value head accumulate into the same gradients, so one task has them.
        let group = shape.heads / shape.kv_heads;
        self.for_each_group(shape, layout, group, |first| match self.uses_bf16_attention() {
            true => self.backward_group_bf16(first, args),
            false => self.backward_group(first, args),
        });
    }

    /// All query heads that share a key/value head; `first` is the first of them.
    fn backward_group(&self, first: AttentionHead, args: BackwardArgs<'_>) {
        let shape = first.shape;
        let (padded_dim, padded_keys) = (first.padded_dim(), first.padded_keys());
        let (q_len, k_len) = (shape.queries * padded_dim, shape.keys * padded_dim);
        let block_len = (padded_dim + BLOCK_QUERIES) * padded_keys;
        let mut scratch = self.scratch(3 * q_len + 3 * k_len + 2 * block_len);
        let mut rest = &mut scratch[..];
        let [k_columns, v_columns] = first.kv_columns();
        let k = self.gather(args.kv, k_columns, take(&mut rest, k_len));
        let (k_transposed, v_transposed) = {
            // V itself is not needed again, so its buffer is reused below.
            let v = self.gather(args.kv, v_columns, &mut rest[2 * padded_dim * padded_keys..]);
            let mut transposed = |from: MatrixPtr| {
                let ptr = take(&mut rest, padded_dim * padded_keys).as_mut_ptr();
                let to = MatrixPtrMut { ptr, row_stride: padded_keys };
                // SAFETY: `to` has `padded_dim` rows of `padded_keys` columns.
                unsafe { transpose(self.isa, shape.keys, padded_dim, from, to) };
                to
            };
            (transposed(k), transposed(v))
        };
        let (dk_buffer, dv_buffer) = (take(&mut rest, k_len), take(&mut rest, k_len));
        // SAFETY: each group has its own columns.
        let [dk, dv] = unsafe {
            [(k_columns, &mut *dk_buffer), (v_columns, &mut *dv_buffer)].map(|(columns, buffer)| {
                self.accumulator_matrix(args.dkv, columns, buffer, args.accumulate)
            })
        };
        let accumulate = args.accumulate;
        let mut kv = KvOperands { k, k_transposed, v_transposed, dk, dv, accumulate };
        for head in first.head..first.head + shape.heads / shape.kv_heads {
            self.backward_head(AttentionHead { head, ..first }, args, &kv, rest);
            kv.accumulate = true;
        }
        // SAFETY: each group has its own columns.
        unsafe {
            self.write_back(args.dkv, k_columns, dk_buffer);
            self.write_back(args.dkv, v_columns, dv_buffer);
        }
    }

    fn backward_head(
        &self,
        head: AttentionHead,
        args: BackwardArgs<'_>,
        kv: &KvOperands,
        mut rest: &mut [f32],
    ) {
        let q_len = head.shape.queries * head.padded_dim();
        let (q_columns, y_columns) = (head.q_columns(), head.y_columns());
        let q = self.gather(args.q, q_columns, take(&mut rest, q_len));
        let dy = self.gather(args.dy, y_columns, take(&mut rest, q_len));
        let buffer = take(&mut rest, q_len);
        // SAFETY: each head has its own columns.
        let dq = unsafe { self.accumulator_matrix(args.dq, q_columns, buffer, args.accumulate) };
        let operands = QueryOperands { head, args, q, dy, dq };
        for queries in blocks(0..head.shape.queries, BLOCK_QUERIES) {
            let scores = self.backward_queries(kv, &operands, queries, rest);
            self.backward_keys(kv, &operands, scores);
        }
        // SAFETY: each head has its own columns.
        unsafe { self.write_back(args.dq, q_columns, buffer) };
    }

    /// Probabilities, gradient of the scores, and gradient of the queries.
    fn backward_queries(
        &self,
        kv: &KvOperands,
        operands: &QueryOperands<'_>,
        queries: Range<usize>,
        rest: &mut [f32],
    ) -> ScoreGradients {
        let QueryOperands { head, ref args, .. } = *operands;
        let isa = self.isa;
        let (padded_dim, row_stride) = (head.padded_dim(), head.padded_keys());
        let size = BLOCK_QUERIES * row_stride;
        let (p_rows, ds_rows) = rest[..2 * size].split_at_mut(size);
        let p = MatrixPtrMut { ptr: p_rows.as_mut_ptr(), row_stride };
        let ds = MatrixPtrMut { ptr: ds_rows.as_mut_ptr(), row_stride };
        for block in blocks(queries.clone(), ROWS) {
            let (rows, keys) = (block.len(), head.visible_keys(&block));
            let at = block.start - queries.start;
            let columns = keys.next_multiple_of(WIDTH);
            let tile = GemmShape { m: rows, n: columns, k: head.shape.head_dim };
            // SAFETY: keys, values and scores are padded.
            unsafe {
                let (q, dy) = (operands.q.at_row(block.start), operands.dy.at_row(block.start));
                gemm_small(isa, tile, q, kv.k_transposed.as_const(), p.at_row(at), false);
                gemm_small(isa, tile, dy, kv.v_transposed.as_const(), ds.at_row(at), false);
            }
            let first = at * row_stride;
            let (p_rows, ds_rows) = (&mut p_rows[first..], &mut ds_rows[first..]);
            score_gradients_block(isa, head, args, &block, p_rows, ds_rows);
            let tile = GemmShape { m: rows, n: padded_dim, k: keys };
            // SAFETY: keys and gradients are padded.
            unsafe {
                let dq = operands.dq.at_row(block.start);
                gemm_small(isa, tile, ds.at_row(at).as_const(), kv.k, dq, args.accumulate);
            }
        }
        ScoreGradients { queries, p, ds }
    }

    /// Gradients of keys and values from a block of queries.
    fn backward_keys(&self, kv: &KvOperands, operands: &QueryOperands<'_>, scores: ScoreGradients) {
        let ScoreGradients { queries, p, ds } = scores;
        let head = operands.head;
        let causal = head.shape.causal;
        for block in blocks(0..head.visible_keys(&queries), ROWS) {
            // Earlier queries do not attend to these keys.
            let first = if causal { block.start.max(queries.start) } else { queries.start };
            let (m, n, k) = (block.len(), head.padded_dim(), queries.end - first);
            let tile = GemmShape { m, n, k };
            // The first queries that attend to a key store, later ones accumulate.
            let stored = if causal { block.start < queries.start } else { queries.start > 0 };
            let accumulate = kv.accumulate || stored;
            let transposed = |matrix: MatrixPtrMut| {
                let rows = matrix.at_row(first - queries.start).as_const();
                rows.transposed().at_row(block.start)
            };
            // SAFETY: queries and gradients are padded; masked elements are zero.
            unsafe {
                let (dy, dv) = (operands.dy.at_row(first), kv.dv.at_row(block.start));
                gemm_small(self.isa, tile, transposed(p), dy, dv, accumulate);
                let (q, dk) = (operands.q.at_row(first), kv.dk.at_row(block.start));
                gemm_small(self.isa, tile, transposed(ds), q, dk, accumulate);
            }
        }
    }
}

kernel! {
    /// Replaces the scores `p` of a block of queries, in rows of all keys, by probabilities with dropout
    /// applied, and the gradient `ds` of those by the gradient of the scores. Masked ones become zero.
    pub(super) fn score_gradients_block<V>(
        head: AttentionHead, args: &BackwardArgs<'_>, block: &Range<usize>,
        p: &mut [f32], ds: &mut [f32],
    ) {
        let row_len = head.padded_keys();
        let columns = head.visible_keys(block).next_multiple_of(WIDTH);
        let (scale, y_columns) = (head.scale(), head.y_columns());
        for (at, query) in block.clone().enumerate() {
            let y_range = y_columns.range(query);
            let query_stats = QueryStats {
                scale,
                lse: args.lse[head.lse_index(query)],
                y_dot_dy: dot::<V>(args.y.slice(y_range.clone()), args.dy.slice(y_range)),
                mask: head.dropout_mask(args.dropout, query),
            };
            let row = at * row_len..at * row_len + columns;
            let p = p[row.clone()].as_chunks_mut().0;
            let ds = ds[row].as_chunks_mut().0;
            query_stats.score_gradients::<V>(head.shape.visible_keys(query), p, ds);
        }
    }
}

#[inline(always)]
fn dot<V: Lanes>(a: Slice<'_>, b: Slice<'_>) -> f32 {
    let (mut sum, vectorised) = (V::splat(0.0), a.len().min(b.len()) / WIDTH * WIDTH);
    for at in (0..vectorised).step_by(WIDTH) {
        // SAFETY: both have sixteen more.
        sum = unsafe { a.load::<V>(at).mul_add(b.load(at), sum) };
    }
    if vectorised < a.len() {
        sum = a.load_padded::<V>(vectorised).mul_add(b.load_padded(vectorised), sum);
    }
    sum.sum()
}

/// Statistics of a query.
struct QueryStats {
    scale: f32,
    lse: f32,
    /// Dot product of the output and its gradient.
    y_dot_dy: f32,
    mask: Option<DropoutMask>,
}

impl QueryStats {
    /// One row of [`score_gradients_block`].
    #[inline(always)]
    fn score_gradients<V: Lanes>(
        &self,
        keys: usize,
        p: &mut [[f32; WIDTH]],
        ds: &mut [[f32; WIDTH]],
    ) {
        let (full, zero) = (keys / WIDTH, V::splat(0.0));
        for at in 0..full {
            let new = self.lanes::<V>(at, V::from_array(p[at]), V::from_array(ds[at]));
            (p[at], ds[at]) = (new[0].to_array(), new[1].to_array());
        }
        let tail = keys - full * WIDTH;
        if tail > 0 {
            let new = self.lanes::<V>(full, V::from_array(p[full]), V::from_array(ds[full]));
            p[full] = new[0].select_first(tail, zero).to_array();
            ds[full] = new[1].select_first(tail, zero).to_array();
        }
        let masked = keys.div_ceil(WIDTH);
        p[masked..].fill([0.0; WIDTH]);
        ds[masked..].fill([0.0; WIDTH]);
    }

    /// Probabilities and gradients of the scores of sixteen keys.
    #[inline(always)]
    fn lanes<V: Lanes>(&self, at: usize, scores: V, dp: V) -> [V; 2] {
        let p = exp(scores.mul_add(V::splat(self.scale), V::splat(-self.lse)));
        let scaled = p.mul(V::splat(self.scale));
        let minus_dot = V::splat(-self.y_dot_dy);
        match self.mask {
            None => [p, dp.add(minus_dot).mul(scaled)],
            Some(mask) => {
                let factors: V = dropout_factors(mask, (at * WIDTH) as u64);
                [p.mul(factors), dp.mul_add(factors, minus_dot).mul(scaled)]
            }
        }
    }
}
