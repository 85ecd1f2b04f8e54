//! `regatta train --smoke`: the smoke test of training on all ranks.

use std::net::{TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use libc::SIGTERM;
use regatta_testbed::{assert_contains, wait_until, write_with_mode};
use serde_json::Value;

use crate::support::process::{
    BlockedOutput, Process, assert_full_output_is_an_error, run_command, run_result,
};
use crate::support::{CommandOutput, REGATTA, TempDir, command, from_json};

/// All checks. Only the parent of the ranks reports the first one.
const CHECKS: [&str; 10] = [
    "start",
    "join",
    "ranks",
    "data",
    "agreement",
    "all-reduce",
    "broadcast",
    "steps",
    "consistency",
    "checkpoint",
];

/// The smoke test with few steps.
const SMOKE: &str = "train --smoke train.steps=10";

/// `regatta` with working, temporary and home directory in a folder.
fn regatta_in(folder: &TempDir, words: &str) -> Command {
    let mut command = command();
    command.env("TMPDIR", folder.path()).env("HOME", folder.path()).current_dir(folder.path());
    command.args(shlex::split(words).unwrap());
    command
}

/// Runs the smoke test.
fn smoke(folder: &TempDir, words: &str) -> CommandOutput {
    run_command(&mut regatta_in(folder, &format!("{SMOKE} --run-dir run {words}")))
}

/// Runs the smoke test under `regatta launch`.
fn smoke_under_launch(folder: &TempDir, options: &str) -> CommandOutput {
    let launch = format!("launch --oversubscribe --run-dir run -n 2 {options}");
    run_command(&mut regatta_in(folder, &format!("{launch} -- {REGATTA} {SMOKE}")))
}

#[test]
fn passes_on_two_ranks_and_prints_all_checks() {
    let folder = TempDir::new();
    let out = smoke(&folder, "-n 2").assert_ok("10 steps of mlp, loss ");
    for check in CHECKS {
        let is_check = |line: &str| line.split_whitespace().next() == Some(check);
        assert!(out.lines().any(is_check), "no {check}: {out}");
    }
    assert!(out.lines().last().unwrap().starts_with("passed: 2 ranks on 1 host in "), "{out}");
    let files = folder.list("run");
    assert!(files.iter().all(|name| !name.starts_with("smoke-")), "{files:?}");
}

#[test]
fn json_output_is_one_object() {
    let value: Value = smoke(&TempDir::new(), "-n 2 --json").json();
    assert_eq!((&value["passed"], &value["ranks"]), (&Value::Bool(true), &Value::from(2)));
    let checks: Vec<&str> =
        value["checks"].as_array().unwrap().iter().map(|c| c["check"].as_str().unwrap()).collect();
    assert_eq!(checks, CHECKS);
    let ranks = value["checks"][2]["details"]["ranks"].as_array().unwrap();
    assert_eq!(ranks.len(), 2);
    assert_eq!(ranks[1]["rank"], 1);
    assert!(value["checks"][7]["details"]["steps"]["tokens_per_second"].as_f64().unwrap() > 0.0);
}

#[test]
fn default_is_at_least_two_ranks() {
    let value: Value = smoke(&TempDir::new(), "--json").json();
    assert!(value["ranks"].as_u64().unwrap() >= 2, "{value}");
}

#[test]
fn passes_under_regatta_launch() {
    let out = smoke_under_launch(&TempDir::new(), "").ok();
    assert!(out.lines().last().unwrap().contains("passed: 2 ranks on 1 host in "), "{out}");
}

#[test]
fn a_rank_with_different_arguments_is_reported() {
    let folder = TempDir::new();
    write_with_mode(folder.join("with-seed"), 0o755, "#!/bin/sh\nexec \"$@\" train.seed=7\n");
    let run = smoke_under_launch(&folder, "--wrap ./with-seed --wrap-ranks 1").assert_code(1);
    let hint = "hint: check how each rank is started";
    assert_contains(&run.out, ["failed: agreement: rank 1 on ", hint]);
}

#[test]
fn a_failed_rank_is_reported_with_the_current_check() {
    // The file size limit fails rank 1 when it writes its shard of the checkpoint.
    let options = "--wrap 'prlimit --fsize=1' --wrap-ranks 1";
    let run = smoke(&TempDir::new(), &format!("-n 2 --json --launch \"{options}\""));
    assert_ne!(run.code, Some(0), "{run:?}");
    let value: Value = from_json(&run.out);
    assert_eq!(value["passed"], false);
    let failure = &value["failure"];
    assert_eq!(failure["check"], "checkpoint", "{run:?}");
    assert!(failure["error"].as_str().unwrap().starts_with("rank 1 on "), "{run:?}");
    assert!(!run.err.contains("failed first"), "all ranks agree on the result: {run:?}");
}

#[test]
fn result_of_a_failed_check_has_the_exit_code_of_the_process() {
    let folder = TempDir::new();
    let run = smoke(&folder, "-n 1 optimizer.lr=1").assert_code(1);
    assert_contains(&run.out, "failed: steps: the loss did not decrease: ");
    let result = run_result(&folder, "run");
    assert_eq!(result.exit_code, 1);
    assert_contains(&result.reason, "smoke test failed: steps: the loss did not decrease: ");
}

#[test]
fn full_disk_of_standard_output_is_an_error() {
    let folder = TempDir::new();
    for (run, words) in [("a", ""), ("b", "--json")] {
        let words = format!("{SMOKE} -n 1 --run-dir {run} {words}");
        assert_full_output_is_an_error(&mut regatta_in(&folder, &words));
        assert_eq!(run_result(&folder, run).exit_code, 0, "the ranks passed");
    }
}

#[test]
fn smoke_test_continues_while_its_output_is_not_read() {
    let folder = TempDir::new();
    let run = BlockedOutput::spawn(regatta_in(&folder, &format!("{SMOKE} -n 1 --run-dir run")));
    wait_until("the exit of the rank", || {
        folder.exists("run/events.jsonl") && folder.read("run/events.jsonl").contains("\"exited\"")
    });
    let out = run.read().assert_code(0).out;
    assert!(out.lines().last().unwrap().starts_with("passed: 1 rank on 1 host in "), "{out}");
}

/// During the bootstrap, signals have their default action, because there is nothing to save.
#[test]
fn a_signal_ends_a_rank_during_the_bootstrap() {
    let folder = TempDir::new();
    let secret = folder.join("secret");
    write_with_mode(&secret, 0o600, "0f".repeat(32));
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut rank = regatta_in(&folder, SMOKE);
    rank.envs([("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")]);
    rank.env("MASTER_PORT", port.to_string()).env("REGATTA_SECRET_FILE", &secret);
    let mut rank = Process::spawn(&folder, &mut rank);
    wait_until("the rank to listen", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    rank.signal(SIGTERM);
    wait_until("its exit", || rank.has_exited());
    assert_eq!(rank.child.wait().unwrap().signal(), Some(SIGTERM));
}
