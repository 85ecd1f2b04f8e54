//! Validates a configuration for a number of ranks and derives shape, layout and schedule from it.
//! Inconsistencies are refused with values that fit. No I/O.

use super::suggest::{Candidates, Infeasible, Suggestion};
use super::{Config, ConfigError, DeviceKind, Result};
use crate::lr_schedule::LrSchedule;
use regatta_device::ops::{Fp8, GPU_MAX_LOGITS};
use regatta_device::precision::Precision;
use regatta_model::units::pluralize;
use regatta_predict::cost::{CostOptions, MemoryBytes};
use regatta_predict::layout::{ParallelLayout, StateTiers};
use regatta_predict::memory_check::MemoryNeed;
use regatta_predict::mesh::Mesh;
use regatta_predict::shape::{Family, ModelShape};

impl Config {
    /// The model shape, for data with this vocabulary size.
    pub fn shape(&self, vocab_size: usize) -> Result<ModelShape> {
        let model = &self.model;
        if model.vocab_size != 0 && model.vocab_size < vocab_size {
            return Err(ConfigError::Inconsistent(format!(
                "model.vocab_size {} is smaller than the tokenizer's vocabulary of {vocab_size}: set it \
                 to 0 to use the tokenizer's",
                model.vocab_size
            )));
        }
        let default = model.family != Family::Llama;
        let or = |given: usize, default: usize| if given == 0 { default } else { given };
        let shape = ModelShape {
            family: model.family,
            vocab_size: or(model.vocab_size, vocab_size),
            seq_len: model.seq_len,
            hidden_size: model.hidden_size,
            num_layers: model.num_layers,
            num_heads: model.num_heads,
            num_kv_heads: or(model.num_kv_heads, model.num_heads),
            intermediate_size: self.intermediate_size(),
            tie_embeddings: model.tie_embeddings.unwrap_or(default),
            bias: model.bias.unwrap_or(default),
            norm_eps: model.norm_eps,
            rope_theta: model.rope_theta,
        };
        shape.check().map_err(ConfigError::Inconsistent)?;
        Ok(shape)
    }

    fn intermediate_size(&self) -> usize {
        let hidden_size = self.model.hidden_size;
        match (self.model.intermediate_size, self.model.family) {
            (0, Family::Llama) => (hidden_size * 8).div_ceil(3).next_multiple_of(32),
            (0, _) => 4 * hidden_size,
            (given, _) => given,
        }
    }

    /// The parallel layout for a number of ranks.
    pub fn validate(&self, ranks: usize) -> Result<ParallelLayout> {
        self.layout(ranks).map_err(|error| ConfigError::Inconsistent(error.message(self, ranks)))
    }

    /// The parallel layout and the model shape once the vocabulary size is known, which limits tp.
    pub fn validate_with_vocab(
        &self,
        ranks: usize,
        vocab_size: usize,
    ) -> Result<(ParallelLayout, ModelShape)> {
        let shape = self.shape(vocab_size)?;
        let mut known = self.clone();
        known.model.vocab_size = shape.vocab_size;
        Ok((known.validate(ranks)?, shape))
    }

    /// As [`Config::validate`], but without evaluating suggestions.
    pub(super) fn layout(&self, ranks: usize) -> Result<ParallelLayout, Infeasible> {
        self.check_lr_schedule()?;
        let mesh = self.mesh(ranks)?;
        let replica_batch = self.replica_batch(&mesh)?;
        let micro_batch = self.micro_batch(replica_batch, &mesh)?;
        Ok(ParallelLayout {
            mesh,
            zero: self.parallel.zero,
            sequence_parallel: self.sequence_parallel(&mesh)?,
            schedule: self.parallel.schedule,
            virtual_stages: self.parallel.virtual_stages,
            batch: replica_batch * mesh.dp,
            batch_per_replica: replica_batch,
            micro_batch,
            micro_batches: replica_batch / micro_batch,
            tiles: self.parallel.tiles,
            offload: self.state_tiers(),
        })
    }

    /// Where state is stored on the configured device; on CPUs if it is `auto` and not resolved yet.
    fn state_tiers(&self) -> StateTiers {
        let has_own_memory = self.train.device == Some(DeviceKind::Gpu);
        let [optimizer, params] = [self.offload.optimizer, self.offload.parameters]
            .map(|tier| tier.in_effect(has_own_memory));
        StateTiers { optimizer, params }
    }

