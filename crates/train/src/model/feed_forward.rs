//! The second half of a layer: each token by itself.

use super::parts::Scaling;
use super::product::Product;
use super::{Bank, Held, Lent, Matrices, Params, Place, Run};
use crate::state::StepError;
use regatta_device::memory::Tensor;
use regatta_predict::shape::Shape;

/// The feed-forward half.
#[derive(Debug, Clone)]
pub struct FeedForward {
    norm: Scaling,
    up: Product,
    down: Product,
    width: usize,
    inner: usize,
    up_width: usize,
    gated: bool,
    block: usize,
}

/// What its backward pass needs.
#[derive(Debug)]
pub struct FeedForwardSaved {
    normed: Lent,
    statistics: Lent,
    /// What gates and is gated, or the slopes of what was activated.
    up: Lent,
    active: Lent,
}

impl FeedForward {
    pub fn new(shape: &Shape, layer: usize, of: &Matrices<'_>) -> Self {
        let ranks = of.block.share.ranks;
        Self {
            norm: Scaling::new(shape, of.block, "norm2"),
            up: Product::expanding(of, "up"),
            down: Product::contracting(of, "down"),
            width: shape.width,
            inner: shape.feed_forward / ranks,
            up_width: shape.up_width() / ranks,
            gated: shape.is_gated(),
            block: layer + 1,
        }
    }

    /// `out = mid + dropout(down(activation(up(norm(mid)))))`.
    pub fn forward(
        &self,
        run: &Run<'_>,
        params: &mut dyn Params,
        mid: &Tensor,
    ) -> Result<(FeedForwardSaved, Lent), StepError> {
        let (device, rows, own) = (run.device, run.rows(), run.own_rows());
        let mut normed = run.activation(own * self.width);
        let mut statistics = run.real(2 * own);
        self.norm.forward(run, params.own(), mid.view(), normed.view_mut(), statistics.view_mut());
        let normed = run.tensor.enter(run, normed)?;
        let mut up = run.activation(rows * self.up_width);
        self.up.forward(run, params, &normed, &mut up)?;
        let mut active = run.activation(rows * self.inner);
        match self.gated {
            true => device.swiglu(self.inner, up.view(), active.view_mut()),
            false => device.gelu(up.view_mut(), active.view_mut()),
        }
        let mut down = run.activation(rows * self.width);
        self.down.forward(run, params, &active, &mut down)?;
        let mut down = run.tensor.leave(run, down)?;
        run.drop_rows(self.place(), self.width, down.view_mut());
        let mut out = run.real(own * self.width);
        device.sum(mid.view(), down.view(), out.view_mut());
        Ok((FeedForwardSaved { normed, statistics, up, active }, out))
    }

    /// `dx`, the gradient of `out`, becomes that of `mid`.
    pub fn backward(
        &self,
        run: &Run<'_>,
        bank: &mut dyn Bank,
        (mid, saved): (&Tensor, FeedForwardSaved),
        dx: &mut Tensor,
    ) -> Result<(), StepError> {
        let (device, rows) = (run.device, run.rows());
        let dropped = run.dropped(self.place(), self.width, dx);
        let dout = run.tensor.gather(run, dropped)?;
        let mut dactive = run.activation(rows * self.inner);
        self.down.back_input(run, bank, &dout, &mut dactive)?;
        self.down.back_weight(run, saved.active, dout, bank)?;
        let dup = if self.gated {
            let mut dup = run.activation(rows * self.up_width);
            device.swiglu_back(self.inner, saved.up.view(), dactive.view(), dup.view_mut());
            dup
        } else {
            device.gelu_back(saved.up.view(), dactive.view_mut());
            dactive
        };
        let mut dnormed = run.activation(rows * self.width);
        self.up.back_input(run, bank, &dup, &mut dnormed)?;
        self.up.back_weight(run, saved.normed, Held::Own(dup), bank)?;
        let dnormed = run.tensor.leave(run, dnormed)?;
        let needed = [mid.view(), saved.statistics.view(), dnormed.view()];
        let (params, mut grads) = bank.both();
        self.norm.backward(run, params, needed, dx.view_mut(), &mut grads);
        Ok(())
    }

    fn place(&self) -> Place {
        Place { block: self.block, part: 2 }
    }
}
