//! How the head chunks its logits, so that the logits of a full micro-batch are never in memory. No I/O.

use std::ops::Range;

use crate::shape::{BlockLayout, ModelShape, Module};

/// Elements of logits in memory at once, approximately.
const MAX_LOGITS: usize = 1 << 22;

/// Partial results of the cross-entropy per row: maximum, sum of exponentials, target logit.
pub const PARTIALS_PER_ROW: usize = 3;

/// The chunking of the logits: the same on all tensor-parallel ranks, which communicate per chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogitChunks {
    /// Columns of a chunk.
    pub columns: usize,
    /// Tiles of the output matrix; 0 if it is not tiled.
    pub tiles: usize,
}

impl LogitChunks {
    /// The chunking for a model.
    pub fn new(shape: &ModelShape, layout: &BlockLayout) -> Self {
        let (user, module) = match shape.tie_embeddings {
            true => (0, Module::TokenEmbedding),
            false => (shape.num_layers + 1, Module::LmHead),
        };
        let matrices = layout.matrices(user);
        let (tiles, _) = matrices.weight(module);
        let largest = tiles.iter().map(|tile| tile.rows.len()).max();
        let columns = largest.unwrap_or(shape.vocab_size.div_ceil(matrices.block.shard.ranks));
        Self { columns, tiles: tiles.len() }
    }

    /// Rows per chunk of `rows` rows.
    pub fn rows(&self, rows: usize) -> usize {
        let max = (MAX_LOGITS / self.columns.max(1)).max(1);
        rows.div_ceil(rows.div_ceil(max).max(1)).max(1)
    }

    /// The row ranges of the chunks: equally long, so that buffers are reused.
    pub fn ranges(&self, rows: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let each = self.rows(rows);
        (0..rows).step_by(each).map(move |start| start..(start + each).min(rows))
    }

    /// Elements of the buffer for one chunk.
    pub fn len(&self, rows: usize) -> usize {
        self.rows(rows) * self.columns
    }

    /// Elements of the head's temporary buffers with `ranks` tensor-parallel ranks.
    pub fn workspace(&self, rows: usize, ranks: usize) -> usize {
        let gathered = if ranks > 1 { ranks + 1 } else { 0 };
        match self.tiles {
            0 => self.len(rows),
            tiles => self.len(rows) + PARTIALS_PER_ROW * rows * (tiles + 1 + gathered),
        }
    }
}
