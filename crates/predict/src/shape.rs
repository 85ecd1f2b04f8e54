//! What a model is, in numbers, and what its parameters are called. No I/O.

mod layout;
mod role;
mod split;
mod tile;

pub use layout::{BlockLayout, Matrices};
pub use role::{Module, ParamKind, ParamRole};
pub use split::{Patch, Share};
pub use tile::Tile;

use serde::{Deserialize, Serialize};

use split::Cut;

/// Which family of models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Family {
    /// Learned positions, LayerNorm, GELU, biases, the head tied to the embedding.
    Gpt2,
    /// Rotated queries and keys, RMSNorm, SwiGLU, grouped queries, no biases.
    Llama,
    /// GPT-2 without attention, for smoke tests: each token is predicted from the one before.
    Mlp,
}

/// A model's sizes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// The family.
    pub family: Family,
    /// How many different tokens there are.
    pub vocabulary: usize,
    /// The longest sequence, in tokens.
    pub context: usize,
    /// Numbers of a token on its way through the layers.
    pub width: usize,
    /// How many layers.
    pub layers: usize,
    /// Heads of attention.
    pub heads: usize,
    /// Heads of keys and values: each serves `heads / kv_heads` queries.
    pub kv_heads: usize,
    /// Width of the feed-forward part.
    pub feed_forward: usize,
    /// Whether the head's matrix is the embedding's.
    pub tied: bool,
    /// Whether matrix products and norms have biases.
    pub bias: bool,
    /// What is added to a variance before its root is taken.
    pub norm_epsilon: f64,
    /// The base of rotary positions; only of Llama.
    pub rope_base: f64,
}

impl Shape {
    /// Numbers of a head.
    pub fn head_width(&self) -> usize {
        self.width / self.heads
    }

    /// Numbers of queries, keys and values of a token, all heads together.
    pub fn qkv_width(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_width()
    }

    /// Outputs of the first feed-forward product: SwiGLU has a gate for each.
    pub fn up_width(&self) -> usize {
        if self.is_gated() { 2 * self.feed_forward } else { self.feed_forward }
    }

    /// Whether the feed-forward part has a gate.
    pub fn is_gated(&self) -> bool {
        self.family == Family::Llama
    }

    /// Whether layers have attention.
    pub fn attends(&self) -> bool {
        self.family != Family::Mlp
    }

    /// What does not fit together, as a sentence with the keys' names.
    pub fn check(&self) -> Result<(), String> {
        let all = [
            ("vocabulary", self.vocabulary),
            ("context", self.context),
            ("width", self.width),
            ("heads", self.heads),
            ("kv_heads", self.kv_heads),
            ("feed_forward", self.feed_forward),
        ];
        if let Some((name, _)) = all.iter().find(|(_, size)| *size == 0) {
            return Err(format!("model.{name} is 0"));
        }
        let layers = ("layers", self.layers);
        if let Some((name, size)) = all.iter().chain([&layers]).find(|(_, size)| *size > LARGEST) {
            return Err(format!("model.{name} is {size}, and at most {LARGEST}"));
        }
        let (width, heads, kv) = (self.width, self.heads, self.kv_heads);
        if !width.is_multiple_of(heads) {
            let near = nearest_multiple(width, heads);
            return Err(format!(
                "model.width {width} is not a multiple of model.heads {heads}: try {near}"
            ));
        }
        if !heads.is_multiple_of(kv) {
            return Err(format!("model.heads {heads} is not a multiple of model.kv_heads {kv}"));
        }
        if self.family == Family::Llama && !self.head_width().is_multiple_of(2) {
            return Err(format!(
                "rotary positions turn pairs, and a head has {} numbers (model.width {width} / \
                 model.heads {heads})",
                self.head_width()
            ));
        }
        Ok(())
    }

    /// The blocks with their parameters, in the order of the forward pass: embedding, layers, head.
    pub fn blocks(&self) -> Vec<Block> {
        self.blocks_of(Share::ALL)
    }

