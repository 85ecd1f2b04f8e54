//! The last block: rows of the stream become the loss.
//!
//! A row of logits has a number for each kind of token, far more than the stream. They are made, used
//! and forgotten for a few rows at a time, together with their gradients, so that the whole never is
//! in memory: the loss and the first step of the backward pass are one.
//!
//! Where the matrix is in tiles, these come one after the other, each for all rows, and come again for
//! the gradients: a row's loss must be known before any of its logits has a gradient. So logits are
//! computed twice, and never kept.

use std::ops::Range;

use super::parts::Scaling;
use super::table::Table;
use super::{Bank, Lent, Matrices, Params, Run};
use crate::state::StepError;
use regatta_device::memory::{Tensor, View, ViewMut};
use regatta_predict::head::{LogitChunks, PARTIALS_PER_ROW};
use regatta_predict::shape::Shape;

/// The head.
#[derive(Debug, Clone)]
pub struct Head {
    norm: Scaling,
    /// Its matrix, which may be the embedding's.
    pub table: Table,
    width: usize,
    logits: LogitChunks,
}

impl Head {
    /// With a matrix of its own, or with that of the embedding.
    pub(super) fn new(
        shape: &Shape,
        of: &Matrices<'_>,
        tied: Option<&Table>,
        logits: LogitChunks,
    ) -> Self {
        let own = || Table::new(shape, shape.layers + 1, of, "output");
        let table = tied.cloned().unwrap_or_else(own);
        Self { norm: Scaling::new(shape, of.block, "norm"), table, width: shape.width, logits }
    }

    /// The sum of the cross entropies, without gradients.
    pub fn loss(
        &self,
        run: &Run<'_>,
        params: &mut dyn Params,
        x: &Tensor,
        targets: &[u32],
    ) -> Result<f64, StepError> {
        let (normed, _) = self.normed(run, params, x)?;
        if self.table.is_tiled() {
            return Ok(self.entropies(run, params, (&normed, targets), false)?.0);
        }
        let (mut room, mut loss) = (self.room(run), 0.0);
        self.table.bring(params, 0)?;
        for rows in self.logits.ranges(run.rows()) {
            let mut logits = self.some(run, params, 0, (&normed, rows.clone()), &mut room);
            loss += self.entropy(run, &targets[rows], &mut logits, None)?;
        }
        self.table.free(params, 0);
        Ok(loss)
    }

    /// The same, and the gradients, times the scale: those of the parameters are added to what is
    /// there, that of the stream is returned.
    pub fn loss_and_gradients(
        &self,
        run: &Run<'_>,
        bank: &mut dyn Bank,
        (x, targets): (&Tensor, &[u32]),
        scale: f64,
    ) -> Result<(f64, Lent), StepError> {
        let (normed, statistics) = self.normed(run, bank, x)?;
        let mut dnormed = run.activation(run.rows() * self.width);
        let loss = match self.table.is_tiled() {
            true => self.tile_by_tile(run, bank, (&normed, targets), scale, &mut dnormed)?,
            false => self.at_once(run, bank, (&normed, targets), scale, &mut dnormed)?,
        };
        let dnormed = run.tensor.leave(run, dnormed)?;
        let mut dx = run.real(x.len());
        run.device.clear(dx.view_mut());
        let needed = [x.view(), statistics.view(), dnormed.view()];
        let (params, mut grads) = bank.both();
        self.norm.backward(run, params, needed, dx.view_mut(), &mut grads);
        Ok((loss, dx))
    }

    /// The loss and the gradients of a few rows after the others, with all of the matrix.
    fn at_once(
        &self,
        run: &Run<'_>,
        bank: &mut dyn Bank,
        (normed, targets): (&Tensor, &[u32]),
        scale: f64,
        dnormed: &mut Tensor,
    ) -> Result<f64, StepError> {
        let (mut room, mut loss) = (self.room(run), 0.0);
        self.table.bring(bank, 0)?;
        for rows in self.logits.ranges(run.rows()) {
            let mut logits = self.some(run, bank, 0, (normed, rows.clone()), &mut room);
            loss += self.entropy(run, &targets[rows.clone()], &mut logits, Some(scale))?;
            self.back(run, bank, 0, (normed, rows), logits.view(), dnormed);
        }
        self.table.free(bank, 0);
        self.table.done(bank, 0)?;
        Ok(loss)
    }

    /// The loss of all rows, tile by tile; then the gradients, tile by tile.
    fn tile_by_tile(
        &self,
        run: &Run<'_>,
        bank: &mut dyn Bank,
        (normed, targets): (&Tensor, &[u32]),
        scale: f64,
        dnormed: &mut Tensor,
    ) -> Result<f64, StepError> {
        let (loss, whole) = self.entropies(run, bank, (normed, targets), true)?;
        let mut room = self.room(run);
        for tile in self.table.tiles() {
            self.table.bring(bank, tile)?;
            for rows in self.logits.ranges(run.rows()) {
                let mut logits = self.some(run, bank, tile, (normed, rows.clone()), &mut room);
                let whole =
                    whole.view().part(PARTIALS_PER_ROW * rows.start..PARTIALS_PER_ROW * rows.end);
                let (targets, first) = (&targets[rows.clone()], self.table.first(tile));
                run.device.entropy_back(targets, first, whole, logits.again(), scale);
                self.back(run, bank, tile, (normed, rows), logits.view(), dnormed);
            }
            self.table.free(bank, tile);
            self.table.done(bank, tile)?;
        }
        Ok(loss)
    }

