//! `regatta train`: what it is told, what it trains, and how it goes on.

#![allow(clippy::unwrap_used, reason = "a test's own functions may panic as it may")]

mod support;

use regatta_train::metrics::Event;
use support::job::send_signal;
use support::metrics::{Metrics, assert_agree, assert_near, assert_same};
use support::train::{
    FOR_EVER, Started, TINY, checkpoints, metrics, regatta, run, tiny, until_done,
};
use support::{CommandOutput, TempDir, command, run_line};

#[test]
fn help_teaches_by_examples() {
    let text = run_line("train --help").ok();
    for part in
        ["Usage: regatta train", "[CONFIG] [KEY=VALUE]...", "regatta train shakespeare-char"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn keys_and_presets_are_listed() {
    let keys = run_line("train --keys").ok();
    assert!(keys.contains("  train.steps = 1000  (a whole number, 1 or more)\n"), "{keys}");
    assert!(keys.contains("\noptimizer: how parameters follow their gradients\n"), "{keys}");
    let presets = run_line("train --presets").ok();
    let gpt2 = presets.lines().find(|line| line.starts_with("gpt2 ")).unwrap();
    assert!(gpt2.contains("124 M"), "{gpt2}");
    let tiny = presets.lines().find(|line| line.starts_with("tiny ")).unwrap();
    assert!(tiny.contains("~804 k"), "{tiny}");
}

#[test]
fn a_printed_configuration_can_be_used_again() {
    let folder = TempDir::new();
    let printed = run_line("train llama-tiny steps=7 --print-config").ok();
    assert!(printed.contains("steps = 7                     # command line, default 1000\n"));
    assert!(printed.contains("# preset llama-tiny"), "{printed}");
    std::fs::write(folder.path().join("run.toml"), &printed).unwrap();
    let words = ["train", "run.toml", "--print-config"];
    let again =
        CommandOutput::from(command().args(words).current_dir(folder.path()).output().unwrap())
            .ok();
    let values = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.split('#').next().unwrap().trim().to_owned()).collect()
    };
    assert_eq!(values(&again), values(&printed));
}

#[test]
fn what_is_wrong_is_said_in_a_sentence() {
    let cases = [
        ("train setps=3", "unknown key setps: did you mean train.steps?"),
        ("train steps=many", "train.steps is many, and must be a whole number, 1 or more"),
        ("train tinny", "no preset and no file tinny: did you mean tiny?"),
        ("train nowhere.toml", "nowhere.toml: No such file"),
        ("train tiny gpt2", "gpt2 is not key=value"),
        ("train --resume nowhere", "nowhere/config.toml: No such file"),
    ];
    for (words, expected) in cases {
        let sentence = run_line(words).error_line();
        assert!(sentence.contains(expected), "{words}: {sentence}");
    }
}

/// The events that were printed as JSON lines; nothing else may be.
fn events(out: &str) -> Vec<Event> {
    let event = |line: &str| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line:?}"));
    out.lines().map(event).collect()
}

/// Losses by step, as they were printed.
fn told(events: &[Event]) -> Vec<(u64, f64)> {
    let loss = |event: &Event| match event {
        Event::Step(step) => Some((step.step, step.loss)),
        _ => None,
    };
    events.iter().filter_map(loss).collect()
}

fn losses(metrics: &Metrics) -> Vec<(u64, f64)> {
    metrics.steps.iter().map(|(step, what)| (*step, what.loss)).collect()
}

#[test]
fn any_number_of_ranks_trains_as_one_does() {
    let folder = TempDir::new();
    for ranks in [1, 2, 3, 4, 8] {
        let words =
            format!("train.steps=20 checkpoint.every=0 -n {ranks} --run-dir {ranks} --json");
        let printed = events(&tiny(&folder, &words).ok());
        let kept = metrics(&folder, &ranks.to_string());
        assert_eq!(told(&printed), losses(&kept));
        let Some(Event::Begin(about)) = printed.first() else { panic!("{printed:?}") };
        assert_eq!((about.ranks, about.steps, about.precision.as_str()), (ranks, 20, "f32"));
        assert!(matches!(printed.last(), Some(Event::End(end)) if end.step == 20));
        assert_near(&kept, &metrics(&folder, "1"));
    }
    let one = metrics(&folder, "1");
    assert_eq!((one.steps.len(), one.validations.len()), (20, 2));
    assert!(one.steps[&20].loss < one.steps[&1].loss - 0.1, "nothing was learnt: {one:?}");
    // What is left out at random is the same, too, and whatever is worked on at once.
    for (ranks, words) in [(1, ""), (3, "micro_batch=2 recompute=true")] {
        let words = format!("family=llama dropout=0.2 {words} --run-dir llama-{ranks} -n {ranks}");
        tiny(&folder, &format!("train.steps=5 {words}")).ok();
    }
    assert_near(&metrics(&folder, "llama-3"), &metrics(&folder, "llama-1"));
}

