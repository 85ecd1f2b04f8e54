//! What a rank holds.

use super::{Held, Holds, Part};
use crate::model::rows_at_once;
use crate::parallel::pipeline::Work;
use crate::shape::Block;

impl Part<'_> {
    /// What this rank holds.
    pub(super) fn holds(&self) -> Holds {
        let (zero, real) = (self.zero(), self.form.real);
        let whole: u64 = self.held().map(|(_, block)| self.room(block) as u64).sum();
        let share = whole / self.sharing() as u64;
        let state = |shared: bool| match shared {
            true => Held { kept: share * real, passing: self.passing() * real },
            false => Held { kept: whole * real, passing: 0 },
        };
        Holds {
            parameters: state(zero >= 3),
            gradients: state(zero >= 2),
            moments: Held { kept: 2 * share * real, passing: 0 },
            activations: self.activations(),
            logits: self.logits(),
        }
    }

    /// Numbers of the blocks that are whole at once where a rank has shares: one that is used, and one
    /// that comes or goes. Layers have room for two, the ends of the model for themselves.
    fn passing(&self) -> u64 {
        let last = self.shape.layers + 1;
        let is_end = |number: usize| number == 0 || number == last;
        let room = |(_, block): (usize, &Block)| self.room(block) as u64;
        let ends: u64 = self.held().filter(|(number, _)| is_end(*number)).map(room).sum();
        let layers: u64 =
            self.held().filter(|(number, _)| !is_end(*number)).take(2).map(room).sum();
        ends + layers
    }

    /// The most that passes have left for the way back at any time of a step, by the schedule; and what
    /// one layer computes again on that way, if they leave little.
    fn activations(&self) -> u64 {
        let (mut alive, mut most) = (0u64, 0);
        for action in self.stage.actions(self.plan.accumulation).iter() {
            let saved = self.saved(action.chunk);
            match action.work {
                Work::Forward => alive += saved,
                work if work.ends() => alive = alive.saturating_sub(saved),
                _ => {}
            }
            most = most.max(alive);
        }
        if self.form.recompute { most + self.inner() } else { most }
    }

    /// What the forward pass of a micro-batch through a chunk leaves: the input of each layer, and
    /// unless that is computed again what is inside.
    fn saved(&self, chunk: usize) -> u64 {
        let stream = (self.own_rows() * self.shape.width) as u64 * self.form.real;
        let inner = if self.form.recompute { 0 } else { self.inner() };
        let behind = if self.stage.is_last(chunk) { stream } else { 0 };
        self.layers(chunk) as u64 * (stream + inner) + behind
    }

    /// What the halves of a layer leave: the normed rows, the norm's mean and deviation, what is
    /// behind the first product, and what is before the second.
    fn inner(&self) -> u64 {
        let (shape, tp) = (self.shape, self.plan.mesh.tp);
        let (rows, own) = (self.rows(), self.own_rows());
        let up = shape.up_width() / tp + shape.feed_forward / tp;
        let mut activations = rows * (shape.width + up);
        let mut reals = 2 * own;
        if shape.attends() {
            let heads = shape.heads * shape.head_width();
            activations += rows * (shape.width + shape.qkv_width() / tp + heads / tp);
            // The logarithms of the softmaxes' sums, and the stream between the halves.
            reals += 2 * own + rows * shape.heads / tp + own * shape.width;
        }
        activations as u64 * self.form.activation + reals as u64 * self.form.real
    }

    fn logits(&self) -> u64 {
        if !self.has_head() {
            return 0;
        }
        let share = self.seat.tensor_share(&self.plan.mesh);
        let kinds = share.of(self.shape.vocabulary).len();
        let rows = rows_at_once(self.rows(), kinds);
        (rows * kinds) as u64 * self.form.real
    }
}
