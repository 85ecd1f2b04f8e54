//! GPU runtimes, loaded at run time: neither building nor running without a GPU needs CUDA or ROCm.

pub mod sys;
