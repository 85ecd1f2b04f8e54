//! `regatta runs`: lists, shows and prunes run folders, and never removes anything else.

use std::process::Command;

use regatta_model::result::RankExit;
use regatta_model::run_folder::{RunEvent, RunKind};
use regatta_model::train_event::Event;
use regatta_observe::read::{Followed, Run, RunFollower, RunState, Source};
use regatta_testbed::wait_until;
use serde_json::Value;

use crate::support::process::{Process, run_in, run_job, shell_job};
use crate::support::train::{TINY, spawn, tiny_run, wait_for_step};
use crate::support::{TempDir, run_line};

fn list(folder: &TempDir) -> Vec<Value> {
    run_in(folder, "runs --json").json()
}

/// Writes a file in a new folder.
fn write(folder: &TempDir, name: &str, content: &str) {
    std::fs::create_dir_all(folder.join(name).parent().unwrap()).unwrap();
    folder.write(name, content);
}

/// Kind and state of a run.
fn state(folder: &TempDir, run: &str) -> String {
    let runs = list(folder);
    let found = runs.iter().find(|found| found["path"] == format!("runs/{run}"));
    let found = found.unwrap_or_else(|| panic!("{run} is not in {runs:?}"));
    format!("{} {}", found["kind"].as_str().unwrap(), found["state"].as_str().unwrap())
}

#[test]
fn runs_are_listed_with_kind_state_and_progress() {
    let folder = TempDir::new();
    run_in(&folder, "runs").assert_stderr("no run folders in runs").ok();
    assert_eq!(list(&folder), [Value::Null; 0]);
    run_in(&folder, "runs --root nowhere").assert_error("cannot read nowhere");
    tiny_run(&folder, "runs/train", "train.steps=10 -n 1");
    run_job(&folder, "-n 1 --run-dir runs/good", "true").ok();
    run_job(&folder, "-n 1 --run-dir runs/bad", "exit 3").assert_code(3);
    let bench = "bench all-reduce -b 8 -e 8 -n 2 --ranks 2 --run-dir runs";
    run_in(&folder, &format!("{bench}/bench")).ok();
    run_in(&folder, &format!("{bench}/swept --sweep FI_OTHER=a,b")).ok();
    let early = format!("train {TINY} checkpoint.dir=/proc/none -n 1 --run-dir runs/early");
    run_in(&folder, &early).assert_code(1);
    write(&folder, "runs/notes/events.jsonl", "not a run");
    let expected = [
        ("train", "train finished"),
        ("early", "train failed"),
        ("good", "launch finished"),
        ("bad", "launch failed"),
        ("bench", "bench finished"),
        ("swept", "bench finished"),
    ];
    for (run, expected) in expected {
        assert_eq!(state(&folder, run), expected, "{run}");
    }
    let runs = list(&folder);
    assert_eq!(runs.len(), expected.len(), "{runs:?}");
    let train = runs.iter().find(|run| run["path"] == "runs/train").unwrap();
    assert_eq!((train["step"].as_u64(), train["steps"].as_u64()), (Some(10), Some(10)));
    assert!(train["loss"].as_f64().is_some() && train["val_loss"].as_f64().is_some(), "{train}");
    assert!(train["bytes"].as_u64() > Some(4096) && train["start"].as_f64() > Some(1.7e9));
    run_in(&folder, "runs").assert_ok(["runs/train", "10/10", "start (UTC)", "failed"]);

    let shown = run_in(&folder, "runs show train");
    shown.assert_ok(["runs/train (train)", "step-00000010", "model.hidden_size = 16", "10 of 10"]);
    let shown: Value = run_in(&folder, "runs show runs/bad --json").json();
    assert_eq!(
        (shown["result"]["exit_code"].as_u64(), &shown["state"]),
        (Some(3), &"failed".into())
    );
    let root = folder.join("runs").display().to_string();
    run_line(&format!("runs show good --root {root}")).assert_ok("1, 0 restarts, ");
    run_in(&folder, "runs show none").assert_error("none does not exist, nor does runs/none; ");
    run_in(&folder, "runs show runs/notes").assert_error("runs/notes is not a run folder");
}

#[test]
fn last_validation_is_found_behind_many_steps() {
    let folder = TempDir::new();
    tiny_run(&folder, "runs/train", "train.steps=4 train.eval_interval=2 -n 1");
    let val_loss = list(&folder)[0]["val_loss"].as_f64().unwrap();
    let metrics = folder.read("runs/train/metrics.jsonl");
    let mut step: Value = serde_json::from_str(metrics.lines().next().unwrap()).unwrap();
    step.as_object_mut().unwrap().remove("val_loss");
    write(&folder, "runs/train/metrics.jsonl", &(metrics + &format!("{step}\n").repeat(2000)));
    assert_eq!(list(&folder)[0]["val_loss"].as_f64(), Some(val_loss));
}

