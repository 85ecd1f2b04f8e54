//! `regatta train --smoke`: says whether training on all ranks works here.

#![allow(clippy::unwrap_used, reason = "a test's own functions may panic as it may")]

mod support;

use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use support::job::{run_command, send_signal, wait_until};
use support::train::Started;
use support::{CommandOutput, TempDir, command};

/// All parts, as the first of them is only known to who starts the ranks.
const PARTS: [&str; 10] = [
    "start",
    "join",
    "ranks",
    "data",
    "agreement",
    "all-reduce",
    "broadcast",
    "steps",
    "same",
    "checkpoint",
];

/// Few steps: what is tested here is not the training.
const SMOKE: [&str; 3] = ["train", "--smoke", "train.steps=10"];

/// A command in a folder, in which all that it keeps is.
fn inside(folder: &TempDir) -> Command {
    let mut command = command();
    command.env("TMPDIR", folder.path()).env("HOME", folder.path()).current_dir(folder.path());
    command
}

/// The check, started by itself.
fn smoke(folder: &TempDir, words: &[&str]) -> CommandOutput {
    run_command(inside(folder).args(SMOKE).args(["--run-dir", "run"]).args(words))
}

/// The check, as the command of a job.
fn under_launch(folder: &TempDir, options: &[&str]) -> CommandOutput {
    let mut launch = inside(folder);
    launch.args(["launch", "--oversubscribe", "--run-dir", "run", "-n", "2"]).args(options);
    run_command(launch.arg("--").arg(env!("CARGO_BIN_EXE_regatta")).args(SMOKE))
}

/// A tool that gives its command one more word.
fn told_otherwise(folder: &Path) -> String {
    let tool = folder.join("otherwise");
    std::fs::write(&tool, "#!/bin/sh\nexec \"$@\" train.seed=7\n").unwrap();
    std::fs::set_permissions(&tool, std::fs::Permissions::from_mode(0o755)).unwrap();
    tool.to_str().unwrap().to_owned()
}

#[test]
fn it_works_on_two_ranks() {
    let folder = TempDir::new();
    let out = smoke(&folder, &["-n", "2"]).ok();
    let first = |line: &str| line.split_whitespace().next().unwrap_or_default().to_owned();
    let parts: Vec<String> = out.lines().map(first).collect();
    for part in PARTS {
        assert!(parts.iter().any(|line| line == part), "no {part}: {out}");
    }
    let last = out.lines().last().unwrap();
    assert!(last.starts_with("works: 2 ranks on 1 host, "), "{out}");
    assert!(out.contains("10 steps of mlp, loss "), "{out}");
    let kept = std::fs::read_dir(folder.path().join("run")).unwrap().flatten();
    let kept: Vec<String> = kept.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    assert!(kept.iter().all(|name| !name.starts_with("smoke-")), "{kept:?}");
}

#[test]
fn as_json_it_is_one_object() {
    let folder = TempDir::new();
    let value: Value = serde_json::from_str(&smoke(&folder, &["-n", "2", "--json"]).ok()).unwrap();
    assert_eq!((&value["works"], &value["ranks"]), (&Value::Bool(true), &Value::from(2)));
    let parts: Vec<&str> =
        value["parts"].as_array().unwrap().iter().map(|p| p["part"].as_str().unwrap()).collect();
    assert_eq!(parts, PARTS);
    let places = value["parts"][2]["figures"]["places"].as_array().unwrap();
    assert_eq!(places.len(), 2);
    assert_eq!(places[1]["rank"], 1);
    assert!(value["parts"][7]["figures"]["trained"]["tokens_per_second"].as_f64().unwrap() > 0.0);
}

#[test]
fn by_itself_it_starts_several_ranks() {
    let folder = TempDir::new();
    let value: Value = serde_json::from_str(&smoke(&folder, &["--json"]).ok()).unwrap();
    assert!(value["ranks"].as_u64().unwrap() >= 2, "{value}");
}

#[test]
fn it_works_as_the_command_of_a_job() {
    let folder = TempDir::new();
    let out = under_launch(&folder, &[]).ok();
    assert!(out.lines().last().unwrap().contains("works: 2 ranks on 1 host, "), "{out}");
}

#[test]
fn a_rank_that_is_told_something_else_is_named() {
    let folder = TempDir::new();
    let tool = told_otherwise(folder.path());
    let run = under_launch(&folder, &["--wrap", &tool, "--wrap-ranks", "1"]);
    assert_eq!(run.code, Some(1), "{run:?}");
    assert!(run.out.contains("does not work: agreement: rank 1 on "), "{run:?}");
    assert!(run.out.contains("look at how each rank is started"), "{run:?}");
}

#[test]
fn a_rank_that_dies_is_named_with_what_was_being_done() {
    let folder = TempDir::new();
    // Whoever writes more than a byte to a file is killed: that is the rank's part of a checkpoint.
    let options = "--wrap 'prlimit --fsize=1' --wrap-ranks 1";
    let run = smoke(&folder, &["-n", "2", "--json", "--launch", options]);
    assert_ne!(run.code, Some(0), "{run:?}");
    let value: Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(value["works"], false);
    let failure = &value["failure"];
    assert_eq!(failure["part"], "checkpoint", "{run:?}");
    assert!(failure["what"].as_str().unwrap().starts_with("rank 1 on "), "{run:?}");
    assert!(run.err.contains("rank 1 on "), "{run:?}");
}

/// A rank that waits for others has nothing to keep: it ends at once, as any other program.
#[test]
fn a_signal_ends_a_rank_that_still_waits_for_others() {
    const TERM: i32 = 15;
    let folder = TempDir::new();
    let secret = folder.write("secret", &"0f".repeat(32));
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut rank = inside(&folder);
    rank.args(SMOKE);
    rank.envs([("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")]);
    rank.env("MASTER_PORT", port.to_string()).env("REGATTA_SECRET_FILE", &secret);
    let mut rank = Started::of(&folder, &mut rank);
    wait_until("the rank to listen", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    send_signal(&rank.child, TERM);
    wait_until("its end", || rank.child.try_wait().unwrap().is_some());
    assert_eq!(rank.child.wait().unwrap().signal(), Some(TERM));
}
