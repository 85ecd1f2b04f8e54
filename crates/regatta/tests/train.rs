//! `regatta train`: options, training on several ranks, and resuming.

#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

mod support;

use regatta_train::metrics::Event;
use support::job::send_signal;
use support::metrics::{RunMetrics, assert_close, assert_common_steps_identical, assert_identical};
use support::train::{
    ENDLESS, TINY, TrainProcess, checkpoints, metrics, regatta_command, run, train_tiny,
    wait_for_step,
};
use support::{CommandOutput, TempDir, command, run_line};

#[test]
fn help_shows_usage_and_examples() {
    let text = run_line("train --help").ok();
    for part in
        ["Usage: regatta train", "[CONFIG] [KEY=VALUE]...", "regatta train shakespeare-char"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn keys_and_presets_list_defaults_and_sizes() {
    let keys = run_line("train --keys").ok();
    assert!(keys.contains("  train.steps = 1000  (an integer >= 1)\n"), "{keys}");
    assert!(keys.contains("\noptimizer: optimizer and learning-rate schedule\n"), "{keys}");
    let presets = run_line("train --presets").ok();
    let gpt2 = presets.lines().find(|line| line.starts_with("gpt2 ")).unwrap();
    assert!(gpt2.contains("124M"), "{gpt2}");
    let tiny = presets.lines().find(|line| line.starts_with("tiny ")).unwrap();
    assert!(tiny.contains("~804k"), "{tiny}");
}

#[test]
fn printed_configuration_can_be_loaded() {
    let folder = TempDir::new();
    let printed = run_line("train llama-tiny steps=7 --print-config").ok();
    assert!(printed.contains("steps = 7                     # command line, default 1000\n"));
    assert!(printed.contains("# preset llama-tiny"), "{printed}");
    std::fs::write(folder.path().join("run.toml"), &printed).unwrap();
    let words = ["train", "run.toml", "--print-config"];
    let reloaded =
        CommandOutput::from(command().args(words).current_dir(folder.path()).output().unwrap())
            .ok();
    let values = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.split('#').next().unwrap().trim().to_owned()).collect()
    };
    assert_eq!(values(&reloaded), values(&printed));
}

#[test]
fn invalid_arguments_are_rejected_with_one_line() {
    let cases = [
        ("train setps=3", "unknown key setps: did you mean train.steps?"),
        ("train steps=many", "train.steps is many, expected an integer >= 1"),
        ("train tinny", "no preset or file named tinny: did you mean tiny?"),
        ("train nowhere.toml", "cannot read nowhere.toml: No such file"),
        ("train tiny gpt2", "`gpt2` is not key=value"),
        ("train --resume nowhere", "nowhere/config.toml: No such file"),
    ];
    for (words, expected) in cases {
        let error = run_line(words).error_line();
        assert!(error.contains(expected), "{words}: {error}");
    }
}

/// Parses output that consists of JSON events only.
fn events(out: &str) -> Vec<Event> {
    let event = |line: &str| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line:?}"));
    out.lines().map(event).collect()
}

/// Losses by step from the events.
fn event_losses(events: &[Event]) -> Vec<(u64, f64)> {
    let loss = |event: &Event| match event {
        Event::Step(step) => Some((step.step, step.loss)),
        _ => None,
    };
    events.iter().filter_map(loss).collect()
}

/// Losses by step from the recorded metrics.
fn recorded_losses(metrics: &RunMetrics) -> Vec<(u64, f64)> {
    metrics.steps.iter().map(|(step, values)| (*step, values.loss)).collect()
}

