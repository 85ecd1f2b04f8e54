//! Causal attention, head by head. Masked scores are not computed, except within the block of the diagonal.
//! Attention of full sequences is a single chunk, computed in place in `qkv`.

mod backward;
mod bf16_backward;
mod bf16_forward;
mod chunk;
mod forward;
mod layout;

use std::ops::Range;

pub use bf16_forward::HeadScratch;

use self::backward::BackwardArgs;
use self::forward::ForwardArgs;
use self::layout::{AttentionHead, HeadColumns, QkvLayout};
use crate::Cpu;
use crate::gemm::small_f32::{MatrixPtr, MatrixPtrMut, ROWS};
use crate::isa::kernel;
use crate::lanes::WIDTH;
use crate::memory::copy_kernel;
use crate::rope::rope_kernel;
use crate::slice::{DisjointMut, Slice, load_padded, store_partial};
use regatta_device::AttentionOps;
use regatta_device::ops::{
    AttentionArgs, AttentionBackwardArgs, AttentionChunkArgs, AttentionChunkBackwardArgs,
    AttentionChunkShape, AttentionSaved, AttentionShape, DecodeAttentionArgs, RopeArgs,
};
use regatta_device::tensor::row_count;

/// Queries whose probabilities are in memory at once: few enough for the cache.
const BLOCK_QUERIES: usize = 8 * ROWS;

/// Cached tokens of all heads that are worth another thread, in decoding.
const MIN_TOKENS_PER_THREAD: usize = 4096;

impl AttentionOps for Cpu {
    fn attention(&self, args: AttentionArgs<'_>) {
        let _timer = self.timer("attention");
        let AttentionArgs { shape, qkv, dropout, y, lse } = args;
        shape.check_lengths(qkv.len(), y.len(), lse.len());
        let (q, kv, y, lse) = (qkv.into(), qkv.into(), DisjointMut::new(y), DisjointMut::new(lse));
        let args = ForwardArgs { q, kv, dropout, y, lse };
        let layout = QkvLayout::fused(shape);
        self.for_each_group(shape.into(), layout, 1, |head| match self.uses_bf16_attention() {
            true => self.forward_head_bf16(head, args),
            false => self.forward_head(head, args),
        });
    }

    fn attention_backward(&self, args: AttentionBackwardArgs<'_>) {
        let _timer = self.timer("attention_backward");
        let AttentionBackwardArgs { shape, saved, dropout, dy, dqkv } = args;
        let AttentionSaved { qkv, y, lse } = saved;
        shape.check_lengths(qkv.len(), y.len(), lse.len());
        shape.check_lengths(dqkv.len(), dy.len(), lse.len());
        let (q, kv, y, dy, lse) = (qkv.into(), qkv.into(), y.into(), dy.into(), lse.as_slice());
        let (dq, accumulate) = (DisjointMut::new(dqkv), false);
        let args = BackwardArgs { q, kv, y, lse, dropout, dy, dq, dkv: dq, accumulate };
        self.backward_groups(shape.into(), QkvLayout::fused(shape), args);
    }

    fn attention_chunk(&self, args: AttentionChunkArgs<'_>) {
        let _timer = self.timer("attention_chunk");
        let AttentionChunkArgs { shape, q, kv, dropout, y, lse } = args;
        shape.check_lengths(q.len(), kv.len(), y.len(), lse.len());
        let (q, kv, y, lse) = (q.into(), kv.into(), DisjointMut::new(y), DisjointMut::new(lse));
        assert!(y.is_f32() && lse.is_f32(), "chunks are merged in f32");
        let args = ForwardArgs { q, kv, dropout, y, lse };
        let layout = QkvLayout::separate(shape);
        self.for_each_group(shape, layout, 1, |head| self.merge_head(head, args));
    }

    fn attention_chunk_backward(&self, args: AttentionChunkBackwardArgs<'_>) {
        let _timer = self.timer("attention_chunk_backward");
        let AttentionChunkBackwardArgs { shape, q, kv, y, lse, dropout, dy, dq, dkv } = args;
        shape.check_lengths(q.len(), kv.len(), y.len(), lse.len());
        shape.check_lengths(dq.len(), dkv.len(), dy.len(), lse.len());
        let (dq, dkv) = (DisjointMut::new(dq), DisjointMut::new(dkv));
        assert!(dq.is_f32() && dkv.is_f32(), "chunk gradients are accumulated in f32");
        let (q, kv, y, dy, lse) = (q.into(), kv.into(), y.into(), dy.into(), lse.as_slice());
        let args = BackwardArgs { q, kv, y, lse, dropout, dy, dq, dkv, accumulate: true };
        self.backward_groups(shape, QkvLayout::separate(shape), args);
    }