#[test]
fn it_joins_the_ranks_of_a_job() {
    let folder = TempDir::new();
    let train = format!("train {TINY} train.steps=10 --json");
    let program = env!("CARGO_BIN_EXE_regatta");
    let words = format!("launch -n 2 --oversubscribe --run-dir job -- {program} {train}");
    let joined = CommandOutput::from(regatta(&folder, &words).output().unwrap()).ok();
    tiny(&folder, "train.steps=10 -n 2 --run-dir alone").ok();
    assert_same(&metrics(&folder, "job"), &metrics(&folder, "alone"), 10);
    // What ranks print has their names before it.
    let lines = joined.lines().filter_map(|line| Some(line.split_once("] ")?.1));
    assert_eq!(told(&events(&lines.collect::<Vec<_>>().join("\n"))).len(), 10, "{joined}");
    assert_eq!(checkpoints(&folder, "job"), ["step-00000005", "step-00000010"]);
}

#[test]
fn a_run_goes_on_where_it_ended() {
    let folder = TempDir::new();
    tiny(&folder, "train.steps=20 -n 2 --run-dir whole").ok();
    let whole = metrics(&folder, "whole");
    tiny(&folder, "train.steps=8 -n 2 --run-dir part").ok();
    let out = run(&folder, "--resume part -n 2 train.steps=20").ok();
    assert!(out.contains("goes on after step 8 of part/checkpoints/step-00000008"), "{out}");
    assert!(out.starts_with("tiny with "), "it has lost its name: {out}");
    assert_same(&metrics(&folder, "part"), &whole, 20);
    assert_eq!(checkpoints(&folder, "part"), ["step-00000015", "step-00000020"]);
    let files = |name: &str| std::fs::read_dir(folder.path().join(name)).unwrap().count();
    assert_eq!((files("whole/tensorboard"), files("part/tensorboard")), (1, 2));
    // On another number of ranks sums are added up in another order.
    tiny(&folder, "train.steps=8 -n 2 --run-dir other").ok();
    run(&folder, "--resume other -n 3 train.steps=20").ok();
    assert_near(
        &metrics(&folder, "other"),
        &Metrics { validations: metrics(&folder, "part").validations, ..whole },
    );
    // Nothing is left to do, and nothing is done.
    let run = run(&folder, "--resume part -n 2");
    assert_eq!((run.out.clone() + &run.err).matches("run folder: ").count(), 1, "{run:?}");
    let out = run.ok();
    assert!(out.contains("all 20 steps are done: train.steps=MORE goes on"), "{out}");
    assert_same(&metrics(&folder, "part"), &metrics(&folder, "whole"), 20);
}

#[test]
fn a_signal_saves_and_ends_and_the_run_goes_on_bit_by_bit() {
    const INT: i32 = 2;
    const USR1: i32 = 10;
    let folder = TempDir::new();
    let mut longest = 0;
    for (run_dir, number) in [("int", INT), ("usr1", USR1)] {
        let words = format!("{TINY} {FOR_EVER} checkpoint.every=1000 -n 2 --run-dir {run_dir}");
        let training = Started::new(&folder, &words);
        until_done(&folder, run_dir, 3);
        send_signal(&training.child, number);
        let run = training.over();
        assert_eq!(run.code, Some(0), "{run:?}");
        let part = metrics(&folder, run_dir);
        let steps = *part.steps.last_key_value().unwrap().0;
        assert!(run.out.contains(&format!("stopped, and kept: {steps} steps")), "{run:?}");
        assert_eq!(checkpoints(&folder, run_dir).last(), Some(&format!("step-{steps:08}")));
        longest = longest.max(steps + 5);
        let words = format!("--resume {run_dir} -n 2 train.steps={}", steps + 5);
        support::train::run(&folder, &words).ok();
        assert_eq!(metrics(&folder, run_dir).steps.len() as u64, steps + 5);
    }
    tiny(&folder, &format!("train.steps={longest} -n 2 --run-dir whole")).ok();
    for run_dir in ["int", "usr1"] {
        assert_agree(&metrics(&folder, run_dir), &metrics(&folder, "whole"));
    }
}

#[test]
fn what_does_not_fit_is_refused_before_anything_is_started() {
    let folder = TempDir::new();
    tiny(&folder, "train.steps=2 -n 1 --run-dir there").ok();
    let cases = [
        ("-n 5", "train.batch 24 does not divide among 5 ranks: set it to 20 or 25"),
        ("heads=3", "model.width"),
        ("--run-dir there", "--resume there goes on with it"),
        ("--launch --nonsense", "--launch: unexpected argument '--nonsense'"),
    ];
    for (words, expected) in cases {
        let sentence = run(&folder, words).error_line();
        assert!(sentence.contains(expected), "{words}: {sentence}");
        assert_eq!(folder.names(), ["there"], "{words}");
    }
}

