//! `attention_generic.cu`, and `attention_mma_*.cu` and `attention_mfma_*.cu` of the vendors' matrix units: the
//! same operations, but matrix units multiply bf16.

mod backward;
mod decode;
mod forward;
mod layout;
mod prepare;

use regatta_comm::DType;
use regatta_device::random::random_u32;

use super::super::array::{Array, rounded};
use super::super::launch::{Args, Launch};
use super::Run;
use layout::BlockLayout;

pub(super) fn kernel(operation: &str) -> Option<Run> {
    Some(match operation {
        "attention_generic_forward" => |launch| forward::run(launch, BlockLayout::generic(launch)),
        "attention_mma_forward" => |launch| forward::run(launch, BlockLayout::mma_forward(launch)),
        "attention_mfma_forward" => {
            |launch| forward::run(launch, BlockLayout::mfma(launch, [1, 1]))
        }
        "attention_mfma_backward_kv" => {
            |launch| backward::keys_and_values(launch, BlockLayout::mfma(launch, [2, 2]))
        }
        "attention_mfma_backward_q" => {
            |launch| backward::queries(launch, BlockLayout::mfma(launch, [2, 1]))
        }
        "attention_generic_backward_kv" => {
            |launch| backward::keys_and_values(launch, BlockLayout::generic(launch))
        }
        "attention_mma_backward_kv" => {
            |launch| backward::keys_and_values(launch, BlockLayout::mma_backward(launch, true))
        }
        "attention_generic_backward_q" => {
            |launch| backward::queries(launch, BlockLayout::generic(launch))
        }
        "attention_mma_backward_q" => {
            |launch| backward::queries(launch, BlockLayout::mma_backward(launch, false))
        }
        "attention_prepare_backward" => prepare::run,
        "attention_decode" => decode::run,
        "attention_decode_merge" => decode::merge,
        _ => return None,
    })
}

/// Pointers, sizes and strides that most kernels have.
struct Operands {
    q: Array,
    k: Array,
    v: Array,
    sizes: Sizes,
    q_stride: usize,
    kv_stride: usize,
    head_dim: usize,
    is_causal: bool,
    scale: f32,
    dropout: Dropout,
    /// Whether products are those of tensor cores.
    is_mma: bool,
}

/// Numbers of rows and heads.
#[derive(Clone, Copy)]
struct Sizes {
    batch: usize,
    queries: usize,
    keys: usize,
    heads: usize,
    kv_heads: usize,
}

/// The mask of dropped probabilities.
struct Dropout {
    is_enabled: bool,
    key: u64,
    offset: u64,
    strides: [u64; 3],
    threshold: u32,
    scale: f32,
}

impl Dropout {
    fn new(launch: &Launch<'_>, args: &mut Args<'_>) -> Self {
        let (key, offset) = args.mask();
        Self {
            is_enabled: launch.define("DROPOUT") == 1,
            key,
            offset,
            strides: [args.u64(), args.u64(), args.u64()],
            threshold: args.u32(),
            scale: args.f32(),
        }
    }

    /// Whether the probability of a sequence, head, query and key is dropped.
    fn drops(&self, [sequence, head, query]: [usize; 3], key: usize) -> bool {
        let terms = [sequence, head, query].into_iter().zip(self.strides);
        let index = terms.fold(self.offset.wrapping_add(key as u64), |index, (at, stride)| {
            index.wrapping_add((at as u64).wrapping_mul(stride))
        });
        self.is_enabled && random_u32(self.key, index) < self.threshold
    }
}

impl Operands {
    /// A row of queries of a head.
    fn query(&self, [sequence, head, query]: [usize; 3]) -> Vec<f32> {
        let row = sequence * self.sizes.queries + query;
        self.row(self.q, row * self.q_stride + head * self.head_dim)
    }

    /// The keys or values of a head of a sequence.
    fn rows_of_head(&self, of: Array, sequence: usize, kv_head: usize) -> Vec<Vec<f32>> {
        let row = |key: usize| (sequence * self.sizes.keys + key) * self.kv_stride;
        let start = kv_head * self.head_dim;
        (0..self.sizes.keys).map(|key| self.row(of, row(key) + start)).collect()
    }

    fn row(&self, of: Array, first: usize) -> Vec<f32> {
        of.row(first, self.head_dim, if self.is_mma { 8 } else { 1 })
    }

    /// The key/value head that a head uses.
    fn kv_head(&self, head: usize) -> usize {
        head / (self.sizes.heads / self.sizes.kv_heads)
    }

    /// Number of keys that a query attends to.
    fn visible_keys(&self, query: usize) -> usize {
        if self.is_causal { self.sizes.keys.min(query + 1) } else { self.sizes.keys }
    }

    /// An operand of a product.
    fn operand(&self, value: f32) -> f32 {
        rounded(value, if self.is_mma { DType::Bf16 } else { DType::F32 })
    }
}

/// Elements from the first to the last that rows of a tensor use.
fn extent(rows: usize, stride: usize, row_len: usize) -> usize {
    if rows == 0 { 0 } else { (rows - 1) * stride + row_len }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; 8];
    for (a, b) in a.chunks(8).zip(b.chunks(8)) {
        sums.iter_mut().zip(a).zip(b).for_each(|((sum, a), b)| *sum += a * b);
    }
    sums.iter().sum()
}

/// Adds a multiple of a row.
fn add_row(to: &mut [f32], factor: f32, row: &[f32]) {
    to.iter_mut().zip(row).for_each(|(to, x)| *to += factor * x);
}
