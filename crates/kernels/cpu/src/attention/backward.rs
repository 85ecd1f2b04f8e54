//! Attention's backward pass. The softmax is computed again from the logarithms of its sums.

use std::ops::Range;

use super::super::Cpu;
use super::super::elementwise::factors;
use super::super::lanes::{Lanes, WIDTH};
use super::super::level::kernel;
use super::super::math::exp;
use super::super::numbers::{Apart, Source};
use super::super::tile::{Matrix, MatrixMut, ROWS, Tile, multiply, transpose};
use super::{Columns, Head, Layout, QUERIES, blocks, mask_of, take};
use regatta_device::device::{
    Attention, AttentionDrop, AttentionPart, AttentionPartSaved, AttentionSaved,
};
use regatta_device::memory::{View, ViewMut};
use regatta_device::random::Mask;

/// What the passes of all heads share.
#[derive(Clone, Copy)]
pub(super) struct Pass<'a> {
    pub q: Source<'a>,
    pub kv: Source<'a>,
    pub y: Source<'a>,
    pub log_sums: &'a [f32],
    pub drop: Option<AttentionDrop>,
    pub dy: Source<'a>,
    pub dq: Apart<'a>,
    pub dkv: Apart<'a>,
    /// Whether gradients are added to what is there.
    pub add: bool,
}

/// Keys and values of a head, and where their gradients go.
struct Shared {
    k: Matrix,
    k_turned: MatrixMut,
    v_turned: MatrixMut,
    dk: MatrixMut,
    dv: MatrixMut,
    /// Whether these are added to what is there.
    add: bool,
}

/// Queries of a head, the gradient of what came out, and where theirs goes.
struct Own {
    q: Matrix,
    dy: Matrix,
    dq: MatrixMut,
}

