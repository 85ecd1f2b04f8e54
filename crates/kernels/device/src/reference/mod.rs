//! The reference device: textbook loops in f64 that other devices are checked against. Slow on purpose.

mod activation;
mod attention;
mod attention_chunk;
mod elementwise;
mod embedding;
mod linear;
mod loss;
mod memory;
mod norm;
mod optimizer;

use crate::Fp8Ops;

/// The reference device. All dtypes are f64.
#[derive(Debug, Clone, Copy, Default)]
pub struct Reference;

impl Reference {
    /// The reference device.
    pub fn new() -> Self {
        Self
    }
}

impl Fp8Ops for Reference {}
