//! Backward pass.

use regatta_comm::DType;

use super::super::super::array::Array;
use super::super::super::launch::{Args, Launch};
use super::{BlockLayout, Dropout, Operands, Sizes, add_row, dot, extent};
use crate::Ptr;

/// What both kernels read.
struct Backward {
    operands: Operands,
    dy: Array,
    /// The log-sum-exp times log2(e), and delta, of each head and padded query.
    lse: Array,
    delta: Array,
    padded_queries: usize,
    /// Elements between rows of the gradients.
    grad_stride: usize,
    grad_dtype: DType,
    accumulates: bool,
}

/// The arguments before and after the gradients.
struct Pointers {
    q: Ptr,
    k: Ptr,
    v: Ptr,
    dy: Ptr,
    lse: Ptr,
    delta: Ptr,
}

impl Pointers {
    fn new(args: &mut Args<'_>) -> Self {
        Self {
            q: args.ptr(),
            k: args.ptr(),
            v: args.ptr(),
            dy: args.ptr(),
            lse: args.ptr(),
            delta: args.ptr(),
        }
    }
}

impl Backward {
    /// `by_query` tells whether blocks have queries or keys.
    fn new(
        launch: &Launch<'_>,
        layout: BlockLayout,
        pointers: Pointers,
        args: &mut Args<'_>,
        by_query: bool,
    ) -> Self {
        let [queries, keys, padded_queries, heads, kv_heads] = [(); 5].map(|()| args.size32());
        let [q_stride, kv_stride, grad_stride] = [(); 3].map(|()| args.size());
        let scale = args.f32();
        let dropout = Dropout::new(launch, args);
        let (rows, row_heads) = if by_query { (queries, heads) } else { (keys, kv_heads) };
        let batch = layout.batch(launch, rows, row_heads);
        // Blocks and loops read the statistics of all of their queries.
        let read = queries.next_multiple_of(if by_query { layout.rows } else { layout.loop_rows });
        assert!(!layout.is_mma || padded_queries >= read, "{padded_queries} padded queries");
        let head_dim = launch.define("HEAD_DIM");
        let is_mma = layout.is_mma;
        let dtype = |name| if is_mma { DType::Bf16 } else { launch.dtype(name) };
        let accumulates = launch.define("ACCUMULATE") == 1;
        let grad_dtype = if is_mma && accumulates { DType::F32 } else { dtype("OUT_BF16") };
        let statistics = batch * heads * padded_queries;
        let key_extent = extent(batch * keys, kv_stride, kv_heads * head_dim);
        let query_extent = extent(batch * queries, q_stride, heads * head_dim);
        let operands = Operands {
            q: launch.array(pointers.q, dtype("IN_BF16"), query_extent),
            k: launch.array(pointers.k, dtype("IN_BF16"), key_extent),
            v: launch.array(pointers.v, dtype("IN_BF16"), key_extent),
            sizes: Sizes { batch, queries, keys, heads, kv_heads },
            q_stride,
            kv_stride,
            head_dim,
            is_causal: launch.define("CAUSAL") == 1,
            scale,
            dropout,
            is_mma,
        };
        let dy_len = batch * queries * heads * head_dim;
        Self {
            operands,
            dy: launch.array(pointers.dy, dtype("DY_BF16"), dy_len),
            lse: launch.array(pointers.lse, DType::F32, statistics),
            delta: launch.array(pointers.delta, DType::F32, statistics),
            padded_queries,
            grad_stride,
            grad_dtype,
            accumulates,
        }
    }

