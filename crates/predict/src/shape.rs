//! The shape of a model and the names, shapes and layout of its parameters. No I/O.

mod layout;
mod role;
mod shard;
mod tile;

pub use layout::{BlockLayout, Matrices};
pub use role::{Module, ParamKind, ParamRole};
pub use shard::{Shard, ShardSlice};
pub use tile::Tile;

use regatta_comm::enum_names;
use serde::{Deserialize, Serialize};

use shard::Sharding;

/// Model architecture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Family {
    /// Learned position embeddings, LayerNorm, GELU, biases, tied embeddings.
    Gpt2,
    /// RoPE, RMSNorm, SwiGLU, grouped-query attention, no biases.
    Llama,
    /// GPT-2 without attention, for smoke tests: a bigram model.
    Mlp,
}

enum_names!(Family, "All architectures.", Gpt2 "gpt2", Llama "llama", Mlp "mlp");

/// The sizes of a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelShape {
    /// Architecture.
    pub family: Family,
    /// Vocabulary size.
    pub vocab_size: usize,
    /// Maximum sequence length in tokens.
    pub seq_len: usize,
    /// Hidden size (d_model).
    pub hidden_size: usize,
    /// Number of layers.
    pub num_layers: usize,
    /// Attention heads.
    pub num_heads: usize,
    /// Key/value heads: each serves `num_heads / num_kv_heads` query heads.
    pub num_kv_heads: usize,
    /// Hidden size of the MLP.
    pub intermediate_size: usize,
    /// Whether the output matrix is the token embedding.
    pub tie_embeddings: bool,
    /// Whether linear layers and norms have biases.
    pub bias: bool,
    /// Epsilon of the norms.
    pub norm_eps: f64,
    /// Base of the rotary position embedding; Llama only.
    pub rope_theta: f64,
}

impl ModelShape {
    /// Elements of an attention head.
    pub fn head_dim(&self) -> usize {
        self.hidden_size / self.num_heads
    }

    /// Elements of the packed queries, keys and values of a token.
    pub fn qkv_dim(&self) -> usize {
        (self.num_heads + 2 * self.num_kv_heads) * self.head_dim()
    }

    /// Outputs of the first MLP matrix; SwiGLU has gate and up projections in one matrix.
    pub fn up_dim(&self) -> usize {
        if self.is_gated() { 2 * self.intermediate_size } else { self.intermediate_size }
    }

    /// Whether the MLP is gated (SwiGLU).
    pub fn is_gated(&self) -> bool {
        self.family == Family::Llama
    }

    /// Whether layers have attention.
    pub fn has_attention(&self) -> bool {
        self.family != Family::Mlp
    }

    /// Checks that the sizes are consistent. The error names the configuration keys.
    pub fn check(&self) -> Result<(), String> {
        let sizes = [
            ("vocab_size", self.vocab_size),
            ("seq_len", self.seq_len),
            ("hidden_size", self.hidden_size),
            ("num_heads", self.num_heads),
            ("num_kv_heads", self.num_kv_heads),
            ("intermediate_size", self.intermediate_size),
        ];
        if let Some((name, _)) = sizes.iter().find(|(_, size)| *size == 0) {
            return Err(format!("model.{name} must not be 0"));
        }
        let layers = ("num_layers", self.num_layers);
        if let Some((name, size)) = sizes.iter().chain([&layers]).find(|(_, s)| *s > MAX_SIZE) {
            return Err(format!("model.{name} is {size}; the maximum is {MAX_SIZE}"));
        }
        let (hidden, heads, kv) = (self.hidden_size, self.num_heads, self.num_kv_heads);
        if !hidden.is_multiple_of(heads) {
            // RoPE needs an even head dimension.
            let pairs = if self.family == Family::Llama { 2 } else { 1 };
            let near = nearest_multiple(hidden, heads * pairs);
            return Err(format!(
                "model.hidden_size {hidden} is not a multiple of model.num_heads {heads}: try \
                 model.hidden_size={near}"
            ));
        }
        if !heads.is_multiple_of(kv) {
            return Err(format!(
                "model.num_kv_heads {kv} does not divide model.num_heads {heads}: try model.num_kv_heads={}",
                (1..=kv.min(heads)).rev().find(|n| heads.is_multiple_of(*n)).unwrap_or(1)
            ));
        }
        if self.family == Family::Llama && !self.head_dim().is_multiple_of(2) {
            return Err(format!(
                "head dimension {} (model.hidden_size {hidden} / model.num_heads {heads}) is odd, \
                 but RoPE needs an even one: try model.hidden_size={}",
                self.head_dim(),
                hidden + heads
            ));
        }
        Ok(())
    }