/// A few queries at once, against all keys: the softmax and the gradient of the scores.
struct Slopes {
    queries: Range<usize>,
    p: MatrixMut,
    ds: MatrixMut,
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
        let (qkv, dqkv) = (Source::from(saved.qkv), Apart::new(dqkv));
        let pass = Pass {
            q: qkv,
            kv: qkv,
            y: saved.y.into(),
            log_sums: saved.log_sums.host(),
            drop,
            dy: dy.into(),
            dq: dqkv,
            dkv: dqkv,
            add: false,
        };
        self.backward_groups(of.into(), Layout::whole(of), pass);
    }

    pub(in super::super) fn attention_part_backward(
        &self,
        of: AttentionPart,
        saved: AttentionPartSaved<'_>,
        drop: Option<AttentionDrop>,
        dy: View<'_>,
        dq: ViewMut<'_>,
        dkv: ViewMut<'_>,
    ) {
        let (outside, inside) = (of.rows() * of.width(), of.kv_rows() * of.kv_width());
        let rows = [saved.q.len(), saved.y.len(), dy.len(), dq.len()];
        let fit = rows == [outside; 4] && [saved.kv.len(), dkv.len()] == [inside; 2];
        assert!(fit, "rows of another width");
        assert_eq!(saved.log_sums.len(), of.rows() * of.heads, "sums of other heads");
        let (dq, dkv) = (Apart::new(dq), Apart::new(dkv));
        assert!(dq.is_real() && dkv.is_real(), "parts are added in single precision");
        let pass = Pass {
            q: saved.q.into(),
            kv: saved.kv.into(),
            y: saved.y.into(),
            log_sums: saved.log_sums.host(),
            drop,
            dy: dy.into(),
            dq,
            dkv,
            add: true,
        };
        self.backward_groups(of, Layout::part(of), pass);
    }

    fn backward_groups(&self, of: AttentionPart, layout: Layout, pass: Pass<'_>) {
        if of.rows() == 0 || of.keys == 0 {
            return;
        }
        // Heads of queries that share keys add to the same gradients, one after the other.
        self.pool.run_ranges(of.batch * of.kv_heads, 1, 1, |units| {
            for unit in units {
                let (batch, kv_head) = (unit / of.kv_heads, unit % of.kv_heads);
                let head = kv_head * (of.heads / of.kv_heads);
                let first = Head { of, layout, batch, head };
                if self.attends_in_halves() {
                    self.backward_group_halves(first, pass);
                } else {
                    self.backward_group(first, pass);
                }
            }
        });
    }

    /// All heads of queries that share a head of keys; the first is given.
    fn backward_group(&self, first: Head, pass: Pass<'_>) {
        let of = first.of;
        let (padded, keys) = (first.padded(), first.padded_keys());
        let (q_size, k_size) = (of.queries * padded, of.keys * padded);
        let need = 3 * q_size + 3 * k_size + 2 * padded * keys + 2 * QUERIES * keys;
        let mut scratch = self.scratch(need);
        let mut rest = &mut scratch[..];
        let [k_columns, v_columns] = first.keys_and_values();
        let k = self.gather(pass.kv, k_columns, take(&mut rest, k_size));
        let (k_turned, v_turned) = {
            // The values themselves are not needed again: their room is used below.
            let v = self.gather(pass.kv, v_columns, &mut rest[2 * padded * keys..]);
            let mut turn = |from: Matrix| {
                let start = take(&mut rest, padded * keys).as_mut_ptr();
                let to = MatrixMut { start, row: keys };
                // SAFETY: there is room for as many columns as keys and as many rows as the head
                // is wide.
                unsafe { transpose(self.level, of.keys, padded, from, to) };
                to
            };
            (turn(k), turn(v))
        };
        let (k_room, v_room) = (take(&mut rest, k_size), take(&mut rest, k_size));
        // SAFETY: each group has its own columns.
        let [dk, dv] = unsafe {
            [(k_columns, &mut *k_room), (v_columns, &mut *v_room)]
                .map(|(columns, room)| self.place_gradient(pass.dkv, columns, room, pass.add))
        };
        let mut shared = Shared { k, k_turned, v_turned, dk, dv, add: pass.add };
        for head in first.head..first.head + of.heads / of.kv_heads {
            self.backward_head(Head { head, ..first }, pass, &shared, rest);
            shared.add = true;
        }
        // SAFETY: each group has its own columns.
        unsafe {
            self.scatter(pass.dkv, k_columns, k_room);
            self.scatter(pass.dkv, v_columns, v_room);
        }
    }

    /// Where a gradient can be written, or added to what is there.
    ///
    /// # Safety
    /// Nobody else may have these columns.
    unsafe fn place_gradient(
        &self,
        to: Apart<'_>,
        columns: Columns,
        room: &mut [f32],
        add: bool,
    ) -> MatrixMut {
        match add {
            // SAFETY: the caller's promise.
            true => unsafe { self.place_kept(to, columns, room) },
            false => self.place(to, columns, room),
        }
    }

    fn backward_head(&self, head: Head, pass: Pass<'_>, shared: &Shared, mut rest: &mut [f32]) {
        let size = head.of.queries * head.padded();
        let (inside, outside) = (head.queries(), head.results());
        let q = self.gather(pass.q, inside, take(&mut rest, size));
        let dy = self.gather(pass.dy, outside, take(&mut rest, size));
        let room = take(&mut rest, size);
        // SAFETY: each head has its own columns.
        let dq = unsafe { self.place_gradient(pass.dq, inside, room, pass.add) };
        let own = Own { q, dy, dq };
        for start in (0..head.of.queries).step_by(QUERIES) {
            let queries = start..head.of.queries.min(start + QUERIES);
            let slopes = self.backward_slopes(head, pass, shared, &own, queries, rest);
            self.backward_keys(head, shared, &own, slopes);
        }
        // SAFETY: each head has its own columns.
        unsafe { self.scatter(pass.dq, inside, room) };
    }

    /// A few queries: their softmax, the gradients of their scores, and their own gradients.
    fn backward_slopes(
        &self,
        head: Head,
        pass: Pass<'_>,
        shared: &Shared,
        own: &Own,
        queries: Range<usize>,
        rest: &mut [f32],
    ) -> Slopes {
        let (level, start) = (self.level, queries.start);
        let (padded, keys) = (head.padded(), head.padded_keys());
        let (softmax, slopes) = rest[..2 * QUERIES * keys].split_at_mut(QUERIES * keys);
        let p = MatrixMut { start: softmax.as_mut_ptr(), row: keys };
        let ds = MatrixMut { start: slopes.as_mut_ptr(), row: keys };
        for block in blocks(queries.clone(), ROWS) {
            let (rows, seen, at) = (block.len(), head.seen(&block), block.start - start);
            let columns = seen.next_multiple_of(WIDTH);
            let tile = Tile { rows, columns, depth: head.of.head_width };
            // SAFETY: keys, values and scores are in whole lanes.
            unsafe {
                let q = own.q.at_row(block.start);
                multiply(level, tile, q, shared.k_turned.read(), p.at_row(at), false);
                let dy = own.dy.at_row(block.start);
                multiply(level, tile, dy, shared.v_turned.read(), ds.at_row(at), false);
            }
            let from = at * keys;
            self.slope_rows(head, &pass, &block, &mut softmax[from..], &mut slopes[from..]);
            let tile = Tile { rows, columns: padded, depth: seen };
            // SAFETY: keys and gradients are in whole lanes.
            unsafe {
                let dq = own.dq.at_row(block.start);
                multiply(level, tile, ds.at_row(at).read(), shared.k, dq, pass.add);
            }
        }
        Slopes { queries, p, ds }
    }

    /// Scores of a few queries, in rows of all keys, become their softmax, and the gradients of that
    /// become gradients of the scores. Those of keys that only others of them see become zero.
    pub(super) fn slope_rows(
        &self,
        head: Head,
        pass: &Pass<'_>,
        block: &Range<usize>,
        softmax: &mut [f32],
        slopes: &mut [f32],
    ) {
        slope_block(self.level, head, pass, block, softmax, slopes);
    }

    /// What a few queries add to the gradients of the keys and values that they see.
    fn backward_keys(&self, head: Head, shared: &Shared, own: &Own, slopes: Slopes) {
        let Slopes { queries, p, ds } = slopes;
        let causal = head.of.causal;
        for block in blocks(0..head.seen(&queries), ROWS) {
            // Queries before a key do not see it.
            let from = if causal { block.start.max(queries.start) } else { queries.start };
            let depth = queries.end - from;
            let tile = Tile { rows: block.len(), columns: head.padded(), depth };
            // The first queries that see a key write, others add.
            let seen_before = if causal { block.start < queries.start } else { queries.start > 0 };
            let add = shared.add || seen_before;
            let seen_by = |of: MatrixMut| {
                let first = of.at_row(from - queries.start).read().transposed();
                first.at_row(block.start)
            };
            // SAFETY: queries and gradients are in whole lanes; what a query does not see of a
            // block that it sees some of is zero.
            unsafe {
                let dv = shared.dv.at_row(block.start);
                multiply(self.level, tile, seen_by(p), own.dy.at_row(from), dv, add);
                let dk = shared.dk.at_row(block.start);
                multiply(self.level, tile, seen_by(ds), own.q.at_row(from), dk, add);
            }
        }
    }
}

