//! `regatta train` when something goes wrong: whatever is killed, full or damaged, nothing that was
//! kept is lost, and what is trained again comes to the same bit by bit.

#![allow(clippy::unwrap_used, reason = "a test's own functions may panic as it may")]

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use regatta_train::data::prepare::{Plan, prepare};
use support::TempDir;
use support::disk::{SmallDisk, fill};
use support::job::{run_result, send_signal, wait_until};
use support::metrics::{assert_agree, assert_same, metrics_of};
use support::train::{
    FOR_EVER, Started, TINY, checkpoints, done, flip, metrics, processes, regatta, run, send, tiny,
    until_done,
};

const KILL: i32 = 9;

#[test]
fn ranks_that_are_started_anew_go_on_by_themselves() {
    let folder = TempDir::new();
    // Wherever it first began from, then it goes on from its own.
    let words = "train.steps=300 resume=never -n 3 --launch=--max-restarts=3 --run-dir run";
    let training = Started::new(&folder, &format!("{TINY} {words}"));
    for (victim, step) in [(0, 10), (2, 60)] {
        until_done(&folder, "run", step);
        let rank = || processes(&folder).into_iter().find(|(_, rank)| *rank == Some(victim));
        wait_until("the rank", || rank().is_some());
        send(rank().unwrap().0, KILL);
        let going_on = victim / 2 + 1;
        wait_until("the next start", || {
            training.out().matches("goes on after step").count() as u32 >= going_on
        });
    }
    let ended = training.over();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(run_result(&folder, "run").restarts, 2);
    tiny(&folder, "train.steps=300 -n 3 --run-dir whole").ok();
    assert_same(&metrics(&folder, "run"), &metrics(&folder, "whole"), 300);
}

#[test]
fn a_full_disk_costs_no_training() {
    let folder = TempDir::new();
    let small = folder.path().join("small");
    std::fs::create_dir(&small).unwrap();
    let Some(disk) = SmallDisk::over(&small) else {
        eprintln!("skipped: no file system can be mounted here");
        return;
    };
    let (ballast, run) = (disk.path(&small.join("ballast")), disk.path(&small.join("run")));
    let start = |words: &str| {
        let command = regatta(&folder, &format!("train {words}"));
        Started::of(&folder, &mut disk.enter(&command))
    };
    // Few figures, so that these do not fill it.
    let words = "checkpoint.every=20 eval_every=0 metrics.tensorboard=false";
    let training = start(&format!("{TINY} {words} {FOR_EVER} -n 2 --run-dir small/run"));
    wait_until("a checkpoint", || training.out().contains("checkpoint of step 20 "));
    fill(&ballast);
    wait_until("the note", || training.out().contains("note: no checkpoint after step "));
    let notes = |training: &Started| training.out().matches("no checkpoint after").count();
    let before = notes(&training);
    wait_until("steps after it", || notes(&training) > before);
    std::fs::remove_file(&ballast).unwrap();
    let kept = || training.out().rmatches("\ncheckpoint of step ").count();
    let before = kept();
    wait_until("the next checkpoint", || kept() > before);

    fill(&ballast);
    send_signal(&training.child, 2);
    let ended = training.over();
    assert!(ended.code.is_some_and(|code| code != 0), "{ended:?}");
    assert!(ended.err.contains("error: what was trained in "), "{ended:?}");
    assert!(ended.err.contains("make room or choose another checkpoint.folder"), "{ended:?}");
    assert!(!ended.out.contains("stopped, and kept"), "{ended:?}");

    std::fs::remove_file(&ballast).unwrap();
    let last = ended.out.rsplit_once("checkpoint of step ").unwrap().1;
    let last: u64 = last.split_whitespace().next().unwrap().parse().unwrap();
    let steps = last + 10;
    let ended = start(&format!("--resume small/run -n 2 train.steps={steps}")).over();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.out.contains(&format!("goes on after step {last} of ")), "{ended:?}");
    let found = metrics_of(&run.join("metrics.jsonl"));
    assert!((last + 1..=steps).all(|step| found.steps.contains_key(&step)), "{found:?}");
    tiny(&folder, &format!("{words} train.steps={steps} -n 2 --run-dir whole")).ok();
    assert_agree(&found, &metrics(&folder, "whole"));
}

/// A copy of a run.
fn copy(folder: &TempDir, from: &str, to: &str) {
    let copied = Command::new("cp").args(["-r", from, to]).current_dir(folder.path()).status();
    assert!(copied.unwrap().success());
}

