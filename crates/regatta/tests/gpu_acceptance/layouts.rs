//! Every parallel layout has the losses of a single rank, over NCCL with ranks that share one GPU.

use std::collections::BTreeMap;

use crate::harness::{Harness, Target};
use crate::rows::check_rows;
use crate::support::metrics::RunMetrics;
use crate::tolerance::check_losses;

/// Heads of dimension 64, which attention on tensor cores supports, and four layers for two virtual
/// stages on two ranks. `decay_steps` is set, so that the learning rate does not depend on the steps.
const MODEL: &str = "num_layers=4 num_heads=4 hidden_size=256 seq_len=128 batch=8 train.steps=6 lr=3e-4 \
                     warmup_steps=5 decay_steps=50 eval_interval=3 eval_batches=1 \
                     checkpoint.interval=0 metrics.tensorboard=false";

/// Biases and tied embeddings.
const GPT2: &str = "family=gpt2";

/// Grouped-query attention, RoPE, SwiGLU and an untied head.
const LLAMA: &str = "family=llama num_kv_heads=2";

/// Dropout masks must not depend on the layout.
const DROPOUT: &str = "family=gpt2 dropout=0.2";

/// Seconds on a CPU.
const SMALL: &str = "family=gpt2 hidden_size=32 seq_len=32";

/// A model and the parallel layout of a row.
type Row = (&'static str, &'static str);

const DATA_PARALLEL: &[Row] = &[
    (GPT2, "dp=2"),
    (LLAMA, "dp=2 micro_batch=2"),
    (GPT2, "zero=1"),
    (LLAMA, "zero=1"),
    (GPT2, "zero=2"),
    (LLAMA, "zero=2 micro_batch=2"),
    (GPT2, "zero=3"),
    (LLAMA, "zero=3 micro_batch=2 recompute=true"),
    (DROPOUT, "zero=3"),
];

const MODEL_PARALLEL: &[Row] = &[
    (GPT2, "tp=2 sequence_parallel=true"),
    (GPT2, "tp=2 sequence_parallel=false"),
    (LLAMA, "tp=2 sequence_parallel=true"),
    (LLAMA, "tp=2 sequence_parallel=false recompute=true"),
    (DROPOUT, "tp=2 sequence_parallel=true"),
    (GPT2, "cp=2"),
    (LLAMA, "cp=2"),
    (DROPOUT, "cp=2"),
];

const PIPELINE: &[Row] = &[
    (GPT2, "pp=2 parallel.schedule=gpipe micro_batch=2"),
    (GPT2, "pp=2 parallel.schedule=1f1b micro_batch=2"),
    (GPT2, "pp=2 parallel.schedule=interleaved virtual_stages=2 micro_batch=2"),
    (GPT2, "pp=2 parallel.schedule=zero-bubble micro_batch=2"),
    (LLAMA, "pp=2 parallel.schedule=1f1b micro_batch=2"),
    (LLAMA, "pp=2 parallel.schedule=interleaved virtual_stages=2 micro_batch=1"),
    (LLAMA, "pp=2 parallel.schedule=zero-bubble micro_batch=2 recompute=true"),
    (DROPOUT, "pp=2 parallel.schedule=zero-bubble micro_batch=2"),
];

const COMBINED: &[Row] = &[
    (GPT2, "dp=2 tp=2"),
    (LLAMA, "dp=2 tp=2 zero=2"),
    (LLAMA, "dp=2 tp=2 zero=3 sequence_parallel=false"),
    (GPT2, "tp=2 pp=2 micro_batch=2"),
    (LLAMA, "tp=2 pp=2 micro_batch=2 parallel.schedule=zero-bubble"),
    (GPT2, "dp=2 pp=2 micro_batch=1 zero=1"),
    (LLAMA, "dp=2 pp=2 micro_batch=1 parallel.schedule=interleaved virtual_stages=2"),
    (GPT2, "dp=2 cp=2 zero=3"),
    (LLAMA, "tp=2 cp=2"),
    (GPT2, "cp=2 pp=2 micro_batch=2"),
    (LLAMA, "zero=3 hsdp_shard=2"),
];

