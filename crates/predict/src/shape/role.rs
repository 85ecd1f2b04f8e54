//! The role of a parameter: which module of the model it belongs to, and whether it is the weight or
//! the bias. No I/O.

use super::{ParamBlock, ParamSpec};

/// A module of the model with parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Module {
    /// Token embedding.
    TokenEmbedding,
    /// Learned position embedding.
    PositionEmbedding,
    /// Norm before attention.
    AttentionNorm,
    /// Fused query, key and value projection.
    Qkv,
    /// Output projection of attention.
    AttentionOutput,
    /// Norm before the MLP.
    MlpNorm,
    /// First linear layer of the MLP; with SwiGLU, gate and up projection.
    MlpUp,
    /// Second linear layer of the MLP.
    MlpDown,
    /// Norm before the output layer.
    FinalNorm,
    /// Output layer (LM head), unless tied to the token embedding.
    LmHead,
}

/// Weight or bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ParamKind {
    /// Weight.
    Weight,
    /// Bias.
    Bias,
}

/// What a parameter is in its block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ParamRole {
    /// The module.
    pub module: Module,
    /// Weight or bias.
    pub kind: ParamKind,
}

impl Module {
    /// Name inside the block, such as `qkv`.
    pub fn name(self) -> &'static str {
        match self {
            Self::TokenEmbedding => "tokens",
            Self::PositionEmbedding => "positions",
            Self::AttentionNorm => "norm1",
            Self::Qkv => "qkv",
            Self::AttentionOutput => "proj",
            Self::MlpNorm => "norm2",
            Self::MlpUp => "up",
            Self::MlpDown => "down",
            Self::FinalNorm => "norm",
            Self::LmHead => "output",
        }
    }

    /// Whether it is a LayerNorm or RMSNorm.
    pub fn is_norm(self) -> bool {
        matches!(self, Self::AttentionNorm | Self::MlpNorm | Self::FinalNorm)
    }

    /// Embeddings and the output layer have a weight only, which carries the module's name.
    fn is_table(self) -> bool {
        matches!(self, Self::TokenEmbedding | Self::PositionEmbedding | Self::LmHead)
    }
}

impl ParamRole {
    /// Short name of the parameter in its block, such as `qkv.weight`.
    pub fn name(self) -> String {
        let module = self.module.name();
        match self.kind {
            ParamKind::Weight if self.module.is_table() => module.to_owned(),
            ParamKind::Weight => format!("{module}.weight"),
            ParamKind::Bias => format!("{module}.bias"),
        }
    }
}

impl ParamBlock {
    /// The parameter of this role, if the block has it.
    pub fn param(&self, module: Module, kind: ParamKind) -> Option<&ParamSpec> {
        self.parameters.iter().find(|parameter| parameter.role == ParamRole { module, kind })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::{BlockLayout, Family, Shard};
    use crate::testing::shape;

    #[test]
    fn parameters_are_found_by_role() {
        for family in [Family::Gpt2, Family::Llama, Family::Mlp] {
            for block in shape(family).blocks() {
                for parameter in &block.parameters {
                    let name = format!("{}.{}", block.name, parameter.role.name());
                    assert_eq!(parameter.name, name);
                    let ParamRole { module, kind } = parameter.role;
                    assert_eq!(block.param(module, kind), Some(parameter));
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "block embed has no weight qkv")]
    fn a_missing_weight_is_named() {
        let layout = BlockLayout::new(&shape(Family::Gpt2), Shard::UNSHARDED, 1);
        let _ = layout.matrices(0).weight(Module::Qkv);
    }
}
