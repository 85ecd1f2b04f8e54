//! Peak memory of a rank.

use std::collections::{BTreeMap, BTreeSet};

use super::block_classes::BlockRole;
use super::{MemoryBytes, RankModel, StateBytes};
use crate::layout::{StateTiers, Tier};
use crate::logit_chunks::LogitChunks;
use crate::pipeline::{Action, Computation};

/// Bytes of a token id.
const TOKEN_BYTES: usize = 4;

/// Losses, sums of squares and clip coefficients.
const SCALARS: usize = 8;
const SCALAR_BYTES: usize = 8;

impl RankModel<'_> {
    /// Peak memory of this rank.
    pub(super) fn memory(&self) -> MemoryBytes {
        let (zero, element) = (self.zero(), self.options.master_bytes);
        let full = self.sum(|block| self.padded_len(block) as u64);
        let shard = full / self.shard_ranks() as u64;
        let unsharded = self.at_once(2);
        let bytes = |resident, transient| StateBytes { resident, transient };
        let weight = self.options.weight_bytes;
        let copies = |elements| if self.options.has_weight_copy() { elements } else { 0 };
        let StateTiers { params: params_tier, optimizer: optimizer_tier } = self.plan.offload;
        let params = match (params_tier.is_offloaded(), zero) {
            (true, 0) => bytes(0, self.staged_params()),
            (true, _) => bytes(0, unsharded * weight + self.staged_params()),
            (false, 3..) => bytes(shard * element + copies(shard) * weight, unsharded * weight),
            (false, _) => bytes(full * weight + copies(shard) * element, 0),
        };
        let optimizer = match optimizer_tier.is_offloaded() {
            false => bytes(2 * shard * element, 0),
            true => bytes(0, 2 * self.staged()),
        };
        let stored_params = shard * element + copies(shard) * weight;
        let pinned = self.pinned(params_tier, stored_params, self.staged_params())
            + self.pinned(optimizer_tier, 2 * shard * element, 2 * self.staged());
        let (grads, activations) = (self.grads(full), self.activations());
        let passes = self.layer_grads() + self.fp8_operands() + self.logits();
        let passes = passes + self.head_grads() + self.small_tensors();
        let workspace = passes + self.messages() + self.tied_copies();
        MemoryBytes { params, grads, optimizer, activations, workspace, pinned }
    }

    /// Bytes of offloaded shards in memory at once: one being loaded, one in use, one being stored.
    fn staged(&self) -> u64 {
        self.at_once(3) / self.shard_ranks() as u64 * self.options.master_bytes
    }

    /// The same for parameters. The copy that passes read is either loaded or stored.
    fn staged_params(&self) -> u64 {
        let copies = match self.options.has_weight_copy() {
            true => self.at_once(2) / self.shard_ranks() as u64 * self.options.weight_bytes,
            false => 0,
        };
        self.staged() + copies
    }

    /// Pinned host memory of state in a tier, if the device has a memory of its own: all of it in host
    /// memory, or what is being read and written of state on disk.
    fn pinned(&self, tier: Tier, stored: u64, staged: u64) -> u64 {
        match tier {
            Tier::Host => stored,
            Tier::Disk if self.options.has_own_memory => staged,
            Tier::Disk | Tier::Device => 0,
        }
    }

    /// Gradients of all blocks, `full` elements without sharding.
    fn grads(&self, full: u64) -> StateBytes {
        let (element, ranks) = (self.options.master_bytes, self.shard_ranks() as u64);
        let has_replicas = self.plan.mesh.data_ranks() as u64 > ranks;
        let (resident, transient) = match self.zero() {
            // Shards that are being all-reduced with the other sharding groups.
            1 if has_replicas => (full, self.at_once(2) / ranks),
            0 | 1 => (full, 0),
            _ => {
                let count = |role, count| self.unsharded_grads(role, count);
                (full / ranks, self.transient_len(|role| self.waits_for_tie(role), count))
            }
        };
        StateBytes { resident: resident * element, transient: transient * element }
    }

    /// Of `count` blocks, how many have unsharded gradients at once: one being computed and one being
    /// reduced; with deferred weight gradients all layers, because their norms have theirs already.
    fn unsharded_grads(&self, role: BlockRole, count: u64) -> u64 {
        let mut actions = self.stage.schedule.ranks[self.stage.index].iter();
        let defers = |action: &Action| action.computation == Computation::BackwardInput;
        match role {
            // The head, if this stage has it, gives the last reduction time to finish.
            BlockRole::Layer if actions.any(defers) => count + u64::from(!self.has_head()),
            _ if self.waits_for_tie(role) => count,
            _ => count.min(2),
        }
    }

    /// Whether gradients of a block stay unsharded until the end of the step: tiles of an embedding
    /// that is tied across stages.
    fn waits_for_tie(&self, role: BlockRole) -> bool {
        role == BlockRole::EmbeddingTile && self.stage.ties_across_stages(self.shape)
    }

    /// Elements of unsharded blocks, at most `max` of each size at once.
    fn at_once(&self, max: u64) -> u64 {
        self.transient_len(|_| false, |_, count| count.min(max))
    }

    /// Elements of unsharded blocks, where `at_once` says how many of each size there are at a time.
    /// Layers and tiles of one size share buffers; embedding and head, and blocks that are
    /// `separate`, have their own.
    fn transient_len(
        &self,
        separate: impl Fn(BlockRole) -> bool,
        at_once: impl Fn(BlockRole, u64) -> u64,
    ) -> u64 {
        let mut sizes = BTreeMap::new();
        for block in &self.local {
            let is_end = [BlockRole::Embedding, BlockRole::Head].contains(&block.role);
            let is_separate = is_end || separate(block.role);
            let key = (is_separate.then_some(block.role), self.padded_len(block) as u64);
            let (role, count) = sizes.entry(key).or_insert((block.role, 0));
            (*role, *count) = (block.role.min(*role), *count + block.count);
        }
        let sizes = sizes.into_iter();
        sizes.map(|((_, len), (role, count))| len * at_once(role, count)).sum()
    }

    /// Peak of saved activations over the schedule. With recomputation also the activations of the
    /// layer that is being recomputed.
    fn activations(&self) -> u64 {
        let recomputed = if self.options.recompute { self.layer_activations() } else { 0 };
        let (mut saved, mut peak) = (0u64, 0);
        for action in self.stage.actions(self.plan.micro_batches).iter() {
            let (chunk, deferred) = (self.saved(action.chunk), self.deferred(action.chunk));
            let freed = saved.saturating_sub(chunk);
            // After BackwardInput the last layer's activations are among the deferred ones.
            let (during, after) = match action.computation {
                Computation::Forward => (saved + chunk + recomputed, saved + chunk),
                Computation::Backward => (saved + recomputed, freed),
                Computation::BackwardInput => (saved + recomputed, freed + deferred),
                Computation::BackwardWeight => (saved, saved.saturating_sub(deferred)),
            };
            saved = after;
            peak = peak.max(saved).max(during);
        }
        peak
    }

    /// Activations that the forward pass of a micro-batch through a chunk saves: the input of each
    /// layer, and without recomputation its intermediate activations.
    fn saved(&self, chunk: usize) -> u64 {
        let elements = self.local_rows() * self.shape.hidden_size;
        let residual = elements as u64 * self.options.residual_bytes;
        let layer = if self.options.recompute { 0 } else { self.layer_activations() };
        let output = if self.stage.is_last(chunk) { residual } else { 0 };
        self.layers(chunk) as u64 * (residual + layer) + output
    }

    /// What a chunk keeps for deferred weight gradients: input and output gradient of each linear layer.
    fn deferred(&self, chunk: usize) -> u64 {
        let (shape, tp, rows) = (self.shape, self.plan.mesh.tp, self.rows());
        let mut inner = shape.hidden_size + (shape.intermediate_size + shape.up_dim()) / tp;
        let mut outer = shape.hidden_size;
        if shape.has_attention() {
            let heads = shape.num_heads * shape.head_dim();
            inner += shape.hidden_size + (heads + shape.qkv_dim()) / tp;
            outer += shape.hidden_size;
        }
        // The gradient of the residual stream is gathered under sequence parallelism, otherwise copied.
        let outer_bytes = match self.plan.sequence_parallel {
            true => self.options.activation_bytes,
            false => self.options.residual_grad_operand_bytes(),
        };
        let row = inner as u64 * self.options.activation_bytes + outer as u64 * outer_bytes;
        self.layers(chunk) as u64 * rows as u64 * row
    }

    /// Intermediate activations of a layer: normalised input, mean and rstd, output of the first
    /// matrix and input of the second, for attention and MLP.
    fn layer_activations(&self) -> u64 {
        let (shape, tp) = (self.shape, self.plan.mesh.tp);
        let (rows, local) = (self.rows(), self.local_rows());
        let mlp = shape.up_dim() / tp + shape.intermediate_size / tp;
        let mut activations = rows * (shape.hidden_size + mlp);
        let (mut master, mut residual) = (2 * local, 0);
        if shape.has_attention() {
            let heads = shape.num_heads * shape.head_dim();
            activations += rows * (shape.hidden_size + shape.qkv_dim() / tp + heads / tp);
            // lse, and the residual stream between attention and MLP.
            master += 2 * local + rows * shape.num_heads / tp;
            residual += local * shape.hidden_size;
        }
        activations as u64 * self.options.activation_bytes
            + master as u64 * self.options.master_bytes
            + residual as u64 * self.options.residual_bytes
    }

    /// Gradients in memory at once in the backward pass of a layer: of the residual stream, of the
    /// intermediate activations, and of the normalised input.
    fn layer_grads(&self) -> u64 {
        let (shape, tp) = (self.shape, self.plan.mesh.tp);
        let (rows, hidden) = (self.rows(), shape.hidden_size);
        let gate_up = if shape.is_gated() { shape.up_dim() } else { 0 };
        let mut inner = rows * (hidden + (shape.intermediate_size + gate_up) / tp);
        if shape.has_attention() {
            inner += rows * shape.qkv_dim() / tp;
        }
        let residual = self.local_rows() * hidden;
        let operand_bytes = self.options.residual_grad_operand_bytes();
        if operand_bytes != self.options.residual_grad_bytes {
            // The gradient of the residual stream as an operand of GEMMs.
            inner += self.local_rows() * hidden;
        }
        if self.plan.sequence_parallel {
            // The gathered gradient of the residual stream.
            inner += rows * hidden;
        }
        if self.options.recompute {
            // Recomputed output of attention or MLP.
            inner += rows * hidden;
        }
        let mut accumulators = 0;
        if self.plan.mesh.cp > 1 && shape.has_attention() {
            // Unpacked q, k and v, the received k and v, and the accumulators in full precision.
            let (qkv, heads) = (shape.qkv_dim() / tp, shape.num_heads * shape.head_dim() / tp);
            (inner, accumulators) = (inner + rows * (2 * qkv - heads), rows * (qkv + heads));
        }
        inner as u64 * self.options.activation_bytes
            + residual as u64 * self.options.residual_grad_bytes
            + accumulators as u64 * self.options.master_bytes
    }

    /// Operands in fp8: one buffer of each size, for activations, for weights and their transposes, which have
    /// the same sizes, and for scales.
    fn fp8_operands(&self) -> u64 {
        let (shape, tp, rows) = (self.shape, self.plan.mesh.tp, self.rows());
        let hidden = shape.hidden_size;
        let mut sizes = BTreeSet::new();
        let mut linear = |inputs: usize, outputs: usize| {
            sizes.extend([rows * inputs, rows * outputs, inputs * outputs]);
            // f32 scales of rows, and of the weight's rows and columns.
            sizes.extend([rows, inputs, outputs].map(|scales| 4 * scales));
        };
        if self.options.fp8_layers {
            linear(hidden, shape.up_dim() / tp);
            linear(shape.intermediate_size / tp, hidden);
            if shape.has_attention() {
                linear(hidden, shape.qkv_dim() / tp);
                linear(shape.num_heads * shape.head_dim() / tp, hidden);
            }
        }
        let layers: usize = sizes.iter().sum();
        layers as u64 + self.fp8_head()
    }

    /// The weight of the head, its transpose, and the gradient of a chunk of logits.
    fn fp8_head(&self) -> u64 {
        if !self.options.fp8_head || !self.has_head() || self.plan.mesh.tp > 1 {
            return 0;
        }
        let logits = self.logit_chunks();
        let weight = logits.columns * self.shape.hidden_size;
        (2 * weight + logits.len(self.rows())) as u64
    }

    /// The normalised input of the head, whose gradient is in memory at the same time, if no layer's recomputed
    /// activations need more. Counted for devices whose memory is reserved in advance.
    fn head_grads(&self) -> u64 {
        if !self.options.has_own_memory || !self.has_head() || self.options.recompute {
            return 0;
        }
        (self.rows() * self.shape.hidden_size) as u64 * self.options.activation_bytes
    }

    /// Tokens, positions, column sums, the statistics of the head and scalars, likewise.
    fn small_tensors(&self) -> u64 {
        if !self.options.has_own_memory {
            return 0;
        }
        // Inputs and targets of a pass, and those of the graphs of training and evaluation.
        let tokens = (2 + 4) * self.rows() + self.rows().max(self.shape.seq_len);
        let sums = 2 * self.shape.hidden_size + 2 * self.local_rows();
        (tokens * TOKEN_BYTES + SCALARS * SCALAR_BYTES) as u64
            + sums as u64 * self.options.master_bytes
    }

    /// Pipeline messages: one being received and two being sent, per direction.
    fn messages(&self) -> u64 {
        let (has_previous, has_next) = (self.coord.pp > 0, self.coord.pp + 1 < self.plan.mesh.pp);
        let count = |receives: bool, sends: bool| u64::from(receives) + 2 * u64::from(sends);
        let element = count(has_previous, has_next) * self.options.residual_bytes
            + count(has_next, has_previous) * self.options.residual_grad_bytes;
        (self.local_rows() * self.shape.hidden_size) as u64 * element
    }

    /// Copies in which two stages sum the gradients of a tied embedding: one of each tile length.
    fn tied_copies(&self) -> u64 {
        if !self.stage.ties_across_stages(self.shape) {
            return 0;
        }
        let lens = self.blocks.token_embedding_lens.keys();
        lens.sum::<usize>() as u64 * self.options.master_bytes
    }

    fn logit_chunks(&self) -> LogitChunks {
        let logits = match self.options.pads_logits {
            true => self.blocks.logits.with_padding(),
            false => self.blocks.logits,
        };
        self.options.max_logits.map_or(logits, |max_logits| logits.with_max_logits(max_logits))
    }

    fn logits(&self) -> u64 {
        if !self.has_head() {
            return 0;
        }
        let logits = self.logit_chunks();
        let (rows, tp) = (self.rows(), self.plan.mesh.tp);
        let (chunk, all) = (logits.len(rows), logits.workspace(rows, tp));
        chunk as u64 * self.options.logit_bytes + (all - chunk) as u64 * self.options.master_bytes
    }
}
