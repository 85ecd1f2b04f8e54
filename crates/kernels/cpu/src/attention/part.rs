//! Attention to some of the keys, merged with that to others.

use std::ops::Range;

use super::super::Cpu;
use super::super::lanes::WIDTH;
use super::super::level::kernel;
use super::super::numbers::Apart;
use super::super::tile::{Matrix, MatrixMut, ROWS};
use super::forward::{Inputs, Sums, forward_room};
use super::{Head, Layout, blocks, take};
use regatta_device::device::{AttentionDrop, AttentionPart};
use regatta_device::memory::{View, ViewMut};

impl Cpu {
    pub(in super::super) fn attention_part_forward(
        &self,
        of: AttentionPart,
        q: View<'_>,
        kv: View<'_>,
        drop: Option<AttentionDrop>,
        y: ViewMut<'_>,
        log_sums: ViewMut<'_>,
    ) {
        let (outside, inside) = (of.rows() * of.width(), of.kv_rows() * of.kv_width());
        let fit = q.len() == outside && y.len() == outside && kv.len() == inside;
        assert!(fit, "rows of another width");
        assert_eq!(log_sums.len(), of.rows() * of.heads, "sums of other heads");
        let (y, log_sums) = (Apart::new(y), Apart::new(log_sums));
        assert!(y.is_real() && log_sums.is_real(), "parts are merged in single precision");
        if of.rows() == 0 || of.keys == 0 {
            return;
        }
        let (inputs, layout) = (Inputs { q: q.into(), kv: kv.into(), drop }, Layout::part(of));
        self.pool.run_ranges(of.batch * of.heads, 1, 1, |units| {
            for unit in units {
                let (batch, head) = (unit / of.heads, unit % of.heads);
                self.merge_head(Head { of, layout, batch, head }, inputs, y, log_sums);
            }
        });
    }

    fn merge_head(&self, head: Head, inputs: Inputs<'_>, y: Apart<'_>, log_sums: Apart<'_>) {
        let padded = head.padded();
        let size = head.of.queries * padded;
        let in_halves = self.attends_in_halves();
        let others = if in_halves { 0 } else { ROWS * padded + forward_room(head) };
        let mut scratch = self.scratch(size + others);
        let mut rest = &mut scratch[..];
        let room = take(&mut rest, size);
        // SAFETY: each head has its own columns.
        let merged = unsafe { self.place_kept(y, head.results(), room) };
        if in_halves {
            self.forward_halves(head, inputs, |block, sums, new| {
                let new = Matrix { start: new.as_ptr(), row: padded, column: 1 };
                self.merge_block(head, block, sums, new, merged, log_sums);
            });
        } else {
            let new = MatrixMut { start: take(&mut rest, ROWS * padded).as_mut_ptr(), row: padded };
            let own = self.forward_own(head, inputs, &mut rest);
            for block in blocks(0..head.of.queries, ROWS) {
                let sums = self.forward_block(head, &own, block.clone(), new, rest);
                self.merge_block(head, block, &sums, new.read(), merged, log_sums);
            }
        }
        // SAFETY: each head has its own columns.
        unsafe { self.scatter(y, head.results(), room) };
    }

    /// What came out for a few queries is merged with what there was for them.
    fn merge_block(
        &self,
        head: Head,
        block: Range<usize>,
        sums: &Sums,
        new: Matrix,
        merged: MatrixMut,
        log_sums: Apart<'_>,
    ) {
        for (at, query) in block.enumerate() {
            // SAFETY: each head has its own sums.
            let log_sum = unsafe { &mut *log_sums.address(head.sum(query)) };
            let weights = Weights::of(*log_sum, sums.logs[at]);
            *log_sum = weights.log_sum;
            let new_share = weights.new * sums.shares[at];
            let (new, merged) = (new.at_row(at), merged.at_row(query));
            // SAFETY: both have this row, in whole lanes.
            unsafe { merge_row(self.level, head.padded(), new, new_share, merged, weights.old) };
        }
    }
}

/// How two softmaxes over different keys make one.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Weights {
    log_sum: f32,
    /// None if there was nothing yet.
    old: Option<f32>,
    new: f32,
}

impl Weights {
    fn of(old: f32, new: f32) -> Self {
        if old == f32::NEG_INFINITY {
            return Self { log_sum: new, old: None, new: 1.0 };
        }
        let (old, new) = (f64::from(old), f64::from(new));
        let most = old.max(new);
        let shares = [(old - most).exp(), (new - most).exp()];
        let sum = shares[0] + shares[1];
        let [old, new] = shares.map(|share| (share / sum) as f32);
        Self { log_sum: (most + sum.ln()) as f32, old: Some(old), new }
    }
}

/// `merged = new * new_share + merged * old_share`, without the latter if there is none.
///
/// # Safety
/// Both must have this width, which is of whole lanes.
unsafe fn merge_row(
    level: super::super::level::Level,
    width: usize,
    new: Matrix,
    new_share: f32,
    merged: MatrixMut,
    old_share: Option<f32>,
) {
    merge_kernel(level, width, new, new_share, merged, old_share);
}

kernel! {
    fn merge_kernel<V>(
        width: usize,
        new: Matrix,
        new_share: f32,
        merged: MatrixMut,
        old_share: Option<f32>,
    ) {
        for at in (0..width).step_by(WIDTH) {
            // SAFETY: the caller of `merge_row`, the only one, promised that they are there.
            unsafe {
                let added = V::load(new.start.add(at)).times(V::splat(new_share));
                let to = merged.start.add(at);
                match old_share {
                    None => added.store(to),
                    Some(share) => V::load(to).fused(V::splat(share), added).store(to),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_shares_of_the_sum() {
        let nothing = Weights::of(f32::NEG_INFINITY, 3.5);
        assert_eq!(nothing, Weights { log_sum: 3.5, old: None, new: 1.0 });
        let even = Weights::of(200.0, 200.0);
        assert_eq!((even.old, even.new), (Some(0.5), 0.5));
        assert!((even.log_sum - 200.693_15).abs() < 1e-4);
        // Far apart: the smaller is nothing.
        assert_eq!(
            Weights::of(-500.0, 500.0),
            Weights { log_sum: 500.0, old: Some(0.0), new: 1.0 }
        );
        assert!(Weights::of(f32::NAN, 1.0).new.is_nan() && Weights::of(1.0, f32::NAN).new.is_nan());
    }
}
