//! `regatta train` under faults: killed ranks, full disks, corrupt files. No checkpoint is lost, and a
//! resumed run is bitwise identical to an uninterrupted one.

#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use regatta_train::data::prepare::{PrepareOptions, prepare};
use support::TempDir;
use support::disk::{SmallDisk, fill};
use support::job::{run_result, send_signal, wait_until};
use support::metrics::{assert_common_steps_identical, assert_identical, read_metrics};
use support::train::{
    ENDLESS, TINY, TrainProcess, checkpoints, corrupt, last_step, metrics, pid_of_rank,
    regatta_command, run, send_signal_to, train_tiny, wait_for_step,
};

const SIGINT: i32 = 2;
const SIGKILL: i32 = 9;

#[test]
fn restarted_ranks_resume_from_the_last_checkpoint() {
    let folder = TempDir::new();
    // resume=never applies to the first launch only.
    let words = "train.steps=300 resume=never -n 3 --launch=--max-restarts=3 --run-dir run";
    let training = TrainProcess::spawn(&folder, &format!("{TINY} {words}"));
    for (victim, step) in [(0, 10), (2, 60)] {
        wait_for_step(&folder, "run", step);
        let pid = || pid_of_rank(&folder, victim);
        wait_until("the rank", || pid().is_some());
        send_signal_to(pid().unwrap(), SIGKILL);
        let restarts = victim / 2 + 1;
        wait_until("the restart", || {
            training.stdout().matches("resumed after step").count() as u32 >= restarts
        });
    }
    let ended = training.wait();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(run_result(&folder, "run").restarts, 2);
    train_tiny(&folder, "train.steps=300 -n 3 --run-dir full").ok();
    assert_identical(&metrics(&folder, "run"), &metrics(&folder, "full"), 300);
}

#[test]
fn training_continues_on_a_full_disk_and_fails_only_at_the_final_checkpoint() {
    let folder = TempDir::new();
    let small = folder.path().join("small");
    std::fs::create_dir(&small).unwrap();
    let Some(disk) = SmallDisk::over(&small) else {
        eprintln!("skipped: cannot mount a tmpfs");
        return;
    };
    let (ballast, run) = (disk.path(&small.join("ballast")), disk.path(&small.join("run")));
    let start = |words: &str| {
        let command = regatta_command(&folder, &format!("train {words}"));
        TrainProcess::spawn_command(&folder, &mut disk.enter(&command))
    };
    // Without TensorBoard and evaluations, so that metrics do not fill the disk.
    let words = "checkpoint.interval=20 eval_interval=0 metrics.tensorboard=false";
    let training = start(&format!("{TINY} {words} {ENDLESS} -n 2 --run-dir small/run"));
    wait_until("a checkpoint", || training.stdout().contains("saved checkpoint at step 20 "));
    fill(&ballast);
    let notes = |training: &TrainProcess| {
        let is_note = |line: &&str| {
            line.starts_with("note: checkpoint after step ") && line.contains(" failed: ")
        };
        training.stdout().lines().filter(is_note).count()
    };
    wait_until("the note", || notes(&training) > 0);
    let before = notes(&training);
    wait_until("the next note", || notes(&training) > before);
    std::fs::remove_file(&ballast).unwrap();
    let saved = || training.stdout().matches("\nsaved checkpoint at step ").count();
    let before = saved();
    wait_until("the next checkpoint", || saved() > before);

    fill(&ballast);
    send_signal(&training.child, SIGINT);
    let ended = training.wait();
    assert!(ended.code.is_some_and(|code| code != 0), "{ended:?}");
    assert!(ended.err.contains("error: the checkpoint after step "), "{ended:?}");
    assert!(ended.err.contains("free space or set another checkpoint.dir"), "{ended:?}");
    assert!(!ended.out.contains("interrupted; checkpoint saved"), "{ended:?}");

    std::fs::remove_file(&ballast).unwrap();
    let last = ended.out.rsplit_once("saved checkpoint at step ").unwrap().1;
    let last: u64 = last.split_whitespace().next().unwrap().parse().unwrap();
    let steps = last + 10;
    let ended = start(&format!("--resume small/run -n 2 train.steps={steps}")).wait();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.out.contains(&format!("resumed after step {last} from ")), "{ended:?}");
    let found = read_metrics(&run.join("metrics.jsonl"));
    assert!((last + 1..=steps).all(|step| found.steps.contains_key(&step)), "{found:?}");
    train_tiny(&folder, &format!("{words} train.steps={steps} -n 2 --run-dir full")).ok();
    assert_common_steps_identical(&found, &metrics(&folder, "full"));
}

/// Copies a run folder.
fn copy(folder: &TempDir, from: &str, to: &str) {
    let copied = Command::new("cp").args(["-r", from, to]).current_dir(folder.path()).status();
    assert!(copied.unwrap().success());
}

/// Truncates a file to half its length.
fn truncate(path: &Path) {
    let bytes = std::fs::read(path).unwrap();
    std::fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
}

