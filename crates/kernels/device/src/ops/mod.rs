//! The operations of a device, one sub-trait per group of kernels. A device implements each next to its
//! kernels.

mod activation;
mod attention;
mod elementwise;
mod embedding;
mod fp8;
mod graph;
mod linear;
mod loss;
mod memory;
mod norm;
mod optimizer;

pub use activation::ActivationOps;
pub use attention::{
    AttentionArgs, AttentionBackwardArgs, AttentionChunkArgs, AttentionChunkBackwardArgs,
    AttentionChunkShape, AttentionDropout, AttentionOps, AttentionSaved, AttentionShape,
    DecodeAttentionArgs, RopeArgs, RopeDirection,
};
pub use elementwise::ElementwiseOps;
pub use embedding::{EmbeddingBackwardArgs, EmbeddingOps, PositionBackwardArgs, positioned_rows};
pub use fp8::{FP8_DTYPE, FP8_SCALE_DTYPE, Fp8, Fp8Ops, Fp8Rows, Fp8RowsMut};
pub use graph::{Graph, GraphMasks, GraphOps};
pub use linear::{
    LinearArgs, LinearBackwardInputArgs, LinearBackwardWeightArgs, LinearOps, LinearShape,
};
pub use loss::{
    CrossEntropyArgs, CrossEntropyBackwardArgs, CrossEntropyPartial, CrossEntropyPartialsArgs,
    LossOps, logit_row_len, merge_partials,
};
pub use memory::{
    ArenaOverflow, ArenaUse, ColumnRange, DeviceMemory, GPU_MAX_LOGITS, KernelTime, MemoryUse,
    SCALAR_DTYPE, TOKEN_DTYPE, TimeMark, column_copy_rows,
};
pub use norm::{Norm, NormArgs, NormBackwardArgs, NormInputGrad, NormOps};
pub use optimizer::{OptimizerOps, OptimizerState};

macro_rules! device {
    ($($operations:ident)*) => {
        /// A device that trains.
        pub trait Device: $($operations +)* {}

        impl<D: $($operations +)*> Device for D {}
    };
}

device! {
    DeviceMemory LinearOps NormOps AttentionOps ActivationOps EmbeddingOps LossOps ElementwiseOps
    OptimizerOps Fp8Ops GraphOps
}