#[test]
fn losses_do_not_depend_on_the_number_of_ranks() {
    let folder = TempDir::new();
    for ranks in [1, 2, 3, 4, 8] {
        let words =
            format!("train.steps=20 checkpoint.interval=0 -n {ranks} --run-dir {ranks} --json");
        let events = events(&train_tiny(&folder, &words).ok());
        let recorded = metrics(&folder, &ranks.to_string());
        assert_eq!(event_losses(&events), recorded_losses(&recorded));
        let Some(Event::Start(about)) = events.first() else { panic!("{events:?}") };
        assert_eq!((about.ranks, about.steps, about.precision.as_str()), (ranks, 20, "f32"));
        assert!(matches!(events.last(), Some(Event::End(end)) if end.step == 20));
        assert_close(&recorded, &metrics(&folder, "1"));
    }
    let one = metrics(&folder, "1");
    assert_eq!((one.steps.len(), one.val_losses.len()), (20, 2));
    assert!(one.steps[&20].loss < one.steps[&1].loss - 0.1, "the loss does not decrease: {one:?}");
    // Dropout masks do not depend on the number of ranks or the micro-batch size.
    for (ranks, words) in [(1, ""), (3, "micro_batch=2 recompute=true")] {
        let words = format!("family=llama dropout=0.2 {words} --run-dir llama-{ranks} -n {ranks}");
        train_tiny(&folder, &format!("train.steps=5 {words}")).ok();
    }
    assert_close(&metrics(&folder, "llama-3"), &metrics(&folder, "llama-1"));
}

#[test]
fn train_runs_as_the_command_of_regatta_launch() {
    let folder = TempDir::new();
    let train = format!("train {TINY} train.steps=10 --json");
    let program = env!("CARGO_BIN_EXE_regatta");
    let words = format!("launch -n 2 --oversubscribe --run-dir job -- {program} {train}");
    let launched = CommandOutput::from(regatta_command(&folder, &words).output().unwrap()).ok();
    train_tiny(&folder, "train.steps=10 -n 2 --run-dir direct").ok();
    assert_identical(&metrics(&folder, "job"), &metrics(&folder, "direct"), 10);
    // The launcher prefixes each line with its rank.
    let lines = launched.lines().filter_map(|line| Some(line.split_once("] ")?.1));
    let events = events(&lines.collect::<Vec<_>>().join("\n"));
    assert_eq!(event_losses(&events).len(), 10, "{launched}");
    assert_eq!(checkpoints(&folder, "job"), ["step-00000005", "step-00000010"]);
}

#[test]
fn resumed_run_equals_an_uninterrupted_one() {
    let folder = TempDir::new();
    train_tiny(&folder, "train.steps=20 -n 2 --run-dir full").ok();
    let full = metrics(&folder, "full");
    train_tiny(&folder, "train.steps=8 -n 2 --run-dir part").ok();
    let out = run(&folder, "--resume part -n 2 train.steps=20").ok();
    assert!(out.contains("resumed after step 8 from part/checkpoints/step-00000008"), "{out}");
    assert!(out.starts_with("tiny, "), "the model's name is lost: {out}");
    assert_identical(&metrics(&folder, "part"), &full, 20);
    assert_eq!(checkpoints(&folder, "part"), ["step-00000015", "step-00000020"]);
    let files = |name: &str| std::fs::read_dir(folder.path().join(name)).unwrap().count();
    assert_eq!((files("full/tensorboard"), files("part/tensorboard")), (1, 2));
    // Another number of ranks changes the summation order.
    train_tiny(&folder, "train.steps=8 -n 2 --run-dir other").ok();
    run(&folder, "--resume other -n 3 train.steps=20").ok();
    assert_close(
        &metrics(&folder, "other"),
        &RunMetrics { val_losses: metrics(&folder, "part").val_losses, ..full },
    );
    // A completed run has no steps left.
    let run = run(&folder, "--resume part -n 2");
    assert_eq!((run.out.clone() + &run.err).matches("run folder: ").count(), 1, "{run:?}");
    let out = run.ok();
    assert!(out.contains("all 20 steps are finished; set train.steps higher to continue"), "{out}");
    assert_identical(&metrics(&folder, "part"), &metrics(&folder, "full"), 20);
}

