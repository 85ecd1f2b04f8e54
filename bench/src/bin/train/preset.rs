//! What is trained, and what ranks share.

use regatta_predict::shape::{Family, Shape};

/// A model and its batch: GPT-2 without biases and dropout, on characters.
#[derive(Debug, Clone, Copy)]
pub struct Preset {
    pub name: &'static str,
    pub layers: usize,
    pub heads: usize,
    pub width: usize,
    pub context: usize,
    /// Sequences of a step.
    pub batch: usize,
    /// Steps of a turn: enough that the clock and the first of them do not matter.
    pub steps: usize,
}

/// The characters of English text.
const VOCABULARY: usize = 65;

pub const ALL: [Preset; 2] = [
    Preset { name: "small", layers: 4, heads: 4, width: 128, context: 64, batch: 12, steps: 40 },
    Preset { name: "large", layers: 6, heads: 6, width: 384, context: 256, batch: 4, steps: 5 },
];

impl Preset {
    pub fn find(name: &str) -> Option<Self> {
        ALL.into_iter().find(|preset| preset.name == name)
    }

    pub fn shape(&self) -> Shape {
        Shape {
            family: Family::Gpt2,
            vocabulary: VOCABULARY,
            context: self.context,
            width: self.width,
            layers: self.layers,
            heads: self.heads,
            kv_heads: self.heads,
            feed_forward: 4 * self.width,
            tied: true,
            bias: false,
            norm_epsilon: 1e-5,
            rope_base: 10_000.0,
        }
    }

    /// Tokens of a step of so many sequences.
    pub fn tokens(&self, batch: usize) -> usize {
        batch * self.context
    }

    /// The model and a batch, in the order in which the peer takes its numbers.
    pub fn numbers(&self, batch: usize) -> [usize; 6] {
        [VOCABULARY, self.layers, self.heads, self.width, self.context, batch]
    }

    pub fn describe(&self) -> String {
        let Self { name, layers, heads, width, context, batch, .. } = self;
        format!(
            "{name}: {layers} layers, {heads} heads, width {width}, context {context}, batch {batch}"
        )
    }
}

/// What ranks share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// The batch.
    Data,
    /// Parameters, gradients and moments, too.
    Zero3,
}

impl Split {
    pub const ALL: [Self; 2] = [Self::Data, Self::Zero3];

    /// In the arguments of our processes and of peers.
    pub fn word(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Zero3 => "zero3",
        }
    }

    pub fn find(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|split| split.word() == word)
    }

    pub fn ours(self) -> &'static str {
        match self {
            Self::Data => "data parallel",
            Self::Zero3 => "ZeRO-3",
        }
    }

    /// What PyTorch calls it.
    pub fn theirs(self) -> &'static str {
        match self {
            Self::Data => "DDP",
            Self::Zero3 => "FSDP2",
        }
    }
}
