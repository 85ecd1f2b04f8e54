//! The training configuration. Every key is declared once, here; parsing, errors, listings and the key
//! reference in the documentation are derived from that declaration.
//!
//! [`load`] resolves what the user typed: defaults, then a preset, then a file, then `key=value`
//! arguments, each overriding the ones before. [`Resolved`] also records the origin of each value.

mod base;
mod error;
mod explain;
mod foreign_keys;
mod mesh;
mod micro_batch;
mod notes;
mod presets;
mod render;
mod resolved;
mod schema;
mod suggest;
mod validate;
mod value;

pub use base::{Base, MAX_CONFIG_BYTES, load, resolve};
pub use error::{ConfigError, KeyHint, Result, SourceLocation};
pub use explain::{explain, implied_ranks};
pub use presets::{CHAR_VOCAB_SIZE, PRESETS, Preset};
pub use render::{keys_markdown, keys_text, presets_markdown};
pub use resolved::{Origin, Resolved};
pub use schema::Key;
pub use value::{DeviceKind, MicroBatchSize, OptimizerKind, Resume};

use schema::{
    ANY, COUNT, FRACTION, NON_NEGATIVE, POSITIVE, SIZE, SIZE_OR_ZERO, STEPS, STEPS_OR_ZERO,
    UNSIGNED, ZERO_STAGE, configuration,
};

use crate::lr_schedule::{LrDecay, LrScaling};
use crate::offload::Tier;
use regatta_device::ops::Fp8;
use regatta_device::precision::Precision;
use regatta_predict::pipeline::ScheduleKind;
use regatta_predict::shape::Family;

