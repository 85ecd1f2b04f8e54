//! What a rank holds.

use std::collections::BTreeMap;

use super::{Held, Holds, Part, Place};
use crate::pipeline::Work;

impl Part<'_> {
    /// What this rank holds.
    pub(super) fn holds(&self) -> Holds {
        let (zero, real) = (self.zero(), self.form.real);
        let whole = self.sum(|block| self.room(block) as u64);
        let share = whole / self.sharing() as u64;
        let passing = self.few(2);
        let state = |shared: bool| match shared {
            true => Held { kept: share * real, passing: passing * real },
            false => Held { kept: whole * real, passing: 0 },
        };
        // Of what is on disk, the shares of some blocks are in memory, too: one that comes, one that
        // is used, and one that goes.
        let read = self.few(3) / self.sharing() as u64 * real;
        let parameters = match (self.plan.on_disk.parameters, zero) {
            (false, _) => state(zero >= 3),
            (true, 0) => Held { kept: 0, passing: read },
            (true, _) => Held { kept: 0, passing: passing * real + read },
        };
        let moments = match self.plan.on_disk.moments {
            false => Held { kept: 2 * share * real, passing: 0 },
            true => Held { kept: 0, passing: 2 * read },
        };
        Holds {
            parameters,
            gradients: self.gradients(whole),
            moments,
            activations: self.activations(),
            working: self.way_back() + self.logits() + self.messages_under_way() + self.tying(),
        }
    }

    /// Gradients of all blocks, which have so many numbers.
    fn gradients(&self, whole: u64) -> Held {
        let (real, sharing) = (self.form.real, self.sharing() as u64);
        let repeated = self.plan.mesh.data_ranks() as u64 > sharing;
        match self.zero() {
            // Shares that are on their way to those who have the same.
            1 if repeated => Held { kept: whole * real, passing: self.few(2) / sharing * real },
            0 | 1 => Held { kept: whole * real, passing: 0 },
            _ => {
                let at_once = |place, count| self.gradients_at_once(place, count);
                let passing = self.passing(|place| self.stays(place), at_once);
                Held { kept: whole / sharing * real, passing: passing * real }
            }
        }
    }

    /// Blocks of so many whose gradients are whole at once: one that is worked on and one on its way;
    /// but where those of matrices are put off, all layers, for their norms have theirs already.
    fn gradients_at_once(&self, place: Place, count: u64) -> u64 {
        let mut actions = self.stage.schedule.ranks[self.stage.stage].iter();
        match place {
            Place::Layer if actions.any(|action| action.work == Work::Input) => {
                // Before layers are begun again the last one has arrived, if a head was between.
                count + u64::from(!self.has_head())
            }
            _ if self.stays(place) => count,
            _ => count.min(2),
        }
    }

    /// Whether gradients of a block wait for the end of the step, all of them: tiles of a table that
    /// two stages have.
    fn stays(&self, place: Place) -> bool {
        place == Place::TableTile && self.stage.is_tied_apart(self.shape)
    }

    /// Numbers of the blocks that are whole at once, so many of each size at most.
    fn few(&self, most: u64) -> u64 {
        self.passing(|_| false, |_, count| count.min(most))
    }

    /// Numbers of the blocks that are whole at once where a rank has shares, of so many the ones that
    /// are asked for: layers, and tiles of each size, as one is used while others come or go; the ends
    /// of the model are for themselves, and so is what stays.
    fn passing(&self, stays: impl Fn(Place) -> bool, at_once: impl Fn(Place, u64) -> u64) -> u64 {
        let mut sizes = BTreeMap::new();
        for block in &self.held {
            let is_end = [Place::Embedding, Place::Head].contains(&block.place);
            let is_apart = is_end || stays(block.place);
            let key = (is_apart.then_some(block.place), self.room(block) as u64);
            let (place, count) = sizes.entry(key).or_insert((block.place, 0));
            (*place, *count) = (block.place.min(*place), *count + block.count);
        }
        let sizes = sizes.into_iter();
        sizes.map(|((_, room), (place, count))| room * at_once(place, count)).sum()
    }

    /// The most that passes have left for the way back at any time of a step, by the schedule; and what
    /// one layer computes, and again on that way, if they leave little.
    fn activations(&self) -> u64 {
        let passing = if self.form.recompute { self.inner() } else { 0 };
        let (mut alive, mut most) = (0u64, 0);
        for action in self.stage.actions(self.plan.accumulation).iter() {
            let saved = self.saved(action.chunk);
            let before = alive;
            match action.work {
                Work::Forward => alive += saved,
                Work::Backward => alive = alive.saturating_sub(saved),
                Work::Input => alive = alive.saturating_sub(saved) + self.put_off(action.chunk),
                Work::Weight => alive = alive.saturating_sub(self.put_off(action.chunk)),
            }
            // Behind the gradient of an input, the inside of the last layer is among what is put off.
            let during = match action.work {
                Work::Forward => alive + passing,
                Work::Backward | Work::Input => before + passing,
                Work::Weight => before,
            };
            most = most.max(alive).max(during);
        }
        most
    }

    /// What the forward pass of a micro-batch through a chunk leaves: the input of each layer, and
    /// unless that is computed again what is inside.
    fn saved(&self, chunk: usize) -> u64 {
        let stream = (self.own_rows() * self.shape.width) as u64 * self.form.real;
        let inner = if self.form.recompute { 0 } else { self.inner() };
        let behind = if self.stage.is_last(chunk) { stream } else { 0 };
        self.layers(chunk) as u64 * (stream + inner) + behind
    }

    /// What is left in a chunk for the gradients of matrices if they come later: what each product began
    /// with, and the gradient behind it.
    fn put_off(&self, chunk: usize) -> u64 {
        let (shape, tp, rows) = (self.shape, self.plan.mesh.tp, self.rows());
        let mut inner = shape.width + (shape.feed_forward + shape.up_width()) / tp;
        let mut behind = shape.width;
        if shape.attends() {
            let heads = shape.heads * shape.head_width();
            inner += shape.width + (heads + shape.qkv_width()) / tp;
            behind += shape.width;
        }
        // The gradient of the stream is gathered where ranks share its rows, and else copied.
        let each = if self.plan.sequence { self.form.activation } else { self.form.real };
        let numbers = inner as u64 * self.form.activation + behind as u64 * each;
        self.layers(chunk) as u64 * rows as u64 * numbers
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

    /// The gradients that are in memory at once on the way back through a layer: that of the stream,
    /// of what is inside of each half, and of what is behind a norm.
    fn way_back(&self) -> u64 {
        let (shape, tp) = (self.shape, self.plan.mesh.tp);
        let (rows, width) = (self.rows(), shape.width);
        let up = if shape.is_gated() { shape.up_width() } else { 0 };
        let mut inner = rows * (width + (shape.feed_forward + up) / tp);
        if shape.attends() {
            inner += rows * shape.qkv_width() / tp;
        }
        let mut stream = self.own_rows() * width;
        if self.plan.sequence {
            // All ranks' rows of the gradient of the stream.
            inner += rows * width;
        }
        if self.form.recompute {
            // What comes out of a half, and of the layer, once more.
            (inner, stream) = (inner + rows * width, stream + self.own_rows() * width);
        }
        if self.plan.mesh.cp > 1 && shape.attends() {
            // Queries, keys and values apart, and those that come by; what they find, and gradients.
            let (all, heads) = (shape.qkv_width() / tp, shape.heads * shape.head_width() / tp);
            (inner, stream) = (inner + rows * (2 * all - heads), stream + rows * (all + heads));
        }
        inner as u64 * self.form.activation + stream as u64 * self.form.real
    }

    /// A message that comes and two that go, each way.
    fn messages_under_way(&self) -> u64 {
        let ways = match (self.plan.mesh.pp, self.seat.pp) {
            (1, _) => 0,
            (pp, stage) if stage == 0 || stage + 1 == pp => 3,
            _ => 6,
        };
        (ways * self.own_rows() * self.shape.width) as u64 * self.form.real
    }

    /// Copies in which two stages sum the gradients of a tied table, of its tiles one after the other:
    /// one of each length.
    fn tying(&self) -> u64 {
        if !self.stage.is_tied_apart(self.shape) {
            return 0;
        }
        self.blocks.table_lens.keys().sum::<usize>() as u64 * self.form.real
    }

    fn logits(&self) -> u64 {
        if !self.has_head() {
            return 0;
        }
        self.blocks.logits.working(self.rows(), self.plan.mesh.tp) as u64 * self.form.real
    }
}