fn cut(path: &Path) {
    let bytes = std::fs::read(path).unwrap();
    std::fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
}

#[test]
fn a_damaged_checkpoint_is_passed_over_with_its_name() {
    let folder = TempDir::new();
    tiny(&folder, "train.steps=20 -n 2 --run-dir run").ok();
    tiny(&folder, "train.steps=22 -n 2 --run-dir whole").ok();
    let whole = metrics(&folder, "whole");
    assert_eq!(checkpoints(&folder, "run"), ["step-00000015", "step-00000020"]);
    type Harm = fn(&Path);
    let remove: Harm = |path| std::fs::remove_file(path).unwrap();
    let cases: [(&str, Harm); 6] = [
        ("rank-00001.safetensors", cut),
        ("rank-00000.safetensors", flip),
        ("rank-00001.safetensors", remove),
        ("checkpoint.json", cut),
        ("checkpoint.json", flip),
        ("checkpoint.json", remove),
    ];
    for (number, (file, harm)) in cases.into_iter().enumerate() {
        let harmed = format!("harmed-{number}");
        copy(&folder, "run", &harmed);
        let path = format!("{harmed}/checkpoints/step-00000020/{file}");
        harm(&folder.path().join(&path));
        let out = run(&folder, &format!("--resume {harmed} -n 2 train.steps=22")).ok();
        let note = format!("note: {harmed}/checkpoints/step-00000020 is damaged and passed over:");
        let note =
            out.lines().find(|line| line.starts_with(&note)).unwrap_or_else(|| panic!("{out}"));
        assert!(note.contains(&path), "{note}");
        assert!(out.contains("goes on after step 15 of "), "{out}");
        assert_same(&metrics(&folder, &harmed), &whole, 22);
    }
    // It does not count as kept: the good one stays until there are two good ones.
    let newest = |run: &str, step: u64| {
        folder.path().join(format!("{run}/checkpoints/step-{step:08}/rank-00000.safetensors"))
    };
    flip(&newest("run", 20));
    run(&folder, "--resume run -n 2 train.steps=22 checkpoint.every=22").ok();
    flip(&newest("run", 22));
    let out = run(&folder, "--resume run -n 2 train.steps=22").ok();
    assert!(out.contains("goes on after step 15 of "), "{out}");
    assert_same(&metrics(&folder, "run"), &whole, 22);
}

#[test]
fn where_all_are_damaged_nothing_is_begun() {
    let folder = TempDir::new();
    tiny(&folder, "train.steps=20 -n 2 --run-dir run").ok();
    let before = std::fs::read_to_string(folder.path().join("run/metrics.jsonl")).unwrap();
    for name in checkpoints(&folder, "run") {
        flip(&folder.path().join("run/checkpoints").join(name).join("rank-00000.safetensors"));
    }
    let refused = run(&folder, "--resume run -n 2");
    assert_eq!(refused.code, Some(1), "{refused:?}");
    let error = "error: run/checkpoints has no checkpoint to go on from: ";
    let sentence = refused.err.lines().find(|line| line.contains(error)).unwrap();
    for part in ["step-00000015/rank-", "step-00000020/rank-", "checkpoint.resume=never begins"] {
        assert!(sentence.contains(part), "{part}: {sentence}");
    }
    let after = std::fs::read_to_string(folder.path().join("run/metrics.jsonl")).unwrap();
    assert_eq!(after, before);
    run(&folder, "--resume run -n 2 checkpoint.resume=never").ok();
    tiny(&folder, "train.steps=20 -n 2 --run-dir whole").ok();
    assert_same(&metrics(&folder, "run"), &metrics(&folder, "whole"), 20);
}

#[test]
fn a_run_that_begins_anew_is_not_taken_for_the_one_before() {
    let folder = TempDir::new();
    tiny(&folder, "train.steps=20 -n 2 --run-dir run").ok();
    let whole = metrics(&folder, "run");
    let out = run(&folder, "--resume run -n 2 checkpoint.resume=never train.steps=7").ok();
    assert!(out.contains("step-00000020.aside-1 is of the run before"), "{out}");
    let out = run(&folder, "--resume run -n 2 train.steps=20").ok();
    assert!(out.contains("goes on after step 7 of "), "{out}");
    assert_same(&metrics(&folder, "run"), &whole, 20);
    // Back to one that is named.
    let from = "checkpoint.resume=run/checkpoints/step-00000015.aside-1";
    let out = run(&folder, &format!("--resume run -n 2 {from}")).ok();
    assert!(
        out.contains("goes on after step 15 of run/checkpoints/step-00000015.aside-1"),
        "{out}"
    );
    assert_same(&metrics(&folder, "run"), &whole, 20);
}