    fn decode_attention(&self, args: DecodeAttentionArgs<'_>) {
        let DecodeAttentionArgs { shape, q, keys, values, y } = args;
        let AttentionShape { heads, kv_heads, head_dim, .. } = shape;
        let row_len = kv_heads * head_dim;
        let tokens = row_count(keys.len(), row_len);
        assert_eq!(
            [q.len(), y.len()],
            [shape.out_dim(); 2],
            "q or y does not have the given shape"
        );
        assert_eq!(keys.len(), values.len(), "there are as many keys as values");
        let (q, keys, values) = (Slice::from(q), Slice::from(keys), Slice::from(values));
        let y = DisjointMut::new(y);
        let scale = (1.0 / (head_dim as f64).sqrt()) as f32;
        let min_heads = MIN_TOKENS_PER_THREAD.div_ceil(tokens.max(1));
        self.pool.run_ranges(heads, min_heads, 1, |range| {
            for head in range {
                let columns = |head: usize| head * head_dim..(head + 1) * head_dim;
                let kv = columns(head / (heads / kv_heads));
                // SAFETY: each head has its own columns.
                let y = unsafe { y.slice(columns(head)) };
                let q = q.slice(columns(head));
                let row = |token: usize| token * row_len + kv.start..token * row_len + kv.end;
                let score = |token: usize| {
                    let key = keys.slice(row(token));
                    (0..head_dim).map(|at| q.get(at) * key.get(at)).sum::<f32>() * scale
                };
                let mut softmax: Vec<f32> = (0..tokens).map(score).collect();
                let max = softmax.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                softmax.iter_mut().for_each(|score| *score = (*score - max).exp());
                let sum: f32 = softmax.iter().sum();
                let mut out = vec![0.0; head_dim];
                for (token, exp) in softmax.iter().enumerate() {
                    let value = values.slice(row(token));
                    for (at, out) in out.iter_mut().enumerate() {
                        *out += exp / sum * value.get(at);
                    }
                }
                copy_kernel(self.isa, Slice::F32(&out), y);
            }
        });
    }

    fn apply_rope(&self, args: RopeArgs<'_>) {
        let _timer = self.timer("apply_rope");
        let RopeArgs { shape, theta, positions, direction, qkv } = args;
        let positions = positions.as_slice::<i32>();
        let (row_len, half_dim) = (shape.qkv_dim(), shape.head_dim / 2);
        assert!(shape.head_dim.is_multiple_of(2), "RoPE needs an even head_dim");
        assert_eq!(qkv.len(), shape.rows() * row_len, "qkv does not have the given shape");
        assert_eq!(positions.len(), shape.seq_len, "RoPE needs one position per token");
        if qkv.is_empty() || half_dim == 0 {
            return;
        }
        let rotated = (shape.heads + shape.kv_heads) * shape.head_dim;
        let last = positions.iter().max().map_or(0, |last| *last as usize);
        let table = self.rope_table.get(theta, half_dim, last + 1);
        let qkv = DisjointMut::new(qkv);
        self.for_each_row(shape.rows(), row_len, |row| {
            // SAFETY: rows are disjoint.
            let qk = unsafe { qkv.slice(row * row_len..row * row_len + rotated) };
            let position = positions[row % shape.seq_len] as usize;
            let cos_sin = position * 2 * half_dim..(position + 1) * 2 * half_dim;
            let (cos, sin) = table.values[cos_sin].split_at(half_dim);
            rope_kernel(self.isa, direction, cos, sin, qk);
        });
    }
}

/// Splits a range into blocks of `rows`.
fn blocks(range: Range<usize>, rows: usize) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.step_by(rows).map(move |start| start..end.min(start + rows))
}

impl Cpu {
    /// Calls `work` for the first of each `group` heads of each sequence, unless there are no queries or no
    /// keys.
    fn for_each_group(
        &self,
        shape: AttentionChunkShape,
        layout: QkvLayout,
        group: usize,
        work: impl Fn(AttentionHead) + Sync,
    ) {
        if shape.rows() == 0 || shape.keys == 0 {
            return;
        }
        let groups = shape.heads / group;
        self.pool.run(shape.batch * groups, |unit| {
            let (sequence, head) = (unit / groups, unit % groups * group);
            work(AttentionHead { shape, layout, sequence, head });
        });
    }

    /// The columns as a padded f32 matrix: in place if possible, otherwise copied into `buffer`.
    fn gather(&self, from: Slice<'_>, columns: HeadColumns, buffer: &mut [f32]) -> MatrixPtr {
        if let (Slice::F32(elements), true) = (from, columns.is_unpadded()) {
            let elements = &elements[columns.range(0).start..columns.range(columns.rows - 1).end];
            let ptr = elements.as_ptr();
            return MatrixPtr { ptr, row_stride: columns.row_stride, column_stride: 1 };
        }
        let padded_dim = columns.padded_dim();
        gather_rows(self.isa, from, columns, &mut buffer[..columns.rows * padded_dim]);
        MatrixPtr { ptr: buffer.as_ptr(), row_stride: padded_dim, column_stride: 1 }
    }

