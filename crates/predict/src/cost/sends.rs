//! What a rank sends in a step.

use regatta_comm::count::must_send;
use regatta_comm::{Counts, Kind};

use super::{Alike, Part, Place, Sends};
use crate::axis::Axis;
use crate::pipeline::Way;

/// A rank of several that do a collective.
#[derive(Debug, Clone, Copy)]
struct Among {
    rank: usize,
    ranks: usize,
}

impl Among {
    /// Numbers that it sends in a collective whose whole has so many.
    fn sends(self, kind: Kind, whole: usize) -> u64 {
        let each = match kind {
            Kind::AllReduce => whole,
            _ => whole / self.ranks,
        };
        must_send(kind, &Counts::Equal(each), 0, self.rank as u32, self.ranks as u32)
    }
}

impl Part<'_> {
    /// What this rank sends in a step.
    pub(super) fn sends(&self) -> Sends {
        let mut sends = Sends::default();
        for (axis, bytes) in [
            (Axis::Tensor, self.tensor()),
            (Axis::Context, self.context()),
            (Axis::Data, if self.zero() == 0 { self.summed() } else { 0 }),
            (Axis::Shard, self.shard()),
            (Axis::Replica, if self.zero() == 0 { 0 } else { self.summed() }),
            (Axis::Forward, self.messages(Way::Forward)),
            (Axis::Backward, self.messages(Way::Backward)),
            (Axis::Tied, self.tied()),
            (Axis::World, self.world()),
        ] {
            sends.by_axis[axis as usize] = bytes;
        }
        sends
    }

    /// What tells apart ranks that have the same blocks: of sums that do not divide the first have a
    /// number more, and of the norm of all gradients the first rank has it.
    pub(super) fn kind(&self) -> (usize, bool) {
        let among = self.summing();
        let has_more = |block: &&Alike| among.rank < self.own_room(block) % among.ranks;
        (self.held.iter().filter(has_more).count(), self.plan.mesh.rank(self.seat) == 0)
    }

    pub(super) fn micros(&self) -> u64 {
        self.plan.accumulation as u64
    }

    fn layers_here(&self) -> u64 {
        self.stage.chunks().map(|chunk| self.layers(chunk) as u64).sum()
    }

    /// The stream goes in and out of both halves of each layer, forward and backward, of the embedding
    /// and of the head.
    fn tensor(&self) -> u64 {
        let among = Among { rank: self.seat.tp, ranks: self.plan.mesh.tp };
        if among.ranks == 1 {
            return 0;
        }
        let (rows, sequence) = (self.rows(), self.plan.sequence);
        let stream = rows * self.shape.width;
        // All rows come together, and each rank gets its own; or sums go to all.
        let enter = if sequence { among.sends(Kind::AllGather, stream) } else { 0 };
        let out = if sequence { Kind::ReduceScatter } else { Kind::AllReduce };
        let once = enter + among.sends(out, stream);
        let passes = if self.form.recompute { 3 } else { 2 };
        let halves = if self.shape.attends() { 2 } else { 1 };
        let mut micro = self.layers_here() * passes * halves * once * self.form.activation;
        if self.stage.has(0) {
            micro += once * self.form.real;
        }
        if self.has_head() {
            // Three numbers a row make the softmax whole.
            let entropy = among.sends(Kind::AllGather, 3 * rows * among.ranks);
            micro += once * self.form.activation + entropy * self.form.real;
        }
        self.micros() * micro + self.norms(among)
    }

    /// Ranks with rows of their own sum the gradients of norms before they leave: once a step, or
    /// with every micro-batch.
    fn norms(&self, among: Among) -> u64 {
        if !self.plan.sequence {
            return 0;
        }
        let times = if self.zero() >= 2 { self.micros() } else { 1 };
        times * self.sum(|block| among.sends(Kind::AllReduce, block.norms)) * self.form.real
    }

    /// Keys and values go round, and backward their gradients with them and one hop farther.
    fn context(&self) -> u64 {
        let cp = self.plan.mesh.cp as u64;
        if cp == 1 || !self.shape.attends() {
            return 0;
        }
        let heads = self.shape.kv_heads / self.plan.mesh.tp;
        let numbers = (self.rows() * 2 * heads * self.shape.head_width()) as u64;
        let passes = if self.form.recompute { 3 } else { 2 };
        let layer = passes * (cp - 1) * self.form.activation + cp * self.form.real;
        self.micros() * self.layers_here() * layer * numbers
    }

    /// With whom this rank sums gradients: all with the same parameters, or of these all with the same
    /// share.
    fn summing(&self) -> Among {
        let (mesh, each) = (&self.plan.mesh, self.sharing());
        Among { rank: self.seat.data_rank(mesh) / each, ranks: mesh.data_ranks() / each }
    }

    /// What it sums with them of a block.
    fn own_room(&self, block: &Alike) -> usize {
        self.room(block) / self.sharing()
    }

    /// Gradients of everything, or of its share, summed once a step.
    fn summed(&self) -> u64 {
        let among = self.summing();
        if among.ranks == 1 {
            return 0;
        }
        self.sum(|block| among.sends(Kind::AllReduce, self.own_room(block))) * self.form.real
    }

    /// Gradients become shares, once a step or with every micro-batch, and shares of parameters are
    /// gathered: once a step, or whenever a pass needs them.
    fn shard(&self) -> u64 {
        let zero = self.zero();
        if zero == 0 {
            return 0;
        }
        let mesh = &self.plan.mesh;
        let among = Among { rank: self.seat.data_rank(mesh) % mesh.shard, ranks: mesh.shard };
        let one = |block: &Alike| {
            let room = self.room(block);
            let scatters = if zero == 1 { 1 } else { self.scatters(block.place) };
            let gathers = if zero < 3 { 1 } else { self.micros() * self.gathers(block.place) };
            scatters * among.sends(Kind::ReduceScatter, room)
                + gathers * among.sends(Kind::AllGather, room)
        };
        self.sum(one) * self.form.real
    }

    /// How often the gradients of a block leave: those of a table that two stages have only when both
    /// have summed theirs, those of tiles of a tied table when the head has added to them, and when
    /// the embedding has.
    fn scatters(&self, place: Place) -> u64 {
        let has_table = match place {
            Place::Embedding => !self.is_tiled(),
            other => other == Place::TableTile,
        };
        match place {
            _ if has_table && self.stage.is_tied_apart(self.shape) => 1,
            Place::TableTile if self.shape.tied => 2 * self.micros(),
            _ => self.micros(),
        }
    }

    /// How often a micro-batch needs the parameters of a block: a layer's forward and backward, the
    /// embedding's forward, and the head's once, or if they are tiles, twice. A tied table is both's.
    pub(super) fn gathers(&self, place: Place) -> u64 {
        let first = u64::from(self.stage.has(0));
        let tied = u64::from(self.shape.tied && self.has_head());
        match place {
            // Positions, without the table.
            Place::Embedding if self.is_tiled() => 1,
            Place::Embedding => first + tied,
            Place::TableTile => first + 2 * tied,
            Place::HeadTile => 2,
            Place::Layer => 2,
            // It is brought again, too, where the forward pass is done again.
            Place::Tile => 2 + u64::from(self.form.recompute),
            Place::Head => 1,
        }
    }

    /// The stream, or its gradient, to another stage.
    fn messages(&self, way: Way) -> u64 {
        if self.plan.mesh.pp == 1 {
            return 0;
        }
        let sent = self.stage.schedule.sent(self.seat.pp);
        let count = sent.filter(|message| message.way == way).count();
        (count * self.own_rows() * self.shape.width) as u64 * self.form.real
    }

    /// Gradients of a table that the first and the last stage both have.
    fn tied(&self) -> u64 {
        if !self.stage.is_tied_apart(self.shape) {
            return 0;
        }
        let among = Among { rank: usize::from(self.seat.pp > 0), ranks: 2 };
        let one = |(len, count): (&usize, &u64)| count * among.sends(Kind::AllReduce, *len);
        self.blocks.table_lens.iter().map(one).sum::<u64>() * self.form.real
    }

    /// The norm of the gradients, where no rank has all of them.
    fn world(&self) -> u64 {
        let mesh = &self.plan.mesh;
        let ranks = mesh.ranks();
        if mesh.data_ranks() / self.sharing() == ranks {
            return 0;
        }
        let among = Among { rank: mesh.rank(self.seat), ranks };
        among.sends(Kind::AllReduce, 1) * size_of::<f64>() as u64
    }
}
