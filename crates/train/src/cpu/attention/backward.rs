//! Attention's backward pass. The softmax is computed again from the logarithms of its sums.

use super::super::Cpu;
use super::super::elementwise::factors;
use super::super::lanes::WIDTH;
use super::super::level::kernel;
use super::super::math::exp;
use super::super::numbers::{Apart, Source, get, put};
use super::super::tile::{Matrix, MatrixMut, Tile, multiply, transpose};
use super::{Columns, Head, QUERIES, blocks, keys_seen, mask_of, padded_sequence, take};
use crate::device::{Attention, AttentionDrop, AttentionSaved};
use crate::memory::{View, ViewMut};
use crate::random::Mask;

/// What the passes of all heads share.
#[derive(Clone, Copy)]
struct Pass<'a> {
    qkv: Source<'a>,
    y: Source<'a>,
    log_sums: &'a [f32],
    drop: Option<AttentionDrop>,
    dy: Source<'a>,
    dqkv: Apart<'a>,
}

/// Keys and values of a head, and where their gradients go.
struct Shared {
    k: Matrix,
    k_turned: MatrixMut,
    v_turned: MatrixMut,
    dk: MatrixMut,
    dv: MatrixMut,
}

/// Queries of a head, what came out, its gradient, and where theirs goes.
struct Own {
    q: Matrix,
    y: Matrix,
    dy: Matrix,
    dq: MatrixMut,
}

impl Cpu {
    pub(in super::super) fn attention_backward(
        &self,
        of: Attention,
        saved: AttentionSaved<'_>,
        drop: Option<AttentionDrop>,
        dy: View<'_>,
        dqkv: ViewMut<'_>,
    ) {
        let inside = of.rows() * of.qkv_width();
        let fit = saved.qkv.len() == inside && dqkv.len() == inside;
        let outside = of.rows() * of.width();
        assert!(fit && dy.len() == outside && saved.y.len() == outside, "rows of another width");
        assert_eq!(saved.log_sums.len(), of.rows() * of.heads, "sums of other heads");
        if of.rows() == 0 {
            return;
        }
        let pass = Pass {
            qkv: saved.qkv.into(),
            y: saved.y.into(),
            log_sums: saved.log_sums.host(),
            drop,
            dy: dy.into(),
            dqkv: Apart::new(dqkv),
        };
        // Heads of queries that share keys add to the same gradients, one after the other.
        self.pool.run_ranges(of.batch * of.kv_heads, 1, 1, |units| {
            for unit in units {
                let (batch, kv_head) = (unit / of.kv_heads, unit % of.kv_heads);
                let first = kv_head * (of.heads / of.kv_heads);
                self.backward_group(Head { of, batch, head: first }, pass);
            }
        });
    }

    /// All heads of queries that share a head of keys; the first is given.
    fn backward_group(&self, first: Head, pass: Pass<'_>) {
        let of = first.of;
        let (padded, keys) = (first.padded(), padded_sequence(of));
        let size = of.sequence * padded;
        let need = 8 * size + 2 * padded * keys + 2 * QUERIES * keys;
        let mut scratch = self.scratch(need);
        let mut rest = &mut scratch[..];
        let [_, k_column, v_column] = first.columns();
        let inside = Columns {
            first_row: first.batch * of.sequence,
            rows: of.sequence,
            stride: of.qkv_width(),
            column: k_column,
            width: of.head_width,
        };
        let values = Columns { column: v_column, ..inside };
        let k = self.gather(pass.qkv, inside, take(&mut rest, size));
        let (k_turned, v_turned) = {
            // The values themselves are not needed again: their room is used below.
            let v = self.gather(pass.qkv, values, &mut rest[2 * padded * keys..]);
            let mut turn = |from: Matrix| {
                let start = take(&mut rest, padded * keys).as_mut_ptr();
                let to = MatrixMut { start, row: keys };
                // SAFETY: there is room for as many columns as tokens and as many rows as the
                // head is wide.
                unsafe { transpose(self.level, of.sequence, padded, from, to) };
                to
            };
            (turn(k), turn(v))
        };
        let (k_room, v_room) = (take(&mut rest, size), take(&mut rest, size));
        let dk = self.place(pass.dqkv, inside, k_room);
        let dv = self.place(pass.dqkv, values, v_room);
        let shared = Shared { k, k_turned, v_turned, dk, dv };
        for head in first.head..first.head + of.heads / of.kv_heads {
            let add = head != first.head;
            self.backward_head(Head { head, ..first }, pass, &shared, add, rest);
        }
        // SAFETY: each group has its own columns.
        unsafe {
            self.scatter(pass.dqkv, inside, k_room);
            self.scatter(pass.dqkv, values, v_room);
        }
    }