configuration! {
    /// Model architecture.
    model: Model {
        /// Model family.
        family: Family = Family::Gpt2, ANY;
        /// Number of transformer layers.
        num_layers: usize = 4, COUNT;
        /// Number of attention heads; must divide hidden_size.
        num_heads: usize = 4, SIZE;
        /// Number of key/value heads (grouped-query attention); 0: same as num_heads.
        num_kv_heads: usize = 0, SIZE_OR_ZERO;
        /// Hidden size (d_model).
        hidden_size: usize = 128, SIZE;
        /// Hidden size of the MLP; 0: 4 x hidden_size, for llama 8/3 x hidden_size rounded up to a
        /// multiple of 32.
        intermediate_size: usize = 0, SIZE_OR_ZERO;
        /// Sequence length in tokens (context length).
        seq_len: usize = 64, SIZE;
        /// Vocabulary size; 0: the tokenizer's.
        vocab_size: usize = 0, SIZE_OR_ZERO;
        /// Tie the output head to the token embedding; auto: true except for llama.
        tie_embeddings: Option<bool> = None, ANY;
        /// Biases in linear layers and norms; auto: true except for llama.
        bias: Option<bool> = None, ANY;
        /// Dropout probability.
        dropout: f64 = 0.0, FRACTION;
        /// Epsilon of LayerNorm and RMSNorm.
        norm_eps: f64 = 1e-5, POSITIVE;
        /// Base of the rotary position embedding (llama).
        rope_theta: f64 = 10_000.0, POSITIVE;
    }
    /// Training data.
    data: Data {
        /// Dataset: tinyshakespeare (built in), the path of a text file or of a folder written by
        /// `regatta data prepare`, or raw-u16:FOLDER for nanoGPT's train.bin and val.bin.
        source: String = "tinyshakespeare".to_owned(), ANY;
        /// Tokenizer: char, or the path of a tokenizer.json; auto: the one the data was prepared
        /// with, otherwise char.
        tokenizer: String = "auto".to_owned(), ANY;
        /// Fraction of the text held out for validation, taken from its end; ignored for prepared
        /// data.
        val_fraction: f64 = 0.1, FRACTION;
    }
    /// Training loop.
    train: Train {
        /// Number of training steps.
        steps: u64 = 1000, STEPS;
        /// Global batch size: sequences per step over all ranks; 0: use batch_per_replica.
        batch: usize = 24, SIZE_OR_ZERO;
        /// Sequences per step and data-parallel replica, instead of batch; the global batch size grows
        /// with the number of replicas.
        batch_per_replica: usize = 0, SIZE_OR_ZERO;
        /// Micro-batch size: sequences per forward and backward pass. Gradients are accumulated over the
        /// micro-batches of a step. auto: on GPUs the largest divisor of the replica's batch whose memory
        /// fits and that has at most 65536 tokens per rank; on CPUs cpu_micro_batch.
        micro_batch: MicroBatchSize = MicroBatchSize::Auto, SIZE;
        /// Maximum micro-batch size on CPUs if micro_batch is auto; auto: the replica's batch, with pp > 1 at
        /// least 2 x pp micro-batches if possible. On GPUs with pp > 1, it is the maximum, too.
        cpu_micro_batch: Option<usize> = None, SIZE;
        /// Random seed.
        seed: u64 = 1337, UNSIGNED;
        /// Where to train: cpu, gpu (one per rank), or auto: GPUs if every rank has one, otherwise CPUs.
        device: Option<DeviceKind> = None, ANY;
        /// Bit-reproducible results on GPUs, at some cost in speed. CPUs are always reproducible.
        deterministic: bool = false, ANY;
        /// Launch the passes of a micro-batch as CUDA graphs instead of kernel by kernel, where they do not
        /// communicate; auto: if the device supports it.
        cuda_graph: Option<bool> = None, ANY;
        /// Precision of matrix products and activations; master weights and optimizer state are f32.
        /// auto: bf16 on GPUs, and on CPUs if those of all ranks have instructions for it (AVX512_BF16 or
        /// AMX), otherwise f32.
        precision: Option<Precision> = None, ANY;
        /// Precision of the residual stream on GPUs: f32, or bf16, which is faster and less accurate.
        residual: Precision = Precision::F32, ANY;
        /// Precision of the gradient of the residual stream on GPUs; auto: train.precision, as that of other
        /// gradients of activations.
        residual_gradient: Option<Precision> = None, ANY;
        /// GEMMs on fp8 operands (e4m3 with a scale per row) on GPUs: off, layers (those of the transformer
        /// layers), or all (also those of the LM head). Weight gradients stay bf16. Faster, less accurate.
        fp8: Fp8 = Fp8::Off, ANY;
        /// Compute threads per rank; 0: one per core.
        threads: usize = 0, SIZE_OR_ZERO;
        /// Recompute activations in the backward pass (activation checkpointing).
        recompute: bool = false, ANY;
        /// Check before the start that the run fits in memory.
        check_memory: bool = true, ANY;
        /// Steps between evaluations, in addition to the one after the last step; 0: no evaluation.
        eval_interval: u64 = 250, STEPS_OR_ZERO;
        /// Batches per evaluation.
        eval_batches: usize = 20, COUNT;
        /// Steps between log lines if the output is not a terminal.
        log_interval: u64 = 10, STEPS;
    }
    /// Optimizer and learning-rate schedule.
    optimizer: Optimizer {
        /// Optimizer.
        name: OptimizerKind = OptimizerKind::AdamW, ANY;
        /// Peak learning rate.
        lr: f64 = 1e-3, POSITIVE;
        /// Learning rate at the end of the decay; auto: a tenth of lr.
        min_lr: Option<f64> = None, NON_NEGATIVE;
        /// Linear warmup steps.
        warmup_steps: u64 = 100, STEPS_OR_ZERO;
        /// Step at which the learning rate reaches min_lr; 0: the last step.
        decay_steps: u64 = 0, STEPS_OR_ZERO;
        /// Learning-rate decay after the warmup.
        lr_schedule: LrDecay = LrDecay::Cosine, ANY;
        /// AdamW: decay rate of the first moment.
        beta1: f64 = 0.9, FRACTION;
        /// AdamW: decay rate of the second moment.
        beta2: f64 = 0.99, FRACTION;
        /// AdamW: epsilon added to the root of the second moment.
        eps: f64 = 1e-8, POSITIVE;
        /// Weight decay, decoupled (matrices only).
        weight_decay: f64 = 0.1, NON_NEGATIVE;
        /// SGD: momentum.
        momentum: f64 = 0.9, FRACTION;
        /// Maximum gradient norm; 0 disables clipping.
        grad_clip: f64 = 1.0, NON_NEGATIVE;
        /// Scaling of lr and min_lr with the number of data-parallel replicas.
        lr_scaling: LrScaling = LrScaling::None, ANY;
    }
    /// Checkpoints.
    checkpoint: Checkpoint {
        /// Steps between checkpoints, in addition to the one after the last step; 0: no checkpoints.
        interval: u64 = 250, STEPS_OR_ZERO;
        /// Number of most recent checkpoints to keep.
        keep_last: usize = 2, COUNT;
        /// Directory of the checkpoints; empty: inside the run folder.
        dir: String = String::new(), ANY;
        /// Where to resume from: auto (the latest checkpoint of this run folder, if any), never, or the
        /// path of a checkpoint or run folder.
        resume: Resume = Resume::Auto, ANY;
    }
    /// Parallelism.
    parallel: Parallel {
        /// Data-parallel replicas; 0: ranks / (tp x cp x pp).
        dp: usize = 0, SIZE_OR_ZERO;
        /// Tensor-parallel size; communicates in every layer, so keep it within a node.
        tp: usize = 1, SIZE;
        /// Context-parallel size: ranks that share each sequence (ring attention).
        cp: usize = 1, SIZE;
        /// Pipeline-parallel size: number of stages.
        pp: usize = 1, SIZE;
        /// ZeRO stage: 0 shards nothing, 1 the optimizer state, 2 also gradients, 3 also parameters.
        zero: usize = 0, ZERO_STAGE;
        /// Ranks per ZeRO shard group, e.g. the ranks of a node; groups are replicas of each other (HSDP).
        /// 0: one group of all dp x cp ranks.
        hsdp_shard: usize = 0, SIZE_OR_ZERO;
        /// Megatron-style sequence parallelism; auto: on if tp > 1 and tp divides the tokens of a rank.
        sequence_parallel: Option<bool> = None, ANY;
        /// Pipeline schedule.
        schedule: ScheduleKind = ScheduleKind::default(), ANY;
        /// Virtual pipeline stages (model chunks) per rank, for the interleaved schedule.
        virtual_stages: usize = 1, COUNT;
        /// Number of tiles per weight matrix, including the embedding and the output head. With ZeRO 3 or
        /// offload, one tile at a time is gathered and computed, which bounds the memory for gathered
        /// parameters.
        tiles: usize = 1, COUNT;
    }
    /// Offloading.
    offload: Offload {
        /// Where optimizer state is stored.
        optimizer: Tier = Tier::Device, ANY;
        /// Where parameters are stored while not in use.
        parameters: Tier = Tier::Device, ANY;
        /// Directory of offloaded state, on a disk local to each node; empty: inside the run folder.
        dir: String = String::new(), ANY;
    }
    /// Metrics in addition to metrics.jsonl.
    metrics: Metrics {
        /// Write TensorBoard event files.
        tensorboard: bool = true, ANY;
    }
}

#[cfg(test)]
mod tests;