    /// What a rank of a tensor group has of the blocks.
    pub fn blocks_of(&self, share: Share) -> Vec<Block> {
        let mut blocks = vec![self.embedding(share)];
        blocks.extend((0..self.layers).map(|layer| self.layer(share, layer)));
        blocks.push(self.head(share));
        for (number, block) in (0..).zip(&mut blocks) {
            for (which, parameter) in (0..).zip(&mut block.parameters) {
                parameter.key = [number, which];
            }
        }
        blocks
    }

    /// How many parameters there are.
    pub fn parameters(&self) -> usize {
        self.blocks().iter().map(Block::len).sum()
    }

    /// Operations on numbers that training takes for a token in a sequence of this length: a
    /// product counts two, attention half of its square, the backward pass twice the forward one.
    /// 3·[L(4h²(1+g/a) + 2sh + (4 or 6)hf) + 2hV].
    pub fn training_flops_per_token(&self, sequence: usize) -> f64 {
        let [h, f, s] = [self.width, self.feed_forward, sequence].map(|n| n as f64);
        let shared = self.kv_heads as f64 / self.heads as f64;
        let attention = 4.0 * h * h * (1.0 + shared) + 2.0 * s * h;
        let attention = if self.attends() { attention } else { 0.0 };
        let forward = if self.is_gated() { 6.0 } else { 4.0 } * h * f;
        let head = 2.0 * h * self.vocabulary as f64;
        3.0 * (self.layers as f64 * (attention + forward) + head)
    }

    fn embedding(&self, share: Share) -> Block {
        let (table, rows) = ([self.vocabulary, self.width], [self.vocabulary]);
        let mut block = Block::new("embed", share);
        block.add("tokens", &table, Init::Normal, Cut::Rows(&rows));
        if self.family == Family::Gpt2 {
            block.add("positions", &[self.context, self.width], Init::Normal, Cut::None);
        }
        block
    }

    fn layer(&self, share: Share, layer: usize) -> Block {
        let (h, inner) = (self.width, self.heads * self.head_width());
        let mut block = Block::new(&format!("layer.{layer}"), share);
        if self.attends() {
            self.add_norm(&mut block, "norm1");
            let each = self.kv_heads * self.head_width();
            self.add_expanding(&mut block, "qkv", &[inner, each, each]);
            self.add_contracting(&mut block, "proj", inner, h);
        }
        self.add_norm(&mut block, "norm2");
        let inner = self.feed_forward;
        let groups = [inner, inner];
        self.add_expanding(&mut block, "up", &groups[..if self.is_gated() { 2 } else { 1 }]);
        self.add_contracting(&mut block, "down", inner, h);
        block
    }

    fn head(&self, share: Share) -> Block {
        let mut block = Block::new("head", share);
        self.add_norm(&mut block, "norm");
        if !self.tied {
            let (matrix, rows) = ([self.vocabulary, self.width], [self.vocabulary]);
            block.add("output", &matrix, Init::Normal, Cut::Rows(&rows));
        }
        block
    }

    fn add_norm(&self, block: &mut Block, name: &str) {
        block.add(&format!("{name}.weight"), &[self.width], Init::One, Cut::None);
        if self.bias {
            block.add(&format!("{name}.bias"), &[self.width], Init::Zero, Cut::None);
        }
    }

    /// A product from the stream; ranks share its outputs, group by group.
    fn add_expanding(&self, block: &mut Block, name: &str, groups: &[usize]) {
        let (outputs, cut) = (groups.iter().sum(), Cut::Rows(groups));
        block.add(&format!("{name}.weight"), &[outputs, self.width], Init::Normal, cut);
        if self.bias {
            block.add(&format!("{name}.bias"), &[outputs], Init::Zero, cut);
        }
    }

    /// A product back to the stream; ranks share its inputs, and their outputs are summed.
    fn add_contracting(&self, block: &mut Block, name: &str, inputs: usize, outputs: usize) {
        let matrix = [outputs, inputs];
        block.add(&format!("{name}.weight"), &matrix, Init::Residual, Cut::Columns);
        if self.bias {
            block.add(&format!("{name}.bias"), &[outputs], Init::Zero, Cut::None);
        }
    }
}