#[test]
fn data_that_cannot_be_trained_on_is_named() {
    let folder = TempDir::new();
    folder.write("short.txt", "To be, or not to be.\n");
    folder.write("empty.txt", "");
    std::fs::write(folder.path().join("bytes.txt"), [0xff; 100]).unwrap();
    let cases = [
        ("short.txt", "short.txt: there are 18 tokens, and a sample of context 64 needs 65"),
        ("empty.txt", "empty.txt is empty"),
        ("bytes.txt", "bytes.txt is not UTF-8 text: byte 0"),
        ("nowhere.txt", "there is no data \"nowhere.txt\""),
    ];
    for (file, expected) in cases {
        let run = run(&folder, &format!("source={file} -n 2 --run-dir of-{file}"));
        assert_eq!(run.code, Some(1), "{run:?}");
        assert!(run.err.contains(&format!("error: {expected}")), "{file}: {}", run.err);
    }
}

#[test]
fn checkpoints_elsewhere_are_found_by_the_run_s_folder() {
    let folder = TempDir::new();
    tiny(&folder, "train.steps=4 checkpoint.every=2 checkpoint.folder=kept -n 1 --run-dir run")
        .ok();
    assert!(!folder.path().join("run/checkpoints").exists());
    let run = folder.path().join("run").display().to_string();
    // From wherever it is asked for.
    let shown = run_line(&format!("checkpoint show {run}")).ok();
    assert!(shown.contains("kept/step-00000004"), "{shown}");
    run_line(&format!("checkpoint verify {run}")).ok();
    assert_eq!(
        run_line(&format!("generate {run} -n 5 -p a")).ok().trim_end().chars().next(),
        Some('a')
    );
    let words = format!("train.steps=6 checkpoint.resume={run} -n 1 --run-dir other");
    let out = tiny(&folder, &words).ok();
    assert!(out.contains("goes on after step 4 of "), "{out}");
}

#[test]
fn text_is_not_written_with_another_model_s_tokens() {
    let folder = TempDir::new();
    tiny(&folder, "train.steps=2 -n 1 --run-dir run").ok();
    let file = folder.path().join("run/checkpoints/tokenizer.json");
    let characters: String = (' '..='~').collect();
    let other = serde_json::json!({ "kind": "characters", "characters": characters }).to_string();
    std::fs::write(&file, other).unwrap();
    let run = folder.path().join("run").display().to_string();
    let sentence = run_line(&format!("generate {run} -n 5 -p a")).error_line();
    assert!(sentence.contains("is not the tokenizer of "), "{sentence}");
    let asked = run_line(&format!("generate {run} -n 5 -p a --tokenizer {}", file.display()));
    assert!(
        asked.err.contains("note: ") && asked.err.contains("is not the tokenizer of "),
        "{asked:?}"
    );
    asked.ok();
}

#[test]
fn a_start_that_failed_is_in_nobody_s_way() {
    let folder = TempDir::new();
    let failed = tiny(&folder, "train.steps=4 source=later.txt -n 2 --run-dir run");
    assert!(failed.err.contains("there is no data \"later.txt\""), "{failed:?}");
    folder.write("later.txt", &"Now there is something to learn from.\n".repeat(99));
    tiny(&folder, "train.steps=4 source=later.txt -n 2 --run-dir run").ok();
    assert_eq!(metrics(&folder, "run").steps.len(), 4);
    // Now there is something to lose.
    let words = "train.steps=4 source=later.txt checkpoint.resume=never -n 2 --run-dir run";
    let sentence = tiny(&folder, words).error_line();
    assert!(sentence.contains("run has a run already: --resume run"), "{sentence}");
}

#[test]
fn the_same_command_goes_on_with_its_run() {
    let folder = TempDir::new();
    tiny(&folder, "train.steps=300 -n 2 --run-dir whole").ok();
    let words = format!("{TINY} train.steps=300 -n 2 --run-dir run");
    let training = Started::new(&folder, &words);
    until_done(&folder, "run", 20);
    // Not while it is under way.
    let refused = run(&folder, &words);
    assert!(refused.err.contains("error: another job (process "), "{refused:?}");
    send_signal(&training.child, 2);
    let stopped = training.over();
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    assert!(stopped.out.contains("stopped, and kept"), "{stopped:?}");
    let out = run(&folder, &words).ok();
    assert!(out.contains("goes on after step "), "{out}");
    assert_same(&metrics(&folder, "run"), &metrics(&folder, "whole"), 300);
    let sentence = run(&folder, &format!("{words} train.seed=2")).error_line();
    assert!(sentence.contains("train.seed is 1337 there, 2 here: --resume run"), "{sentence}");
}

#[test]
fn what_memory_cannot_hold_is_refused_before_it_begins() {
    let folder = TempDir::new();
    // A hundred terabytes, on any machine.
    let words = "-n 2 layers=1000 width=16384 heads=128 --run-dir run";
    let refused = run(&folder, words);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    for part in ["error: 2 of this node's ranks need ", "model.width", "train.check_memory=false"] {
        assert!(refused.err.contains(part), "{part}: {}", refused.err);
    }
    tiny(&folder, "train.steps=2 check_memory=false -n 2 --run-dir run").ok();
}
