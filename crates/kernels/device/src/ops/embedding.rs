//! Token and position embeddings.

use crate::tensor::{View, ViewMut};

/// Embedding lookups. Tokens and positions have [`super::TOKEN_DTYPE`]. Tables may be vocabulary-parallel:
/// `first` is the token of the first local row.
pub trait EmbeddingOps {
    /// `y = table[token]`, zeros for tokens that are not in the local part of the table.
    fn embedding(&self, tokens: View<'_>, first: usize, table: View<'_>, y: ViewMut<'_>);

    /// Accumulates rows of `dy` into their rows of the local part of `dtable`.
    fn embedding_backward(&self, tokens: View<'_>, first: usize, dy: View<'_>, dtable: ViewMut<'_>);

    /// Adds `table[pos]` to rows of `dim` elements; the positions repeat for every sequence.
    fn add_position_embedding(&self, dim: usize, pos: View<'_>, table: View<'_>, y: ViewMut<'_>);

    /// Accumulates rows of `dy` into their rows of `dtable`.
    fn position_embedding_backward(
        &self,
        dim: usize,
        positions: View<'_>,
        dy: View<'_>,
        dtable: ViewMut<'_>,
    );
}