/// Data, tensor and pipeline parallelism at once, on eight ranks.
const THREE_D: &[Row] = &[
    (GPT2, "dp=2 tp=2 pp=2 micro_batch=1 zero=1"),
    (LLAMA, "dp=2 tp=2 pp=2 micro_batch=1 parallel.schedule=interleaved virtual_stages=2"),
];

/// A different order of f32 additions changes a loss by a few units in the last place.
const F32: (&str, f64) = ("f32", 1e-5);

/// Partial results are rounded to bf16 at other points, each by up to 2^-9 of its value; the mean over
/// all tokens averages the errors.
const BF16: (&str, f64) = ("bf16", 2e-3);

/// Asserts that the losses of every row are those of a single rank.
fn check_layouts(ranks: usize, rows: &[Row], (precision, tolerance): (&str, f64)) {
    let Some(harness) = Harness::or_skip() else { return };
    check_layouts_on(&harness, ranks, rows, (precision, tolerance));
}

fn check_layouts_on(
    harness: &Harness,
    ranks: usize,
    rows: &[Row],
    (precision, tolerance): (&str, f64),
) {
    let name = |ranks: usize, (model, layout): &Row| {
        format!("{ranks} ranks, {precision}, {model}, {layout}")
    };
    let train = |ranks: usize, row: &Row| {
        let (model, layout) = row;
        let run = name(ranks, row).replace([' ', ',', '=', '.'], "-");
        let words = format!("{MODEL} precision={precision} {model} {layout}");
        harness.run_in(&run, ranks, &words)
    };
    let single_rank: BTreeMap<&str, RunMetrics> = std::thread::scope(|scope| {
        let models = [GPT2, LLAMA, DROPOUT, SMALL].into_iter();
        let models = models.filter(|model| rows.iter().any(|(of_row, _)| of_row == model));
        let train = &train;
        let start = |model| (model, scope.spawn(move || train(1, &(model, ""))));
        let running: Vec<_> = models.map(start).collect();
        running.into_iter().map(|(model, run)| (model, run.join().unwrap())).collect()
    });
    let check = |row: &Row| check_losses(&train(ranks, row), &single_rank[row.0], tolerance);
    check_rows(rows, |row| name(ranks, row), check);
}

#[test]
fn data_parallel_and_zero_losses_match_a_single_rank_in_f32() {
    check_layouts(2, DATA_PARALLEL, F32);
}

#[test]
fn data_parallel_and_zero_losses_match_a_single_rank_in_bf16() {
    check_layouts(2, DATA_PARALLEL, BF16);
}

#[test]
fn tensor_and_context_parallel_losses_match_a_single_rank_in_f32() {
    check_layouts(2, MODEL_PARALLEL, F32);
}

#[test]
fn tensor_and_context_parallel_losses_match_a_single_rank_in_bf16() {
    check_layouts(2, MODEL_PARALLEL, BF16);
}

#[test]
fn pipeline_schedules_match_a_single_rank_in_f32() {
    check_layouts(2, PIPELINE, F32);
}

#[test]
fn pipeline_schedules_match_a_single_rank_in_bf16() {
    check_layouts(2, PIPELINE, BF16);
}

#[test]
fn combined_layouts_match_a_single_rank_in_f32() {
    check_layouts(4, COMBINED, F32);
}

#[test]
fn combined_layouts_match_a_single_rank_in_bf16() {
    check_layouts(4, COMBINED, BF16);
}

#[test]
fn three_dimensional_layouts_match_a_single_rank_in_f32() {
    check_layouts(8, THREE_D, F32);
}

#[test]
fn three_dimensional_layouts_match_a_single_rank_in_bf16() {
    check_layouts(8, THREE_D, BF16);
}

/// One row on CPUs, so that the comparison itself is tested without a GPU.
#[test]
fn a_layout_on_cpus_matches_a_single_rank() {
    check_layouts_on(&Harness::on(Target::Cpu), 2, &[(SMALL, "zero=2")], F32);
}
