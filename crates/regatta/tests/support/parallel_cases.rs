//! Parallel layouts to test, and a model that supports all of them.

/// Four layers and heads, for up to pp=4 and tp=4. `decay_steps` is set, so that the learning rate
/// does not depend on the number of steps.
pub const MODEL: &str = "family=gpt2 bias=false tie_embeddings=auto precision=f32 num_layers=4 num_heads=4 hidden_size=32 seq_len=32 batch=16 threads=1 \
                         warmup_steps=5 decay_steps=50 eval_interval=10 eval_batches=2 \
                         checkpoint.interval=0";

/// The default architecture.
pub const GPT2: &str = "family=gpt2";

/// Grouped-query attention with two query heads per KV head.
pub const LLAMA: &str = "family=llama num_kv_heads=2";

/// Dropout masks must not depend on the parallel layout.
pub const DROPOUT: &str = "family=gpt2 dropout=0.2";

/// Number of ranks, model, and parallel layout.
pub type ParallelCase = (u32, &'static str, &'static str);

/// The name of a case's run folder.
pub fn run_name((ranks, model, layout): ParallelCase) -> String {
    let words = format!("{ranks} {model} {layout}");
    words.replace([' ', '.', '='], "-").replace("family-", "")
}
