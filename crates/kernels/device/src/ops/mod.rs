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
    AttentionChunkSaved, AttentionChunkShape, AttentionDropout, AttentionOps, AttentionSaved,
    AttentionShape, RopeDirection,
};
pub use elementwise::ElementwiseOps;
pub use embedding::EmbeddingOps;
pub use fp8::{FP8_DTYPE, FP8_SCALE_DTYPE, Fp8, Fp8Ops, Fp8Rows, Fp8RowsMut};
pub use graph::{Graph, GraphMasks, GraphOps};
pub use linear::{LinearOps, LinearShape};
pub use loss::{CrossEntropyPartial, LossOps, merge_partials};
pub use memory::{
    ArenaOverflow, ArenaUse, DeviceMemory, GPU_MAX_LOGITS, KernelTime, MemoryUse, SCALAR_DTYPE,
    TOKEN_DTYPE, TimeMark,
};
pub use norm::{Norm, NormGrads, NormInputGrad, NormOps, NormSaved};
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
