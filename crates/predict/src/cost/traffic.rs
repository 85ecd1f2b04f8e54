//! Bytes a rank sends per step.

use regatta_comm::CallKind::{self, AllGather, AllReduce, ReduceScatter};
use regatta_comm::Counts;
use regatta_comm::traffic::elements_sent;

use super::block_classes::{BlockClass, BlockRole};
use super::{RankModel, TrafficBytes};
use crate::axis::Axis;
use crate::pipeline::Direction;
use crate::shape::Shard;

impl Shard {
    /// Elements that this rank sends in a collective of its group over `full` elements.
    fn sends(self, kind: CallKind, full: usize) -> u64 {
        let each = if kind == AllReduce { full } else { full / self.ranks };
        elements_sent(kind, &Counts::Equal(each), 0, self.rank as u32, self.ranks as u32)
    }
}

impl RankModel<'_> {
    /// Bytes that this rank sends per step.
    pub(super) fn traffic(&self) -> TrafficBytes {
        let by_axis = Axis::ALL.map(|axis| match axis {
            Axis::Tensor => self.tensor(),
            Axis::Context => self.context(),
            Axis::Data if self.zero() == 0 => self.grad_all_reduce(),
            Axis::Replica if self.zero() > 0 => self.grad_all_reduce(),
            Axis::Data | Axis::Replica => 0,
            Axis::Shard => self.shard(),
            Axis::Forward => self.p2p(Direction::Forward),
            Axis::Backward => self.p2p(Direction::Backward),
            Axis::Tied => self.tied(),
            Axis::World => self.world(),
        });
        TrafficBytes { by_axis }
    }

    /// Distinguishes ranks with equal blocks: in an indivisible all-reduce the first ranks send one
    /// element more, and rank 0 sends the gradient norm.
    pub(super) fn traffic_class(&self) -> (usize, bool) {
        let member = self.all_reduce_member();
        let has_extra = |block: &&BlockClass| member.rank < self.shard_len(block) % member.ranks;
        (self.local.iter().filter(has_extra).count(), self.plan.mesh.rank(self.coord) == 0)
    }

    pub(super) fn micro_batches(&self) -> u64 {
        self.plan.micro_batches as u64
    }

    pub(super) fn local_layers(&self) -> u64 {
        self.stage.local_chunks().map(|chunk| self.layers(chunk) as u64).sum()
    }

    /// Forward passes plus backward passes per layer and micro-batch.
    fn passes(&self) -> u64 {
        if self.options.recompute { 3 } else { 2 }
    }

    /// The residual stream enters and leaves attention and MLP of each layer in every pass, and
    /// embedding and head.
    fn tensor(&self) -> u64 {
        let member = self.coord.tensor_shard(&self.plan.mesh);
        if member.ranks == 1 {
            return 0;
        }
        let rows = self.rows();
        let residual = rows * self.shape.hidden_size;
        // Of the sum of partial outputs, and of the rows that the backward pass gathers.
        let (sum, gather) = match self.plan.sequence_parallel {
            true => (member.sends(ReduceScatter, residual), member.sends(AllGather, residual)),
            false => (member.sends(AllReduce, residual), 0),
        };
        let once = sum + gather;
        let sublayers = if self.shape.has_attention() { 2 } else { 1 };
        let activation = self.options.activation_bytes;
        let mut bytes = self.local_layers() * self.passes() * sublayers * once * activation;
        if self.stage.owns(0) {
            bytes += sum * self.options.residual_bytes + gather * self.options.residual_grad_bytes;
        }
        if self.has_head() {
            // The vocabulary-parallel cross-entropy gathers three elements per row.
            let partials = member.sends(AllGather, 3 * rows * member.ranks);
            bytes += once * activation + partials * self.options.master_bytes;
        }
        self.micro_batches() * bytes + self.norm_grads(member)
    }

    /// Sequence-parallel ranks all-reduce norm gradients before they are reduced over data ranks: once
    /// per step, or per micro-batch from ZeRO 2 on.
    fn norm_grads(&self, member: Shard) -> u64 {
        if !self.plan.sequence_parallel {
            return 0;
        }
        let times = if self.zero() >= 2 { self.micro_batches() } else { 1 };
        let elements = self.sum(|block| member.sends(AllReduce, block.norm_len));
        times * elements * self.options.master_bytes
    }

    /// Ring attention: keys and values travel around the ring; in the backward pass their gradients
    /// travel with them, one hop farther.
    fn context(&self) -> u64 {
        let cp = self.plan.mesh.cp as u64;
        if cp == 1 || !self.shape.has_attention() {
            return 0;
        }
        let heads = self.shape.num_kv_heads / self.plan.mesh.tp;
        let kv = (self.rows() * 2 * heads * self.shape.head_dim()) as u64;
        let hops = self.passes() * (cp - 1);
        let layer = hops * self.options.activation_bytes + cp * self.options.master_bytes;
        self.micro_batches() * self.local_layers() * layer * kv
    }

    /// This rank in the communicator that all-reduces gradients: all data ranks, or under ZeRO those
    /// with the same shard.
    fn all_reduce_member(&self) -> Shard {
        let (mesh, shard) = (&self.plan.mesh, self.shard_ranks());
        Shard { rank: self.coord.data_rank(mesh) / shard, ranks: mesh.data_ranks() / shard }
    }

    /// Gradients, or their shard, all-reduced once per step.
    fn grad_all_reduce(&self) -> u64 {
        let member = self.all_reduce_member();
        if member.ranks == 1 {
            return 0;
        }
        let elements = self.sum(|block| member.sends(AllReduce, self.shard_len(block)));
        elements * self.options.master_bytes
    }

    /// Reduce-scatter of gradients, once per step or per micro-batch, and all-gather of parameters,
    /// once per step or per pass.
    fn shard(&self) -> u64 {
        let zero = self.zero();
        if zero == 0 {
            return 0;
        }
        let mesh = &self.plan.mesh;
        let member = Shard { rank: self.coord.data_rank(mesh) % mesh.shard, ranks: mesh.shard };
        let block_bytes = |block: &BlockClass| {
            let (len, role) = (self.padded_len(block), block.role);
            let scatters = if zero == 1 { 1 } else { self.reduce_scatters(role) };
            let gathers = if zero < 3 { 1 } else { self.micro_batches() * self.unshards(role) };
            let options = &self.options;
            scatters * member.sends(ReduceScatter, len) * options.master_bytes
                + gathers * member.sends(AllGather, len) * options.weight_bytes
        };
        self.sum(block_bytes)
    }

    /// Reduce-scatters of a block's gradients per step under ZeRO 2 and 3: an embedding tied across
    /// stages once, when both stages have summed theirs; tiles of a tied embedding after the head and
    /// after the embedding.
    fn reduce_scatters(&self, role: BlockRole) -> u64 {
        let is_tile = role == BlockRole::EmbeddingTile;
        let has_tokens = is_tile || role == BlockRole::Embedding && !self.is_tiled();
        match role {
            _ if has_tokens && self.stage.ties_across_stages(self.shape) => 1,
            _ if is_tile && self.shape.tie_embeddings => 2 * self.micro_batches(),
            _ => self.micro_batches(),
        }
    }

    /// Unshards of a block per micro-batch: layers in forward and backward, the embedding in forward,
    /// the head once or, in tiles, twice. Tied embeddings serve both ends.
    pub(super) fn unshards(&self, role: BlockRole) -> u64 {
        let embedding = u64::from(self.stage.owns(0));
        let tied_head = u64::from(self.shape.tie_embeddings && self.has_head());
        match role {
            // The position embedding only.
            BlockRole::Embedding if self.is_tiled() => 1,
            BlockRole::Embedding => embedding + tied_head,
            BlockRole::EmbeddingTile => embedding + 2 * tied_head,
            BlockRole::HeadTile | BlockRole::Layer => 2,
            BlockRole::LayerTile => self.passes(),
            BlockRole::Head => 1,
        }
    }

    /// Pipeline messages: the residual stream forward, its gradient backward.
    fn p2p(&self, direction: Direction) -> u64 {
        if self.plan.mesh.pp == 1 {
            return 0;
        }
        let sent = self.stage.schedule.sent(self.coord.pp);
        let messages = sent.filter(|message| message.direction == direction).count();
        let elements = messages * self.local_rows() * self.shape.hidden_size;
        let element = match direction {
            Direction::Forward => self.options.residual_bytes,
            Direction::Backward => self.options.residual_grad_bytes,
        };
        elements as u64 * element
    }

    /// Gradients of an embedding tied across the first and the last stage.
    fn tied(&self) -> u64 {
        if !self.stage.ties_across_stages(self.shape) {
            return 0;
        }
        let member = Shard { rank: usize::from(self.coord.pp > 0), ranks: 2 };
        let sends = |(len, count): (&usize, &u64)| count * member.sends(AllReduce, *len);
        let lens = self.blocks.token_embedding_lens.iter();
        lens.map(sends).sum::<u64>() * self.options.master_bytes
    }

    /// The gradient norm, where no rank has all gradients.
    fn world(&self) -> u64 {
        let mesh = &self.plan.mesh;
        let ranks = mesh.ranks();
        if mesh.data_ranks() / self.shard_ranks() == ranks {
            return 0;
        }
        let member = Shard { rank: mesh.rank(self.coord), ranks };
        member.sends(AllReduce, 1) * size_of::<f64>() as u64
    }
}