#[test]
fn a_signal_saves_a_checkpoint_from_which_the_run_resumes_bitwise() {
    const INT: i32 = 2;
    const USR1: i32 = 10;
    let folder = TempDir::new();
    let mut max_steps = 0;
    for (run_dir, signal) in [("int", INT), ("usr1", USR1)] {
        let words = format!("{TINY} {ENDLESS} checkpoint.interval=1000 -n 2 --run-dir {run_dir}");
        let training = TrainProcess::spawn(&folder, &words);
        wait_for_step(&folder, run_dir, 3);
        send_signal(&training.child, signal);
        let run = training.wait();
        assert_eq!(run.code, Some(0), "{run:?}");
        let interrupted = metrics(&folder, run_dir);
        let steps = *interrupted.steps.last_key_value().unwrap().0;
        assert!(
            run.out.contains(&format!("interrupted; checkpoint saved: {steps} steps")),
            "{run:?}"
        );
        assert_eq!(checkpoints(&folder, run_dir).last(), Some(&format!("step-{steps:08}")));
        max_steps = max_steps.max(steps + 5);
        let words = format!("--resume {run_dir} -n 2 train.steps={}", steps + 5);
        support::train::run(&folder, &words).ok();
        assert_eq!(metrics(&folder, run_dir).steps.len() as u64, steps + 5);
    }
    train_tiny(&folder, &format!("train.steps={max_steps} -n 2 --run-dir full")).ok();
    for run_dir in ["int", "usr1"] {
        assert_common_steps_identical(&metrics(&folder, run_dir), &metrics(&folder, "full"));
    }
}

#[test]
fn invalid_configurations_are_rejected_before_the_launch() {
    let folder = TempDir::new();
    train_tiny(&folder, "train.steps=2 -n 1 --run-dir existing").ok();
    let cases = [
        ("-n 5", "train.batch 24 is not divisible by 5 ranks: set it to 20 or 25"),
        ("num_heads=3", "model.hidden_size"),
        ("--run-dir existing", "resume it with --resume existing"),
        ("--launch --nonsense", "--launch: unexpected argument '--nonsense'"),
    ];
    for (words, expected) in cases {
        let error = run(&folder, words).error_line();
        assert!(error.contains(expected), "{words}: {error}");
        assert_eq!(folder.names(), ["existing"], "{words}");
    }
}

#[test]
fn unusable_data_is_rejected_with_its_path() {
    let folder = TempDir::new();
    folder.write("short.txt", "To be, or not to be.\n");
    folder.write("empty.txt", "");
    std::fs::write(folder.path().join("bytes.txt"), [0xff; 100]).unwrap();
    let cases = [
        ("short.txt", "short.txt: 18 tokens are too few for model.seq_len 64, which needs 65"),
        ("empty.txt", "empty.txt is empty"),
        ("bytes.txt", "bytes.txt is not UTF-8 text: byte 0"),
        ("nowhere.txt", "no dataset \"nowhere.txt\""),
    ];
    for (file, expected) in cases {
        let run = run(&folder, &format!("source={file} -n 2 --run-dir of-{file}"));
        assert_eq!(run.code, Some(1), "{run:?}");
        assert!(run.err.contains(&format!("error: {expected}")), "{file}: {}", run.err);
    }
}

#[test]
fn checkpoints_in_another_folder_are_found_from_the_run_folder() {
    let folder = TempDir::new();
    train_tiny(
        &folder,
        "train.steps=4 checkpoint.interval=2 checkpoint.dir=saved -n 1 --run-dir run",
    )
    .ok();
    assert!(!folder.path().join("run/checkpoints").exists());
    let run = folder.path().join("run").display().to_string();
    // From another working directory.
    let shown = run_line(&format!("checkpoint show {run}")).ok();
    assert!(shown.contains("saved/step-00000004"), "{shown}");
    run_line(&format!("checkpoint verify {run}")).ok();
    assert_eq!(
        run_line(&format!("generate {run} -n 5 -p a")).ok().trim_end().chars().next(),
        Some('a')
    );
    let words = format!("train.steps=6 checkpoint.resume={run} -n 1 --run-dir other");
    let out = train_tiny(&folder, &words).ok();
    assert!(out.contains("resumed after step 4 from "), "{out}");
}

