//! The role of a parameter: which module of the model it belongs to, and whether it is the weight or
//! the bias. No I/O.

use super::{Block, Matrices, Parameter, Tile};

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

const MODULES: [Module; 10] = [
    Module::TokenEmbedding,
    Module::PositionEmbedding,
    Module::AttentionNorm,
    Module::Qkv,
    Module::AttentionOutput,
    Module::MlpNorm,
    Module::MlpUp,
    Module::MlpDown,
    Module::FinalNorm,
    Module::LmHead,
];

impl ParamRole {
    /// Short name of the parameter in its block, such as `qkv.weight`.
    pub fn name(self) -> String {
        let (module, kind) = (self.module.name(), self.kind);
        match kind {
            ParamKind::Weight if self.module.is_table() => module.to_owned(),
            ParamKind::Weight => format!("{module}.weight"),
            ParamKind::Bias => format!("{module}.bias"),
        }
    }

    /// The role with this short name.
    ///
    /// # Panics
    /// If no parameter has this name.
    pub(super) fn from_name(name: &str) -> Self {
        let kinds = [ParamKind::Weight, ParamKind::Bias];
        let all = MODULES.into_iter().flat_map(|module| kinds.map(|kind| Self { module, kind }));
        match all.into_iter().find(|role| role.name() == name) {
            Some(role) => role,
            None => unreachable!("no parameter is called {name}"),
        }
    }
}

impl Block {
    /// The parameter of this role, if the block has it.
    pub fn param(&self, module: Module, kind: ParamKind) -> Option<&Parameter> {
        self.parameters.iter().find(|parameter| parameter.role == ParamRole { module, kind })
    }
}

impl Matrices<'_> {
    /// The tiles of a module's weight matrix, none if it is in the block itself, and its rows and
    /// columns.
    ///
    /// # Panics
    /// If the block has no such matrix.
    pub fn weight(&self, module: Module) -> (Vec<Tile>, [usize; 2]) {
        let kind = ParamKind::Weight;
        let (tiles, sizes) = self.find(&ParamRole { module, kind }.name());
        let is_found = !tiles.is_empty() || self.block.param(module, kind).is_some();
        assert!(is_found, "block {} has no weight {}", self.block.name, module.name());
        (tiles, sizes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::Family;
    use crate::testing::shape;

    #[test]
    fn every_parameter_has_the_role_of_its_name() {
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
        let layout =
            crate::shape::BlockLayout::new(&shape(Family::Gpt2), crate::shape::Share::ALL, 1);
        let _ = layout.matrices(0).weight(Module::Qkv);
    }
}