kernel! {
    fn slope_block<V>(
        head: Head,
        pass: &Pass<'_>,
        block: &Range<usize>,
        softmax: &mut [f32],
        slopes: &mut [f32],
    ) {
        let (keys, columns) = (head.padded_keys(), head.seen(block).next_multiple_of(WIDTH));
        let (scale, results) = (head.scale(), head.results());
        for (at, query) in block.clone().enumerate() {
            let (log_sum, row) = (pass.log_sums[head.sum(query)], results.range(query));
            let along = dot::<V>(pass.y.part(row.clone()), pass.dy.part(row));
            let row = Row { scale, log_sum, along, mask: mask_of(pass.drop, head, query) };
            let here = at * keys..at * keys + columns;
            let p = softmax[here.clone()].as_chunks_mut().0;
            row.slopes::<V>(head.of.seen(query), p, slopes[here].as_chunks_mut().0);
        }
    }
}

/// The sum of the products of two rows.
#[inline(always)]
fn dot<V: Lanes>(a: Source<'_>, b: Source<'_>) -> f32 {
    let (mut sum, whole) = (V::splat(0.0), a.len().min(b.len()) / WIDTH * WIDTH);
    for at in (0..whole).step_by(WIDTH) {
        // SAFETY: both have sixteen more.
        sum = unsafe { a.load::<V>(at).fused(b.load(at), sum) };
    }
    if whole < a.len() {
        sum = a.get::<V>(whole).fused(b.get(whole), sum);
    }
    sum.sum()
}

/// What is known of a query.
struct Row {
    scale: f32,
    log_sum: f32,
    /// The product of what came out and its gradient.
    along: f32,
    mask: Option<Mask>,
}

impl Row {
    /// `p`, the scores of a query, become its softmax as it was multiplied with the values; `ds`, the
    /// gradient of that, becomes the gradient of the scores. What the query does not see becomes zero.
    #[inline(always)]
    fn slopes<V: Lanes>(&self, seen: usize, p: &mut [[f32; WIDTH]], ds: &mut [[f32; WIDTH]]) {
        let (whole, zero) = (seen / WIDTH, V::splat(0.0));
        for at in 0..whole {
            let new = self.some::<V>(at, V::of(p[at]), V::of(ds[at]));
            (p[at], ds[at]) = (new[0].array(), new[1].array());
        }
        let rest = seen - whole * WIDTH;
        if rest > 0 {
            let new = self.some::<V>(whole, V::of(p[whole]), V::of(ds[whole]));
            p[whole] = new[0].first(rest, zero).array();
            ds[whole] = new[1].first(rest, zero).array();
        }
        let unseen = seen.div_ceil(WIDTH);
        p[unseen..].fill([0.0; WIDTH]);
        ds[unseen..].fill([0.0; WIDTH]);
    }

    /// Sixteen of them.
    #[inline(always)]
    fn some<V: Lanes>(&self, at: usize, scores: V, slopes: V) -> [V; 2] {
        let share = exp(scores.fused(V::splat(self.scale), V::splat(-self.log_sum)));
        let scaled = share.times(V::splat(self.scale));
        let away = V::splat(-self.along);
        match self.mask {
            None => [share, slopes.plus(away).times(scaled)],
            Some(mask) => {
                let kept: V = factors(mask, (at * WIDTH) as u64);
                [share.times(kept), slopes.fused(kept, away).times(scaled)]
            }
        }
    }
}
