//! Attention's backward pass by products of brain floats.

use std::ops::Range;

use super::super::Cpu;
use super::super::bf16::{Ending, product_packed};
use super::super::numbers::Apart;
use super::backward::Pass;
use super::halves::{HeadMemory, QUERIES, operand, output};
use super::{Columns, Head, blocks, take};

/// Scratch memory of a group of heads, in single precision.
struct Room<'a> {
    /// Gradients of all keys and of all values: rows of padded width.
    dk: &'a mut [f32],
    dv: &'a mut [f32],
    /// A block's softmax and the gradient of its scores: rows of all keys.
    p: &'a mut [f32],
    ds: &'a mut [f32],
    /// The gradient of its queries.
    dq: &'a mut [f32],
}

impl Cpu {
    /// All heads of queries that share a head of keys; the first is given.
    pub(super) fn backward_group_halves(&self, first: Head, pass: Pass<'_>) {
        let (of, kernel) = (first.of, self.halves.kernel);
        let (width, padded, keys) = (of.head_width, first.padded(), first.padded_keys());
        let _ready = kernel.made_ready();
        let mut memory = self.halves.heads.take();
        let [k_columns, v_columns] = first.keys_and_values();
        let [k, v] = [k_columns, v_columns].map(|columns| columns.halves(pass.kv));
        memory.keys.fill(kernel, width, of.keys, k.transposed());
        memory.values.fill(kernel, width, of.keys, v.transposed());
        memory.key_rows.fill(kernel, of.keys, width, k);
        let size = of.keys * padded;
        let mut scratch = self.scratch(2 * size + QUERIES * (2 * keys + padded));
        let mut rest = &mut scratch[..];
        let [dk, dv] = [k_columns, v_columns].map(|columns| {
            let room = take(&mut rest, size);
            // SAFETY: each group has its own columns.
            unsafe { self.start_gradient(pass, pass.dkv, columns, room) };
            room
        });
        let [p, ds] = [(); 2].map(|()| take(&mut rest, QUERIES * keys));
        let mut room = Room { dk, dv, p, ds, dq: rest };
        for head in first.head..first.head + of.heads / of.kv_heads {
            self.backward_head_halves(Head { head, ..first }, pass, &mut memory, &mut room);
        }
        // SAFETY: each group has its own columns.
        unsafe {
            self.write_rows(pass.dkv, k_columns, room.dk);
            self.write_rows(pass.dkv, v_columns, room.dv);
        }
        self.halves.heads.give(memory);
    }

    /// What products are added to: what is there, or zeros.
    ///
    /// # Safety
    /// Nobody else may have these columns.
    unsafe fn start_gradient(
        &self,
        pass: Pass<'_>,
        of: Apart<'_>,
        columns: Columns,
        room: &mut [f32],
    ) {
        if pass.add {
            // SAFETY: the caller's promise.
            unsafe { self.read_rows(of, columns, room) };
        } else {
            room.fill(0.0);
        }
    }

    fn backward_head_halves(
        &self,
        head: Head,
        pass: Pass<'_>,
        memory: &mut HeadMemory,
        room: &mut Room<'_>,
    ) {
        let (kernel, queries, width) = (self.halves.kernel, head.of.queries, head.of.head_width);
        memory.query_rows.fill(kernel, queries, width, head.queries().halves(pass.q));
        memory.dy_rows.fill(kernel, queries, width, head.results().halves(pass.dy));
        for block in blocks(0..queries, QUERIES) {
            self.backward_queries_halves(head, pass, &block, memory, room);
            backward_keys_halves(head, &block, memory, room);
        }
    }

    /// A block of queries: their softmax, the gradients of their scores, and their own gradients.
    fn backward_queries_halves(
        &self,
        head: Head,
        pass: Pass<'_>,
        block: &Range<usize>,
        memory: &mut HeadMemory,
        room: &mut Room<'_>,
    ) {
        let (width, padded, keys) = (head.of.head_width, head.padded(), head.padded_keys());
        let (rows, seen) = (block.len(), head.seen(block));
        let HeadMemory { keys: packed_keys, values, key_rows, scratch, .. } = memory;
        let columns = head.queries().part(block);
        let (q, dy) = (columns.halves(pass.q), head.results().part(block).halves(pass.dy));
        let (seen_keys, seen_values) =
            (packed_keys.part(0..width, seen), values.part(0..width, seen));
        product_packed(rows, q, seen_keys, Ending::Set, output(room.p, keys), scratch);
        product_packed(rows, dy, seen_values, Ending::Set, output(room.ds, keys), scratch);
        self.slope_rows(head, &pass, block, room.p, room.ds);
        let dq = &mut room.dq[..rows * padded];
        // SAFETY: each head has its own columns.
        unsafe { self.start_gradient(pass, pass.dq, columns, dq) };
        let (ds, seen_rows) = (operand(room.ds, keys), key_rows.part(0..seen, width));
        product_packed(rows, ds, seen_rows, Ending::Add, output(dq, padded), scratch);
        // SAFETY: as above.
        unsafe { self.write_rows(pass.dq, columns, dq) };
    }
}

/// What a block of queries adds to the gradients of the keys and values that it sees.
fn backward_keys_halves(
    head: Head,
    block: &Range<usize>,
    memory: &mut HeadMemory,
    room: &mut Room<'_>,
) {
    let (width, padded, keys) = (head.of.head_width, head.padded(), head.padded_keys());
    let seen = head.seen(block);
    let HeadMemory { query_rows, dy_rows, scratch, .. } = memory;
    let (p, ds) = (operand(room.p, keys).transposed(), operand(room.ds, keys).transposed());
    let (queries, dy) = (query_rows.part(block.clone(), width), dy_rows.part(block.clone(), width));
    product_packed(seen, p, dy, Ending::Add, output(room.dv, padded), scratch);
    product_packed(seen, ds, queries, Ending::Add, output(room.dk, padded), scratch);
}
