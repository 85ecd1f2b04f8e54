//! To be written.

pub mod bf16;
