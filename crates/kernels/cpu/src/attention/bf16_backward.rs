//! Backward pass of attention by bf16 GEMMs.

use std::ops::Range;

use super::backward::{BackwardArgs, score_gradients_block};
use super::bf16_forward::{BLOCK_QUERIES, HeadScratch, operand, output};
use super::{AttentionHead, HeadColumns, blocks, load_rows, store_rows, take};
use crate::Cpu;
use crate::gemm::Epilogue;
use crate::gemm::bf16::gemm_packed;
use crate::slice::DisjointMut;

/// f32 buffers of a group of heads, in padded rows.
struct GroupBuffers<'a> {
    /// Gradient of all keys.
    dk: &'a mut [f32],
    /// Gradient of all values.
    dv: &'a mut [f32],
    /// Probabilities of a block of queries.
    p: &'a mut [f32],
    /// Gradient of the scores of a block of queries.
    ds: &'a mut [f32],
    /// Gradient of a block of queries.
    dq: &'a mut [f32],
}

impl Cpu {
    /// All query heads that share a key/value head; `first` is the first of them.
    pub(super) fn backward_group_bf16(&self, first: AttentionHead, args: BackwardArgs<'_>) {
        let (shape, kernel) = (first.shape, self.bf16_gemm.kernel);
        let (dim, keys) = (shape.head_dim, shape.keys);
        let (padded_dim, padded_keys) = (first.padded_dim(), first.padded_keys());
        let _tile_config = kernel.configure_thread();
        let mut packed = self.bf16_gemm.heads.take();
        let [k_columns, v_columns] = first.kv_columns();
        let [k, v] = [k_columns, v_columns].map(|columns| columns.as_matrix(args.kv));
        packed.k_transposed.pack(kernel, dim, keys, k.transposed());
        packed.v.pack(kernel, dim, keys, v.transposed());
        packed.k.pack(kernel, keys, dim, k);
        let kv_len = keys * padded_dim;
        let mut scratch = self.scratch(2 * kv_len + BLOCK_QUERIES * (2 * padded_keys + padded_dim));
        let mut rest = &mut scratch[..];
        let [dk, dv] = [k_columns, v_columns].map(|columns| {
            let buffer = take(&mut rest, kv_len);
            // SAFETY: each group has its own columns.
            unsafe { self.init_gradient(args, args.dkv, columns, buffer) };
            buffer
        });
        let [p, ds] = [(); 2].map(|()| take(&mut rest, BLOCK_QUERIES * padded_keys));
        let mut buffers = GroupBuffers { dk, dv, p, ds, dq: rest };
        for head in first.head..first.head + shape.heads / shape.kv_heads {
            let head = AttentionHead { head, ..first };
            self.backward_head_bf16(head, args, &mut packed, &mut buffers);
        }
        // SAFETY: each group has its own columns.
        unsafe {
            store_rows(self.isa, buffers.dk, k_columns, args.dkv);
            store_rows(self.isa, buffers.dv, v_columns, args.dkv);
        }
        self.bf16_gemm.heads.put_back(packed);
    }

    /// Initialises a gradient buffer: with the current gradient if it is accumulated, otherwise with zeros.
    ///
    /// # Safety
    /// No other thread may access these columns.
    unsafe fn init_gradient(
        &self,
        args: BackwardArgs<'_>,
        gradient: DisjointMut<'_>,
        columns: HeadColumns,
        buffer: &mut [f32],
    ) {
        if args.accumulate {
            // SAFETY: the caller's promise.
            unsafe { load_rows(self.isa, gradient, columns, buffer) };
        } else {
            buffer.fill(0.0);
        }
    }

    fn backward_head_bf16(
        &self,
        head: AttentionHead,
        args: BackwardArgs<'_>,
        packed: &mut HeadScratch,
        buffers: &mut GroupBuffers<'_>,
    ) {
        let (kernel, shape) = (self.bf16_gemm.kernel, head.shape);
        let (q, dy) = (head.q_columns().as_matrix(args.q), head.y_columns().as_matrix(args.dy));
        packed.q.pack(kernel, shape.queries, shape.head_dim, q);
        packed.dy.pack(kernel, shape.queries, shape.head_dim, dy);
        for block in blocks(0..shape.queries, BLOCK_QUERIES) {
            self.backward_queries_bf16(head, args, &block, packed, buffers);
            backward_keys_bf16(head, &block, packed, buffers);
        }
    }

    /// Probabilities, gradient of the scores, and gradient of the queries of a block.
    fn backward_queries_bf16(
        &self,
        head: AttentionHead,
        args: BackwardArgs<'_>,
        block: &Range<usize>,
        packed: &mut HeadScratch,
        buffers: &mut GroupBuffers<'_>,
    ) {
        let (dim, padded_dim, padded_keys) =
            (head.shape.head_dim, head.padded_dim(), head.padded_keys());
        let (rows, visible) = (block.len(), head.visible_keys(block));
        let HeadScratch { k_transposed, v: v_transposed, k, gemm, .. } = packed;
        let GroupBuffers { p, ds, dq, .. } = buffers;
        let q_columns = head.q_columns().slice_rows(block);
        let (q, k_transposed) = (q_columns.as_matrix(args.q), k_transposed.slice(0..dim, visible));
        gemm_packed(rows, q, k_transposed, Epilogue::Store, output(p, padded_keys), gemm);
        let dy = head.y_columns().slice_rows(block).as_matrix(args.dy);
        let v_transposed = v_transposed.slice(0..dim, visible);
        gemm_packed(rows, dy, v_transposed, Epilogue::Store, output(ds, padded_keys), gemm);
        score_gradients_block(self.isa, head, &args, block, p, ds);
        let dq = &mut dq[..rows * padded_dim];
        // SAFETY: each head has its own columns.
        unsafe { self.init_gradient(args, args.dq, q_columns, dq) };
        let (ds, k) = (operand(ds, padded_keys), k.slice(0..visible, dim));
        gemm_packed(rows, ds, k, Epilogue::Accumulate, output(dq, padded_dim), gemm);
        // SAFETY: as above.
        unsafe { store_rows(self.isa, dq, q_columns, args.dq) };
    }
}

/// Accumulates the gradients of the keys and values that a block of queries attends to.
fn backward_keys_bf16(
    head: AttentionHead,
    block: &Range<usize>,
    packed: &mut HeadScratch,
    buffers: &mut GroupBuffers<'_>,
) {
    let (dim, padded_dim, padded_keys) =
        (head.shape.head_dim, head.padded_dim(), head.padded_keys());
    let visible = head.visible_keys(block);
    let HeadScratch { q, dy, gemm, .. } = packed;
    let GroupBuffers { dk, dv, p, ds, .. } = buffers;
    let (p, ds) = (operand(p, padded_keys).transposed(), operand(ds, padded_keys).transposed());
    let (q, dy) = (q.slice(block.clone(), dim), dy.slice(block.clone(), dim));
    gemm_packed(visible, p, dy, Epilogue::Accumulate, output(dv, padded_dim), gemm);
    gemm_packed(visible, ds, q, Epilogue::Accumulate, output(dk, padded_dim), gemm);
}
