//! The operands of attention, as the kernels take them.

use regatta_comm::DType;
use regatta_device::ops::{AttentionChunkShape, AttentionDropout, AttentionShape};
use regatta_device::tensor::View;

use crate::elementwise::{are_aligned, is_bf16, to_u32};
use crate::{Arg, Ptr};

/// Largest head dimension of the kernels.
pub(crate) const MAX_HEAD_DIM: usize = 256;

/// Attention of queries to keys, of full sequences or of a chunk of keys.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Problem {
    pub shape: AttentionChunkShape,
    /// Whether the results are accumulated over chunks of keys. Then `lse` is indexed by row and head,
    /// otherwise by sequence, head and token.
    pub is_chunk: bool,
    pub q: Ptr,
    pub k: Ptr,
    pub v: Ptr,
    pub dtype: DType,
    /// Elements between rows of queries.
    pub q_stride: usize,
    /// Elements between rows of keys, and of values.
    pub kv_stride: usize,
    pub dropout: Option<AttentionDropout>,
    /// Key and offset of the dropout mask in device memory, or null; the offset of `dropout` is added.
    pub mask_state: Ptr,
}

impl Problem {
    /// Causal attention with packed queries, keys and values.
    pub fn packed(shape: AttentionShape, qkv: View<'_>, dropout: Option<AttentionDropout>) -> Self {
        let (dtype, q) = (qkv.dtype(), Ptr::of(qkv));
        let [k, v] = packed_offsets(shape).map(|at| q.offset_bytes(at * dtype.size()));
        checked(shape.into());
        Self { q, k, v, ..Self::without_memory(shape, dtype, dropout) }
    }

    /// Causal attention of a shape, for a choice of kernels before there are tensors.
    pub fn without_memory(
        shape: AttentionShape,
        dtype: DType,
        dropout: Option<AttentionDropout>,
    ) -> Self {
        Self {
            shape: shape.into(),
            is_chunk: false,
            q: Ptr::NULL,
            k: Ptr::NULL,
            v: Ptr::NULL,
            dtype,
            q_stride: shape.qkv_dim(),
            kv_stride: shape.qkv_dim(),
            dropout,
            mask_state: Ptr::NULL,
        }
    }

    /// A chunk of queries and a chunk of keys.
    pub fn chunk(
        shape: AttentionChunkShape,
        q: View<'_>,
        kv: View<'_>,
        dropout: Option<AttentionDropout>,
    ) -> Self {
        assert_eq!(q.dtype(), kv.dtype(), "the dtypes of queries and keys differ");
        let values_at = shape.kv_heads * shape.head_dim * kv.dtype().size();
        Self {
            shape: checked(shape),
            is_chunk: true,
            q: Ptr::of(q),
            k: Ptr::of(kv),
            v: Ptr::of(kv).offset_bytes(values_at),
            dtype: kv.dtype(),
            q_stride: shape.out_dim(),
            kv_stride: shape.kv_dim(),
            dropout,
            mask_state: Ptr::NULL,
        }
    }

    /// Whether there is nothing to compute.
    pub fn is_empty(&self) -> bool {
        self.shape.rows() == 0 || self.shape.keys == 0 || self.shape.out_dim() == 0
    }

    /// Whether the tensor-core kernels support the operands.
    pub fn fits_tensor_cores(&self) -> bool {
        let fits = matches!(self.shape.head_dim, 64 | 128) && is_bf16(self.dtype);
        fits && are_aligned(&[self.q, self.k, self.v])
    }

    /// Factor of the scores.
    pub fn scale(&self) -> f32 {
        (1.0 / (self.shape.head_dim as f64).sqrt()) as f32
    }

    /// Blocks of a grid with `rows_per_block` queries of a head each.
    pub fn query_blocks(&self, rows_per_block: usize) -> u32 {
        let AttentionChunkShape { batch, queries, heads, .. } = self.shape;
        to_u32(queries.div_ceil(rows_per_block) * heads * batch)
    }

    /// Blocks of a grid with `rows_per_block` keys of a key/value head each.
    pub fn key_blocks(&self, rows_per_block: usize) -> u32 {
        let AttentionChunkShape { batch, keys, kv_heads, .. } = self.shape;
        to_u32(keys.div_ceil(rows_per_block) * kv_heads * batch)
    }

    /// `DROPOUT_PARAMETERS` of the kernels.
    pub fn dropout_args(&self) -> [Arg; 8] {
        // Without dropout nothing is masked.
        let dropout = self.dropout.unwrap_or_default();
        let mask = dropout.mask;
        [
            self.mask_state.into(),
            mask.key.into(),
            mask.offset.into(),
            dropout.sequence_stride.into(),
            dropout.head_stride.into(),
            dropout.query_stride.into(),
            dropout_threshold(mask.p).into(),
            (1.0 / (1.0 - mask.p)).into(),
        ]
    }
}

/// Arguments in the order of all kernels: pointers, sizes of 32 bits, strides of 64 bits, the scale and the
/// dropout.
pub(crate) fn kernel_args(
    problem: &Problem,
    pointers: &[Ptr],
    sizes: &[usize],
    strides: &[usize],
) -> Vec<Arg> {
    let pointers = pointers.iter().map(|pointer| Arg::from(*pointer));
    let sizes = sizes.iter().map(|size| Arg::from(to_u32(*size)));
    let strides = strides.iter().map(|stride| Arg::from(*stride as u64));
    let operands = pointers.chain(sizes).chain(strides).chain([problem.scale().into()]);
    operands.chain(problem.dropout_args()).collect()
}

/// Where keys and values start in a row of packed queries, keys and values, in elements.
pub(crate) fn packed_offsets(shape: AttentionShape) -> [usize; 2] {
    let AttentionShape { heads, kv_heads, head_dim, .. } = shape;
    [heads * head_dim, (heads + kv_heads) * head_dim]
}

fn checked(shape: AttentionChunkShape) -> AttentionChunkShape {
    let AttentionChunkShape { heads, kv_heads, head_dim, .. } = shape;
    assert!(kv_heads > 0 && heads.is_multiple_of(kv_heads), "heads share key/value heads evenly");
    assert!(head_dim <= MAX_HEAD_DIM, "head_dim {head_dim} is larger than {MAX_HEAD_DIM}");
    shape
}

/// A probability is dropped if its 32 random bits are below this: their upper 24 bits are compared with
/// the dropout probability.
fn dropout_threshold(p: f32) -> u32 {
    ((p * 16_777_216.0).ceil() as u32) << 8
}

#[cfg(test)]
mod tests {
    use regatta_device::random::{DropoutMask, random_u32};

    use super::*;

    #[test]
    fn threshold_drops_the_same_elements_as_the_mask() {
        for p in [0.0, 0.1, 0.3, 1.0 / 3.0, 0.5, 0.999_999_9] {
            let mask = DropoutMask { p, key: 7, offset: 0 };
            let threshold = dropout_threshold(p);
            for index in 0..10_000 {
                let is_dropped = random_u32(7, index) < threshold;
                assert_eq!(is_dropped, mask.factor(index) == 0.0, "p {p}, index {index}");
            }
        }
    }
}
