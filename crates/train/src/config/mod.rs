//! What a training run is told: every key declared once, here; parsing, errors, listings and the
//! documentation's table all derive from it.
//!
//! [`load`] reads what the user typed: defaults, then a preset, then a file, then `key=value` words,
//! each over the ones before. [`Resolved`] is the outcome, and knows for each key who set it.

mod advice;
mod declare;
mod error;
mod explain;
mod layers;
mod load;
mod nearest;
mod notes;
mod plan;
mod presets;
mod split;
mod text;
mod value;

pub use declare::Key;
pub use error::{ConfigError, Place};
pub use explain::{explain, ranks_asked};
pub use layers::{Origin, Resolved};
pub use load::{First, load, resolve};
pub use presets::{PRESETS, Preset};
pub use text::{keys_markdown, keys_text, presets_markdown};
pub use value::{Kind, Memory, Resume, Switch};

use declare::{
    ANY, COUNT, NOT_NEGATIVE, ONE_OR_MORE, POSITIVE, SHARE, SIZE, SIZE_OR_ZERO, STAGE,
    configuration,
};

use crate::schedule::{Curve, Scaling};
use regatta_device::precision::Precision;
use regatta_predict::pipeline::Kind as Pipeline;
use regatta_predict::shape::Family;

configuration! {
    /// What is trained.
    model: Model {
        /// The family of models.
        family: Family = Family::Gpt2, ANY;
        /// How many layers.
        layers: usize = 4, COUNT;
        /// Heads of attention; they share the width.
        heads: usize = 4, SIZE;
        /// Heads of keys and values, each for several of queries; 0: as many as heads.
        kv_heads: usize = 0, SIZE_OR_ZERO;
        /// Numbers of a token on its way through the layers.
        width: usize = 128, SIZE;
        /// Width of the feed-forward part; 0: four times the width, of llama 8/3 of it, rounded up
        /// to a multiple of 32.
        feed_forward: usize = 0, SIZE_OR_ZERO;
        /// Tokens of a sequence.
        context: usize = 64, SIZE;
        /// Kinds of tokens; 0: as many as the data has.
        vocabulary: usize = 0, SIZE_OR_ZERO;
        /// Whether the head's matrix is the embedding's; auto: of all but llama.
        tied: Switch = Switch::Auto, ANY;
        /// Whether matrix products and norms have biases; auto: of all but llama.
        bias: Switch = Switch::Auto, ANY;
        /// The share of numbers that are left out, at random, in training.
        dropout: f64 = 0.0, SHARE;
        /// What is added to a variance before its root is taken.
        norm_epsilon: f64 = 1e-5, POSITIVE;
        /// The base of llama's rotary positions.
        rope_base: f64 = 10_000.0, POSITIVE;
    }
    /// What it is trained on.
    data: Data {
        /// The text: builtin, tinyshakespeare, the path of a text file or of a folder of
        /// `regatta data prepare`, or raw-u16:FOLDER for nanoGPT's files.
        source: String = "builtin".to_owned(), ANY;
        /// What makes tokens of it: char, or the path of a tokenizer.json; auto: what the data was
        /// prepared with, or char.
        tokenizer: String = "auto".to_owned(), ANY;
        /// The share at the end that is kept for validation; prepared data has its own.
        validation: f64 = 0.1, SHARE;
    }
    /// How it is trained.
    train: Train {
        /// How many steps.
        steps: u64 = 1000, ONE_OR_MORE;
        /// Sequences of a step, of all ranks together; 0: as batch_per_rank says.
        batch: usize = 24, SIZE_OR_ZERO;
        /// Sequences of a step for each copy of the model, instead of batch: more of them, larger
        /// steps.
        batch_per_rank: usize = 0, SIZE_OR_ZERO;
        /// Sequences that a rank works on at once, and adds up gradients; 0: its whole share, and in a
        /// pipeline as many as leave two micro-batches for each stage, if there are so many.
        micro_batch: usize = 0, SIZE_OR_ZERO;
        /// What all that is random follows from.
        seed: u64 = 1337, ANY;
        /// How numbers are multiplied and activations stored; parameters are always f32.
        precision: Precision = Precision::F32, ANY;
        /// Threads of a rank; 0: one for each of its cores.
        threads: usize = 0, SIZE_OR_ZERO;
        /// Whether activations are computed again in the backward pass: less memory, more work.
        recompute: bool = false, ANY;
        /// Whether what memory cannot hold is refused before it begins.
        check_memory: bool = true, ANY;
        /// Steps between validations, the last step has one too; 0: none.
        eval_every: u64 = 250, ANY;
        /// Batches of a validation.
        eval_batches: usize = 20, COUNT;
        /// Steps between lines, where the output is no terminal.
        log_every: u64 = 10, ONE_OR_MORE;
    }
    /// How parameters follow their gradients.
    optimizer: Optimizer {
        /// The kind.
        kind: Kind = Kind::AdamW, ANY;
        /// The learning rate, after the warm-up.
        rate: f64 = 1e-3, POSITIVE;
        /// What it falls to.
        minimum_rate: f64 = 1e-4, NOT_NEGATIVE;
        /// Steps in which it rises from nearly 0.
        warmup: u64 = 100, ANY;
        /// The step at which it has fallen; 0: the last.
        decay_steps: u64 = 0, ANY;
        /// How it falls.
        schedule: Curve = Curve::Cosine, ANY;
        /// AdamW: how slowly the mean of gradients changes.
        beta1: f64 = 0.9, SHARE;
        /// AdamW: how slowly the mean of their squares changes.
        beta2: f64 = 0.99, SHARE;
        /// AdamW: what is added to the root of that mean.
        epsilon: f64 = 1e-8, POSITIVE;
        /// What matrices lose a step, times the rate.
        weight_decay: f64 = 0.1, NOT_NEGATIVE;
        /// SGD: how much of the last step is repeated.
        momentum: f64 = 0.9, SHARE;
        /// The most that the norm of all gradients may be; 0: whatever it is.
        clip: f64 = 1.0, NOT_NEGATIVE;
        /// How the learning rate grows with the number of data-parallel ranks.
        scale_rate: Scaling = Scaling::None, ANY;
    }
    /// What is kept of it.
    checkpoint: Checkpoint {
        /// Steps between checkpoints, the last step has one too; 0: none at all.
        every: u64 = 250, ANY;
        /// How many of the latest are kept.
        keep: usize = 2, COUNT;
        /// Where they are; empty: in the run folder.
        folder: String = String::new(), ANY;
        /// What to go on from: auto (the latest of this run's folder, if there is one), never, or
        /// the path of a checkpoint or a run folder.
        resume: Resume = Resume::Auto, ANY;
    }
    /// How ranks share the work.
    parallel: Parallel {
        /// Data parallel: copies of the model, each with a part of the batch; 0: as many as the other
        /// splits leave ranks for.
        dp: usize = 0, SIZE_OR_ZERO;
        /// Tensor parallel: ranks that share every matrix; they talk in every layer and belong on one
        /// host.
        tp: usize = 1, SIZE;
        /// Context parallel: ranks that share every sequence, for long ones.
        cp: usize = 1, SIZE;
        /// Pipeline parallel: stages that share the layers.
        pp: usize = 1, SIZE;
        /// What ranks with the same parameters share instead of each having all of it: 0 nothing, 1 the
        /// optimizer's state, 2 gradients too, 3 parameters too.
        zero: usize = 0, STAGE;
        /// Ranks among which it is shared, such as those of a node, the others repeat it; 0: all with
        /// the same parameters.
        shard: usize = 0, SIZE_OR_ZERO;
        /// Whether tensor-parallel ranks share the tokens, too, where nothing is multiplied; auto: if
        /// there are such ranks and a sequence's tokens divide among them.
        sequence: Switch = Switch::Auto, ANY;
        /// The order in which pipeline stages work.
        schedule: Pipeline = Pipeline::default(), ANY;
        /// Parts of the model that a stage has, each of some layers; more than 1 is for interleaved.
        chunks: usize = 1, COUNT;
        /// Pieces in which each matrix of a layer, the table of tokens and the head's matrix are computed,
        /// one after the other, where they are larger than memory.
        tiles: usize = 1, COUNT;
    }
    /// What is kept out of the device's memory.
    offload: Offload {
        /// Where the optimizer's state is.
        optimizer: Memory = Memory::Device, ANY;
        /// Where parameters are while they are not used.
        parameters: Memory = Memory::Device, ANY;
        /// Where files are, if any are on disk: a folder of the rank's host; empty: in the run folder.
        folder: String = String::new(), ANY;
    }
    /// What is written of its progress, beside metrics.jsonl.
    metrics: Metrics {
        /// Whether there are event files for TensorBoard.
        tensorboard: bool = true, ANY;
    }
}

#[cfg(test)]
mod tests;