    /// A padded f32 matrix to write the columns to: in place if possible, otherwise zeros in `buffer`.
    fn output_matrix(
        &self,
        to: DisjointMut<'_>,
        columns: HeadColumns,
        buffer: &mut [f32],
    ) -> MatrixPtrMut {
        if to.is_f32() && columns.is_unpadded() {
            assert!(columns.range(columns.rows - 1).end <= to.len(), "columns are out of bounds");
            let ptr = to.ptr_f32(columns.range(0).start);
            return MatrixPtrMut { ptr, row_stride: columns.row_stride };
        }
        let padded_dim = columns.padded_dim();
        let buffer = &mut buffer[..columns.rows * padded_dim];
        buffer.fill(0.0);
        MatrixPtrMut { ptr: buffer.as_mut_ptr(), row_stride: padded_dim }
    }

    /// As [`Self::output_matrix`], with the current contents if `accumulate`.
    ///
    /// # Safety
    /// No other thread may access these columns.
    unsafe fn accumulator_matrix(
        &self,
        to: DisjointMut<'_>,
        columns: HeadColumns,
        buffer: &mut [f32],
        accumulate: bool,
    ) -> MatrixPtrMut {
        if accumulate && !(to.is_f32() && columns.is_unpadded()) {
            // SAFETY: the caller's promise.
            unsafe { load_rows(self.isa, to, columns, buffer) };
            return MatrixPtrMut { ptr: buffer.as_mut_ptr(), row_stride: columns.padded_dim() };
        }
        self.output_matrix(to, columns, buffer)
    }

    /// Writes back the buffer of [`Self::output_matrix`] or [`Self::accumulator_matrix`], if it was used.
    ///
    /// # Safety
    /// No other thread may access these columns.
    unsafe fn write_back(&self, to: DisjointMut<'_>, columns: HeadColumns, buffer: &[f32]) {
        if to.is_f32() && columns.is_unpadded() {
            return;
        }
        // SAFETY: the caller's promise.
        unsafe { store_rows(self.isa, buffer, columns, to) };
    }
}

kernel! {
    fn gather_rows<V>(from: Slice<'_>, columns: HeadColumns, rows: &mut [f32]) {
        let padded_dim = columns.padded_dim();
        for (row, to) in rows.chunks_exact_mut(padded_dim).enumerate() {
            let from = from.slice(columns.range(row));
            for at in (0..padded_dim).step_by(WIDTH) {
                store_partial(to, at, from.load_padded::<V>(at));
            }
        }
    }

    /// Copies the columns into padded rows.
    ///
    /// # Safety
    /// No other thread may access these columns.
    unsafe fn load_rows<V>(from: DisjointMut<'_>, columns: HeadColumns, rows: &mut [f32]) {
        let padded_dim = columns.padded_dim();
        let rows = &mut rows[..columns.rows * padded_dim];
        for (row, to) in rows.chunks_exact_mut(padded_dim).enumerate() {
            // SAFETY: the caller's promise.
            let from = unsafe { from.slice(columns.range(row)) };
            for at in (0..padded_dim).step_by(WIDTH) {
                store_partial(to, at, from.load_padded::<V>(at));
            }
        }
    }

    /// Copies padded rows into the columns.
    ///
    /// # Safety
    /// No other thread may access these columns.
    unsafe fn store_rows<V>(rows: &[f32], columns: HeadColumns, to: DisjointMut<'_>) {
        let padded_dim = columns.padded_dim();
        let rows = &rows[..columns.rows * padded_dim];
        for (row, from) in rows.chunks_exact(padded_dim).enumerate() {
            // SAFETY: the caller's promise.
            let mut to = unsafe { to.slice(columns.range(row)) };
            let vectorised = columns.dim / WIDTH * WIDTH;
            for at in (0..vectorised).step_by(WIDTH) {
                // SAFETY: both have sixteen more.
                unsafe { to.store(at, V::load(from.as_ptr().add(at))) };
            }
            if vectorised < columns.dim {
                to.store_partial(vectorised, load_padded::<V>(from, vectorised));
            }
        }
    }
}

/// Takes `len` elements off the front of a scratch buffer.
fn take<'a>(rest: &mut &'a mut [f32], len: usize) -> &'a mut [f32] {
    let (taken, after) = std::mem::take(rest).split_at_mut(len);
    *rest = after;
    taken
}