    /// The gradients by way of the logits of some rows and a tile: the first tile's are those of the
    /// stream, others' are added.
    fn back(
        &self,
        run: &Run<'_>,
        bank: &mut dyn Bank,
        tile: usize,
        (normed, rows): (&Tensor, Range<usize>),
        dlogits: View<'_>,
        dnormed: &mut Tensor,
    ) {
        let (of, here) = (self.table.sizes(tile, rows.len()), self.numbers(rows));
        let (mut dx, add) = (dnormed.view_mut(), tile > 0);
        let dx = dx.part(here.clone());
        run.device.linear_back_input(of, dlogits, self.table.of(bank, tile), dx, add);
        let (normed, grads) = (normed.view().part(here), self.table.grads(bank, tile));
        run.device.linear_back_weight(of, normed, dlogits, grads, None);
    }

    /// The sum of the cross entropies of all rows, and what their gradients need, tile by tile. These
    /// may be needed again at once.
    fn entropies(
        &self,
        run: &Run<'_>,
        params: &mut dyn Params,
        (normed, targets): (&Tensor, &[u32]),
        again: bool,
    ) -> Result<(f64, Lent), StepError> {
        let (mut room, all) = (self.room(run), run.rows());
        let mut parts = run.real(self.table.tiles().len() * PARTIALS_PER_ROW * all);
        for tile in self.table.tiles() {
            self.table.bring(params, tile)?;
            if again && tile + 1 == self.table.tiles().len() {
                self.table.ask(params);
            }
            for rows in self.logits.ranges(all) {
                let logits = self.some(run, params, tile, (normed, rows.clone()), &mut room);
                let here = PARTIALS_PER_ROW * (tile * all + rows.start)
                    ..PARTIALS_PER_ROW * (tile * all + rows.end);
                let (mut parts, first) = (parts.view_mut(), self.table.first(tile));
                run.device.entropy_part(&targets[rows], first, logits.view(), parts.part(here));
            }
            self.table.free(params, tile);
        }
        let mut own = run.real(PARTIALS_PER_ROW * all);
        let loss = run.device.entropy_whole(parts.view(), own.view_mut());
        if run.tensor.share.ranks == 1 { Ok((loss, own)) } else { self.together(run, own) }
    }

    /// What ranks know of their columns becomes what is to be known of all, and the loss.
    fn together(&self, run: &Run<'_>, own: Lent) -> Result<(f64, Lent), StepError> {
        let mut whole = run.real(own.len());
        let parts = run.tensor.together(run, own)?;
        let loss = run.device.entropy_whole(parts.view(), whole.view_mut());
        Ok((loss, whole))
    }

    /// The sum of the cross entropies of some rows of logits, of which this rank may have some
    /// columns. With a scale, they become their gradient.
    fn entropy(
        &self,
        run: &Run<'_>,
        targets: &[u32],
        logits: &mut ViewMut<'_>,
        scale: Option<f64>,
    ) -> Result<f64, StepError> {
        let device = run.device;
        if run.tensor.share.ranks == 1 {
            return Ok(device.cross_entropy(targets, logits.again(), scale));
        }
        let (mut own, first) = (run.real(PARTIALS_PER_ROW * targets.len()), self.table.first(0));
        device.entropy_part(targets, first, logits.view(), own.view_mut());
        let (loss, whole) = self.together(run, own)?;
        if let Some(scale) = scale {
            device.entropy_back(targets, first, whole.view(), logits.again(), scale);
        }
        Ok(loss)
    }

    /// The logits of some rows.
    pub fn logits(
        &self,
        run: &Run<'_>,
        params: &mut dyn Params,
        x: &Tensor,
        rows: Range<usize>,
    ) -> Result<Lent, StepError> {
        let (normed, _) = self.normed(run, params, x)?;
        let kinds = self.table.all_rows();
        let mut logits = run.real(rows.len() * kinds);
        let mut room = run.real(rows.len() * self.table.most_rows());
        for tile in self.table.tiles() {
            self.table.bring(params, tile)?;
            let some = self.some(run, params, tile, (&normed, rows.clone()), &mut room);
            let columns = self.table.rows(tile);
            run.device.put_columns(some.view(), logits.view_mut(), kinds, columns);
            self.table.free(params, tile);
        }
        Ok(logits)
    }

    /// All rows, normed, and the statistics of this rank's.
    fn normed(
        &self,
        run: &Run<'_>,
        params: &dyn Params,
        x: &Tensor,
    ) -> Result<(Lent, Lent), StepError> {
        let mut normed = run.activation(x.len());
        let mut statistics = run.real(2 * run.own_rows());
        self.norm.forward(run, params.own(), x.view(), normed.view_mut(), statistics.view_mut());
        Ok((run.tensor.enter(run, normed)?, statistics))
    }

    /// The logits of some normed rows for the tokens of a tile.
    fn some<'r>(
        &self,
        run: &Run<'_>,
        params: &dyn Params,
        tile: usize,
        (normed, rows): (&Tensor, Range<usize>),
        room: &'r mut Tensor,
    ) -> ViewMut<'r> {
        let of = self.table.sizes(tile, rows.len());
        let (mut logits, _) = room.view_mut().split_at(of.rows * of.outputs);
        let normed = normed.view().part(self.numbers(rows));
        run.device.linear(of, normed, self.table.of(params, tile), None, logits.again());
        logits
    }

    /// Room for logits of a few rows.
    fn room(&self, run: &Run<'_>) -> Lent {
        run.real(self.logits.len(run.rows()))
    }

    /// Where the numbers of some rows of the stream are.
    fn numbers(&self, rows: Range<usize>) -> Range<usize> {
        rows.start * self.width..rows.end * self.width
    }
}
