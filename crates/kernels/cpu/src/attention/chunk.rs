//! Attention to a chunk of keys, merged with that to earlier chunks.

use std::ops::Range;

use super::forward::{ForwardArgs, SoftmaxStats, forward_scratch_len};
use super::{AttentionHead, blocks, take};
use crate::Cpu;
use crate::gemm::small_f32::{MatrixPtr, MatrixPtrMut, ROWS};
use crate::isa::kernel;
use crate::lanes::WIDTH;
use crate::slice::DisjointMut;

impl Cpu {
    pub(super) fn merge_head(&self, head: AttentionHead, args: ForwardArgs<'_>) {
        let ForwardArgs { y, lse, .. } = args;
        let padded_dim = head.padded_dim();
        let out_len = head.shape.queries * padded_dim;
        let bf16 = self.uses_bf16_attention();
        let f32_len = if bf16 { 0 } else { ROWS * padded_dim + forward_scratch_len(head) };
        let mut scratch = self.scratch(out_len + f32_len);
        let mut rest = &mut scratch[..];
        let buffer = take(&mut rest, out_len);
        // SAFETY: each head has its own columns.
        let merged = unsafe { self.accumulator_matrix(y, head.y_columns(), buffer, true) };
        if bf16 {
            self.forward_bf16(head, args, |block, stats, out| {
                let ptr = out.as_ptr();
                let out = MatrixPtr { ptr, row_stride: padded_dim, column_stride: 1 };
                self.merge_block(head, block, stats, out, merged, lse);
            });
        } else {
            let ptr = take(&mut rest, ROWS * padded_dim).as_mut_ptr();
            let out = MatrixPtrMut { ptr, row_stride: padded_dim };
            let operands = self.head_operands(head, args, &mut rest);
            for block in blocks(0..head.shape.queries, ROWS) {
                let stats = self.forward_block(head, &operands, block.clone(), out, rest);
                self.merge_block(head, block, &stats, out.as_const(), merged, lse);
            }
        }
        // SAFETY: each head has its own columns.
        unsafe { self.write_back(y, head.y_columns(), buffer) };
    }

    /// Merges the unnormalised output of a block of queries into that of earlier chunks.
    fn merge_block(
        &self,
        head: AttentionHead,
        block: Range<usize>,
        stats: &SoftmaxStats,
        out: MatrixPtr,
        merged: MatrixPtrMut,
        lse: DisjointMut<'_>,
    ) {
        for (at, query) in block.enumerate() {
            // SAFETY: each head has its own elements of `lse`.
            let lse = unsafe { &mut *lse.ptr_f32(head.lse_index(query)) };
            let weights = MergeWeights::new(*lse, stats.lse[at]);
            *lse = weights.lse;
            let new_weight = weights.new * stats.inv_sum[at];
            let (out, merged) = (out.at_row(at), merged.at_row(query));
            // SAFETY: both have this row, padded.
            unsafe { merge_row(self.isa, head.padded_dim(), out, new_weight, merged, weights.old) };
        }
    }
}

/// Weights of two softmax outputs over disjoint keys in their combination.
#[derive(Debug, Clone, Copy, PartialEq)]
struct MergeWeights {
    lse: f32,
    /// `None` before the first chunk.
    old: Option<f32>,
    new: f32,
}

impl MergeWeights {
    fn new(old_lse: f32, new_lse: f32) -> Self {
        if old_lse == f32::NEG_INFINITY {
            return Self { lse: new_lse, old: None, new: 1.0 };
        }
        let (old, new) = (f64::from(old_lse), f64::from(new_lse));
        let max = old.max(new);
        let exps = [(old - max).exp(), (new - max).exp()];
        let sum = exps[0] + exps[1];
        let [old, new] = exps.map(|exp| (exp / sum) as f32);
        Self { lse: (max + sum.ln()) as f32, old: Some(old), new }
    }
}

kernel! {
    /// `merged = new * new_weight + merged * old_weight`, without the latter if there is none.
    ///
    /// # Safety
    /// Both rows must have `columns` elements, a multiple of [`WIDTH`].
    unsafe fn merge_row<V>(
        columns: usize, new: MatrixPtr, new_weight: f32, merged: MatrixPtrMut,
        old_weight: Option<f32>,
    ) {
        for at in (0..columns).step_by(WIDTH) {
            // SAFETY: the caller's promise.
            unsafe {
                let added = V::load(new.ptr.add(at)).mul(V::splat(new_weight));
                let to = merged.ptr.add(at);
                match old_weight {
                    None => added.store(to),
                    Some(weight) => V::load(to).mul_add(V::splat(weight), added).store(to),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merge_weights_are_proportional_to_the_exponential_sums() {
        let first = MergeWeights::new(f32::NEG_INFINITY, 3.5);
        assert_eq!(first, MergeWeights { lse: 3.5, old: None, new: 1.0 });
        let equal = MergeWeights::new(200.0, 200.0);
        assert_eq!((equal.old, equal.new), (Some(0.5), 0.5));
        assert!((equal.lse - 200.693_15).abs() < 1e-4);
        let negligible = MergeWeights::new(-500.0, 500.0);
        assert_eq!(negligible, MergeWeights { lse: 500.0, old: Some(0.0), new: 1.0 });
        for [old, new] in [[f32::NAN, 1.0], [1.0, f32::NAN]] {
            assert!(MergeWeights::new(old, new).new.is_nan());
        }
    }
}
