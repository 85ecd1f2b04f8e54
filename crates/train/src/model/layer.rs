//! A layer: attention, then feed-forward, each added to the stream.

use super::attention::{AttentionHalf, AttentionHalfSaved};
use super::feed_forward::{FeedForward, FeedForwardSaved};
use super::{Bank, Lent, Matrices, Params, Run};
use crate::state::StepError;
use regatta_device::memory::Tensor;
use regatta_predict::shape::Shape;

/// A layer.
#[derive(Debug, Clone)]
pub struct Layer {
    pub(super) attention: Option<AttentionHalf>,
    pub(super) feed_forward: FeedForward,
}

/// What a layer's backward pass needs of the forward one.
#[derive(Debug)]
pub struct Saved {
    x: Lent,
    /// `None` if it is to be computed again.
    inner: Option<Inner>,
}

impl Saved {
    /// Queries, keys and values, if there are any and they were saved.
    pub(super) fn qkv(&self) -> Option<&Tensor> {
        let (attention, _) = self.inner.as_ref()?.attention.as_ref()?;
        Some(attention.qkv())
    }
}

#[derive(Debug)]
struct Inner {
    /// What attention left, and the stream behind it, if there is attention.
    attention: Option<(AttentionHalfSaved, Lent)>,
    feed_forward: FeedForwardSaved,
}

impl Layer {
    pub(super) fn new(shape: &Shape, layer: usize, of: &Matrices<'_>) -> Self {
        let attention = shape.attends().then(|| AttentionHalf::new(shape, layer, of));
        Self { attention, feed_forward: FeedForward::new(shape, layer, of) }
    }

    /// The stream behind the layer, and what the backward pass needs.
    pub fn forward(
        &self,
        run: &Run<'_>,
        params: &mut dyn Params,
        x: Lent,
    ) -> Result<(Lent, Saved), StepError> {
        let (inner, out) = self.halves(run, params, &x)?;
        let inner = (!run.recompute).then_some(inner);
        Ok((out, Saved { x, inner }))
    }

    fn halves(
        &self,
        run: &Run<'_>,
        params: &mut dyn Params,
        x: &Tensor,
    ) -> Result<(Inner, Lent), StepError> {
        let attention = match &self.attention {
            Some(half) => Some(half.forward(run, &mut *params, x)?),
            None => None,
        };
        let mid = attention.as_ref().map_or(x, |(_, mid)| mid);
        let (feed_forward, out) = self.feed_forward.forward(run, params, mid)?;
        Ok((Inner { attention, feed_forward }, out))
    }

    /// `dx`, the gradient of the stream behind the layer, becomes that of the stream before it.
    pub fn backward(
        &self,
        run: &Run<'_>,
        bank: &mut dyn Bank,
        saved: Saved,
        dx: &mut Tensor,
    ) -> Result<(), StepError> {
        let Saved { x, inner } = saved;
        let inner = match inner {
            Some(inner) => inner,
            None => self.halves(run, bank, &x)?.0,
        };
        let Inner { attention, feed_forward } = inner;
        let mid: &Tensor = attention.as_ref().map_or(&x, |(_, mid)| mid);
        self.feed_forward.backward(run, bank, (mid, feed_forward), dx)?;
        if let (Some(half), Some((saved, mid))) = (&self.attention, attention) {
            drop(mid);
            half.backward(run, bank, (&x, saved), dx)?;
        }
        Ok(())
    }
}
