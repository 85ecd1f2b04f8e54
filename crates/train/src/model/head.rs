//! The last block: rows of the stream become the loss.
//!
//! A row of logits has a number for each kind of token, far more than the stream. They are made, used
//! and forgotten for a few rows at a time, together with their gradients, so that the whole never is
//! in memory: the loss and the first step of the backward pass are one.

use std::ops::Range;

use super::parts::Scaling;
use super::{Lent, Run};
use crate::device::Linear;
use crate::memory::{Tensor, View, ViewMut};
use crate::shape::{Block, Shape};
use crate::state::StepError;

/// Logits that are in memory at once, about.
const MOST: usize = 1 << 22;

/// The head.
#[derive(Debug, Clone)]
pub struct Head {
    norm: Scaling,
    /// Where its own matrix is, if it has one.
    output: Option<Range<usize>>,
    width: usize,
    /// The tokens whose logits this rank has.
    first: usize,
    vocabulary: usize,
}

/// Its parameters.
#[derive(Debug, Clone, Copy)]
pub struct HeadParams<'a> {
    /// Those of its own block.
    pub own: View<'a>,
    /// The embedding's table, if the head is tied to it.
    pub table: View<'a>,
}

/// Where their gradients are added.
#[derive(Debug)]
pub struct HeadGrads<'a> {
    /// Those of its own block.
    pub own: ViewMut<'a>,
    /// The embedding's table, if the head is tied to it.
    pub table: Option<ViewMut<'a>>,
}

impl Head {
    pub(super) fn new(shape: &Shape, block: &Block) -> Self {
        let own = block.share.of(shape.vocabulary);
        Self {
            norm: Scaling::new(shape, block, "norm"),
            output: block.find("output"),
            width: shape.width,
            first: own.start,
            vocabulary: own.len(),
        }
    }

    /// The sum of the cross entropies, without gradients.
    pub fn loss(
        &self,
        run: &Run<'_>,
        params: HeadParams<'_>,
        x: &Tensor,
        targets: &[u32],
    ) -> Result<f64, StepError> {
        let (normed, _) = self.normed(run, params, x)?;
        let mut loss = 0.0;
        for rows in self.chunks(run.rows()) {
            let mut logits = self.some(run, params, &normed, rows.clone());
            loss += self.entropy(run, &targets[rows], &mut logits, None)?;
        }
        Ok(loss)
    }

    /// The same, and the gradients, times the scale: those of the parameters are added to `grads`,
    /// that of the stream is returned.
    pub fn loss_and_gradients(
        &self,
        run: &Run<'_>,
        params: HeadParams<'_>,
        grads: &mut HeadGrads<'_>,
        (x, targets): (&Tensor, &[u32]),
        scale: f64,
    ) -> Result<(f64, Lent), StepError> {
        let (normed, statistics) = self.normed(run, params, x)?;
        let mut dnormed = run.activation(run.rows() * self.width);
        let mut loss = 0.0;
        for rows in self.chunks(run.rows()) {
            let mut logits = self.some(run, params, &normed, rows.clone());
            let targets = &targets[rows.clone()];
            loss += self.entropy(run, targets, &mut logits, Some(scale))?;
            let (of, here) = (self.sizes(rows.len()), self.numbers(rows));
            let (dlogits, matrix, mut dx) =
                (logits.view(), self.matrix(params), dnormed.view_mut());
            run.device.linear_back_input(of, dlogits, matrix, dx.part(here.clone()), false);
            let dmatrix = match (self.output.clone(), &mut grads.table) {
                (None, Some(table)) => table.again(),
                (own, _) => grads.own.part(own.unwrap_or(0..0)),
            };
            run.device.linear_back_weight(of, normed.view().part(here), dlogits, dmatrix, None);
        }
        let dnormed = run.tensor.leave(run, dnormed)?;
        let mut dx = run.real(x.len());
        run.device.clear(dx.view_mut());
        let needed = [x.view(), statistics.view(), dnormed.view()];
        self.norm.backward(run, params.own, needed, dx.view_mut(), &mut grads.own);
        Ok((loss, dx))
    }

    /// The sum of the cross entropies of some rows of logits, of which this rank may have some
    /// columns. With a scale, they become their gradient.
    fn entropy(
        &self,
        run: &Run<'_>,
        targets: &[u32],
        logits: &mut Tensor,
        scale: Option<f64>,
    ) -> Result<f64, StepError> {
        let device = run.device;
        if run.tensor.share.ranks == 1 {
            return Ok(device.cross_entropy(targets, logits.view_mut(), scale));
        }
        let mut parts = run.real(3 * targets.len());
        device.entropy_part(targets, self.first, logits.view(), parts.view_mut());
        let parts = run.tensor.together(run, parts)?;
        let mut whole = run.real(2 * targets.len());
        let loss = device.entropy_whole(parts.view(), whole.view_mut());
        if let Some(scale) = scale {
            device.entropy_back(targets, self.first, whole.view(), logits.view_mut(), scale);
        }
        Ok(loss)
    }

    /// The logits of some rows.
    pub fn logits(
        &self,
        run: &Run<'_>,
        params: HeadParams<'_>,
        x: &Tensor,
        rows: Range<usize>,
    ) -> Result<Lent, StepError> {
        let (normed, _) = self.normed(run, params, x)?;
        Ok(self.some(run, params, &normed, rows))
    }

    /// All rows, normed, and the statistics of this rank's.
    fn normed(
        &self,
        run: &Run<'_>,
        params: HeadParams<'_>,
        x: &Tensor,
    ) -> Result<(Lent, Lent), StepError> {
        let mut normed = run.activation(x.len());
        let mut statistics = run.real(2 * run.own_rows());
        self.norm.forward(run, params.own, x.view(), normed.view_mut(), statistics.view_mut());
        Ok((run.tensor.enter(run, normed)?, statistics))
    }

    /// The logits of some normed rows.
    fn some(
        &self,
        run: &Run<'_>,
        params: HeadParams<'_>,
        normed: &Tensor,
        rows: Range<usize>,
    ) -> Lent {
        let mut logits = run.real(rows.len() * self.vocabulary);
        let (of, matrix) = (self.sizes(rows.len()), self.matrix(params));
        let normed = normed.view().part(self.numbers(rows));
        run.device.linear(of, normed, matrix, None, logits.view_mut());
        logits
    }

    /// Where the numbers of some rows of the stream are.
    fn numbers(&self, rows: Range<usize>) -> Range<usize> {
        rows.start * self.width..rows.end * self.width
    }

    fn matrix<'a>(&self, params: HeadParams<'a>) -> View<'a> {
        self.output.clone().map_or(params.table, |own| params.own.part(own))
    }

    fn sizes(&self, rows: usize) -> Linear {
        Linear { rows, inputs: self.width, outputs: self.vocabulary }
    }

    /// Rows, a few at a time: as many each, so that memory is used again.
    fn chunks(&self, rows: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let each = rows_at_once(rows, self.vocabulary);
        (0..rows).step_by(each).map(move |start| start..(start + each).min(rows))
    }
}

/// How many of so many rows have their logits in memory at once, each of so many kinds of tokens.
pub fn rows_at_once(rows: usize, vocabulary: usize) -> usize {
    let most = (MOST / vocabulary.max(1)).max(1);
    rows.div_ceil(rows.div_ceil(most).max(1)).max(1)
}