#[test]
fn running_and_stopped_runs_are_told_apart_and_running_ones_are_kept() {
    let folder = TempDir::new();
    let job = Process::spawn(
        &folder,
        &mut shell_job(&folder, "-n 1 --run-dir runs/job", "touch ready; exec sleep 600"),
    );
    let train = spawn(&folder, &format!("{TINY} train.steps=1000000 -n 1 --run-dir runs/train"));
    wait_for_step(&folder, "runs/train", 1);
    wait_until("the job runs", || folder.exists("ready"));
    assert_eq!(state(&folder, "train"), "train running");
    assert_eq!(state(&folder, "job"), "launch running");
    let pruned = run_in(&folder, "runs prune --keep 0 --yes");
    pruned.assert_ok(["kept          runs/job", "kept          runs/train", "it is running"]);
    assert!(folder.exists("runs/job/events.jsonl") && folder.exists("runs/train/config.toml"));
    train.interrupt();
    job.interrupt();
    assert_eq!(state(&folder, "train"), "train stopped");
    assert_eq!(state(&folder, "job"), "launch stopped");
    run_in(&folder, "runs prune --keep 0 --yes").assert_ok("removed 2 runs");
    assert_eq!(folder.list("runs"), [""; 0]);
}

#[test]
fn a_run_without_a_checkpoint_is_running_until_it_is_killed_and_has_failed_then() {
    let folder = TempDir::new();
    let words = "train.steps=1000000 checkpoint.interval=999999 -n 1 --run-dir runs/train";
    let mut train = spawn(&folder, &format!("{TINY} {words}"));
    wait_for_step(&folder, "runs/train", 1);
    let reading = ["generate", "eval", "checkpoint show"];
    let running = "runs/train has no checkpoint yet: the run is running; wait for its first \
                   checkpoint, which it saves every 999999 steps";
    for command in reading {
        run_in(&folder, &format!("{command} runs/train")).assert_error(running);
    }
    for words in ["", " checkpoint.resume=never"] {
        let resumed = run_in(&folder, &format!("train --resume runs/train -n 1{words}"));
        resumed.assert_error("runs/train is in use by another job (process ");
    }
    train.child.kill().unwrap();
    train.child.wait().unwrap();
    wait_until("the ranks have ended", || state(&folder, "train") == "train failed");
    let failed = [
        "runs/train has no checkpoint: the run failed before its first one",
        "`regatta train --resume runs/train checkpoint.resume=never`",
    ];
    for command in reading {
        run_in(&folder, &format!("{command} runs/train")).assert_error(failed);
    }
}

/// Polls until a record is one of `wanted`, or the run ended.
fn follow(follower: &mut RunFollower, wanted: impl Fn(&[Followed]) -> bool) -> Vec<Followed> {
    let mut found = Vec::new();
    wait_until("the records", || {
        let update = follower.poll();
        assert!(update.errors.is_empty() && !update.restarted && update.skipped == 0, "{update:?}");
        found.extend(update.records);
        wanted(&found) || update.ended
    });
    found
}

