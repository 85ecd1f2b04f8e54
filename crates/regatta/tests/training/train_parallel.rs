//! `regatta train` with parallel layouts over shared memory: all have the losses of a single rank. A third
//! of the layouts, or all in `cargo xtask accept parallel-layouts`.

use regatta_testbed::sample_cases;
use serde_json::Value;

use crate::support::TempDir;
use crate::support::metrics::assert_close;
use crate::support::parallel_cases::{DROPOUT, GPT2, LLAMA, MODEL, ParallelCase, run_name};
use crate::support::train::{metrics, run};

/// Asserts that the losses of each case are those of a single rank.
fn assert_losses_match_single_rank(cases: &[ParallelCase]) {
    let cases: Vec<ParallelCase> = sample_cases(cases.iter().copied(), 3).collect();
    let folder = TempDir::new();
    let train = |case: ParallelCase| {
        let (ranks, model, layout) = case;
        let words = format!("{MODEL} train.steps=20 {model} {layout} -n {ranks}");
        run(&folder, &format!("{words} --run-dir {}", run_name(case))).ok();
        metrics(&folder, &run_name(case))
    };
    for model in [GPT2, LLAMA, DROPOUT] {
        let mut cases = cases.iter().filter(|case| case.1 == model).peekable();
        if cases.peek().is_none() {
            continue;
        }
        let one = train((1, model, ""));
        assert_eq!((one.steps.len(), one.val_losses.len()), (20, 2));
        let [first, last] = [1, 20].map(|step| one.steps[&step].loss);
        assert!(last < first - 0.1, "the loss does not decrease: {one:?}");
        for case in cases {
            println!("{case:?}");
            assert_close(&train(*case), &one);
        }
    }
}

#[test]
fn layouts_of_2_ranks_match_a_single_rank() {
    assert_losses_match_single_rank(&[
        (2, GPT2, "tp=2"),
        (2, GPT2, "cp=2 recompute=true micro_batch=4"),
        (2, GPT2, "pp=2"),
        (2, GPT2, "pp=2 parallel.schedule=gpipe micro_batch=2 recompute=true"),
        (2, GPT2, "zero=1"),
        (2, GPT2, "zero=2 micro_batch=4 recompute=true"),
        (2, GPT2, "zero=3 micro_batch=2"),
        (2, LLAMA, "tp=2 recompute=true micro_batch=8"),
        (2, LLAMA, "cp=2"),
        (2, LLAMA, "pp=2 parallel.schedule=zero-bubble micro_batch=2"),
        (2, LLAMA, "pp=2 parallel.schedule=interleaved virtual_stages=2 micro_batch=1"),
        (2, LLAMA, "zero=2"),
        (2, LLAMA, "zero=3 recompute=true offload.optimizer=disk"),
        (2, LLAMA, "offload.parameters=disk tiles=3 micro_batch=4"),
        (2, DROPOUT, "tp=2 sequence_parallel=false"),
        (2, DROPOUT, "pp=2 recompute=true"),
    ]);
}

#[test]
fn layouts_of_4_ranks_match_a_single_rank() {
    assert_losses_match_single_rank(&[
        (4, GPT2, "tp=4"),
        (4, GPT2, "cp=4 micro_batch=8"),
        (4, GPT2, "pp=4 parallel.schedule=zero-bubble"),
        (4, GPT2, "tp=2 cp=2"),
        (4, GPT2, "zero=3 hsdp_shard=2 recompute=true"),
        (4, GPT2, "dp=2 tp=2 zero=2 micro_batch=4"),
        (4, LLAMA, "tp=2 pp=2 recompute=true"),
        (4, LLAMA, "cp=2 pp=2 parallel.schedule=gpipe"),
        (4, LLAMA, "dp=2 pp=2 parallel.schedule=interleaved virtual_stages=2"),
        (4, LLAMA, "dp=2 tp=2 micro_batch=2"),
        (4, LLAMA, "dp=2 cp=2 zero=3"),
        (4, LLAMA, "dp=2 pp=2 zero=3 tiles=2 offload.optimizer=disk recompute=true"),
        (4, DROPOUT, "dp=2 cp=2 recompute=true zero=1"),
    ]);
}