#[test]
fn generate_rejects_the_tokenizer_of_another_model() {
    let folder = TempDir::new();
    train_tiny(&folder, "train.steps=2 -n 1 --run-dir run").ok();
    let file = folder.path().join("run/checkpoints/tokenizer.json");
    let characters: String = (' '..='~').collect();
    let other = serde_json::json!({ "kind": "characters", "characters": characters }).to_string();
    std::fs::write(&file, other).unwrap();
    let run = folder.path().join("run").display().to_string();
    let error = run_line(&format!("generate {run} -n 5 -p a")).error_line();
    assert!(error.contains("is not the tokenizer of "), "{error}");
    let explicit = run_line(&format!("generate {run} -n 5 -p a --tokenizer {}", file.display()));
    assert!(
        explicit.err.contains("note: ") && explicit.err.contains("is not the tokenizer of "),
        "{explicit:?}"
    );
    explicit.ok();
}

#[test]
fn a_run_folder_can_be_reused_after_a_failed_start() {
    let folder = TempDir::new();
    let failed = train_tiny(&folder, "train.steps=4 source=later.txt -n 2 --run-dir run");
    assert!(failed.err.contains("no dataset \"later.txt\""), "{failed:?}");
    folder.write("later.txt", &"It is an ancient Mariner.\n".repeat(99));
    train_tiny(&folder, "train.steps=4 source=later.txt -n 2 --run-dir run").ok();
    assert_eq!(metrics(&folder, "run").steps.len(), 4);
    // The folder now contains a run.
    let words = "train.steps=4 source=later.txt checkpoint.resume=never -n 2 --run-dir run";
    let error = train_tiny(&folder, words).error_line();
    assert!(error.contains("run already contains a run: resume it with --resume run"), "{error}");
}

#[test]
fn repeating_the_command_resumes_its_run() {
    let folder = TempDir::new();
    train_tiny(&folder, "train.steps=300 -n 2 --run-dir full").ok();
    let words = format!("{TINY} train.steps=300 -n 2 --run-dir run");
    let training = TrainProcess::spawn(&folder, &words);
    wait_for_step(&folder, "run", 20);
    // The running job holds the lock.
    let refused = run(&folder, &words);
    assert!(refused.err.contains("run is in use by another job (process "), "{refused:?}");
    send_signal(&training.child, 2);
    let stopped = training.wait();
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    assert!(stopped.out.contains("interrupted; checkpoint saved"), "{stopped:?}");
    let out = run(&folder, &words).ok();
    assert!(out.contains("resumed after step "), "{out}");
    assert_identical(&metrics(&folder, "run"), &metrics(&folder, "full"), 300);
    let error = run(&folder, &format!("{words} train.seed=2")).error_line();
    assert!(error.contains("with train.seed=1337, not 2: resume it with --resume"), "{error}");
}

#[test]
fn a_model_that_exceeds_the_memory_is_rejected_before_the_first_step() {
    let folder = TempDir::new();
    // About 100 TB: too large for any machine.
    let words = "-n 2 num_layers=1000 hidden_size=16384 num_heads=128 --run-dir run";
    let refused = run(&folder, words);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    for part in [
        "error: not enough memory on ",
        ": 2 ranks need ",
        "model.hidden_size",
        "train.check_memory=false",
    ] {
        assert!(refused.err.contains(part), "{part}: {}", refused.err);
    }
    train_tiny(&folder, "train.steps=2 check_memory=false -n 2 --run-dir run").ok();
}