    /// The parameter blocks in forward order: embedding, layers, head.
    pub fn blocks(&self) -> Vec<ParamBlock> {
        self.sharded_blocks(Shard::UNSHARDED)
    }

    /// The parameter blocks of one tensor-parallel rank.
    pub fn sharded_blocks(&self, shard: Shard) -> Vec<ParamBlock> {
        let mut blocks = vec![self.embedding(shard)];
        blocks.extend((0..self.num_layers).map(|layer| self.layer(shard, layer)));
        blocks.push(self.head(shard));
        for (block_index, block) in (0..).zip(&mut blocks) {
            for (index, parameter) in (0..).zip(&mut block.parameters) {
                parameter.rng_key = [block_index, index];
            }
        }
        blocks
    }

    /// Number of parameters.
    pub fn num_params(&self) -> usize {
        self.blocks().iter().map(ParamBlock::len).sum()
    }

    /// Training FLOPs per token at a sequence length: a multiply-add counts two, causal attention half
    /// of the full square, the backward pass twice the forward pass.
    /// 3·[L(4h²(1+g/a) + 2sh + (4 or 6)hf) + 2hV].
    pub fn training_flops_per_token(&self, seq_len: usize) -> f64 {
        let [h, f, s] = [self.hidden_size, self.intermediate_size, seq_len].map(|n| n as f64);
        let kv_ratio = self.num_kv_heads as f64 / self.num_heads as f64;
        let attention = 4.0 * h * h * (1.0 + kv_ratio) + 2.0 * s * h;
        let attention = if self.has_attention() { attention } else { 0.0 };
        let mlp = if self.is_gated() { 6.0 } else { 4.0 } * h * f;
        let head = 2.0 * h * self.vocab_size as f64;
        3.0 * (self.num_layers as f64 * (attention + mlp) + head)
    }

    fn embedding(&self, shard: Shard) -> ParamBlock {
        let (table, rows) = ([self.vocab_size, self.hidden_size], [self.vocab_size]);
        let mut block = ParamBlock::new("embed", shard);
        block.add_weight(Module::TokenEmbedding, &table, Init::Normal, Sharding::Rows(&rows));
        if self.tie_embeddings {
            block.pad_rows(VOCAB_ALIGNMENT);
        }
        if self.family == Family::Gpt2 {
            let positions = [self.seq_len, self.hidden_size];
            let (init, sharding) = (Init::Normal, Sharding::Replicated);
            block.add_weight(Module::PositionEmbedding, &positions, init, sharding);
        }
        block
    }

    fn layer(&self, shard: Shard, layer: usize) -> ParamBlock {
        let mut block = ParamBlock::new(&format!("layer.{layer}"), shard);
        if self.has_attention() {
            self.add_norm(&mut block, Module::AttentionNorm);
            let [q, kv] = [self.num_heads, self.num_kv_heads].map(|heads| heads * self.head_dim());
            self.add_column_parallel(&mut block, Module::Qkv, &[q, kv, kv]);
            self.add_row_parallel(&mut block, Module::AttentionOutput, q);
        }
        self.add_norm(&mut block, Module::MlpNorm);
        let inner = self.intermediate_size;
        let groups = vec![inner; if self.is_gated() { 2 } else { 1 }];
        self.add_column_parallel(&mut block, Module::MlpUp, &groups);
        self.add_row_parallel(&mut block, Module::MlpDown, inner);
        block
    }

