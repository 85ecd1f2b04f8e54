//! `train.deterministic=true`: runs are repeated and resumed bit by bit.

use crate::checkpoint_bytes::{assert_same_state, shard_digests};
use crate::harness::Harness;
use crate::rows::check_rows;
use crate::support::metrics::assert_identical;

const STEPS: u64 = 20;
const HALF: u64 = STEPS / 2;

/// With dropout, whose masks must be the same after a resume.
const MODEL: &str = "deterministic=true num_layers=2 num_heads=4 hidden_size=256 seq_len=128 batch=8 \
                     dropout=0.1 lr=3e-4 warmup_steps=5 decay_steps=50 eval_interval=10 \
                     eval_batches=1 checkpoint.interval=10 metrics.tensorboard=false";

/// Ranks, and model, precision and layout.
const CASES: &[(usize, &str)] = &[
    (1, "precision=bf16 family=gpt2"),
    (1, "precision=bf16 family=llama num_kv_heads=2 dropout=0 recompute=true"),
    (1, "precision=f32 family=gpt2"),
    (2, "precision=bf16 family=gpt2 zero=2 micro_batch=2"),
    (2, "precision=bf16 family=gpt2 tp=2"),
];

fn name(row: &(usize, &str)) -> String {
    format!("{} ranks, {}", row.0, row.1)
}

#[test]
fn deterministic_runs_are_repeated_bit_by_bit() {
    let Some(harness) = Harness::or_skip() else { return };
    check_rows(CASES, name, |row| {
        let (ranks, words) = row;
        let words = format!("{MODEL} {words} train.steps={STEPS}");
        let [first, second] = ["first", "second"].map(|run| {
            let run = format!("{run} {}", name(row)).replace([' ', ',', '='], "-");
            let metrics = harness.run_in(&run, *ranks, &words);
            (metrics, shard_digests(&harness, &run, STEPS))
        });
        assert_identical(&second.0, &first.0, STEPS);
        assert_same_state(&second.1, &first.1);
        Ok(format!("{} shards are identical", first.1.len()))
    });
}

#[test]
fn deterministic_runs_resume_bit_by_bit() {
    let Some(harness) = Harness::or_skip() else { return };
    check_rows(CASES, name, |row| {
        let (ranks, words) = row;
        let dir = |run: &str| format!("{run} {}", name(row)).replace([' ', ',', '='], "-");
        let words = format!("{MODEL} {words}");
        let (full, resumed) = (dir("full"), dir("resumed"));
        let expected = harness.run_in(&full, *ranks, &format!("{words} train.steps={STEPS}"));
        harness.run_in(&resumed, *ranks, &format!("{words} train.steps={HALF}"));
        let out = harness.run(*ranks, &format!("--resume {resumed} train.steps={STEPS}"));
        out.assert_ok(&format!("resumed after step {HALF} from "));
        assert_identical(&harness.metrics(&resumed), &expected, STEPS);
        let [full, resumed] = [full, resumed].map(|run| shard_digests(&harness, &run, STEPS));
        assert_same_state(&resumed, &full);
        Ok(format!("{} shards are identical", full.len()))
    });
}
