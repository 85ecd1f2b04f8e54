//! `regatta train` with parallel layouts over shared memory: all have the losses of a single rank.

#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

mod support;

use serde_json::Value;
use support::TempDir;
use support::metrics::assert_close;
use support::splits::{DROPOUT, GPT2, LLAMA, MODEL, ParallelCase, run_name};
use support::train::{metrics, run};

/// Asserts that the losses of each case are those of a single rank.
fn assert_losses_match_single_rank(cases: &[ParallelCase]) {
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
        assert!(
            one.steps[&20].loss < one.steps[&1].loss - 0.1,
            "the loss does not decrease: {one:?}"
        );
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
        (2, LLAMA, "pp=2 parallel.schedule=interleaved chunks=2 micro_batch=1"),
        (2, LLAMA, "zero=2"),
        (2, LLAMA, "zero=3 recompute=true offload.optimizer=disk"),
        (2, LLAMA, "offload.parameters=disk tiles=3 micro_batch=4"),
        (2, DROPOUT, "tp=2 sequence=false"),
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
        (4, GPT2, "zero=3 shard=2 recompute=true"),
        (4, GPT2, "dp=2 tp=2 zero=2 micro_batch=4"),
        (4, LLAMA, "tp=2 pp=2 recompute=true"),
        (4, LLAMA, "cp=2 pp=2 parallel.schedule=gpipe"),
        (4, LLAMA, "dp=2 pp=2 parallel.schedule=interleaved chunks=2"),
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
        (8, GPT2, "dp=4 pp=2 zero=2 shard=2"),
        (8, GPT2, "tp=2 cp=2 pp=2 parallel.schedule=zero-bubble micro_batch=2 recompute=true"),
        (8, LLAMA, "dp=2 tp=2 cp=2 zero=1 micro_batch=4"),
        (8, LLAMA, "tp=2 pp=4"),
        (8, LLAMA, "dp=2 cp=2 pp=2 parallel.schedule=interleaved chunks=2"),
        (8, DROPOUT, "tp=2 cp=2 pp=2"),
    ]);
}

#[test]
fn invalid_layouts_are_rejected_with_the_nearest_valid_ones() {
    let folder = TempDir::new();
    let cases = [
        ("-n 4 tp=3", "parallel.tp 3 does not divide 4 ranks: tp 2 dp 2 or tp 4 dp 1 would"),
        ("-n 6 tp=3", "among parallel.tp 3: start 4 with tp 2 or 8 with tp 4"),
        ("-n 3 tp=3 batch=12", "among parallel.tp 3: tp 1 dp 3 would, or start 2 with tp 2 or 4 w"),
        ("-n 2 tp=2 cp=2", "parallel.tp 2 x parallel.cp 2 do not divide 2 ranks"),
        ("-n 4 dp=2 tp=4", "parallel.dp is 2, and there are 4 ranks with parallel.tp 4"),
        ("-n 8 pp=8", "parallel.pp 8 is more than model.layers 4: pp 2 dp 4 or pp 4 dp 2"),
        ("-n 2 cp=2 context=33", "model.context 33 does not divide into two pieces for each of"),
        ("-n 2 zero=4", "parallel.zero is 4, and must be a whole number, 0 to 3"),
        ("-n 2 tp=0", "parallel.tp is 0, and must be a whole number, 1 to "),
        ("-n 2 pp=2 micro_batch=16", "train.micro_batch 16 makes 1 micro-batch of a step's 16"),
        ("-n 2 pp=2 micro_batch=5", "(train.batch 16 over 1 copy of the model on 2 ranks): set it"),
        ("-n 2 pp=2 batch=1", "needs at least 2 micro-batches a step, and a copy of the model has"),
        ("-n 2 batch=1", "train.batch 1 does not divide among 2 ranks: set it to 2, start 1 rank,"),
        ("-n 8 tp=2 pp=2 batch=3", "does not divide among 2 copies of the model on 8 ranks: set"),
        ("-n 2 pp=2 parallel.schedule=none", "must be gpipe, 1f1b, interleaved or zero-bubble"),
        ("-n 2 pp=2 chunks=2", "parallel.chunks 2 are for parallel.schedule interleaved: set para"),
        ("-n 2 zero=3 shard=3", "parallel.shard 3 does not divide the 2 ranks with the same"),
        ("-n 4 tp=4 family=llama kv_heads=2", "model.kv_heads 2 does not divide among parallel.tp"),
        ("-n 2 offload.parameters=moon", "is moon, and must be device, host or disk"),
    ];
    for (words, expected) in cases {
        let error = run(&folder, &format!("{MODEL} {words} --run-dir run")).error_line();
        assert!(error.contains(expected), "{words}: {error}");
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
        for held in rank["held"].as_array().unwrap() {
            let [expected, measured] =
                ["expected", "measured"].map(|key| held[key].as_f64().unwrap());
            assert!((measured - expected).abs() <= 0.1 * expected, "rank {number}: {held}");
        }
    }
    assert!(!folder.path().join("run/checkpoints").exists());
}
