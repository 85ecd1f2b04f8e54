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

/// Logits that are in memory at once, about.
const MOST: usize = 1 << 22;

/// The head.
#[derive(Debug, Clone)]
pub struct Head {
    norm: Scaling,
    /// Where its own matrix is, if it has one.
    output: Option<Range<usize>>,
    width: usize,
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
    pub table: ViewMut<'a>,
}

impl Head {
    pub(super) fn new(shape: &Shape, block: &Block) -> Self {
        Self {
            norm: Scaling::new(shape, block, "norm"),
            output: block.find("output"),
            width: shape.width,
            vocabulary: shape.vocabulary,
        }
    }

    /// The sum of the cross entropies, without gradients.
    pub fn loss(&self, run: &Run<'_>, params: HeadParams<'_>, x: &Tensor, targets: &[u32]) -> f64 {
        let one = |rows: Range<usize>| {
            let (_, _, mut logits) = self.some(run, params, x, rows.clone());
            run.device.cross_entropy(&targets[rows], logits.view_mut(), None)
        };
        self.chunks(run.rows()).map(one).sum()
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
    ) -> (f64, Lent) {
        let mut dx = run.real(run.rows() * self.width);
        run.device.clear(dx.view_mut());
        let mut loss = 0.0;
        for rows in self.chunks(run.rows()) {
            let (normed, statistics, mut logits) = self.some(run, params, x, rows.clone());
            let targets = &targets[rows.clone()];
            loss += run.device.cross_entropy(targets, logits.view_mut(), Some(scale));
            let of = self.sizes(rows.len());
            let mut dnormed = run.activation(rows.len() * self.width);
            let (dlogits, matrix) = (logits.view(), self.matrix(params));
            run.device.linear_back_input(of, dlogits, matrix, dnormed.view_mut(), false);
            let dmatrix = match self.output.clone() {
                Some(own) => grads.own.part(own),
                None => grads.table.again(),
            };
            run.device.linear_back_weight(of, normed.view(), dlogits, dmatrix, None);
            let here = rows.start * self.width..rows.end * self.width;
            let needed = [x.view().part(here.clone()), statistics.view(), dnormed.view()];
            let mut dx = dx.view_mut();
            self.norm.backward(run, params.own, needed, dx.part(here), &mut grads.own);
        }
        (loss, dx)
    }

    /// The logits of some rows.
    pub fn logits(
        &self,
        run: &Run<'_>,
        params: HeadParams<'_>,
        x: &Tensor,
        rows: Range<usize>,
    ) -> Lent {
        self.some(run, params, x, rows).2
    }

    /// Some rows, normed, with their statistics and logits.
    fn some(
        &self,
        run: &Run<'_>,
        params: HeadParams<'_>,
        x: &Tensor,
        rows: Range<usize>,
    ) -> (Lent, Lent, Lent) {
        let mut normed = run.activation(rows.len() * self.width);
        let mut statistics = run.real(2 * rows.len());
        let x = x.view().part(rows.start * self.width..rows.end * self.width);
        self.norm.forward(run, params.own, x, normed.view_mut(), statistics.view_mut());
        let mut logits = run.real(rows.len() * self.vocabulary);
        let of = self.sizes(rows.len());
        run.device.linear(of, normed.view(), self.matrix(params), None, logits.view_mut());
        (normed, statistics, logits)
    }

    fn matrix<'a>(&self, params: HeadParams<'a>) -> View<'a> {
        self.output.clone().map_or(params.table, |own| params.own.part(own))
    }

    fn sizes(&self, rows: usize) -> Linear {
        Linear { rows, inputs: self.width, outputs: self.vocabulary }
    }

    /// Rows, a few at a time: as many each, so that memory is used again.
    fn chunks(&self, rows: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let most = (MOST / self.vocabulary).max(1);
        let each = rows.div_ceil(rows.div_ceil(most).max(1)).max(1);
        (0..rows).step_by(each).map(move |start| start..(start + each).min(rows))
    }
}
