//! Forward pass of attention.

use std::ops::Range;

use super::bf16_forward::BLOCK_QUERIES as MAX_BLOCK_QUERIES;
use super::{AttentionHead, blocks, take};
use crate::Cpu;
use crate::elementwise::dropout_factors;
use crate::gemm::GemmShape;
use crate::gemm::small_f32::{MatrixPtr, MatrixPtrMut, ROWS, gemm_small, transpose};
use crate::isa::kernel;
use crate::lanes::{Lanes, WIDTH};
use crate::math::exp;
use crate::slice::{DisjointMut, Slice};
use regatta_device::ops::AttentionDropout;
use regatta_device::random::DropoutMask;

/// Inputs and outputs of all heads.
#[derive(Clone, Copy)]
pub(super) struct ForwardArgs<'a> {
    pub q: Slice<'a>,
    pub kv: Slice<'a>,
    pub dropout: Option<AttentionDropout>,
    pub y: DisjointMut<'a>,
    pub lse: DisjointMut<'a>,
}

impl<'a> ForwardArgs<'a> {
    /// The `lse` of a head, where it is contiguous.
    ///
    /// # Safety
    /// No other reference to it may exist.
    pub unsafe fn head_lse(&self, head: AttentionHead) -> &'a mut [f32] {
        // SAFETY: the caller's promise.
        unsafe { self.lse.slice_f32(head.lse_index(0)..head.lse_index(head.shape.queries)) }
    }
}

/// Operands of a head as padded f32 matrices.
pub(super) struct HeadOperands {
    q: MatrixPtr,
    k_transposed: MatrixPtrMut,
    v: MatrixPtr,
    dropout: Option<AttentionDropout>,
}

/// Softmax statistics of a block of queries.
pub(super) struct SoftmaxStats {
    /// Log-sum-exp.
    pub lse: [f32; MAX_BLOCK_QUERIES],
    /// Reciprocal of the sum of exponentials, by which the output is still to be scaled.
    pub inv_sum: [f32; MAX_BLOCK_QUERIES],
}

impl Cpu {
    pub(super) fn forward_head(&self, head: AttentionHead, args: ForwardArgs<'_>) {
        // SAFETY: each head has its own range of `lse`.
        let (y, lse) = (args.y, unsafe { args.head_lse(head) });
        let out_len = head.shape.queries * head.padded_dim();
        let mut scratch = self.scratch(out_len + forward_scratch_len(head));
        let mut rest = &mut scratch[..];
        let buffer = take(&mut rest, out_len);
        let out = self.output_matrix(y, head.y_columns(), buffer);
        let operands = self.head_operands(head, args, &mut rest);
        for block in blocks(0..head.shape.queries, ROWS) {
            let out = out.at_row(block.start);
            let stats = self.forward_block(head, &operands, block.clone(), out, rest);
            let rows = block.len();
            lse[block].copy_from_slice(&stats.lse[..rows]);
            // SAFETY: rows of `out` are padded.
            unsafe { scale_rows(self.isa, head.padded_dim(), out, &stats.inv_sum[..rows]) };
        }
        // SAFETY: each head has its own columns.
        unsafe { self.write_back(y, head.y_columns(), buffer) };
    }

    pub(super) fn head_operands(
        &self,
        head: AttentionHead,
        args: ForwardArgs<'_>,
        rest: &mut &mut [f32],
    ) -> HeadOperands {
        let (padded_dim, padded_keys) = (head.padded_dim(), head.padded_keys());
        let q_len = head.shape.queries * padded_dim;
        let q = self.gather(args.q, head.q_columns(), take(rest, q_len));
        let kv_len = head.shape.keys * padded_dim;
        let kv = head.kv_columns();
        let [k, v] = kv.map(|columns| self.gather(args.kv, columns, take(rest, kv_len)));
        let ptr = take(rest, padded_dim * padded_keys).as_mut_ptr();
        let k_transposed = MatrixPtrMut { ptr, row_stride: padded_keys };
        // SAFETY: `k_transposed` has `padded_dim` rows of `padded_keys` columns.
        unsafe { transpose(self.isa, head.shape.keys, padded_dim, k, k_transposed) };
        HeadOperands { q, k_transposed, v, dropout: args.dropout }
    }