#[test]
fn attempts_of_a_job_and_steps_of_a_training_are_followed_from_outside() {
    let folder = TempDir::new();
    let script =
        "until [ -e go ]; do sleep 0.05; done; [ $TORCHELASTIC_RESTART_COUNT = 1 ] || exit 3";
    let options = "-n 2 --max-restarts 1 --run-dir job";
    let _job = Process::spawn(&folder, &mut shell_job(&folder, options, script));
    wait_until("the run folder", || Run::open(&folder.join("job")).is_ok());
    let run = Run::open(&folder.join("job")).unwrap();
    let mut follower = run.follow();
    let started = |found: &[Followed]| {
        let is_start = |one: &&Followed| matches!(one.record.event, RunEvent::Started { .. });
        found.iter().filter(is_start).count() == 2
    };
    let mut found = follow(&mut follower, started);
    assert_eq!(run.state(), RunState::Running);
    folder.write("go", "");
    found.extend(follow(&mut follower, |_| false));
    assert_eq!((run.kind(), run.state()), (RunKind::Launch, RunState::Finished));
    let exit = |one: &Followed| match (one.source, &one.record.event) {
        (Source::Events { attempt, .. }, RunEvent::Exited { exit }) => {
            Some((attempt, one.record.rank.unwrap(), *exit))
        }
        _ => None,
    };
    let mut exits: Vec<_> = found.iter().filter_map(exit).collect();
    exits.sort_by_key(|(attempt, rank, _)| (*attempt, *rank));
    assert_eq!(exits[2..], [(1, 0, RankExit::Exit(0)), (1, 1, RankExit::Exit(0))], "{found:?}");
    assert!(found.is_sorted_by_key(|one| one.record.time), "{found:?}");
    assert_eq!(run.last_launch().result().unwrap().unwrap().restarts, 1);
    assert_eq!(run.last_launch().logs().len(), 8);

    let _train = spawn(&folder, &format!("{TINY} train.steps=20 -n 2 --run-dir train"));
    wait_for_step(&folder, "train", 1);
    let run = Run::open(&folder.join("train")).unwrap();
    let found = follow(&mut run.follow(), |_| false);
    let step = |one: &Followed| match &one.record.event {
        RunEvent::Step(step) if one.source == Source::Metrics => Some(step.step),
        _ => None,
    };
    assert_eq!(found.iter().filter_map(step).collect::<Vec<_>>(), (1..=20).collect::<Vec<_>>());
    assert_eq!((run.kind(), run.state()), (RunKind::Train, RunState::Finished));
    let stage = |one: &Followed| match &one.record.event {
        RunEvent::Launched { kind, .. } => Some(format!("{kind:?}")),
        RunEvent::Training { training: Event::Start(info) } => Some(format!("of {}", info.steps)),
        RunEvent::Training { training: Event::Checkpoint { step, .. } } => Some(step.to_string()),
        RunEvent::Training { training: Event::End(end) } => Some(format!("ends at {}", end.step)),
        _ => None,
    };
    let stages: Vec<String> = found.iter().filter_map(stage).collect();
    assert_eq!(stages[..2], ["Some(Train)", "of 20"]);
    assert_eq!(stages[stages.len() - 2..], ["20", "ends at 20"], "{stages:?}");
}

#[test]
fn files_that_are_not_regular_are_not_read() {
    let folder = TempDir::new();
    write(&folder, "runs/job/events.jsonl", "");
    write(&folder, "runs/job/log/rank-0.out", "");
    let fifos = ["result.json", "metrics.jsonl"].map(|name| folder.join("runs/job").join(name));
    assert!(Command::new("mkfifo").args(fifos).status().unwrap().success());
    assert_eq!(state(&folder, "job"), "launch failed");
    run_in(&folder, "runs show job").assert_ok("runs/job (launch)");
}

#[test]
fn prune_removes_only_old_run_folders_and_only_with_yes() {
    let folder = TempDir::new();
    for name in ["20260101-000000-1", "20260102-000000-1", "20260103-000000-1", "20260104-000000-1"]
    {
        write(&folder, &format!("runs/{name}/events.jsonl"), "");
        write(&folder, &format!("runs/{name}/log/rank-0.out"), "hello");
        write(&folder, &format!("runs/{name}/result.json"), "{}");
    }
    write(&folder, "runs/20260102-000000-1/thesis.tex", "precious");
    write(&folder, "runs/other/data.txt", "mine");
    write(&folder, "target/events.jsonl", "");
    write(&folder, "target/log/rank-0.out", "");
    std::os::unix::fs::symlink(folder.join("target"), folder.join("runs/20250101-000000-1"))
        .unwrap();
    // Links in a run folder are removed, not followed.
    std::os::unix::fs::symlink(
        folder.join("target"),
        folder.join("runs/20260101-000000-1/log/link"),
    )
    .unwrap();
    let before = folder.list("runs");
    run_in(&folder, "runs prune").assert_usage_error("required arguments");
    run_in(&folder, "runs prune --older-than 7").assert_usage_error("as in 7d");
    let dry = run_in(&folder, "runs prune --keep 2");
    dry.assert_ok(["would remove  runs/20260101-000000-1", "thesis.tex", "symbolic link", "--yes"]);
    run_in(&folder, "runs prune --older-than 1h --yes").assert_ok("nothing to remove");
    assert_eq!(folder.list("runs"), before);
    let done: Value = run_in(&folder, "runs prune --keep 2 --yes --json").json();
    let removed = |run: &&Value| run["removed"] == true;
    assert_eq!(done.as_array().unwrap().iter().filter(removed).count(), 1, "{done}");
    let left = [
        "20250101-000000-1",
        "20260102-000000-1",
        "20260103-000000-1",
        "20260104-000000-1",
        "other",
    ];
    assert_eq!(folder.list("runs"), left);
    assert!(folder.exists("target/log/rank-0.out") && folder.exists("runs/other/data.txt"));
}

#[test]
fn help_has_examples() {
    run_line("runs --help").assert_ok("regatta runs prune --keep 10");
    run_line("runs prune --help").assert_ok("--older-than <AGE>");
}
