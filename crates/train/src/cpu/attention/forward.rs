//! Attention's forward pass.

use std::ops::Range;

use super::super::Cpu;
use super::super::elementwise::factors;
use super::super::lanes::WIDTH;
use super::super::level::kernel;
use super::super::loss::largest;
use super::super::math::exp;
use super::super::numbers::{Apart, Source, get, put};
use super::super::tile::{Matrix, MatrixMut, ROWS, Tile, multiply, transpose};
use super::{Columns, Head, blocks, keys_seen, mask_of, padded_sequence, take};
use crate::device::{Attention, AttentionDrop};
use crate::memory::{View, ViewMut};
use crate::random::Mask;

/// What a head's pass works with.
struct Own {
    q: Matrix,
    /// A column a key.
    keys: MatrixMut,
    v: Matrix,
    out: MatrixMut,
    drop: Option<AttentionDrop>,
}

impl Cpu {
    pub(in super::super) fn attention_forward(
        &self,
        of: Attention,
        qkv: View<'_>,
        drop: Option<AttentionDrop>,
        y: ViewMut<'_>,
        log_sums: ViewMut<'_>,
    ) {
        assert_eq!(qkv.len(), of.rows() * of.qkv_width(), "rows of another width");
        assert_eq!(y.len(), of.rows() * of.width(), "rows of another width");
        assert_eq!(log_sums.len(), of.rows() * of.heads, "sums of other heads");
        if of.rows() == 0 {
            return;
        }
        let (qkv, y, log_sums) = (Source::from(qkv), Apart::new(y), Apart::new(log_sums));
        self.pool.run_ranges(of.batch * of.heads, 1, 1, |units| {
            for unit in units {
                let head = Head { of, batch: unit / of.heads, head: unit % of.heads };
                // SAFETY: each head has its own sums.
                let log_sums = unsafe { log_sums.reals(head.query(0)..head.query(of.sequence)) };
                self.forward_head(head, qkv, drop, y, log_sums);
            }
        });
    }

    fn forward_head(
        &self,
        head: Head,
        qkv: Source<'_>,
        drop: Option<AttentionDrop>,
        y: Apart<'_>,
        log_sums: &mut [f32],
    ) {
        let of = head.of;
        let (padded, keys) = (head.padded(), padded_sequence(of));
        let size = of.sequence * padded;
        let mut scratch = self.scratch(4 * size + padded * keys + ROWS * keys);
        let mut rest = &mut scratch[..];
        let first_row = head.batch * of.sequence;
        let inside = Columns {
            first_row,
            rows: of.sequence,
            stride: of.qkv_width(),
            column: 0,
            width: of.head_width,
        };
        let [q, k, v] = head
            .columns()
            .map(|column| self.gather(qkv, Columns { column, ..inside }, take(&mut rest, size)));
        let outside = Columns { stride: of.width(), column: head.head * of.head_width, ..inside };
        let room = take(&mut rest, size);
        let out = self.place(y, outside, room);
        let turned = MatrixMut { start: take(&mut rest, padded * keys).as_mut_ptr(), row: keys };
        // SAFETY: there is room for as many columns as tokens and as many rows as the head is wide.
        unsafe { transpose(self.level, of.sequence, padded, k, turned) };
        let own = Own { q, keys: turned, v, out, drop };
        for block in blocks(0..of.sequence) {
            self.forward_block(head, &own, block, rest, log_sums);
        }
        // SAFETY: each head has its own columns.
        unsafe { self.scatter(y, outside, room) };
    }

    /// A few queries of a head.
    fn forward_block(
        &self,
        head: Head,
        own: &Own,
        block: Range<usize>,
        softmax: &mut [f32],
        log_sums: &mut [f32],
    ) {
        let (rows, seen, keys) = (block.len(), keys_seen(&block), own.keys.row);
        let softmax = &mut softmax[..rows * keys];
        let scores = MatrixMut { start: softmax.as_mut_ptr(), row: keys };
        let tile = Tile { rows, columns: seen, depth: head.of.head_width };
        // SAFETY: the keys are padded to whole lanes, and so are the scores.
        unsafe {
            let q = own.q.at_row(block.start);
            multiply(self.level, tile, q, own.keys.read(), scores, false);
        }
        let mut shares = [0.0; ROWS];
        for (at, query) in block.clone().enumerate() {
            let row = &mut softmax[at * keys..at * keys + seen];
            let mask = mask_of(own.drop, head, query);
            let (log_sum, share) = softmax_row(self.level, head.scale(), query, mask, row);
            log_sums[query] = log_sum;
            shares[at] = share;
        }
        let tile = Tile { rows, columns: head.padded(), depth: block.end };
        let out = own.out.at_row(block.start);
        // SAFETY: values and results are in whole lanes.
        unsafe {
            multiply(self.level, tile, scores.read(), own.v, out, false);
            scale_rows(self.level, head.padded(), out, &shares[..rows]);
        }
    }
}

kernel! {
    /// Exponentials of a query's scores, those after it zero. Returns the logarithm of the sum and
    /// one over the sum, which the exponentials are not yet multiplied by.
    fn softmax_row<V>(scale: f32, query: usize, mask: Option<Mask>, row: &mut [f32]) -> (f32, f32) {
        row[query + 1..].fill(f32::NEG_INFINITY);
        let most = largest::<V>(Source::F32(row)) * scale;
        let mut sum = V::splat(0.0);
        for at in (0..row.len()).step_by(WIDTH) {
            let number = exp(get::<V>(row, at).fused(V::splat(scale), V::splat(-most)));
            put(row, at, number);
            // What is masked counts as 1e-38 here, which is nothing beside the largest.
            sum = sum.plus(number);
        }
        row[query + 1..].fill(0.0);
        if let Some(mask) = mask {
            for at in (0..row.len()).step_by(WIDTH) {
                let kept: V = factors(mask, at as u64);
                put(row, at, kept.times(get(row, at)));
            }
        }
        let sum = sum.sum();
        (most + sum.ln(), 1.0 / sum)
    }
}

/// Multiplies each row by its number.
///
/// # Safety
/// Rows of this width must be there.
unsafe fn scale_rows(level: super::super::level::Level, width: usize, rows: MatrixMut, by: &[f32]) {
    scale_rows_kernel(level, width, rows, by);
}

kernel! {
    fn scale_rows_kernel<V>(width: usize, rows: MatrixMut, by: &[f32]) {
        for (row, by) in by.iter().enumerate() {
            for at in (0..width).step_by(WIDTH) {
                // SAFETY: the caller of `scale_rows` promised that they are there.
                unsafe {
                    let start = rows.at_row(row).start.add(at);
                    V::load(start).times(V::splat(*by)).store(start);
                }
            }
        }
    }
}
