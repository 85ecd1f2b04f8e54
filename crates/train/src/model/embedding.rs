//! The first block: tokens become rows of the stream.

use std::ops::Range;

use regatta_comm::CommError;

use super::{Lent, Place, Run};
use crate::memory::{View, ViewMut};
use crate::shape::{Block, Shape};

/// The embedding.
#[derive(Debug, Clone)]
pub struct Embedding {
    tokens: Range<usize>,
    positions: Option<Range<usize>>,
    width: usize,
}

const PLACE: Place = Place { block: 0, part: 0 };

impl Embedding {
    pub(super) fn new(shape: &Shape, block: &Block) -> Self {
        let tokens = block.find("tokens").unwrap_or(0..0);
        Self { tokens, positions: block.find("positions"), width: shape.width }
    }

    /// The table of tokens, which a tied head has, too.
    pub fn table<'a>(&self, params: View<'a>) -> View<'a> {
        params.part(self.tokens.clone())
    }

    /// The same of the gradients.
    pub fn table_of<'a>(&self, grads: ViewMut<'a>) -> ViewMut<'a> {
        grads.split_at(self.tokens.start).1.split_at(self.tokens.len()).0
    }

    /// `x = table[token] + positions[position]`.
    pub fn forward(
        &self,
        run: &Run<'_>,
        params: View<'_>,
        tokens: &[u32],
    ) -> Result<Lent, CommError> {
        let mut x = run.real(run.rows() * self.width);
        let positions = self.positions(run).map(|range| params.part(range));
        run.device.embed(tokens, run.sequence, self.table(params), positions, x.view_mut());
        let mut x = run.tensor.leave(run, x)?;
        if let Some(mask) = run.row_mask(PLACE, self.width) {
            run.device.dropout(mask, x.view_mut());
        }
        Ok(x)
    }

    /// The row of one token at a position of its sequence.
    pub fn one(&self, run: &Run<'_>, params: View<'_>, token: u32, position: usize) -> Lent {
        let mut x = run.real(self.width);
        let at = |range: &Range<usize>| {
            let start = range.start + position * self.width;
            params.part(start..start + self.width)
        };
        let positions = self.positions.as_ref().map(at);
        run.device.embed(&[token], 1, self.table(params), positions, x.view_mut());
        x
    }

    /// Adds to the gradients of the rows that the tokens name.
    pub fn backward(
        &self,
        run: &Run<'_>,
        mut grads: ViewMut<'_>,
        tokens: &[u32],
        mut dx: Lent,
    ) -> Result<(), CommError> {
        if let Some(mask) = run.row_mask(PLACE, self.width) {
            run.device.dropout(mask, dx.view_mut());
        }
        let dx = run.tensor.enter(run, dx)?;
        let Some(positions) = self.positions(run) else {
            let table = grads.part(self.tokens.clone());
            run.device.embed_back(tokens, run.sequence, dx.view(), table, None);
            return Ok(());
        };
        let (mut table, mut behind) = grads.split_at(self.tokens.end);
        let positions = positions.start - self.tokens.end..positions.end - self.tokens.end;
        let (table, positions) = (table.part(self.tokens.clone()), behind.part(positions));
        run.device.embed_back(tokens, run.sequence, dx.view(), table, Some(positions));
        Ok(())
    }

    /// Those that sequences of this length have.
    fn positions(&self, run: &Run<'_>) -> Option<Range<usize>> {
        let all = self.positions.clone()?;
        Some(all.start..all.start + run.sequence * self.width)
    }
}