    fn head(&self, shard: Shard) -> ParamBlock {
        let mut block = ParamBlock::new("head", shard);
        self.add_norm(&mut block, Module::FinalNorm);
        if !self.tie_embeddings {
            let (matrix, rows) = ([self.vocab_size, self.hidden_size], [self.vocab_size]);
            block.add_weight(Module::LmHead, &matrix, Init::Normal, Sharding::Rows(&rows));
            block.pad_rows(VOCAB_ALIGNMENT);
        }
        block
    }

    fn add_norm(&self, block: &mut ParamBlock, module: Module) {
        let shape = [self.hidden_size];
        block.add_weight(module, &shape, Init::One, Sharding::Replicated);
        if self.bias {
            block.add_bias(module, &shape, Sharding::Replicated);
        }
    }

    /// A column-parallel linear layer: its outputs are sharded, group by group.
    fn add_column_parallel(&self, block: &mut ParamBlock, module: Module, groups: &[usize]) {
        let (outputs, sharding) = (groups.iter().sum(), Sharding::Rows(groups));
        block.add_weight(module, &[outputs, self.hidden_size], Init::Normal, sharding);
        if self.bias {
            block.add_bias(module, &[outputs], sharding);
        }
    }

    /// A row-parallel linear layer: its inputs are sharded, and the ranks' outputs are summed.
    fn add_row_parallel(&self, block: &mut ParamBlock, module: Module, inputs: usize) {
        let outputs = self.hidden_size;
        block.add_weight(module, &[outputs, inputs], Init::Residual, Sharding::Columns);
        if self.bias {
            block.add_bias(module, &[outputs], Sharding::Replicated);
        }
    }
}

/// Largest size of any dimension, so that parameter counts do not overflow.
const MAX_SIZE: usize = 1 << 24;

fn nearest_multiple(of: usize, unit: usize) -> usize {
    (of.saturating_add(unit / 2) / unit).max(1).saturating_mul(unit)
}

/// Initialisation of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Init {
    /// Zeros.
    Zero,
    /// Ones.
    One,
    /// Normal with standard deviation 0.02.
    Normal,
    /// Normal, scaled down by the square root of the number of residual additions.
    Residual,
}

/// A parameter: name, shape, and position in its block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamSpec {
    /// Full name, such as `layer.3.qkv.weight`.
    pub name: String,
    /// Role in its block.
    pub role: ParamRole,
    /// Local shape: rows and columns; a linear layer's is outputs by inputs.
    pub shape: Vec<usize>,
    /// Shape of the unsharded parameter.
    pub full_shape: Vec<usize>,
    /// The slices of the unsharded parameter that this rank has, in memory order.
    pub slices: Vec<ShardSlice>,
    /// Offset of its first element in the block.
    pub offset: usize,
    /// Elements behind it that stay zero: rows that make the outputs of an output matrix a multiple of
    /// [`VOCAB_ALIGNMENT`].
    pub padding: usize,
    /// Initialisation.
    pub init: Init,
    /// Key of its random stream.
    pub rng_key: [u64; 2],
}

impl ParamSpec {
    /// Number of local elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether this rank has none of it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its elements in the block.
    pub fn range(&self) -> std::ops::Range<usize> {
        self.offset..self.offset + self.len()
    }

    /// Whether weight decay applies: to matrices, not to norms and biases.
    pub fn has_weight_decay(&self) -> bool {
        self.shape.len() > 1
    }
}

/// Parameters that are gathered, reduced and updated together, contiguous in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamBlock {
    /// Name, such as `layer.3`.
    pub name: String,
    /// Its parameters in memory order.
    pub parameters: Vec<ParamSpec>,
    /// The tensor-parallel shard.
    pub shard: Shard,
    /// Minimum length in elements, so that tiles of one matrix have equal buffers.
    pub min_len: usize,
}

/// Parameters are aligned to this many elements: a cache line of the smallest data type.
const ALIGNMENT: usize = 32;

/// Output matrices that are not tiled are padded to this many rows, so that the GEMMs of a GPU have rows of
/// logits of whole cache lines, and dimensions that suit tensor cores. The rows are in the block, because a
/// padded copy would have to be written in every pass. They are zero, and so are their gradients, because the
/// gradient of their logits is.
pub const VOCAB_ALIGNMENT: usize = 64;