#[test]
fn resume_skips_corrupt_checkpoints_and_names_the_file() {
    let folder = TempDir::new();
    train_tiny(&folder, "train.steps=20 -n 2 --run-dir run").ok();
    train_tiny(&folder, "train.steps=22 -n 2 --run-dir full").ok();
    let full = metrics(&folder, "full");
    assert_eq!(checkpoints(&folder, "run"), ["step-00000015", "step-00000020"]);
    type Damage = fn(&Path);
    let remove: Damage = |path| std::fs::remove_file(path).unwrap();
    let cases: [(&str, Damage); 6] = [
        ("rank-00001.safetensors", truncate),
        ("rank-00000.safetensors", corrupt),
        ("rank-00001.safetensors", remove),
        ("checkpoint.json", truncate),
        ("checkpoint.json", corrupt),
        ("checkpoint.json", remove),
    ];
    for (number, (file, damage)) in cases.into_iter().enumerate() {
        let damaged = format!("damaged-{number}");
        copy(&folder, "run", &damaged);
        let path = format!("{damaged}/checkpoints/step-00000020/{file}");
        damage(&folder.path().join(&path));
        let out = run(&folder, &format!("--resume {damaged} -n 2 train.steps=22")).ok();
        let note =
            format!("note: skipped damaged checkpoint {damaged}/checkpoints/step-00000020: ");
        let note =
            out.lines().find(|line| line.starts_with(&note)).unwrap_or_else(|| panic!("{out}"));
        assert!(note.contains(&path), "{note}");
        assert!(out.contains("resumed after step 15 from "), "{out}");
        assert_identical(&metrics(&folder, &damaged), &full, 22);
    }
    // Corrupt checkpoints do not count: a valid one is removed only when there are two newer ones.
    let shard = |run: &str, step: u64| {
        folder.path().join(format!("{run}/checkpoints/step-{step:08}/rank-00000.safetensors"))
    };
    corrupt(&shard("run", 20));
    run(&folder, "--resume run -n 2 train.steps=22 checkpoint.interval=22").ok();
    corrupt(&shard("run", 22));
    let out = run(&folder, "--resume run -n 2 train.steps=22").ok();
    assert!(out.contains("resumed after step 15 from "), "{out}");
    assert_identical(&metrics(&folder, "run"), &full, 22);
}

#[test]
fn resume_fails_without_a_valid_checkpoint_and_keeps_the_metrics() {
    let folder = TempDir::new();
    train_tiny(&folder, "train.steps=20 -n 2 --run-dir run").ok();
    let before = std::fs::read_to_string(folder.path().join("run/metrics.jsonl")).unwrap();
    for name in checkpoints(&folder, "run") {
        corrupt(&folder.path().join("run/checkpoints").join(name).join("rank-00000.safetensors"));
    }
    let refused = run(&folder, "--resume run -n 2");
    assert_eq!(refused.code, Some(1), "{refused:?}");
    let error = "error: no checkpoint to resume from in run/checkpoints: ";
    let line = refused.err.lines().find(|line| line.contains(error)).unwrap();
    for part in ["step-00000015/rank-", "step-00000020/rank-", "checkpoint.resume=never starts"] {
        assert!(line.contains(part), "{part}: {line}");
    }
    let after = std::fs::read_to_string(folder.path().join("run/metrics.jsonl")).unwrap();
    assert_eq!(after, before);
    run(&folder, "--resume run -n 2 checkpoint.resume=never").ok();
    train_tiny(&folder, "train.steps=20 -n 2 --run-dir full").ok();
    assert_identical(&metrics(&folder, "run"), &metrics(&folder, "full"), 20);
}

#[test]
fn checkpoints_of_an_earlier_run_in_the_folder_are_set_aside() {
    let folder = TempDir::new();
    train_tiny(&folder, "train.steps=20 -n 2 --run-dir run").ok();
    let full = metrics(&folder, "run");
    let out = run(&folder, "--resume run -n 2 checkpoint.resume=never train.steps=7").ok();
    assert!(out.contains("step-00000020.aside-1 belongs to the previous run"), "{out}");
    let out = run(&folder, "--resume run -n 2 train.steps=20").ok();
    assert!(out.contains("resumed after step 7 from "), "{out}");
    assert_identical(&metrics(&folder, "run"), &full, 20);
    // An explicit checkpoint of the earlier run.
    let from = "checkpoint.resume=run/checkpoints/step-00000015.aside-1";
    let out = run(&folder, &format!("--resume run -n 2 {from}")).ok();
    assert!(
        out.contains("resumed after step 15 from run/checkpoints/step-00000015.aside-1"),
        "{out}"
    );
    assert_identical(&metrics(&folder, "run"), &full, 20);
}