    fn backward_head(
        &self,
        head: Head,
        pass: Pass<'_>,
        shared: &Shared,
        add: bool,
        mut rest: &mut [f32],
    ) {
        let of = head.of;
        let size = of.sequence * head.padded();
        let inside = Columns {
            first_row: head.batch * of.sequence,
            rows: of.sequence,
            stride: of.qkv_width(),
            column: head.columns()[0],
            width: of.head_width,
        };
        let outside = Columns { stride: of.width(), column: head.head * of.head_width, ..inside };
        let q = self.gather(pass.qkv, inside, take(&mut rest, size));
        let y = self.gather(pass.y, outside, take(&mut rest, size));
        let dy = self.gather(pass.dy, outside, take(&mut rest, size));
        let room = take(&mut rest, size);
        let own = Own { q, y, dy, dq: self.place(pass.dqkv, inside, room) };
        for start in (0..of.sequence).step_by(QUERIES) {
            self.backward_tile(head, pass, shared, &own, (start, add), rest);
        }
        // SAFETY: each head has its own columns.
        unsafe { self.scatter(pass.dqkv, inside, room) };
    }

    /// The queries from `start` on, as many as fit: their gradients, and what they add to those of
    /// the keys and values before them.
    fn backward_tile(
        &self,
        head: Head,
        pass: Pass<'_>,
        shared: &Shared,
        own: &Own,
        (start, add): (usize, bool),
        rest: &mut [f32],
    ) {
        let (of, level) = (head.of, self.level);
        let (padded, keys) = (head.padded(), padded_sequence(of));
        let end = of.sequence.min(start + QUERIES);
        let (softmax, slopes) = rest[..2 * QUERIES * keys].split_at_mut(QUERIES * keys);
        let p = MatrixMut { start: softmax.as_mut_ptr(), row: keys };
        let ds = MatrixMut { start: slopes.as_mut_ptr(), row: keys };
        for block in blocks(start..end) {
            let (rows, seen) = (block.len(), keys_seen(&block));
            let tile = Tile { rows, columns: seen, depth: of.head_width };
            let at = block.start - start;
            // SAFETY: keys, values and scores are in whole lanes.
            unsafe {
                let q = own.q.at_row(block.start);
                multiply(level, tile, q, shared.k_turned.read(), p.at_row(at), false);
                let dy = own.dy.at_row(block.start);
                multiply(level, tile, dy, shared.v_turned.read(), ds.at_row(at), false);
            }
            for query in block.clone() {
                let range = (query - start) * keys..(query - start) * keys + seen;
                let (p, ds) = (&mut softmax[range.clone()], &mut slopes[range]);
                let log_sum = pass.log_sums[head.query(query)];
                // SAFETY: rows of both are there, in whole lanes.
                let along =
                    unsafe { dot(level, padded, own.y.at_row(query), own.dy.at_row(query)) };
                let mask = mask_of(pass.drop, head, query);
                slope_row(level, head.scale(), query, mask, log_sum, along, p, ds);
            }
            let tile = Tile { rows, columns: padded, depth: block.end };
            // SAFETY: keys and gradients are in whole lanes.
            unsafe {
                let dq = own.dq.at_row(block.start);
                multiply(level, tile, ds.at_row(at).read(), shared.k, dq, false);
            }
        }
        for block in blocks(0..end) {
            // Queries before a key do not see it.
            let from = block.start.max(start);
            let tile = Tile { rows: block.len(), columns: padded, depth: end - from };
            let add = add || block.start < start;
            let seen_by = |of: MatrixMut| {
                let first = of.at_row(from - start).read().transposed();
                first.at_row(block.start)
            };
            // SAFETY: queries and gradients are in whole lanes; what a query does not see of a
            // block that it sees some of is zero.
            unsafe {
                let dv = shared.dv.at_row(block.start);
                multiply(level, tile, seen_by(p), own.dy.at_row(from), dv, add);
                let dk = shared.dk.at_row(block.start);
                multiply(level, tile, seen_by(ds), own.q.at_row(from), dk, add);
            }
        }
    }
}

/// The sum of the products of two rows.
///
/// # Safety
/// Both must have this width, which is of whole lanes.
unsafe fn dot(level: super::super::level::Level, width: usize, a: Matrix, b: Matrix) -> f32 {
    dot_kernel(level, width, a, b)
}

kernel! {
    fn dot_kernel<V>(width: usize, a: Matrix, b: Matrix) -> f32 {
        let mut sum = V::splat(0.0);
        for at in (0..width).step_by(WIDTH) {
            // SAFETY: the caller of `dot` promised that they are there.
            unsafe { sum = V::load(a.start.add(at)).fused(V::load(b.start.add(at)), sum) };
        }
        sum.sum()
    }
}

kernel! {
    /// `p`, the scores of a query, become its softmax as it was multiplied with the values; `ds`, the
    /// gradient of that, becomes the gradient of the scores. What is after the query becomes zero.
    fn slope_row<V>(
        scale: f32,
        query: usize,
        mask: Option<Mask>,
        log_sum: f32,
        along: f32,
        p: &mut [f32],
        ds: &mut [f32],
    ) {
        for at in (0..p.len()).step_by(WIDTH) {
            let share = exp(get::<V>(p, at).fused(V::splat(scale), V::splat(-log_sum)));
            let kept = mask.map_or(V::splat(1.0), |mask| factors(mask, at as u64));
            let slope = get::<V>(ds, at).times(kept).minus(V::splat(along));
            put(p, at, share.times(kept));
            put(ds, at, share.times(slope).times(V::splat(scale)));
        }
        p[query + 1..].fill(0.0);
        ds[query + 1..].fill(0.0);
    }
}