    /// Element sizes and recomputation of a run on the configured device; on CPUs if it is `auto` and not
    /// resolved yet.
    pub fn cost_options(&self) -> CostOptions {
        let (bytes, recompute) = (self.precision().activation_bytes(), self.train.recompute);
        match self.train.device {
            Some(DeviceKind::Gpu) => CostOptions {
                residual_bytes: self.train.residual.activation_bytes(),
                residual_grad_bytes: self.residual_gradient().activation_bytes(),
                fp8_layers: self.train.fp8 != Fp8::Off,
                fp8_head: self.train.fp8 == Fp8::All,
                ..CostOptions::gpu(bytes, Some(GPU_MAX_LOGITS), recompute)
            },
            Some(DeviceKind::Cpu) | None => CostOptions::new(bytes, recompute),
        }
    }

    /// The precision; f32 if it is `auto` and not resolved yet.
    pub fn precision(&self) -> Precision {
        self.train.precision.unwrap_or_default()
    }

    /// The precision of the gradient of the residual stream on GPUs.
    pub fn residual_gradient(&self) -> Precision {
        self.train.residual_gradient.unwrap_or(self.precision())
    }

    /// Whether checkpoints are copied and written while training continues. Offloaded state may not fit in
    /// memory, so it is written synchronously.
    pub fn saves_in_background(&self) -> bool {
        self.checkpoint.interval != 0 && !self.state_tiers().any_offloaded()
    }

    /// The host memory that a rank needs on the configured device, including the copy that a background
    /// checkpoint writes. A GPU checks its own memory.
    pub fn memory_need(&self, plan: &ParallelLayout, memory: &MemoryBytes) -> MemoryNeed {
        let checkpoint = match self.saves_in_background() {
            true => MemoryNeed::checkpoint_copy(plan, memory),
            false => 0,
        };
        MemoryNeed::new(memory, checkpoint, self.train.device == Some(DeviceKind::Gpu))
    }

    /// The learning-rate schedule for a number of data-parallel replicas.
    pub fn lr_schedule(&self, replicas: usize) -> LrSchedule {
        let (optimizer, steps) = (&self.optimizer, self.train.steps);
        let factor = optimizer.lr_scaling.factor(replicas);
        LrSchedule {
            decay: optimizer.lr_schedule,
            lr: optimizer.lr * factor,
            min_lr: optimizer.min_lr.unwrap_or(optimizer.lr / 10.0) * factor,
            warmup_steps: optimizer.warmup_steps,
            decay_steps: if optimizer.decay_steps == 0 { steps } else { optimizer.decay_steps },
        }
    }

    fn check_lr_schedule(&self) -> Result<(), Infeasible> {
        let LrSchedule { lr, min_lr, warmup_steps, decay_steps, .. } = self.lr_schedule(1);
        if min_lr > lr {
            return Err(Infeasible::new(format!(
                "optimizer.min_lr {min_lr:?} exceeds optimizer.lr {lr:?}: lower it, or set \
                 optimizer.min_lr=auto for a tenth of optimizer.lr"
            )));
        }
        // A run that ends during the warmup is a short trial, and valid.
        if self.optimizer.decay_steps != 0 && warmup_steps > decay_steps {
            let tenth = Candidates::Only(decay_steps as usize / 10);
            return Err(Infeasible::new(format!(
                "optimizer.warmup_steps {warmup_steps} exceeds optimizer.decay_steps {decay_steps}"
            ))
            .suggest_key("optimizer.warmup_steps", tenth));
        }
        Ok(())
    }

    /// Sequences per step and data-parallel replica.
    fn replica_batch(&self, mesh: &Mesh) -> Result<usize, Infeasible> {
        let (batch, per_replica, dp) = (self.train.batch, self.train.batch_per_replica, mesh.dp);
        if batch == 0 && per_replica == 0 {
            let reason = "train.batch and train.batch_per_replica are both 0: set one of them";
            return Err(Infeasible::new(reason));
        }
        if batch == 0 {
            return Ok(per_replica);
        }
        if !batch.is_multiple_of(dp) {
            let times = mesh.ranks() / dp;
            let multiples = Candidates::Multiples { of: dp, near: batch };
            let divisors = Candidates::Divisors { of: batch, near: dp, times };
            let replicas = replicas(mesh);
            let error =
                Infeasible::new(format!("train.batch {batch} is not divisible by {replicas}"))
                    .suggest_key("train.batch", multiples)
                    .suggest(Suggestion::Ranks(divisors));
            return Err(Infeasible { alternative: "set train.batch_per_replica instead", ..error });
        }
        Ok(batch / dp)
    }
}

/// The replicas that share a batch, as text.
pub(super) fn replicas(mesh: &Mesh) -> String {
    match mesh.ranks() {
        ranks if ranks == mesh.dp => pluralize(ranks, "rank"),
        ranks => format!("{} on {ranks} ranks", pluralize(mesh.dp, "replica")),
    }
}