/// The name of the rows of tokens.
pub const TABLE: &str = "embed.tokens";

/// The name of the rows of positions.
pub const POSITIONS: &str = "embed.positions";

/// No size is larger: beyond it, numbers of parameters could not be counted.
const LARGEST: usize = 1 << 24;

fn nearest_multiple(of: usize, unit: usize) -> usize {
    (of.saturating_add(unit / 2) / unit).max(1).saturating_mul(unit)
}

/// What a parameter is before training.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Init {
    /// Nothing.
    Zero,
    /// One.
    One,
    /// A normal distribution of width 0.02.
    Normal,
    /// The same, smaller by the root of how many are added to the residual stream.
    Residual,
}

/// A parameter: its name, its shape, and where in its block it lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// Its whole name, such as `layer.3.qkv.weight`.
    pub name: String,
    /// Its role in the block.
    pub role: ParamRole,
    /// Rows and columns; a matrix product's is outputs by inputs. Of a rank's part, if ranks share it.
    pub shape: Vec<usize>,
    /// Rows and columns of the whole.
    pub whole: Vec<usize>,
    /// Which numbers of the whole these are, in their order.
    pub patches: Vec<Patch>,
    /// Where it begins in the numbers of its block.
    pub start: usize,
    /// What it is before training.
    pub init: Init,
    /// What its random numbers are told apart from other parameters' by.
    pub key: [u64; 2],
}

impl Parameter {
    /// How many numbers it has.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where in its block it lies.
    pub fn range(&self) -> std::ops::Range<usize> {
        self.start..self.start + self.len()
    }

    /// Matrices decay, norms and biases do not.
    pub fn decays(&self) -> bool {
        self.shape.len() > 1
    }
}

/// Parameters that are used, gathered, reduced and stepped together, one behind the other in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// Its name, such as `layer.3`.
    pub name: String,
    /// What it holds, in the order of memory.
    pub parameters: Vec<Parameter>,
    /// Which rank of a tensor group has this.
    pub share: Share,
    /// It has room for at least so many numbers, as others like it.
    pub least: usize,
}

/// Parameters begin at a multiple of so many numbers: a cache line of the smallest format.
const ALIGNED: usize = 32;

impl Block {
    fn new(name: &str, share: Share) -> Self {
        Self { name: name.to_owned(), parameters: Vec::new(), share, least: 0 }
    }

    fn add(&mut self, name: &str, whole: &[usize], init: Init, cut: Cut<'_>) {
        let start = self.room();
        let role = ParamRole::from_name(name);
        let name = format!("{}.{name}", self.name);
        let (rows, columns) = (whole[0], whole.get(1).copied());
        let patches = cut.patches(self.share, (rows, columns.unwrap_or(1)));
        let mut shape = vec![patches.iter().map(|patch| patch.rows.len()).sum()];
        if columns.is_some() {
            shape.push(patches[0].columns.len());
        }
        let whole = whole.to_vec();
        let key = [0; 2];
        self.parameters.push(Parameter { name, role, shape, whole, patches, start, init, key });
    }

    /// How many numbers a tensor with all of them has, with gaps, which stay zero.
    pub fn room(&self) -> usize {
        let end = self.parameters.last().map_or(0, |last| last.range().end);
        end.max(self.least).next_multiple_of(ALIGNED)
    }

    /// How many parameters there are.
    pub fn len(&self) -> usize {
        self.parameters.iter().map(Parameter::len).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.parameters.is_empty()
    }

    /// Where the parameter of this short name lies, such as `qkv.weight`.
    pub fn find(&self, short: &str) -> Option<std::ops::Range<usize>> {
        let is = |p: &&Parameter| p.name.strip_prefix(&self.name).is_some_and(|n| n[1..] == *short);
        self.parameters.iter().find(is).map(Parameter::range)
    }
}