#[test]
fn layouts_of_8_ranks_match_a_single_rank() {
    assert_losses_match_single_rank(&[
        (8, GPT2, "dp=2 tp=2 pp=2 zero=1"),
        (8, GPT2, "dp=2 cp=2 tp=2 zero=3 recompute=true"),
        (8, GPT2, "dp=4 pp=2 zero=2 hsdp_shard=2"),
        (8, GPT2, "tp=2 cp=2 pp=2 parallel.schedule=zero-bubble micro_batch=2 recompute=true"),
        (8, LLAMA, "dp=2 tp=2 cp=2 zero=1 micro_batch=4"),
        (8, LLAMA, "tp=2 pp=4"),
        (8, LLAMA, "dp=2 cp=2 pp=2 parallel.schedule=interleaved virtual_stages=2"),
        (8, DROPOUT, "tp=2 cp=2 pp=2"),
    ]);
}

#[test]
fn invalid_layouts_are_rejected_with_the_nearest_valid_ones() {
    let folder = TempDir::new();
    let stages = "parallel.virtual_stages 2 needs parallel.schedule interleaved";
    let shards = "parallel.hsdp_shard 3 does not divide parallel.dp x parallel.cp = 2";
    let kv_heads = "model.num_kv_heads 2 is not divisible by parallel.tp 4";
    let cases = [
        ("-n 4 tp=3", "4 ranks are not divisible by parallel.tp 3: "),
        ("-n 6 tp=3", "by parallel.tp 3: run on 4 ranks with tp=2 or 8 ranks with tp=4"),
        ("-n 3 tp=3 batch=12", "by parallel.tp 3: use tp=1 dp=3, or run on 2 ranks with tp=2"),
        ("-n 2 tp=2 cp=2", "2 ranks are not divisible by parallel.tp 2 x parallel.cp 2 = 4"),
        ("-n 4 dp=2 tp=4", "parallel.dp 2 does not match 4 ranks with parallel.tp 4"),
        ("-n 8 pp=8", "parallel.pp 8 exceeds model.num_layers 4: use pp=2 dp=4 or pp=4 dp=2"),
        ("-n 2 cp=2 seq_len=33", "model.seq_len 33 is not divisible by 4 (2 x parallel.cp 2)"),
        ("-n 2 zero=4", "parallel.zero is 4, expected an integer in [0, 3]"),
        ("-n 2 tp=0", "parallel.tp is 0, expected an integer in [1, "),
        ("-n 2 pp=2 micro_batch=16", "train.micro_batch 16 gives 1 micro-batch per step"),
        ("-n 2 pp=2 micro_batch=5", "(train.batch 16 over 1 replica on 2 ranks): set it"),
        ("-n 2 pp=2 batch=1", "needs at least 2 micro-batches per step, but a replica has"),
        (
            "-n 2 batch=1",
            "train.batch 1 is not divisible by 2 ranks: set it to 2, run on 1 rank (-n 1),",
        ),
        ("-n 8 tp=2 pp=2 batch=3", "is not divisible by 2 replicas on 8 ranks: set"),
        ("-n 2 pp=2 parallel.schedule=none", "expected gpipe, 1f1b, interleaved or zero-bubble"),
        ("-n 2 pp=2 virtual_stages=2", stages),
        ("-n 2 zero=3 hsdp_shard=3", shards),
        ("-n 4 tp=4 family=llama num_kv_heads=2", kv_heads),
        ("-n 2 offload.parameters=moon", "is moon, expected device, host or disk"),
    ];
    for (words, expected) in cases {
        run(&folder, &format!("{MODEL} {words} --run-dir run")).assert_error(expected);
        assert!(folder.names().is_empty(), "{words}");
    }
}

#[test]
fn measured_memory_and_traffic_match_the_estimate_on_every_rank() {
    let folder = TempDir::new();
    let words = "-n 4 tp=2 zero=3 --explain --measure --run-dir run --json";
    let output = run(&folder, &format!("{MODEL} {GPT2} {words}")).ok();
    let end = output.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let end = end.filter_map(|event| event.get("end").cloned()).next_back().unwrap();
    let ranks = end["ranks"].as_array().unwrap();
    assert_eq!(ranks.len(), 4, "{end}");
    for (number, rank) in ranks.iter().enumerate() {
        assert_eq!(rank["rank"], number);
        let sent = rank["sent"].as_array().unwrap();
        assert!(sent.len() >= 2, "{rank}");
        for sent in sent {
            assert_eq!(sent["expected"], sent["measured"], "{rank}");
        }
        for memory in rank["memory"].as_array().unwrap() {
            let bytes = |key: &str| memory[key].as_f64().unwrap();
            let (expected, measured) = (bytes("expected"), bytes("measured"));
            assert!((measured - expected).abs() <= 0.1 * expected, "rank {number}: {memory}");
        }
    }
    assert!(!folder.exists("run/checkpoints"));
}
