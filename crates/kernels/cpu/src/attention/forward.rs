//! Attention's forward pass.

use std::ops::Range;

use super::super::Cpu;
use super::super::elementwise::factors;
use super::super::lanes::{Lanes, WIDTH};
use super::super::level::{Level, kernel};
use super::super::math::exp;
use super::super::numbers::{Apart, Source};
use super::super::tile::{Matrix, MatrixMut, ROWS, Tile, multiply, transpose};
use super::halves::QUERIES as MOST;
use super::{Head, Layout, blocks, mask_of, take};
use regatta_device::device::{Attention, AttentionDrop};
use regatta_device::memory::{View, ViewMut};
use regatta_device::random::Mask;

/// What all heads read.
#[derive(Clone, Copy)]
pub(super) struct Inputs<'a> {
    pub q: Source<'a>,
    pub kv: Source<'a>,
    pub drop: Option<AttentionDrop>,
}

/// What a head's pass works with.
pub(super) struct Own {
    q: Matrix,
    /// A column a key.
    keys: MatrixMut,
    v: Matrix,
    drop: Option<AttentionDrop>,
}

/// What is known of a few queries once their exponentials were multiplied with the values.
pub(super) struct Sums {
    /// The logarithm of each one's sum.
    pub logs: [f32; MOST],
    /// One over each one's sum, which results are not yet multiplied by.
    pub shares: [f32; MOST],
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
        let (inputs, layout) = (Inputs { q: qkv, kv: qkv, drop }, Layout::whole(of));
        self.pool.run_ranges(of.batch * of.heads, 1, 1, |units| {
            for unit in units {
                let (batch, head) = (unit / of.heads, unit % of.heads);
                let head = Head { of: of.into(), layout, batch, head };
                // SAFETY: each head has its own sums.
                let log_sums = unsafe { log_sums.reals(head.sum(0)..head.sum(of.sequence)) };
                if self.attends_in_halves() {
                    self.forward_head_halves(head, inputs, y, log_sums);
                } else {
                    self.forward_head(head, inputs, y, log_sums);
                }
            }
        });
    }

    fn forward_head(&self, head: Head, inputs: Inputs<'_>, y: Apart<'_>, log_sums: &mut [f32]) {
        let size = head.of.queries * head.padded();
        let mut scratch = self.scratch(size + forward_room(head));
        let mut rest = &mut scratch[..];
        let room = take(&mut rest, size);
        let out = self.place(y, head.results(), room);
        let own = self.forward_own(head, inputs, &mut rest);
        for block in blocks(0..head.of.queries, ROWS) {
            let out = out.at_row(block.start);
            let sums = self.forward_block(head, &own, block.clone(), out, rest);
            let rows = block.len();
            log_sums[block].copy_from_slice(&sums.logs[..rows]);
            // SAFETY: results are in whole lanes.
            unsafe { scale_rows(self.level, head.padded(), out, &sums.shares[..rows]) };
        }
        // SAFETY: each head has its own columns.
        unsafe { self.scatter(y, head.results(), room) };
    }

    /// A head's queries, keys and values, as they are multiplied.
    pub(super) fn forward_own(&self, head: Head, inputs: Inputs<'_>, rest: &mut &mut [f32]) -> Own {
        let (padded, keys) = (head.padded(), head.padded_keys());
        let q = self.gather(inputs.q, head.queries(), take(rest, head.of.queries * padded));
        let [k, v] = head
            .keys_and_values()
            .map(|columns| self.gather(inputs.kv, columns, take(rest, head.of.keys * padded)));
        let turned = MatrixMut { start: take(rest, padded * keys).as_mut_ptr(), row: keys };
        // SAFETY: there is room for as many columns as keys and as many rows as the head is wide.
        unsafe { transpose(self.level, head.of.keys, padded, k, turned) };
        Own { q, keys: turned, v, drop: inputs.drop }
    }

    /// A few queries of a head. `out` gets the values, times exponentials that nothing has divided
    /// by their sums yet.
    pub(super) fn forward_block(
        &self,
        head: Head,
        own: &Own,
        block: Range<usize>,
        out: MatrixMut,
        softmax: &mut [f32],
    ) -> Sums {
        let (rows, seen, keys) = (block.len(), head.seen(&block), own.keys.row);
        let columns = seen.next_multiple_of(WIDTH);
        let softmax = &mut softmax[..rows * keys];
        let scores = MatrixMut { start: softmax.as_mut_ptr(), row: keys };
        let tile = Tile { rows, columns, depth: head.of.head_width };
        // SAFETY: the keys are padded to whole lanes, and so are the scores.
        unsafe {
            let q = own.q.at_row(block.start);
            multiply(self.level, tile, q, own.keys.read(), scores, false);
        }
        let sums = self.softmax_rows(head, own.drop, &block, softmax);
        let tile = Tile { rows, columns: head.padded(), depth: seen };
        // SAFETY: values and results are in whole lanes.
        unsafe { multiply(self.level, tile, scores.read(), own.v, out, false) };
        sums
    }

    /// Scores of a few queries, in rows of all keys, become exponentials. Those of keys that only
    /// others of them see become zero.
    pub(super) fn softmax_rows(
        &self,
        head: Head,
        drop: Option<AttentionDrop>,
        block: &Range<usize>,
        scores: &mut [f32],
    ) -> Sums {
        softmax_block(self.level, head, drop, block, scores)
    }
}