#[test]
fn resume_with_an_incompatible_configuration_leaves_the_run_unchanged() {
    let folder = TempDir::new();
    train_tiny(&folder, "train.steps=10 -n 2 --run-dir run").ok();
    train_tiny(&folder, "train.steps=12 -n 2 --run-dir full").ok();
    folder.write(
        "other.txt",
        &"Water, water, every where, and all the boards did shrink.\n".repeat(99),
    );
    let cases = [
        (
            "num_heads=1",
            "has a different model: model.num_heads is 2 in the checkpoint and 1 in the configuration",
        ),
        ("source=other.txt", " has a different "),
        ("train.batch=25", "train.batch 25 is not divisible by 2 ranks"),
    ];
    let config = || std::fs::read_to_string(folder.path().join("run/config.toml")).unwrap();
    let before = config();
    for (words, expected) in cases {
        let refused = run(&folder, &format!("--resume run -n 2 train.steps=12 {words}"));
        assert_eq!(refused.code, Some(1), "{refused:?}");
        assert!(refused.err.contains(expected), "{words}: {}", refused.err);
        assert_eq!(config(), before, "{words}");
    }
    run(&folder, "--resume run -n 2 train.steps=12").ok();
    assert_identical(&metrics(&folder, "run"), &metrics(&folder, "full"), 12);
}

#[test]
fn resume_of_a_running_run_is_rejected() {
    let folder = TempDir::new();
    let training = TrainProcess::spawn(&folder, &format!("{TINY} {ENDLESS} -n 2 --run-dir run"));
    wait_for_step(&folder, "run", 20);
    let refused = run(&folder, "--resume run -n 2");
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.err.contains("run is in use by another job (process "), "{refused:?}");
    let step = last_step(&folder, "run");
    wait_for_step(&folder, "run", step + 1);
    send_signal(&training.child, SIGINT);
    assert_eq!(training.wait().code, Some(0));
    let found = metrics(&folder, "run");
    let steps = found.steps.len() as u64;
    assert_identical(&found, &found, steps);
    run(&folder, &format!("--resume run -n 2 train.steps={}", steps + 1)).ok();
}

#[test]
fn a_failed_checkpoint_write_names_rank_host_and_file() {
    let folder = TempDir::new();
    let words = format!("{TINY} {ENDLESS} checkpoint.interval=100 -n 3 --run-dir run");
    let training = TrainProcess::spawn(&folder, &words);
    wait_for_step(&folder, "run", 1);
    // A folder in place of the shard makes the write fail.
    for step in (100..10_000).step_by(100) {
        let name = format!("run/checkpoints/step-{step:08}.partial/rank-00001.safetensors");
        std::fs::create_dir_all(folder.path().join(name)).unwrap();
    }
    let note = || {
        let is_note = |line: &&str| line.starts_with("note: checkpoint after step ");
        training.stdout().lines().find(is_note).map(str::to_owned)
    };
    wait_until("the note", || note().is_some());
    let note = note().unwrap();
    assert!(
        note.contains(" failed: rank 1 on ") && note.contains("/rank-00001.safetensors"),
        "{note}"
    );
    send_signal(&training.child, SIGINT);
    let run = training.wait();
    assert_eq!(run.code, Some(0), "the final checkpoint is saved: {run:?}");
}

/// Tokenizes a text.
fn tokenize(folder: &TempDir, name: &str, text: &str) -> PathBuf {
    let input = folder.write(&format!("{name}.txt"), text);
    let dataset = folder.path().join(name);
    let options = PrepareOptions {
        inputs: vec![input.into()],
        tokenizer: None,
        validation: 0.1,
        folder: dataset.clone(),
        replace: false,
    };
    prepare(&options, &mut |_| Ok(())).unwrap();
    dataset
}

#[test]
fn corrupt_datasets_are_rejected() {
    let folder = TempDir::new();
    let verse = "It is an ancient Mariner, and he stoppeth one of three.\n".repeat(50);
    let other = "Water, water, every where, nor any drop to drink.\n".repeat(50);
    let good = tokenize(&folder, "good", &verse);
    let train = |name: &str| {
        let words = format!("{TINY} train.steps=3 source={name} -n 2 --run-dir of-{name}");
        run(&folder, &words)
    };
    train("good").ok();
    tokenize(&folder, "corrupt", &verse);
    corrupt(&folder.path().join("corrupt/train.tokens"));
    tokenize(&folder, "truncated", &verse);
    truncate(&folder.path().join("truncated/validation.tokens"));
    let mismatched = tokenize(&folder, "mismatched", &other);
    std::fs::copy(good.join("tokenizer.json"), mismatched.join("tokenizer.json")).unwrap();
    let cases = [
        ("corrupt", "error: the tokens of corrupt/train.tokens are damaged: SHA-256 is "),
        ("truncated", "it was truncated or modified; prepare it again"),
        ("mismatched", "mismatched/train.tokens was prepared with tokenizer "),
    ];
    for (name, expected) in cases {
        let refused = train(name);
        assert_eq!(refused.code, Some(1), "{refused:?}");
        assert!(refused.err.contains(expected), "{name}: {}", refused.err);
    }
}