    /// Calls a function for each visible pair of a query and a key of a head, with the probability after
    /// dropout without its scale and the gradient of the score without its scale.
    fn for_pairs(&self, sequence: usize, head: usize, mut each: impl FnMut(Pair<'_>)) {
        let operands = &self.operands;
        let Sizes { queries, heads, .. } = operands.sizes;
        let kv_head = operands.kv_head(head);
        let keys = operands.rows_of_head(operands.k, sequence, kv_head);
        let values = operands.rows_of_head(operands.v, sequence, kv_head);
        for query in 0..queries {
            let index = [sequence, head, query];
            let q = operands.query(index);
            let row_head = (sequence * queries + query) * heads + head;
            let dy = operands.row(self.dy, row_head * operands.head_dim);
            let at = (sequence * heads + head) * self.padded_queries + query;
            let (lse, delta) = (self.lse.get(at), self.delta.get(at));
            let scale_log2 = operands.scale * std::f32::consts::LOG2_E;
            for key in 0..operands.visible_keys(query) {
                let p = dot(&q, &keys[key]).mul_add(scale_log2, -lse).exp2();
                let is_dropped = operands.dropout.drops(index, key);
                let kept = if is_dropped { 0.0 } else { p };
                let factor = if is_dropped { 0.0 } else { operands.dropout.scale };
                let ds = operands.operand(p * (dot(&dy, &values[key]) * factor - delta));
                let p = operands.operand(kept);
                each(Pair { query, key, q: &q, k: &keys[key], dy: &dy, p, ds });
            }
        }
    }

    /// The gradient of `rows` rows of `heads` heads.
    fn grads(&self, launch: &Launch<'_>, start: Ptr, rows: usize, heads: usize) -> Grads {
        let head_dim = self.operands.head_dim;
        let rows = self.operands.sizes.batch * rows;
        let len = extent(rows, self.grad_stride, heads * head_dim);
        let to = launch.array(start, self.grad_dtype, len);
        let sums = vec![vec![0.0; heads * head_dim]; rows];
        Grads { to, sums, stride: self.grad_stride, accumulates: self.accumulates, head_dim }
    }
}

struct Pair<'a> {
    query: usize,
    key: usize,
    q: &'a [f32],
    k: &'a [f32],
    dy: &'a [f32],
    p: f32,
    ds: f32,
}

/// A gradient.
struct Grads {
    to: Array,
    sums: Vec<Vec<f32>>,
    stride: usize,
    head_dim: usize,
    accumulates: bool,
}

impl Grads {
    fn add(&mut self, row: usize, head: usize, factor: f32, x: &[f32]) {
        let first = head * self.head_dim;
        add_row(&mut self.sums[row][first..first + self.head_dim], factor, x);
    }

    /// Writes the sums times a factor, or adds them.
    fn store(self, factor: f32) {
        for (row, sums) in self.sums.iter().enumerate() {
            for (column, sum) in sums.iter().enumerate() {
                let at = row * self.stride + column;
                let old = if self.accumulates { self.to.get(at) } else { 0.0 };
                self.to.set(at, old + sum * factor);
            }
        }
    }
}

pub(super) fn keys_and_values(launch: &Launch<'_>, layout: BlockLayout) {
    let mut args = launch.args();
    let pointers = Pointers::new(&mut args);
    let (dk, dv) = (args.ptr(), args.ptr());
    let backward = Backward::new(launch, layout, pointers, &mut args, false);
    let Sizes { batch, keys, heads, kv_heads, .. } = backward.operands.sizes;
    let mut dk = backward.grads(launch, dk, keys, kv_heads);
    let mut dv = backward.grads(launch, dv, keys, kv_heads);
    for (sequence, head) in (0..batch).flat_map(|at| (0..heads).map(move |head| (at, head))) {
        let kv_head = backward.operands.kv_head(head);
        backward.for_pairs(sequence, head, |pair| {
            let row = sequence * keys + pair.key;
            dk.add(row, kv_head, pair.ds, pair.q);
            dv.add(row, kv_head, pair.p, pair.dy);
        });
    }
    dk.store(backward.operands.scale);
    dv.store(backward.operands.dropout.scale);
}

pub(super) fn queries(launch: &Launch<'_>, layout: BlockLayout) {
    let mut args = launch.args();
    let pointers = Pointers::new(&mut args);
    let dq = args.ptr();
    let backward = Backward::new(launch, layout, pointers, &mut args, true);
    let Sizes { batch, queries, heads, .. } = backward.operands.sizes;
    let mut dq = backward.grads(launch, dq, queries, heads);
    for (sequence, head) in (0..batch).flat_map(|at| (0..heads).map(move |head| (at, head))) {
        backward.for_pairs(sequence, head, |pair| {
            dq.add(sequence * queries + pair.query, head, pair.ds, pair.k);
        });
    }
    dq.store(backward.operands.scale);
}