/// Scratch memory that [`Cpu::forward_own`] and [`Cpu::forward_block`] need.
pub(super) fn forward_room(head: Head) -> usize {
    let (padded, keys) = (head.padded(), head.padded_keys());
    (head.of.queries + 2 * head.of.keys + keys) * padded + ROWS * keys
}

kernel! {
    fn softmax_block<V>(
        head: Head,
        drop: Option<AttentionDrop>,
        block: &Range<usize>,
        scores: &mut [f32],
    ) -> Sums {
        let (keys, columns) = (head.padded_keys(), head.seen(block).next_multiple_of(WIDTH));
        let (scale, mut sums) = (head.scale(), Sums { logs: [0.0; MOST], shares: [0.0; MOST] });
        for (at, query) in block.clone().enumerate() {
            let row = scores[at * keys..at * keys + columns].as_chunks_mut().0;
            let (most, sum) = softmax_row::<V>(scale, head.of.seen(query), row);
            (sums.logs[at], sums.shares[at]) = (most + sum.ln(), 1.0 / sum);
            if let Some(mask) = mask_of(drop, head, query) {
                drop_row::<V>(mask, row);
            }
        }
        sums
    }
}

/// Exponentials of a query's scores, those of keys that it does not see zero. Returns the largest
/// score and the sum, which the exponentials are not yet divided by.
#[inline(always)]
fn softmax_row<V: Lanes>(scale: f32, seen: usize, row: &mut [[f32; WIDTH]]) -> (f32, f32) {
    let (row, unseen) = row.split_at_mut(seen.div_ceil(WIDTH));
    unseen.fill([0.0; WIDTH]);
    let Some((last, whole)) = row.split_last_mut() else {
        return (f32::NEG_INFINITY, 0.0);
    };
    let rest = seen - whole.len() * WIDTH;
    let end = V::of(*last).first(rest, V::splat(f32::NEG_INFINITY));
    let mut most = end;
    for some in &*whole {
        most = most.most(V::of(*some));
    }
    let most = most.largest() * scale;
    let (scale, least) = (V::splat(scale), V::splat(-most));
    let end = exp(end.fused(scale, least)).first(rest, V::splat(0.0));
    *last = end.array();
    let mut sum = end;
    for some in whole {
        let number = exp(V::of(*some).fused(scale, least));
        *some = number.array();
        sum = sum.plus(number);
    }
    (most, sum.sum())
}

/// What is left of a query's exponentials.
#[inline(always)]
fn drop_row<V: Lanes>(mask: Mask, row: &mut [[f32; WIDTH]]) {
    for (at, some) in row.iter_mut().enumerate() {
        let kept: V = factors(mask, (at * WIDTH) as u64);
        *some = kept.times(V::of(*some)).array();
    }
}

/// Multiplies each row by its number.
///
/// # Safety
/// Rows of this width must be there.
pub(super) unsafe fn scale_rows(level: Level, width: usize, rows: MatrixMut, by: &[f32]) {
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
