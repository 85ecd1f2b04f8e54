//! How the head chunks its logits, so that the logits of a full micro-batch are never in memory. No I/O.

use std::ops::Range;

use crate::shape::{BlockLayout, ModelShape, Module, VOCAB_ALIGNMENT};

/// Every chunk reads the output matrix and adds to its gradients: with chunks of 4 Mi logits, a step of
/// GPT-2 124M took twice as long on 16 cores.
const MAX_LOGITS: usize = 1 << 26;

/// A tiled output matrix saves memory, and its tiles stay in caches.
const MAX_TILED_LOGITS: usize = 1 << 22;

/// Partial results of the cross-entropy per row: maximum, sum of exponentials, target logit.
pub const PARTIALS_PER_ROW: usize = 3;

/// The chunking of the logits: the same on all tensor-parallel ranks, which communicate per chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogitChunks {
    /// Columns of a chunk.
    pub columns: usize,
    /// Tiles of the output matrix; 0 if it is not tiled.
    pub tiles: usize,
    /// Elements of logits in memory at once, approximately.
    pub max_logits: usize,
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
        let max_logits = if tiles.is_empty() { MAX_LOGITS } else { MAX_TILED_LOGITS };
        Self { columns, tiles: tiles.len(), max_logits }
    }

    /// With another limit, which does not apply to tiles.
    pub fn with_max_logits(self, max_logits: usize) -> Self {
        if self.tiles == 0 { Self { max_logits, ..self } } else { self }
    }

    /// With padded rows of logits, which tiles do not have.
    pub fn with_padding(self) -> Self {
        let columns = self.columns.next_multiple_of(VOCAB_ALIGNMENT);
        if self.tiles == 0 { Self { columns, ..self } } else { self }
    }

    /// Rows per chunk of `rows` rows.
    pub fn rows(&self, rows: usize) -> usize {
        let max = (self.max_logits / self.columns.max(1)).max(1);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_the_rows_in_equal_parts_within_the_limit() {
        let chunks = LogitChunks { columns: 50_257, tiles: 0, max_logits: MAX_LOGITS };
        assert_eq!(chunks.ranges(2048).collect::<Vec<_>>(), [0..1024, 1024..2048]);
        let chunks = LogitChunks { columns: 10, tiles: 0, max_logits: 45 };
        assert_eq!(chunks.ranges(9).collect::<Vec<_>>(), [0..3, 3..6, 6..9]);
        assert_eq!((chunks.len(9), chunks.ranges(0).count()), (30, 0));
        let padded = LogitChunks { columns: 50_257, tiles: 0, max_logits: 1 }.with_padding();
        assert_eq!((padded.columns, padded.with_padding()), (50_304, padded));
        let tiled = LogitChunks { tiles: 2, ..chunks };
        assert_eq!(tiled.with_padding(), tiled);
        let wide = LogitChunks { columns: 100, ..chunks };
        assert_eq!(wide.ranges(2).collect::<Vec<_>>(), [0..1, 1..2]);
    }
}
