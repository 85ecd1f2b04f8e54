//! Attention by bf16 GEMMs, on CPUs with bf16 instructions. Operands that a head uses several times are
//! packed once; then blocks of queries are multiplied by the keys that they attend to. Scores and their
//! softmax are f32.

use std::ops::Range;

use super::forward::{ForwardArgs, SoftmaxStats, scale_rows, softmax_block};
use super::{AttentionHead, HeadColumns, blocks, store_rows};
use crate::gemm::Epilogue;
use crate::gemm::bf16::{GemmScratch, MatrixSlice, MatrixSliceMut, PackedB, gemm_packed};
use crate::gemm::small_f32::MatrixPtrMut;
use crate::slice::Slice;
use crate::{Cpu, Precision};

/// Queries of a block: rows of the largest tile, and a depth step of packed operands.
pub(super) const BLOCK_QUERIES: usize = 32;

/// Buffers of a head, separate from those of the larger GEMMs of layers.
#[derive(Debug, Default)]
pub struct HeadScratch {
    /// Kᵀ.
    pub(super) k_transposed: PackedB,
    /// V in the forward pass, Vᵀ in the backward pass.
    pub(super) v: PackedB,
    /// K.
    pub(super) k: PackedB,
    /// Q.
    pub(super) q: PackedB,
    /// Gradient of the output.
    pub(super) dy: PackedB,
    pub(super) gemm: GemmScratch,
}

impl HeadColumns {
    /// As a GEMM operand, in place.
    pub(super) fn as_matrix(self, from: Slice<'_>) -> MatrixSlice<'_> {
        let elements = from.slice(self.range(0).start..self.range(self.rows - 1).end);
        MatrixSlice::row_major(elements, self.row_stride)
    }
}

/// A scratch buffer as a GEMM output.
pub(super) fn output(rows: &mut [f32], row_len: usize) -> MatrixSliceMut<'_> {
    MatrixSliceMut::row_major(rows, row_len)
}

/// A scratch buffer as a GEMM operand.
pub(super) fn operand(rows: &[f32], row_len: usize) -> MatrixSlice<'_> {
    MatrixSlice::row_major(rows, row_len)
}

impl Cpu {
    /// Whether attention uses bf16 GEMMs. Without bf16 instructions they are not faster than f32.
    pub(super) fn uses_bf16_attention(&self) -> bool {
        self.precision == Precision::Bf16 && self.bf16_gemm.kernel.has_bf16_instructions()
    }

    pub(super) fn forward_head_bf16(&self, head: AttentionHead, args: ForwardArgs<'_>) {
        // SAFETY: each head has its own range of `lse`.
        let (padded_dim, lse) = (head.padded_dim(), unsafe { args.head_lse(head) });
        self.forward_bf16(head, args, |block, stats, out| {
            lse[block.clone()].copy_from_slice(&stats.lse[..block.len()]);
            let rows = MatrixPtrMut { ptr: out.as_mut_ptr(), row_stride: padded_dim };
            // SAFETY: rows are padded, and each head has its own columns.
            unsafe {
                scale_rows(self.isa, padded_dim, rows, &stats.inv_sum[..block.len()]);
                store_rows(self.isa, out, head.y_columns().slice_rows(&block), args.y);
            }
        });
    }

    /// Calls `consume` for each block of queries with the unnormalised output: exponentials times values, in
    /// padded rows.
    pub(super) fn forward_bf16(
        &self,
        head: AttentionHead,
        args: ForwardArgs<'_>,
        mut consume: impl FnMut(Range<usize>, &SoftmaxStats, &mut [f32]),
    ) {
        let (kernel, dim, keys) = (self.bf16_gemm.kernel, head.shape.head_dim, head.shape.keys);
        let (padded_dim, padded_keys) = (head.padded_dim(), head.padded_keys());
        let _tile_config = kernel.configure_thread();
        let mut buffers = self.bf16_gemm.heads.take();
        let HeadScratch { k_transposed, v, gemm, .. } = &mut buffers;
        let [k_columns, v_columns] = head.kv_columns().map(|columns| columns.as_matrix(args.kv));
        k_transposed.pack(kernel, dim, keys, k_columns.transposed());
        v.pack(kernel, keys, dim, v_columns);
        let mut scratch = self.scratch(BLOCK_QUERIES * (padded_keys + padded_dim));
        let (p, out) = scratch.split_at_mut(BLOCK_QUERIES * padded_keys);
        for block in blocks(0..head.shape.queries, BLOCK_QUERIES) {
            let (rows, visible) = (block.len(), head.visible_keys(&block));
            let q = head.q_columns().slice_rows(&block).as_matrix(args.q);
            let k_transposed = k_transposed.slice(0..dim, visible);
            gemm_packed(rows, q, k_transposed, Epilogue::Store, output(p, padded_keys), gemm);
            let stats = softmax_block(self.isa, head, args.dropout, &block, p);
            let (p, v) = (operand(p, padded_keys), v.slice(0..visible, dim));
            gemm_packed(rows, p, v, Epilogue::Store, output(out, padded_dim), gemm);
            consume(block, &stats, &mut out[..rows * padded_dim]);
        }
        self.bf16_gemm.heads.put_back(buffers);
    }
}