#[test]
fn what_does_not_fit_a_run_leaves_it_as_it_was() {
    let folder = TempDir::new();
    tiny(&folder, "train.steps=10 -n 2 --run-dir run").ok();
    tiny(&folder, "train.steps=12 -n 2 --run-dir whole").ok();
    folder.write(
        "other.txt",
        &"Water, water, every where, and all the boards did shrink.\n".repeat(99),
    );
    let cases = [
        ("heads=1", "is of another model: model.heads is 2 there, 1 here"),
        ("source=other.txt", "is of another "),
        ("train.batch=25", "train.batch 25 does not divide among 2 ranks"),
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
    assert_same(&metrics(&folder, "run"), &metrics(&folder, "whole"), 12);
}

#[test]
fn a_run_that_is_under_way_is_left_alone() {
    let folder = TempDir::new();
    let training = Started::new(&folder, &format!("{TINY} {FOR_EVER} -n 2 --run-dir run"));
    until_done(&folder, "run", 20);
    let refused = run(&folder, "--resume run -n 2");
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.err.contains("error: another job (process "), "{refused:?}");
    let before = done(&folder, "run");
    until_done(&folder, "run", before + 1);
    send_signal(&training.child, 2);
    assert_eq!(training.over().code, Some(0));
    let found = metrics(&folder, "run");
    let steps = found.steps.len() as u64;
    assert_same(&found, &found, steps);
    run(&folder, &format!("--resume run -n 2 train.steps={}", steps + 1)).ok();
}

#[test]
fn a_rank_that_cannot_write_is_named_with_its_reason() {
    let folder = TempDir::new();
    let words = format!("{TINY} {FOR_EVER} checkpoint.every=100 -n 3 --run-dir run");
    let training = Started::new(&folder, &words);
    until_done(&folder, "run", 1);
    // No file can be where there is a folder.
    for step in (100..10_000).step_by(100) {
        let name = format!("run/checkpoints/step-{step:08}.partial/rank-00001.safetensors");
        std::fs::create_dir_all(folder.path().join(name)).unwrap();
    }
    wait_until("the note", || training.out().contains(": no checkpoint after step "));
    let out = training.out();
    let note = out.lines().find(|line| line.contains("no checkpoint after step ")).unwrap();
    assert!(note.contains(": rank 1 on ") && note.contains("/rank-00001.safetensors"), "{note}");
    send_signal(&training.child, 2);
    let run = training.over();
    assert_eq!(run.code, Some(0), "the last one is kept: {run:?}");
}

/// Token files of a text.
fn tokens(folder: &TempDir, name: &str, text: &str) -> PathBuf {
    let input = folder.write(&format!("{name}.txt"), text);
    let made = folder.path().join(name);
    let plan = Plan {
        inputs: vec![input.into()],
        tokenizer: None,
        validation: 0.1,
        folder: made.clone(),
        replace: false,
    };
    prepare(&plan, &mut |_| Ok(())).unwrap();
    made
}

#[test]
fn damaged_token_files_are_not_trained_on() {
    let folder = TempDir::new();
    let verse = "It is an ancient Mariner, and he stoppeth one of three.\n".repeat(50);
    let other = "Water, water, every where, nor any drop to drink.\n".repeat(50);
    let good = tokens(&folder, "good", &verse);
    let train = |name: &str| {
        let words = format!("{TINY} train.steps=3 source={name} -n 2 --run-dir of-{name}");
        run(&folder, &words)
    };
    train("good").ok();
    tokens(&folder, "flipped", &verse);
    flip(&folder.path().join("flipped/train.tokens"));
    tokens(&folder, "cut", &verse);
    cut(&folder.path().join("cut/validation.tokens"));
    let foreign = tokens(&folder, "foreign", &other);
    std::fs::copy(good.join("tokenizer.json"), foreign.join("tokenizer.json")).unwrap();
    let cases = [
        ("flipped", "error: the tokens of flipped/train.tokens are damaged: SHA-256 is "),
        ("cut", "it was cut short or altered, prepare it anew"),
        ("foreign", "foreign/train.tokens was made with the tokenizer "),
    ];
    for (name, expected) in cases {
        let refused = train(name);
        assert_eq!(refused.code, Some(1), "{refused:?}");
        assert!(refused.err.contains(expected), "{name}: {}", refused.err);
    }
}
