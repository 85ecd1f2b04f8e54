//! Models and parallelism of the benchmark.

use regatta_benchmarks::gpt2_shape;
use regatta_comm::enum_names;
use regatta_predict::shape::ModelShape;
use serde::{Deserialize, Serialize};

/// A model and its batch: GPT-2 without biases and dropout.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Preset {
    /// Workers have no use for it.
    #[serde(skip)]
    pub name: &'static str,
    pub layers: usize,
    pub heads: usize,
    pub hidden_size: usize,
    pub vocab_size: usize,
    pub seq_len: usize,
    /// Sequences of a step.
    pub batch: usize,
    /// Steps of a round: enough that the clock's resolution and the first step do not matter.
    pub steps: usize,
    /// Untimed steps before each round: the caches have the data of other processes.
    pub warm_up: usize,
}

/// The characters of English text.
const CHARACTERS: usize = 65;

/// Presets that run unless others are named.
pub const DEFAULT: [Preset; 2] = [
    Preset {
        name: "small",
        layers: 4,
        heads: 4,
        hidden_size: 128,
        vocab_size: CHARACTERS,
        seq_len: 64,
        batch: 12,
        steps: 40,
        warm_up: 2,
    },
    Preset {
        name: "large",
        layers: 6,
        heads: 6,
        hidden_size: 384,
        vocab_size: CHARACTERS,
        seq_len: 256,
        batch: 4,
        steps: 5,
        warm_up: 2,
    },
];

/// GPT-2 124M with its own vocabulary, for many cores.
pub const GPT2_124M: Preset = Preset {
    name: "124m",
    layers: 12,
    heads: 12,
    hidden_size: 768,
    vocab_size: 50_257,
    seq_len: 512,
    batch: 4,
    steps: 3,
    warm_up: 1,
};

impl Preset {
    pub fn find(name: &str) -> Option<Self> {
        DEFAULT.into_iter().chain([GPT2_124M]).find(|preset| preset.name == name)
    }

    pub fn shape(&self) -> ModelShape {
        ModelShape {
            vocab_size: self.vocab_size,
            seq_len: self.seq_len,
            bias: false,
            ..gpt2_shape(self.layers, self.heads, self.hidden_size)
        }
    }

    /// Tokens of a step of `batch` sequences.
    pub fn tokens(&self, batch: usize) -> usize {
        batch * self.seq_len
    }

    /// Arguments of `peers/train.py` for the model and a batch.
    pub fn torch_args(&self, batch: usize) -> [usize; 6] {
        [self.vocab_size, self.layers, self.heads, self.hidden_size, self.seq_len, batch]
    }

    pub fn describe(&self) -> String {
        let Self { name, layers, heads, hidden_size, seq_len, batch, .. } = self;
        format!(
            "{name}: {layers} layers, {heads} heads, hidden size {hidden_size}, sequence length \
             {seq_len}, batch {batch}"
        )
    }
}

/// Data parallelism of ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DataParallelism {
    /// Every rank has all parameters.
    Replicated,
    /// The optimizer state is sharded.
    Zero1,
    /// Parameters, gradients and optimizer state are sharded.
    Zero3,
}

enum_names!(DataParallelism, "All kinds, named as in arguments.",
    Replicated "data", Zero1 "zero1", Zero3 "zero3");

impl DataParallelism {
    /// Those compared with PyTorch.
    pub const COMPARED: [Self; 2] = [Self::Replicated, Self::Zero3];
    /// Those whose throughput is measured on many ranks.
    pub const SCALED: [Self; 2] = [Self::Replicated, Self::Zero1];

    pub fn find(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|parallelism| parallelism.name() == name)
    }

    pub fn regatta_name(self) -> &'static str {
        match self {
            Self::Replicated => "data parallel",
            Self::Zero1 => "ZeRO-1",
            Self::Zero3 => "ZeRO-3",
        }
    }

    pub fn torch_name(self) -> &'static str {
        match self {
            Self::Replicated => "DDP",
            Self::Zero1 => "ZeroRedundancyOptimizer",
            Self::Zero3 => "FSDP2",
        }
    }
}
