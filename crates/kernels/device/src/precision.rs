//! Storage format of activations.

use regatta_comm::{DType, enum_names};
use serde::{Deserialize, Serialize};

/// Data type of activations and of GEMM operands. Everything else is f32.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Precision {
    /// f32.
    #[default]
    F32,
    /// bf16, accumulated in f32.
    Bf16,
}

enum_names!(Precision, "All precisions, named as in `train.precision`.", F32 "f32", Bf16 "bf16");

impl Precision {
    /// The precision of a name.
    pub fn find(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|precision| precision.name() == name)
    }

    /// The dtype of its elements.
    pub fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::Bf16 => DType::Bf16,
        }
    }

    /// Bytes of an element of an activation.
    pub fn activation_bytes(self) -> u64 {
        self.dtype().size() as u64
    }
}