    /// A block of queries. `out` receives the unnormalised output: exponentials times values.
    pub(super) fn forward_block(
        &self,
        head: AttentionHead,
        operands: &HeadOperands,
        block: Range<usize>,
        out: MatrixPtrMut,
        scores: &mut [f32],
    ) -> SoftmaxStats {
        let (rows, keys) = (block.len(), head.visible_keys(&block));
        let row_stride = operands.k_transposed.row_stride;
        let scores = &mut scores[..rows * row_stride];
        let p = MatrixPtrMut { ptr: scores.as_mut_ptr(), row_stride };
        let columns = keys.next_multiple_of(WIDTH);
        let tile = GemmShape { m: rows, n: columns, k: head.shape.head_dim };
        // SAFETY: keys and scores are padded.
        unsafe {
            let q = operands.q.at_row(block.start);
            gemm_small(self.isa, tile, q, operands.k_transposed.as_const(), p, false);
        }
        let stats = softmax_block(self.isa, head, operands.dropout, &block, scores);
        let tile = GemmShape { m: rows, n: head.padded_dim(), k: keys };
        // SAFETY: values and output are padded.
        unsafe { gemm_small(self.isa, tile, p.as_const(), operands.v, out, false) };
        stats
    }
}

/// Scratch elements of [`Cpu::head_operands`] and [`Cpu::forward_block`].
pub(super) fn forward_scratch_len(head: AttentionHead) -> usize {
    let (padded_dim, padded_keys) = (head.padded_dim(), head.padded_keys());
    (head.shape.queries + 2 * head.shape.keys + padded_keys) * padded_dim + ROWS * padded_keys
}

kernel! {
    /// Replaces the scores of a block of queries, in rows of all keys, by exponentials with dropout applied.
    /// Masked ones become zero.
    pub(super) fn softmax_block<V>(
        head: AttentionHead, dropout: Option<AttentionDropout>, block: &Range<usize>,
        scores: &mut [f32],
    ) -> SoftmaxStats {
        let row_len = head.padded_keys();
        let columns = head.visible_keys(block).next_multiple_of(WIDTH);
        let scale = head.scale();
        let zeros = [0.0; MAX_BLOCK_QUERIES];
        let mut stats = SoftmaxStats { lse: zeros, inv_sum: zeros };
        for (at, query) in block.clone().enumerate() {
            let row = scores[at * row_len..at * row_len + columns].as_chunks_mut().0;
            let (max, sum) = softmax_row::<V>(scale, head.shape.visible_keys(query), row);
            (stats.lse[at], stats.inv_sum[at]) = (max + sum.ln(), 1.0 / sum);
            if let Some(mask) = head.dropout_mask(dropout, query) {
                dropout_row::<V>(mask, row);
            }
        }
        stats
    }
}

/// Replaces a query's scores by exponentials, zero for masked keys. Returns the maximum score and the sum,
/// by which the exponentials are not yet divided.
#[inline(always)]
fn softmax_row<V: Lanes>(scale: f32, keys: usize, row: &mut [[f32; WIDTH]]) -> (f32, f32) {
    let (row, masked) = row.split_at_mut(keys.div_ceil(WIDTH));
    masked.fill([0.0; WIDTH]);
    let Some((last, full)) = row.split_last_mut() else {
        return (f32::NEG_INFINITY, 0.0);
    };
    let tail_keys = keys - full.len() * WIDTH;
    let tail = V::from_array(*last).select_first(tail_keys, V::splat(f32::NEG_INFINITY));
    let mut max = tail;
    for lanes in &*full {
        max = max.max(V::from_array(*lanes));
    }
    let max = max.reduce_max() * scale;
    let (scale, minus_max) = (V::splat(scale), V::splat(-max));
    let tail = exp(tail.mul_add(scale, minus_max)).select_first(tail_keys, V::splat(0.0));
    *last = tail.to_array();
    let mut sum = tail;
    for lanes in full {
        let exponential = exp(V::from_array(*lanes).mul_add(scale, minus_max));
        *lanes = exponential.to_array();
        sum = sum.add(exponential);
    }
    (max, sum.sum())
}

#[inline(always)]
fn dropout_row<V: Lanes>(mask: DropoutMask, row: &mut [[f32; WIDTH]]) {
    for (at, lanes) in row.iter_mut().enumerate() {
        let factors: V = dropout_factors(mask, (at * WIDTH) as u64);
        *lanes = factors.mul(V::from_array(*lanes)).to_array();
    }
}

kernel! {
    /// Multiplies each row by its factor.
    ///
    /// # Safety
    /// There must be a row of `columns` elements, a multiple of [`WIDTH`], per factor.
    pub(super) unsafe fn scale_rows<V>(columns: usize, rows: MatrixPtrMut, factors: &[f32]) {
        for (row, factor) in factors.iter().enumerate() {
            for at in (0..columns).step_by(WIDTH) {
                // SAFETY: the caller's promise.
                unsafe {
                    let ptr = rows.at_row(row).ptr.add(at);
                    V::load(ptr).mul(V::splat(*factor)).store(ptr);
                }
            }
        }
    }
}
