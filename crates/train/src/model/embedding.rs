//! The first block: tokens become rows of the stream.

use std::ops::Range;

use super::table::Table;
use super::{Bank, Lent, Matrices, Params, Place, Run};
use crate::state::StepError;
use regatta_device::memory::Tensor;
use regatta_predict::shape::Shape;

/// The embedding.
#[derive(Debug, Clone)]
pub struct Embedding {
    /// The rows of tokens, which a tied head has, too.
    pub table: Table,
    positions: Option<Range<usize>>,
    width: usize,
}

const PLACE: Place = Place { block: 0, part: 0 };

impl Embedding {
    pub(super) fn new(shape: &Shape, of: &Matrices<'_>) -> Self {
        let table = Table::new(shape, 0, of, "tokens");
        Self { table, positions: of.block.find("positions"), width: shape.width }
    }

    /// `x = table[token] + positions[position]`.
    pub fn forward(
        &self,
        run: &Run<'_>,
        params: &mut dyn Params,
        tokens: &[u32],
    ) -> Result<Lent, StepError> {
        let mut x = run.real(run.rows() * self.width);
        self.rows(run, params, tokens, &run.places(), &mut x)?;
        let mut x = run.tensor.leave(run, x)?;
        run.drop_rows(PLACE, self.width, x.view_mut());
        Ok(x)
    }

    /// The row of one token at a position of its sequence.
    pub fn one(
        &self,
        run: &Run<'_>,
        params: &mut dyn Params,
        token: u32,
        position: usize,
    ) -> Result<Lent, StepError> {
        let mut x = run.real(self.width);
        self.rows(run, params, &[token], &[position as u32], &mut x)?;
        Ok(x)
    }

    /// The rows of tokens at places, those of a sequence.
    fn rows(
        &self,
        run: &Run<'_>,
        params: &mut dyn Params,
        tokens: &[u32],
        places: &[u32],
        x: &mut Tensor,
    ) -> Result<(), StepError> {
        for tile in self.table.tiles() {
            self.table.bring(params, tile)?;
            let (first, table) = (self.table.first(tile), self.table.of(params, tile));
            if tile == 0 {
                run.device.embed(tokens, first, table, x.view_mut());
            } else {
                // Each token is in one tile, and zeros in the others.
                let mut more = run.like(x, x.len());
                run.device.embed(tokens, first, table, more.view_mut());
                run.device.add(more.view(), x.view_mut());
            }
            self.table.free(params, tile);
        }
        // Ranks' rows are summed, and positions are to be in the sum once.
        if let Some(positions) = self.positions.clone().filter(|_| run.tensor.share.rank == 0) {
            let positions = params.own().part(positions);
            run.device.add_positions(self.width, places, positions, x.view_mut());
        }
        Ok(())
    }

    /// Adds to the gradients of the rows that the tokens name.
    pub fn backward(
        &self,
        run: &Run<'_>,
        bank: &mut dyn Bank,
        tokens: &[u32],
        mut dx: Lent,
    ) -> Result<(), StepError> {
        run.drop_rows(PLACE, self.width, dx.view_mut());
        let dx = run.tensor.enter(run, dx)?;
        for tile in self.table.tiles() {
            let (first, grads) = (self.table.first(tile), self.table.grads(bank, tile));
            run.device.embed_back(tokens, first, dx.view(), grads);
            self.table.done(bank, tile)?;
        }
        if let Some(positions) = self.positions.clone() {
            let mut grads = bank.grads();
            let positions = grads.part(positions);
            run.device.add_positions_back(self.width, &run.places(), dx.view(), positions);
        }
        Ok(())
    }
}
