//! Where the queries, keys, values and outputs of heads are.

use std::ops::Range;

use crate::lanes::WIDTH;
use regatta_device::ops::{AttentionChunkShape, AttentionDropout, AttentionShape};
use regatta_device::random::DropoutMask;

/// Strides and offsets of heads in `q`, `kv` and `lse`.
#[derive(Debug, Clone, Copy)]
pub(super) struct QkvLayout {
    /// Elements of a row that has queries.
    pub(super) q_stride: usize,
    /// Elements of a row that has keys and values.
    pub(super) kv_stride: usize,
    /// Offsets of the first head's keys and values in that row.
    pub(super) kv_offsets: [usize; 2],
    /// Stride of `lse` between heads.
    pub(super) lse_head_stride: usize,
    /// Stride of `lse` between queries.
    pub(super) lse_query_stride: usize,
}

impl QkvLayout {
    /// Queries, keys and values in one row; `lse` is head-major.
    pub(super) fn fused(shape: AttentionShape) -> Self {
        let heads = [shape.heads, shape.heads + shape.kv_heads];
        Self {
            q_stride: shape.qkv_dim(),
            kv_stride: shape.qkv_dim(),
            kv_offsets: heads.map(|heads| heads * shape.head_dim),
            lse_head_stride: shape.seq_len,
            lse_query_stride: 1,
        }
    }

    /// Queries separate from keys and values; `lse` is query-major.
    pub(super) fn separate(shape: AttentionChunkShape) -> Self {
        Self {
            q_stride: shape.out_dim(),
            kv_stride: shape.kv_dim(),
            kv_offsets: [0, shape.kv_heads * shape.head_dim],
            lse_head_stride: 1,
            lse_query_stride: shape.heads,
        }
    }
}

/// One head of one sequence.
#[derive(Debug, Clone, Copy)]
pub(super) struct AttentionHead {
    pub(super) shape: AttentionChunkShape,
    pub(super) layout: QkvLayout,
    pub(super) sequence: usize,
    pub(super) head: usize,
}

impl AttentionHead {
    pub(super) fn scale(self) -> f32 {
        (1.0 / (self.shape.head_dim as f64).sqrt()) as f32
    }

    pub(super) fn q_columns(self) -> HeadColumns {
        HeadColumns {
            first_row: self.sequence * self.shape.queries,
            rows: self.shape.queries,
            row_stride: self.layout.q_stride,
            offset: self.head * self.shape.head_dim,
            dim: self.shape.head_dim,
        }
    }

    pub(super) fn y_columns(self) -> HeadColumns {
        HeadColumns { row_stride: self.shape.out_dim(), ..self.q_columns() }
    }

    /// Columns of keys, and of values.
    pub(super) fn kv_columns(self) -> [HeadColumns; 2] {
        let kv_head = self.head / (self.shape.heads / self.shape.kv_heads);
        self.layout.kv_offsets.map(|offset| HeadColumns {
            first_row: self.sequence * self.shape.keys,
            rows: self.shape.keys,
            row_stride: self.layout.kv_stride,
            offset: offset + kv_head * self.shape.head_dim,
            dim: self.shape.head_dim,
        })
    }

    /// Index of a query in `lse`.
    pub(super) fn lse_index(self, query: usize) -> usize {
        let first = self.sequence * self.shape.heads * self.shape.queries;
        first + self.head * self.layout.lse_head_stride + query * self.layout.lse_query_stride
    }

    /// `head_dim`, rounded up to a multiple of [`WIDTH`].
    pub(super) fn padded_dim(self) -> usize {
        self.shape.head_dim.next_multiple_of(WIDTH)
    }

    /// Number of keys, rounded up to a multiple of [`WIDTH`].
    pub(super) fn padded_keys(self) -> usize {
        self.shape.keys.next_multiple_of(WIDTH)
    }

    /// Number of keys that any query of a block attends to.
    pub(super) fn visible_keys(self, block: &Range<usize>) -> usize {
        self.shape.visible_keys(block.end - 1)
    }

    /// Dropout mask of a query.
    pub(super) fn dropout_mask(
        self,
        dropout: Option<AttentionDropout>,
        query: usize,
    ) -> Option<DropoutMask> {
        dropout.map(|dropout| dropout.shard([self.sequence, self.head, query, 0]).mask)
    }
}

/// Columns of one head, of all tokens of a sequence.
#[derive(Debug, Clone, Copy)]
pub(super) struct HeadColumns {
    pub(super) first_row: usize,
    pub(super) rows: usize,
    pub(super) row_stride: usize,
    pub(super) offset: usize,
    pub(super) dim: usize,
}

impl HeadColumns {
    #[inline(always)]
    pub(super) fn range(&self, row: usize) -> Range<usize> {
        let start = (self.first_row + row) * self.row_stride + self.offset;
        start..start + self.dim
    }

    pub(super) fn slice_rows(self, rows: &Range<usize>) -> Self {
        Self { first_row: self.first_row + rows.start, rows: rows.len(), ..self }
    }

    pub(super) fn padded_dim(&self) -> usize {
        self.dim.next_multiple_of(WIDTH)
    }

    /// Whether f32 kernels can use the columns in place, without padding.
    pub(super) fn is_unpadded(&self) -> bool {
        self.dim.is_multiple_of(WIDTH)
    }
}
