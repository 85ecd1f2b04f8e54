//! Token and position embeddings.

use super::Reference;
use crate::ops::{EmbeddingBackwardArgs, EmbeddingOps, PositionBackwardArgs, positioned_rows};
use crate::tensor::{View, ViewMut};

impl EmbeddingOps for Reference {
    fn embedding(&self, tokens: View<'_>, first: usize, table: View<'_>, y: ViewMut<'_>) {
        let tokens = tokens.as_slice::<i32>();
        let (table, y) = (table.as_slice::<f64>(), y.as_slice::<f64>());
        let dim = row_len(y.len(), tokens);
        for (row, token) in tokens.iter().enumerate() {
            let y = &mut y[row * dim..(row + 1) * dim];
            match local_row(*token, first, dim, table.len()) {
                Some(start) => y.copy_from_slice(&table[start..start + dim]),
                None => y.fill(0.0),
            }
        }
    }

    fn embedding_backward(&self, args: EmbeddingBackwardArgs<'_>) {
        let EmbeddingBackwardArgs { tokens, first, dy, dtable } = args;
        let tokens = tokens.as_slice::<i32>();
        let (dy, dtable) = (dy.as_slice::<f64>(), dtable.as_slice::<f64>());
        let dim = row_len(dy.len(), tokens);
        for (row, token) in tokens.iter().enumerate() {
            if let Some(start) = local_row(*token, first, dim, dtable.len()) {
                (0..dim).for_each(|i| dtable[start + i] += dy[row * dim + i]);
            }
        }
    }

    fn add_position_embedding(&self, dim: usize, pos: View<'_>, table: View<'_>, y: ViewMut<'_>) {
        let pos = pos.as_slice::<i32>();
        let (table, y) = (table.as_slice::<f64>(), y.as_slice::<f64>());
        positioned_rows(y.len(), dim, pos.len());
        for (y, position) in y.chunks_exact_mut(dim).zip(pos.iter().cycle()) {
            (0..dim).for_each(|i| y[i] += table[*position as usize * dim + i]);
        }
    }

    fn position_embedding_backward(&self, args: PositionBackwardArgs<'_>) {
        let PositionBackwardArgs { dim, positions, dy, dtable } = args;
        let positions = positions.as_slice::<i32>();
        let (dy, dtable) = (dy.as_slice::<f64>(), dtable.as_slice::<f64>());
        positioned_rows(dy.len(), dim, positions.len());
        for (dy, position) in dy.chunks_exact(dim).zip(positions.iter().cycle()) {
            (0..dim).for_each(|i| dtable[*position as usize * dim + i] += dy[i]);
        }
    }
}

/// Offset of a token's row in the local part of a table, if it is there.
fn local_row(token: i32, first: usize, dim: usize, table_len: usize) -> Option<usize> {
    let start = (token as usize).checked_sub(first)? * dim;
    (start < table_len).then_some(start)
}

fn row_len(elements: usize, tokens: &[i32]) -> usize {
    let dim = elements / tokens.len().max(1);
    assert_eq!(elements, tokens.len() * dim);
    dim
}
