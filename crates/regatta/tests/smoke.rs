//! `regatta train --smoke`: the smoke test of training on all ranks.

#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

mod support;

use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use support::job::{run_command, send_signal, wait_until};
use support::train::TrainProcess;
use support::{CommandOutput, TempDir, command};

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
const SMOKE: [&str; 3] = ["train", "--smoke", "train.steps=10"];

/// `regatta` with working, temporary and home directory in a folder.
fn regatta_in(folder: &TempDir) -> Command {
    let mut command = command();
    command.env("TMPDIR", folder.path()).env("HOME", folder.path()).current_dir(folder.path());
    command
}

/// Runs the smoke test.
fn smoke(folder: &TempDir, words: &[&str]) -> CommandOutput {
    run_command(regatta_in(folder).args(SMOKE).args(["--run-dir", "run"]).args(words))
}

/// Runs the smoke test under `regatta launch`.
fn smoke_under_launch(folder: &TempDir, options: &[&str]) -> CommandOutput {
    let mut launch = regatta_in(folder);
    launch.args(["launch", "--oversubscribe", "--run-dir", "run", "-n", "2"]).args(options);
    run_command(launch.arg("--").arg(env!("CARGO_BIN_EXE_regatta")).args(SMOKE))
}

/// A wrapper that adds an argument to its command.
fn seed_wrapper(folder: &Path) -> String {
    let tool = folder.join("with-seed");
    std::fs::write(&tool, "#!/bin/sh\nexec \"$@\" train.seed=7\n").unwrap();
    std::fs::set_permissions(&tool, std::fs::Permissions::from_mode(0o755)).unwrap();
    tool.to_str().unwrap().to_owned()
}

#[test]
fn passes_on_two_ranks_and_prints_all_checks() {
    let folder = TempDir::new();
    let out = smoke(&folder, &["-n", "2"]).ok();
    let first = |line: &str| line.split_whitespace().next().unwrap_or_default().to_owned();
    let checks: Vec<String> = out.lines().map(first).collect();
    for check in CHECKS {
        assert!(checks.iter().any(|line| line == check), "no {check}: {out}");
    }
    let last = out.lines().last().unwrap();
    assert!(last.starts_with("passed: 2 ranks on 1 host in "), "{out}");
    assert!(out.contains("10 steps of mlp, loss "), "{out}");
    let files = std::fs::read_dir(folder.path().join("run")).unwrap().flatten();
    let files: Vec<String> = files.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    assert!(files.iter().all(|name| !name.starts_with("smoke-")), "{files:?}");
}

#[test]
fn json_output_is_one_object() {
    let folder = TempDir::new();
    let value: Value = serde_json::from_str(&smoke(&folder, &["-n", "2", "--json"]).ok()).unwrap();
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
    let folder = TempDir::new();
    let value: Value = serde_json::from_str(&smoke(&folder, &["--json"]).ok()).unwrap();
    assert!(value["ranks"].as_u64().unwrap() >= 2, "{value}");
}

#[test]
fn passes_under_regatta_launch() {
    let folder = TempDir::new();
    let out = smoke_under_launch(&folder, &[]).ok();
    assert!(out.lines().last().unwrap().contains("passed: 2 ranks on 1 host in "), "{out}");
}

#[test]
fn a_rank_with_different_arguments_is_reported() {
    let folder = TempDir::new();
    let tool = seed_wrapper(folder.path());
    let run = smoke_under_launch(&folder, &["--wrap", &tool, "--wrap-ranks", "1"]);
    assert_eq!(run.code, Some(1), "{run:?}");
    assert!(run.out.contains("failed: agreement: rank 1 on "), "{run:?}");
    assert!(run.out.contains("hint: check how each rank is started"), "{run:?}");
}

#[test]
fn a_killed_rank_is_reported_with_the_current_check() {
    let folder = TempDir::new();
    // The file size limit kills rank 1 when it writes its shard of the checkpoint.
    let options = "--wrap 'prlimit --fsize=1' --wrap-ranks 1";
    let run = smoke(&folder, &["-n", "2", "--json", "--launch", options]);
    assert_ne!(run.code, Some(0), "{run:?}");
    let value: Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(value["passed"], false);
    let failure = &value["failure"];
    assert_eq!(failure["check"], "checkpoint", "{run:?}");
    assert!(failure["error"].as_str().unwrap().starts_with("rank 1 on "), "{run:?}");
    assert!(run.err.contains("rank 1 on "), "{run:?}");
}

/// During the bootstrap, signals have their default action, because there is nothing to save.
#[test]
fn a_signal_ends_a_rank_during_the_bootstrap() {
    const TERM: i32 = 15;
    let folder = TempDir::new();
    let secret = folder.write("secret", &"0f".repeat(32));
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut rank = regatta_in(&folder);
    rank.args(SMOKE);
    rank.envs([("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")]);
    rank.env("MASTER_PORT", port.to_string()).env("REGATTA_SECRET_FILE", &secret);
    let mut rank = TrainProcess::spawn_command(&folder, &mut rank);
    wait_until("the rank to listen", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    send_signal(&rank.child, TERM);
    wait_until("its exit", || rank.child.try_wait().unwrap().is_some());
    assert_eq!(rank.child.wait().unwrap().signal(), Some(TERM));
}
