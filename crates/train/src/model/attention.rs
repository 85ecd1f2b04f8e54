//! The first half of a layer: tokens look at those before them.

use super::parts::Scaling;
use super::product::Product;
use super::{Bank, Held, Lent, Matrices, Params, Place, Run};
use crate::state::StepError;
use regatta_device::device::{Attention, AttentionDrop, AttentionSaved, Turn};
use regatta_device::memory::{Tensor, View, ViewMut};
use regatta_predict::shape::{Family, Shape};

/// The attention half.
#[derive(Debug, Clone)]
pub struct AttentionHalf {
    pub(super) norm: Scaling,
    pub(super) qkv: Product,
    pub(super) proj: Product,
    heads: usize,
    kv_heads: usize,
    head_width: usize,
    pub(super) width: usize,
    /// The base of rotary positions, if positions are that.
    pub(super) rope: Option<f64>,
    block: usize,
}

/// What its backward pass needs.
#[derive(Debug)]
pub struct AttentionHalfSaved {
    normed: Lent,
    statistics: Lent,
    qkv: Lent,
    heads: Lent,
    log_sums: Lent,
}

impl AttentionHalfSaved {
    /// Queries, keys and values.
    pub fn qkv(&self) -> &Tensor {
        &self.qkv
    }
}

impl AttentionHalf {
    pub fn new(shape: &Shape, layer: usize, of: &Matrices<'_>) -> Self {
        let ranks = of.block.share.ranks;
        Self {
            norm: Scaling::new(shape, of.block, "norm1"),
            qkv: Product::expanding(of, "qkv"),
            proj: Product::contracting(of, "proj"),
            heads: shape.heads / ranks,
            kv_heads: shape.kv_heads / ranks,
            head_width: shape.head_width(),
            width: shape.width,
            rope: (shape.family == Family::Llama).then_some(shape.rope_base),
            block: layer + 1,
        }
    }

    /// The sizes of attention in a pass.
    pub fn sizes(&self, run: &Run<'_>) -> Attention {
        let Self { heads, kv_heads, head_width, .. } = *self;
        Attention { batch: run.batch, sequence: run.sequence, heads, kv_heads, head_width }
    }

    /// `mid = x + dropout(proj(attention(qkv(norm(x)))))`.
    pub fn forward(
        &self,
        run: &Run<'_>,
        params: &mut dyn Params,
        x: &Tensor,
    ) -> Result<(AttentionHalfSaved, Lent), StepError> {
        let (device, rows, sizes) = (run.device, run.rows(), self.sizes(run));
        let own = run.own_rows();
        let mut normed = run.activation(own * self.width);
        let mut statistics = run.real(2 * own);
        self.norm.forward(run, params.own(), x.view(), normed.view_mut(), statistics.view_mut());
        let normed = run.tensor.enter(run, normed)?;
        let mut qkv = run.activation(rows * sizes.qkv_width());
        self.qkv.forward(run, params, &normed, &mut qkv)?;
        self.turn(run, Turn::There, qkv.view_mut());
        let (heads, log_sums) = self.look(run, qkv.view())?;
        let mut out = run.activation(rows * self.width);
        self.proj.forward(run, params, &heads, &mut out)?;
        let mut out = run.tensor.leave(run, out)?;
        run.drop_rows(self.output_place(), self.width, out.view_mut());
        let mut mid = run.real(own * self.width);
        device.sum(x.view(), out.view(), mid.view_mut());
        Ok((AttentionHalfSaved { normed, statistics, qkv, heads, log_sums }, mid))
    }

    /// `dx`, the gradient of `mid`, becomes that of `x`.
    pub fn backward(
        &self,
        run: &Run<'_>,
        bank: &mut dyn Bank,
        (x, saved): (&Tensor, AttentionHalfSaved),
        dx: &mut Tensor,
    ) -> Result<(), StepError> {
        let (rows, sizes) = (run.rows(), self.sizes(run));
        let dropped = run.dropped(self.output_place(), self.width, dx);
        let dout = run.tensor.gather(run, dropped)?;
        let mut dheads = run.activation(rows * sizes.width());
        self.proj.back_input(run, bank, &dout, &mut dheads)?;
        let mut dqkv = self.look_back(run, &saved, dheads.view())?;
        self.proj.back_weight(run, saved.heads, dout, bank)?;
        self.turn(run, Turn::Back, dqkv.view_mut());
        let mut dnormed = run.activation(rows * self.width);
        self.qkv.back_input(run, bank, &dqkv, &mut dnormed)?;
        self.qkv.back_weight(run, saved.normed, Held::Own(dqkv), bank)?;
        let dnormed = run.tensor.leave(run, dnormed)?;
        let needed = [x.view(), saved.statistics.view(), dnormed.view()];
        let (params, mut grads) = bank.both();
        self.norm.backward(run, params, needed, dx.view_mut(), &mut grads);
        Ok(())
    }

    /// What heads leave out, from the first of this rank's on.
    fn attention_drop(&self, run: &Run<'_>) -> Option<AttentionDrop> {
        let place = Place { block: self.block, part: 0 };
        let (share, whole) = (run.tensor.share, run.whole());
        let heads = self.heads * share.ranks;
        let mask = run.mask(place, heads * whole * whole)?;
        Some(AttentionDrop::whole(mask, heads, whole).from([0, self.heads * share.rank, 0, 0]))
    }

    fn output_place(&self) -> Place {
        Place { block: self.block, part: 1 }
    }

    /// Positions turn queries and keys.
    fn turn(&self, run: &Run<'_>, turn: Turn, mut qkv: ViewMut<'_>) {
        let Some(base) = self.rope else { return };
        let (sizes, places) = (self.sizes(run), run.places());
        // Ranks that share sequences have a place for each row.
        let (batch, sequence) = (run.rows() / places.len(), places.len());
        run.device.rope(Attention { batch, sequence, ..sizes }, base, &places, turn, qkv.again());
    }

    /// What the heads find, and the logarithms of their softmaxes' sums.
    fn look(&self, run: &Run<'_>, qkv: View<'_>) -> Result<(Lent, Lent), StepError> {
        let (sizes, drop) = (self.sizes(run), self.attention_drop(run));
        if !run.context.is_alone() {
            return Ok(run.context.attend(run, sizes, qkv, drop)?);
        }
        let mut heads = run.activation(run.rows() * sizes.width());
        let mut log_sums = run.real(sizes.heads * run.rows());
        run.device.attention(sizes, qkv, drop, heads.view_mut(), log_sums.view_mut());
        Ok((heads, log_sums))
    }

    fn look_back(
        &self,
        run: &Run<'_>,
        saved: &AttentionHalfSaved,
        dheads: View<'_>,
    ) -> Result<Lent, StepError> {
        let (sizes, drop) = (self.sizes(run), self.attention_drop(run));
        let (qkv, y, log_sums) = (saved.qkv.view(), saved.heads.view(), saved.log_sums.view());
        let needed = AttentionSaved { qkv, y, log_sums };
        if !run.context.is_alone() {
            return Ok(run.context.attend_back(run, sizes, needed, drop, dheads)?);
        }
        let mut dqkv = run.activation(run.rows() * sizes.qkv_width());
        run.device.attention_back(sizes, needed, drop, dheads, dqkv.view_mut());
        Ok(dqkv)
    }
}
