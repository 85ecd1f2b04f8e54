//! Token and position embeddings.

use crate::tensor::{View, ViewMut, row_count};

/// Number of rows of `elements` elements, to which positions repeat for every sequence.
///
/// # Panics
/// If they are not a multiple of the positions.
pub fn positioned_rows(elements: usize, dim: usize, positions: usize) -> usize {
    let rows = row_count(elements, dim);
    assert!(
        rows == 0 || (positions > 0 && rows.is_multiple_of(positions)),
        "{rows} rows are not a multiple of {positions} positions"
    );
    rows
}

/// Arguments of [`EmbeddingOps::embedding_backward`].
#[derive(Debug)]
pub struct EmbeddingBackwardArgs<'a> {
    /// Tokens.
    pub tokens: View<'a>,
    /// Token of the first local row.
    pub first: usize,
    /// Gradient of the output.
    pub dy: View<'a>,
    /// Gradient of the table.
    pub dtable: ViewMut<'a>,
}

/// Arguments of [`EmbeddingOps::position_embedding_backward`].
#[derive(Debug)]
pub struct PositionBackwardArgs<'a> {
    /// Elements of a row.
    pub dim: usize,
    /// Position of each token of a sequence.
    pub positions: View<'a>,
    /// Gradient of the output.
    pub dy: View<'a>,
    /// Gradient of the table.
    pub dtable: ViewMut<'a>,
}

/// Embedding lookups. Tokens and positions have [`super::TOKEN_DTYPE`]. Tables may be vocabulary-parallel:
/// `first` is the token of the first local row.
pub trait EmbeddingOps {
    /// `y = table[token]`, zeros for tokens that are not in the local part of the table.
    fn embedding(&self, tokens: View<'_>, first: usize, table: View<'_>, y: ViewMut<'_>);

    /// Accumulates rows of `dy` into their rows of the local part of `dtable`.
    fn embedding_backward(&self, args: EmbeddingBackwardArgs<'_>);

    /// Adds `table[pos]` to rows of `dim` elements; the positions repeat for every sequence.
    fn add_position_embedding(&self, dim: usize, pos: View<'_>, table: View<'_>, y: ViewMut<'_>);

    /// Accumulates rows of `dy` into their rows of `dtable`.
    fn position_embedding_backward(&self, args: PositionBackwardArgs<'_>);
}
