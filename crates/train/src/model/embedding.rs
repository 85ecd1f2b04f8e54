//! The first block: tokens become rows of the stream.

use std::ops::Range;

use super::{Lent, Place, Run};
use crate::memory::{Tensor, View, ViewMut};
use crate::shape::{Block, Shape};
use crate::state::StepError;

/// The embedding.
#[derive(Debug, Clone)]
pub struct Embedding {
    tokens: Range<usize>,
    /// The first token whose row is here; ranks share the table.
    first: usize,
    positions: Option<Range<usize>>,
    width: usize,
}

const PLACE: Place = Place { block: 0, part: 0 };

impl Embedding {
    pub(super) fn new(shape: &Shape, block: &Block) -> Self {
        let tokens = block.find("tokens").unwrap_or(0..0);
        let first = block.share.of(shape.vocabulary).start;
        Self { tokens, first, positions: block.find("positions"), width: shape.width }
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
    ) -> Result<Lent, StepError> {
        let mut x = run.real(run.rows() * self.width);
        self.rows(run, params, tokens, &run.places(), &mut x);
        let mut x = run.tensor.leave(run, x)?;
        run.drop_rows(PLACE, self.width, x.view_mut());
        Ok(x)
    }

    /// The row of one token at a position of its sequence.
    pub fn one(&self, run: &Run<'_>, params: View<'_>, token: u32, position: usize) -> Lent {
        let mut x = run.real(self.width);
        self.rows(run, params, &[token], &[position as u32], &mut x);
        x
    }

    /// The rows of tokens at places, those of a sequence.
    fn rows(
        &self,
        run: &Run<'_>,
        params: View<'_>,
        tokens: &[u32],
        places: &[u32],
        x: &mut Tensor,
    ) {
        run.device.embed(tokens, self.first, self.table(params), x.view_mut());
        // Ranks' rows are summed, and positions are to be in the sum once.
        if let Some(positions) = self.positions.clone().filter(|_| run.tensor.share.rank == 0) {
            let positions = params.part(positions);
            run.device.add_positions(self.width, places, positions, x.view_mut());
        }
    }

    /// Adds to the gradients of the rows that the tokens name.
    pub fn backward(
        &self,
        run: &Run<'_>,
        mut grads: ViewMut<'_>,
        tokens: &[u32],
        mut dx: Lent,
    ) -> Result<(), StepError> {
        run.drop_rows(PLACE, self.width, dx.view_mut());
        let dx = run.tensor.enter(run, dx)?;
        run.device.embed_back(tokens, self.first, dx.view(), grads.part(self.tokens.clone()));
        if let Some(positions) = self.positions.clone() {
            let positions = grads.part(positions);
            run.device.add_positions_back(self.width, &run.places(), dx.view(), positions);
        }
        Ok(())
    }
}
