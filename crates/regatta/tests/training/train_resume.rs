//! What a resumed or repeated `regatta train` does with an existing run: it never starts over or
//! overwrites silently.

use libc::SIGKILL;
use regatta_testbed::{assert_contains, wait_until};

use crate::support::TempDir;
use crate::support::metrics::assert_identical;
use crate::support::process::{
    launch_regatta, pid_of_rank, rank_log, run_command, run_in, run_result, signal_if_alive,
};
use crate::support::train::{
    ENDLESS, STOPPED_EARLY, TINY, checkpoints, metrics, run, spawn, tiny_run, train_tiny,
    wait_for_step,
};

#[test]
fn resume_without_a_checkpoint_is_refused_and_keeps_the_run() {
    let folder = TempDir::new();
    let trained = train_tiny(&folder, "train.steps=6 checkpoint.interval=0 -n 2 --run-dir done");
    let out = trained.assert_ok("done: 6 steps");
    assert!(!out.contains("saved"), "{out}");
    let contents =
        || ["metrics.jsonl", "config.toml"].map(|name| folder.read(format!("done/{name}")));
    let before = contents();
    let fix = "Start a new run, set checkpoint.resume to a checkpoint or to another run folder";
    let parts = ["no checkpoint in done/checkpoints", fix];
    for words in ["", "train.steps=9", "checkpoint.interval=5"] {
        run(&folder, &format!("--resume done -n 2 {words}")).assert_error(parts);
    }
    // Ranks without a parent process, which a restart does not make start over either.
    let mut launched = launch_regatta(&folder, "-n 2 --max-restarts 1", "train --resume done");
    run_command(&mut launched).assert_code(1).assert_stderr(parts);
    assert_eq!(run_result(&folder, "run").restarts, 1);
    train_tiny(&folder, "-n 2 --run-dir done").assert_error("it has no checkpoint to resume from");
    assert_eq!(contents(), before);
    // Explicitly, the run starts over.
    run(&folder, "--resume done -n 2 checkpoint.resume=never train.steps=7").ok();
    assert_eq!(metrics(&folder, "done").steps.len(), 7);
}

#[test]
fn a_run_without_checkpoints_does_not_claim_to_have_saved_one() {
    let folder = TempDir::new();
    let training = spawn(&folder, &format!("{TINY} {ENDLESS} checkpoint.interval=0 --run-dir run"));
    wait_for_step(&folder, "run", 2);
    let ended = training.interrupt().assert_code(STOPPED_EARLY);
    assert_contains(&ended.out, "interrupted; no checkpoint saved: ");
    assert!(!ended.err.contains("saving a checkpoint"), "{ended:?}");
    assert!(checkpoints(&folder, "run").is_empty());
}

#[test]
fn ranks_that_fail_before_the_first_checkpoint_start_over_when_restarted() {
    let folder = TempDir::new();
    let words = "train.steps=300 checkpoint.interval=1000 -n 2 --launch=--max-restarts=1";
    let training = spawn(&folder, &format!("{TINY} {words} --run-dir run"));
    wait_for_step(&folder, "run", 3);
    wait_until("the rank", || pid_of_rank(&folder, 1).is_some());
    signal_if_alive(pid_of_rank(&folder, 1).unwrap(), SIGKILL);
    training.wait().assert_code(0);
    assert_eq!(run_result(&folder, "run").restarts, 1);
    let full = tiny_run(&folder, "full", "train.steps=300 checkpoint.interval=1000 -n 2");
    assert_identical(&metrics(&folder, "run"), &full, 300);
    // The log of each attempt has its steps.
    assert_contains(rank_log(&folder, "run", 0, "out"), "step 1/300  loss ");
    assert_contains(folder.read("run/log/restart-1/rank-0.out"), "step 300/300  loss ");
}

#[test]
fn resume_with_nothing_left_to_train_changes_nothing() {
    let folder = TempDir::new();
    tiny_run(&folder, "run", "train.steps=10 -n 1");
    let contents = || {
        let files = ["metrics.jsonl", "config.toml"].map(|name| folder.read(format!("run/{name}")));
        (files, folder.list("run/tensorboard"), folder.list("run/checkpoints"))
    };
    let before = contents();
    for words in
        ["", "train.steps=7", "train.steps=5 checkpoint.resume=run/checkpoints/step-00000005"]
    {
        let resumed = run(&folder, &format!("--resume run -n 1 {words}"));
        resumed.assert_ok("nothing to train; increase train.steps");
        assert_eq!(contents(), before, "{words}");
    }
    // Without checkpoints of its own, it still resumes.
    run(&folder, "--resume run -n 1 train.steps=12 checkpoint.interval=0")
        .assert_ok("after step 10");
    assert_eq!(metrics(&folder, "run").steps.len(), 12);
}

#[test]
fn checkpoints_of_another_run_are_named_by_their_own_directory() {
    let folder = TempDir::new();
    tiny_run(&folder, "run", "train.steps=5 -n 1");
    let refused = train_tiny(&folder, "-n 1 --run-dir new checkpoint.dir=run/checkpoints");
    let dir = folder.file("run/checkpoints");
    refused.assert_error([
        &*format!("checkpoint.dir {dir} already has checkpoints of another run"),
        &format!("checkpoint.resume={dir}"),
    ]);
    assert!(!folder.exists("new"));
}

#[test]
fn errors_of_configuration_data_and_memory_appear_once_before_the_launch() {
    let folder = TempDir::new();
    folder.write("short.txt", "too short\n".repeat(20));
    let cases = [
        ("tp=3 -n 2", "2 ranks are not divisible by parallel.tp 3"),
        ("vocab_size=3 -n 2", "model.vocab_size 3 is smaller"),
        ("source=nowhere -n 2", "data.source \"nowhere\" does not exist"),
        ("source=short.txt seq_len=4096 -n 2", "tokens are too few for model.seq_len 4096"),
        ("hidden_size=65536 num_layers=100 -n 2", "not enough memory on "),
    ];
    for (words, expected) in cases {
        train_tiny(&folder, &format!("{words} --run-dir run")).assert_error(expected);
        assert!(!folder.exists("run"), "{words}");
    }
}

#[test]
fn the_log_of_rank_0_has_the_lines_of_the_terminal() {
    let folder = TempDir::new();
    let out = train_tiny(&folder, "train.steps=20 -n 2 --run-dir run").ok();
    assert_eq!(rank_log(&folder, "run", 0, "out"), out);
    assert_contains(&out, ["step 20/20  loss ", "saved checkpoint at step 20 "]);
    assert_eq!(rank_log(&folder, "run", 1, "out"), "");
    // Also with JSON on standard output.
    run_in(&folder, "train --resume run --json train.steps=21 -n 1").ok();
    let relaunch = folder.list("run/relaunch").pop().unwrap();
    let log = folder.read(format!("run/relaunch/{relaunch}/log/rank-0.out"));
    assert_contains(log, "step 21/21  loss ");
}