impl ParamBlock {
    fn new(name: &str, shard: Shard) -> Self {
        Self { name: name.to_owned(), parameters: Vec::new(), shard, min_len: 0 }
    }

    fn add_weight(&mut self, module: Module, shape: &[usize], init: Init, sharding: Sharding<'_>) {
        self.add(ParamRole { module, kind: ParamKind::Weight }, shape, init, sharding);
    }

    fn add_bias(&mut self, module: Module, shape: &[usize], sharding: Sharding<'_>) {
        self.add(ParamRole { module, kind: ParamKind::Bias }, shape, Init::Zero, sharding);
    }

    fn add(&mut self, role: ParamRole, full_shape: &[usize], init: Init, sharding: Sharding<'_>) {
        let offset = self.padded_len();
        let name = format!("{}.{}", self.name, role.name());
        let (rows, columns) = (full_shape[0], full_shape.get(1).copied());
        let slices = sharding.slices(self.shard, (rows, columns.unwrap_or(1)));
        let mut shape = vec![slices.iter().map(|slice| slice.rows.len()).sum()];
        shape.extend(columns.map(|_| slices[0].columns.len()));
        let (full_shape, rng_key) = (full_shape.to_vec(), [0; 2]);
        let padding = 0;
        let spec =
            ParamSpec { name, role, shape, full_shape, slices, offset, padding, init, rng_key };
        self.parameters.push(spec);
    }

    /// Pads the rows of the last parameter to a multiple of `alignment` rows.
    fn pad_rows(&mut self, alignment: usize) {
        if let Some(ParamSpec { shape, padding, .. }) = self.parameters.last_mut()
            && let [rows, columns] = shape[..]
        {
            *padding = (rows.next_multiple_of(alignment) - rows) * columns;
        }
    }

    /// Elements of the block's buffer, alignment padding included; padding stays zero.
    pub fn padded_len(&self) -> usize {
        let end = self.parameters.last().map_or(0, |last| last.range().end + last.padding);
        end.max(self.min_len).next_multiple_of(ALIGNMENT)
    }

    /// Number of parameters (elements).
    pub fn len(&self) -> usize {
        self.parameters.iter().map(ParamSpec::len).sum()
    }

    /// Whether it has no parameters.
    pub fn is_empty(&self) -> bool {
        self.parameters.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn output_matrices_are_padded_and_other_tables_are_not() {
        let shape = |family| ModelShape { vocab_size: 130, ..testing::shape(family) };
        let padding = |family, shard, block: fn(&[ParamBlock]) -> &ParamBlock, module| {
            let blocks = shape(family).sharded_blocks(shard);
            block(&blocks).param(module, ParamKind::Weight).map(|weight| weight.padding)
        };
        let whole = Shard::UNSHARDED;
        let half = Shard { rank: 0, ranks: 2 };
        let first: fn(&[ParamBlock]) -> &ParamBlock = |blocks| &blocks[0];
        let last: fn(&[ParamBlock]) -> &ParamBlock = |blocks| &blocks[blocks.len() - 1];
        // 192 rows, or 128 for 65 of a shard.
        let tied = |shard| padding(Family::Gpt2, shard, first, Module::TokenEmbedding);
        assert_eq!([tied(whole), tied(half)], [Some(62 * 8), Some(63 * 8)]);
        assert_eq!(padding(Family::Llama, whole, last, Module::LmHead), Some(62 * 8));
        assert_eq!(padding(Family::Llama, whole, first, Module::TokenEmbedding), Some(0));
    }

    #[test]
    fn padding_precedes_the_next_parameter_and_is_no_parameter() {
        let shape = ModelShape { vocab_size: 65, ..testing::shape(Family::Gpt2) };
        let embedding = &shape.blocks()[0];
        assert_eq!(embedding.parameters[1].offset, 128 * 8);
        assert_eq!(embedding.len(), (65 + 8) * 8);
        assert_eq!(embedding.padded_len(), (128 + 8) * 8);
    }
}
