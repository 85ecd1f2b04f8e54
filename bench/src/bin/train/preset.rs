//! What is trained.

use regatta_train::shape::{Family, Shape};

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

    /// The model, in the order in which the peer takes its numbers.
    pub fn numbers(&self) -> [usize; 6] {
        [VOCABULARY, self.layers, self.heads, self.width, self.context, self.batch]
    }

    pub fn describe(&self) -> String {
        let Self { name, layers, heads, width, context, batch, .. } = self;
        format!(
            "{name}: {layers} layers, {heads} heads, width {width}, context {context}, batch {batch}"
        )
    }
}
