//! Offloaded state does not change results: losses and checkpoints are those of a run that keeps its state
//! on the GPU, bit by bit.

use crate::checkpoint_bytes::{assert_same_state, shard_digests};
use crate::harness::Harness;
use crate::rows::check_rows;
use crate::support::metrics::assert_identical;

const STEPS: u64 = 8;

const MODEL: &str = "deterministic=true num_layers=4 num_heads=4 hidden_size=256 seq_len=128 batch=8 \
                     train.steps=8 lr=3e-4 warmup_steps=5 decay_steps=50 eval_interval=4 \
                     eval_batches=1 checkpoint.interval=8 metrics.tensorboard=false";

/// Ranks, model and layout, and what is offloaded.
const CASES: &[(usize, &str, &str)] = &[
    (1, "precision=bf16 family=gpt2 dropout=0.1", "offload.optimizer=host"),
    (1, "precision=bf16 family=gpt2", "offload.optimizer=host offload.parameters=host"),
    (1, "precision=f32 family=gpt2", "offload.optimizer=host offload.parameters=host"),
    (1, "precision=bf16 family=gpt2", "offload.optimizer=disk offload.parameters=disk"),
    (
        1,
        "precision=bf16 family=llama num_kv_heads=2 recompute=true micro_batch=2",
        "offload.optimizer=disk offload.parameters=host",
    ),
    (2, "precision=bf16 family=gpt2 zero=3", "offload.optimizer=host offload.parameters=host"),
    (2, "precision=bf16 family=llama num_kv_heads=2 zero=1", "offload.optimizer=host"),
];

#[test]
fn offloaded_state_does_not_change_losses_and_checkpoints() {
    let Some(harness) = Harness::gpu_or_skip() else { return };
    let name = |(ranks, model, offload): &(usize, &str, &str)| {
        format!("{ranks} ranks, {model}, {offload}")
    };
    check_rows(CASES, name, |row| {
        let (ranks, model, offload) = row;
        let [expected, offloaded] = ["", *offload].map(|offload| {
            let run = format!("{} {offload}", name(row)).replace([' ', ',', '=', '.'], "-");
            let metrics = harness.run_in(&run, *ranks, &format!("{MODEL} {model} {offload}"));
            (metrics, shard_digests(&harness, &run, STEPS))
        });
        assert_identical(&offloaded.0, &expected.0, STEPS);
        assert_same_state(&offloaded.1, &expected.1);
        Ok(format!("{} shards are identical", expected.1.len()))
    });
}
