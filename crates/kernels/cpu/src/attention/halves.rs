//! Attention by products of brain floats, where the processor multiplies them itself. What a head
//! multiplies many times is packed once, then blocks of queries meet the keys that they see. Scores
//! and their softmax are in single precision.

use std::ops::Range;

use super::super::bf16::{self, Ending, Matrix, Numbers, NumbersMut, Output, Packed};
use super::super::numbers::{Apart, Source};
use super::super::tile::MatrixMut;
use super::super::{Cpu, Precision};
use super::forward::{Inputs, Sums, scale_rows};
use super::{Columns, Head, blocks};

/// Queries that are multiplied together: rows of the tallest tile, and a step of packed rows.
pub(super) const QUERIES: usize = 32;

/// Memory of a head, which the next one uses again: not that of large products, which is larger.
#[derive(Debug, Default)]
pub struct HeadMemory {
    /// A column a key.
    pub(super) keys: Packed,
    /// A row a key on the way forward, a column a key on the way back.
    pub(super) values: Packed,
    /// A row a key.
    pub(super) key_rows: Packed,
    /// A row a query.
    pub(super) query_rows: Packed,
    /// Gradients of what came out, a row a query.
    pub(super) dy_rows: Packed,
    pub(super) scratch: bf16::Scratch,
}

impl Columns {
    /// As an operand, from where they are.
    pub(super) fn halves(self, from: Source<'_>) -> Matrix<'_> {
        let all = from.part(self.range(0).start..self.range(self.rows - 1).end);
        Matrix::rows(all.into(), self.stride)
    }
}

/// Rows of scratch memory to write.
pub(super) fn output(rows: &mut [f32], width: usize) -> Output<'_> {
    Output::rows(NumbersMut::F32(rows), width)
}

/// Rows of scratch memory to read.
pub(super) fn operand(rows: &[f32], width: usize) -> Matrix<'_> {
    Matrix::rows(Numbers::F32(rows), width)
}

impl Cpu {
    /// Whether attention's products are those of brain floats. Where these are widened first,
    /// nothing is gained over single precision.
    pub(super) fn attends_in_halves(&self) -> bool {
        self.precision == Precision::Bf16 && self.halves.kernel.multiplies_halves()
    }

    /// A head of whole sequences.
    pub(super) fn forward_head_halves(
        &self,
        head: Head,
        inputs: Inputs<'_>,
        y: Apart<'_>,
        log_sums: &mut [f32],
    ) {
        let padded = head.padded();
        self.forward_halves(head, inputs, |block, sums, out| {
            let shares = &sums.shares[..block.len()];
            log_sums[block.clone()].copy_from_slice(&sums.logs[..block.len()]);
            let rows = MatrixMut { start: out.as_mut_ptr(), row: padded };
            // SAFETY: rows are in whole lanes, and each head has its own columns.
            unsafe {
                scale_rows(self.level, padded, rows, shares);
                self.write_rows(y, head.results().part(&block), out);
            }
        });
    }

    /// A head's queries, block after block. `each` gets the values, times exponentials that nothing
    /// has divided by their sums yet: rows of padded width.
    pub(super) fn forward_halves(
        &self,
        head: Head,
        inputs: Inputs<'_>,
        mut each: impl FnMut(Range<usize>, &Sums, &mut [f32]),
    ) {
        let (kernel, width, keys) = (self.halves.kernel, head.of.head_width, head.of.keys);
        let (padded, row) = (head.padded(), head.padded_keys());
        let _ready = kernel.made_ready();
        let mut memory = self.halves.heads.take();
        let HeadMemory { keys: packed_keys, values, scratch, .. } = &mut memory;
        let [k, v] = head.keys_and_values().map(|columns| columns.halves(inputs.kv));
        packed_keys.fill(kernel, width, keys, k.transposed());
        values.fill(kernel, keys, width, v);
        let mut room = self.scratch(QUERIES * (row + padded));
        let (softmax, out) = room.split_at_mut(QUERIES * row);
        for block in blocks(0..head.of.queries, QUERIES) {
            let (rows, seen) = (block.len(), head.seen(&block));
            let q = head.queries().part(&block).halves(inputs.q);
            let seen_keys = packed_keys.part(0..width, seen);
            let to = output(softmax, row);
            bf16::product_packed(rows, q, seen_keys, Ending::Set, to, scratch);
            let sums = self.softmax_rows(head, inputs.drop, &block, softmax);
            let (a, to) = (operand(softmax, row), output(out, padded));
            let seen_values = values.part(0..seen, width);
            bf16::product_packed(rows, a, seen_values, Ending::Set, to, scratch);
            each(block, &sums, &mut out[..rows * padded]);
        }
        self.halves.heads.give(memory);
    }
}
