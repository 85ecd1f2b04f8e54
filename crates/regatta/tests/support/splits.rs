//! Splits of a model among ranks, and a model that all of them can share.

#![allow(dead_code, reason = "each test file uses its own part")]

/// Four layers and heads, for up to as many stages and tensor-parallel ranks. The rate falls until a
/// step that does not depend on how many there are.
pub const MODEL: &str = "layers=4 heads=4 width=32 context=32 batch=16 threads=1 warmup=5 \
                         decay_steps=50 eval_every=10 eval_batches=2 checkpoint.every=0";

/// What is trained where nothing else is said.
pub const GPT2: &str = "family=gpt2";

/// Two queries share keys and values.
pub const LLAMA: &str = "family=llama kv_heads=2";

/// What is left out at random must be the same wherever it is left out.
pub const DROPOUT: &str = "family=gpt2 dropout=0.2";

/// So many ranks, the model, and how they share it. Names of keys are written out where there could
/// be others.
pub type Split = (u32, &'static str, &'static str);

/// The name of a run's folder.
pub fn name((ranks, model, how): Split) -> String {
    let words = format!("{ranks} {model} {how}");
    words.replace([' ', '.', '='], "-").replace("family-", "")
}
