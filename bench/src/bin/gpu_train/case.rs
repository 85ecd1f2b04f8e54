//! Models to measure.

use anyhow::{Context, Result, bail};
use regatta_benchmarks::gpt2_shape;
use regatta_predict::shape::{Family, ModelShape};

/// A model and a batch size.
#[derive(Debug, Clone)]
pub struct Case {
    /// As in the arguments.
    pub name: String,
    pub shape: ModelShape,
    pub batch: usize,
    /// Whether activations are recomputed in the backward pass.
    pub recompute: bool,
    pub dropout: f32,
}

impl Case {
    /// From `MODEL:BATCH`.
    pub fn parse(text: &str) -> Result<Self> {
        let (name, batch) = text.split_once(':').context("expected MODEL:BATCH, as in 124m:32")?;
        let shape = match name {
            "124m" => gpt2_shape(12, 12, 768),
            "355m" => gpt2_shape(24, 16, 1024),
            "llama-1b" => llama(16, 32, 2048, 8192),
            "char" => {
                ModelShape { seq_len: 256, vocab_size: 65, bias: false, ..gpt2_shape(6, 6, 384) }
            }
            _ => bail!("unknown model {name}: 124m, 355m, llama-1b or char"),
        };
        let dropout = if name == "char" { 0.2 } else { 0.0 };
        let (name, batch) = (text.to_owned(), batch.parse()?);
        Ok(Self { name, shape, batch, recompute: false, dropout })
    }

    /// A Llama of the layer shape of an 8B model with as many layers as given.
    pub fn of_layers(num_layers: usize, batch: usize) -> Self {
        let shape = llama(num_layers, 32, 4096, 14_336);
        Self { name: format!("{num_layers} layers"), shape, batch, recompute: true, dropout: 0.0 }
    }

    pub fn tokens(&self) -> f64 {
        (self.batch * self.shape.seq_len) as f64
    }
}

/// Grouped-query attention with eight KV heads, SwiGLU, RoPE and an untied head.
fn llama(num_layers: usize, num_heads: usize, hidden: usize, intermediate: usize) -> ModelShape {
    ModelShape {
        family: Family::Llama,
        seq_len: 2048,
        num_kv_heads: 8,
        intermediate_size: intermediate,
        vocab_size: 32_000,
        tie_embeddings: false,
        bias: false,
        ..gpt2_shape(num_layers, num_heads, hidden)
    }
}
