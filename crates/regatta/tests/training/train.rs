//! `regatta train`: options, training on several ranks, and resuming.

use std::process::Command;

use libc::{SIGCONT, SIGINT, SIGTSTP, SIGUSR1};
use regatta_testbed::assert_contains;
use regatta_train::metrics::Event;

use crate::support;
use crate::support::metrics::{
    RunMetrics, assert_close, assert_common_steps_identical, assert_identical,
};
use crate::support::process::{
    launch_regatta, listening_addresses, processes, run_command, run_in,
};
use crate::support::train::{
    ENDLESS, STOPPED_EARLY, TINY, checkpoints, metrics, run, spawn, tiny_run, train_tiny,
    wait_for_step,
};
use crate::support::{TempDir, from_json, run_line};

#[test]
fn help_shows_usage_and_examples() {
    let parts =
        ["Usage: regatta train", "[CONFIG] [KEY=VALUE]...", "regatta train shakespeare-char"];
    run_line("train --help").assert_ok(parts);
}

#[test]
fn keys_and_presets_list_defaults_and_sizes() {
    let keys = run_line("train --keys")
        .assert_ok("  train.steps = 1000  (an integer in [1, 1000000000000])\n");
    assert_contains(keys, "\n[optimizer]\n");
    let presets = run_line("train --presets").ok();
    assert_contains(presets.lines().find(|line| line.starts_with("gpt2 ")).unwrap(), "124M");
    assert_contains(presets.lines().find(|line| line.starts_with("tiny ")).unwrap(), "~812k");
}

#[test]
fn printed_configuration_can_be_loaded() {
    let folder = TempDir::new();
    let printed = run_line("train llama-tiny steps=7 --print-config").ok();
    assert!(printed.contains("steps = 7                     # command line, default 1000\n"));
    assert_contains(&printed, "# preset llama-tiny");
    folder.write("run.toml", &printed);
    let reloaded = run(&folder, "run.toml --print-config").ok();
    let values = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.split('#').next().unwrap().trim().to_owned()).collect()
    };
    assert_eq!(values(&reloaded), values(&printed));
}

#[test]
fn invalid_arguments_are_rejected_with_one_line() {
    let cases = [
        ("train setps=3", "unknown key setps: did you mean train.steps?"),
        ("train steps=many", "train.steps is many, expected an integer in [1, "),
        ("train tinny", "no preset or file named tinny: did you mean tiny?"),
        ("train nowhere.toml", "cannot read nowhere.toml: No such file"),
        ("train tiny gpt2", "`gpt2` is not key=value"),
        (
            "train --resume nowhere",
            "--resume nowhere: no such folder; `regatta runs` lists run folders",
        ),
    ];
    for (words, expected) in cases {
        run_line(words).assert_error(expected);
    }
}

#[test]
fn a_key_given_as_an_option_is_a_usage_error_with_the_assignment() {
    let usage = "Usage: regatta train [OPTIONS]";
    let keys = "configuration keys are given as KEY=VALUE; use";
    for (words, expected) in [
        ("--steps 100", format!("'--steps': {keys} steps=100")),
        ("tiny --batch-size 8", format!("'--batch-size': {keys} train.batch=8")),
    ] {
        run_line(&format!("train {words}")).assert_stderr(usage).assert_usage_error(&*expected);
    }
}

#[test]
fn the_configuration_may_follow_a_double_dash() {
    run(&TempDir::new(), &format!("-n 3 -- tiny {TINY} steps=2")).ok();
}

/// Parses output that consists of JSON events only.
fn events(out: &str) -> Vec<Event> {
    out.lines().map(from_json).collect()
}

/// Losses by step from the events.
fn event_losses(events: &[Event]) -> Vec<(u64, f64)> {
    let loss = |event: &Event| match event {
        Event::Step(step) => Some((step.step, step.loss)),
        _ => None,
    };
    events.iter().filter_map(loss).collect()
}

/// The filter of the `jq` example in the help.
fn jq_example() -> String {
    let help = run_line("train --help").ok();
    let line = help.lines().find_map(|line| line.split_once("| jq '")).unwrap().1;
    line.strip_suffix('\'').unwrap().to_owned()
}

#[test]
fn jq_example_of_the_help_prints_the_losses_only() {
    if Command::new("jq").arg("--version").output().is_err() {
        return eprintln!("skipped: no program jq");
    }
    let folder = TempDir::new();
    let events = train_tiny(&folder, "train.steps=10 -n 2 --run-dir run --json").ok();
    let file = folder.write("events", events);
    let printed = Command::new("jq").args([&*jq_example(), &*file]).output().unwrap();
    let printed = String::from_utf8(printed.stdout).unwrap();
    let losses: Vec<f64> = printed.lines().map(|line| line.parse().unwrap()).collect();
    let recorded = recorded_losses(&metrics(&folder, "run")).into_iter().map(|(_, loss)| loss);
    assert_eq!(losses.len(), 10);
    assert!(losses.iter().zip(recorded).all(|(a, b)| (a - b).abs() < 1e-9));
}

/// Losses by step from the recorded metrics.
fn recorded_losses(metrics: &RunMetrics) -> Vec<(u64, f64)> {
    metrics.steps.iter().map(|(step, values)| (*step, values.loss)).collect()
}

#[test]
fn losses_do_not_depend_on_the_number_of_ranks() {
    let folder = TempDir::new();
    for ranks in [1, 2, 3, 4, 8] {
        let words = format!("train.steps=20 checkpoint.interval=0 -n {ranks}");
        let out = train_tiny(&folder, &format!("{words} --run-dir {ranks} --json")).ok();
        let events = events(&out);
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
    let dropout = "train.steps=5 family=llama dropout=0.2";
    let one = tiny_run(&folder, "llama-1", &format!("{dropout} -n 1"));
    let words = format!("{dropout} micro_batch=2 recompute=true -n 3");
    assert_close(&tiny_run(&folder, "llama-3", &words), &one);
}

#[test]
fn a_layout_starts_the_ranks_it_needs_and_more_ranks_than_cores_are_noted() {
    let folder = TempDir::new();
    let words = format!("{TINY} num_layers=2 tp=2 pp=2 steps=1 checkpoint.interval=0 --json");
    let run = run(&folder, &words);
    let note = "note: 4 ranks, as the parallel layout needs; -n sets another number";
    assert!(run.err.contains(note), "{}", run.err);
    if std::thread::available_parallelism().unwrap().get() < 4 {
        assert!(run.err.contains(" (oversubscribed)"), "{}", run.err);
    }
    let Some(Event::Start(about)) = events(&run.ok()).into_iter().next() else { panic!() };
    assert_eq!(about.ranks, 4);
    assert!(about.gemm_flops_per_second > 0.0 && about.estimated_seconds > 0.0);
    // The explanation assumes the same ranks.
    let explained: serde_json::Value =
        support::train::run(&folder, &format!("{words} --explain")).json();
    assert_eq!(explained["ranks"].as_array().unwrap().len(), 4);
}

#[test]
fn train_runs_as_the_command_of_regatta_launch() {
    let folder = TempDir::new();
    let train = format!("train {TINY} train.steps=10 --json");
    let launched = run_command(&mut launch_regatta(&folder, "-n 2", &train)).ok();
    let direct = tiny_run(&folder, "direct", "train.steps=10 -n 2");
    assert_identical(&metrics(&folder, "run"), &direct, 10);
    // The launcher prefixes each line with its rank.
    let lines = launched.lines().filter_map(|line| Some(line.split_once("] ")?.1));
    let events = events(&lines.collect::<Vec<_>>().join("\n"));
    assert_eq!(event_losses(&events).len(), 10, "{launched}");
    assert_eq!(checkpoints(&folder, "run"), ["step-00000005", "step-00000010"]);
}

#[test]
fn ranks_of_one_node_listen_on_the_loopback_address_only() {
    let folder = TempDir::new();
    let _training = spawn(&folder, &format!("{TINY} {ENDLESS} -n 2 --run-dir run"));
    wait_for_step(&folder, "run", 1);
    let pids = processes(&folder).into_iter().map(|(pid, _)| pid);
    let addresses: Vec<String> = pids.flat_map(listening_addresses).collect();
    assert_eq!(addresses, ["0100007F"; 2], "127.0.0.1, in hexadecimal");
}

#[test]
fn resumed_run_equals_an_uninterrupted_one() {
    let folder = TempDir::new();
    let full = tiny_run(&folder, "full", "train.steps=20 -n 2");
    tiny_run(&folder, "part", "train.steps=8 -n 2");
    let resumed = "resumed after step 8 from part/checkpoints/step-00000008";
    let out = run(&folder, "--resume part -n 2 train.steps=20").assert_ok(resumed);
    assert!(out.starts_with("tiny, "), "the model's name is lost: {out}");
    assert_identical(&metrics(&folder, "part"), &full, 20);
    assert_eq!(checkpoints(&folder, "part"), ["step-00000015", "step-00000020"]);
    let files = ["full", "part"].map(|run| folder.list(format!("{run}/tensorboard")).len());
    assert_eq!(files, [1, 2]);
    // Another number of ranks changes the summation order.
    tiny_run(&folder, "other", "train.steps=8 -n 2");
    run(&folder, "--resume other -n 3 train.steps=20").ok();
    let expected = RunMetrics { val_losses: metrics(&folder, "part").val_losses, ..full };
    assert_close(&metrics(&folder, "other"), &expected);
    // A completed run has no steps left.
    let run = run(&folder, "--resume part -n 2");
    assert_eq!((run.out.clone() + &run.err).matches("run folder: ").count(), 1, "{run:?}");
    run.assert_ok("the checkpoint is at step 20, train.steps is 20: nothing to train");
    assert_identical(&metrics(&folder, "part"), &metrics(&folder, "full"), 20);
}

#[test]
fn a_signal_saves_a_checkpoint_from_which_the_run_resumes_bitwise() {
    let folder = TempDir::new();
    let mut max_steps = 0;
    for (run_dir, signal) in [("int", SIGINT), ("usr1", SIGUSR1)] {
        let words = format!("{TINY} {ENDLESS} checkpoint.interval=1000 -n 2 --run-dir {run_dir}");
        let training = spawn(&folder, &words);
        wait_for_step(&folder, run_dir, 3);
        // Twice, as by `timeout`, which signals its child and then the child's process group.
        (0..2).for_each(|_| training.signal(signal));
        let out = training.wait().assert_code(STOPPED_EARLY).out;
        assert_contains(&out, ": finishing step ");
        let steps = *metrics(&folder, run_dir).steps.last_key_value().unwrap().0;
        assert_contains(out, &format!("interrupted; checkpoint saved: {steps} steps"));
        assert_eq!(checkpoints(&folder, run_dir).last(), Some(&format!("step-{steps:08}")));
        max_steps = max_steps.max(steps + 5);
        run(&folder, &format!("--resume {run_dir} -n 2 train.steps={}", steps + 5)).ok();
        assert_eq!(metrics(&folder, run_dir).steps.len() as u64, steps + 5);
    }
    let full = tiny_run(&folder, "full", &format!("train.steps={max_steps} -n 2"));
    for run_dir in ["int", "usr1"] {
        assert_common_steps_identical(&metrics(&folder, run_dir), &full);
    }
}

#[test]
fn invalid_configurations_are_rejected_before_the_launch() {
    let folder = TempDir::new();
    tiny_run(&folder, "existing", "train.steps=2 -n 1");
    let cases = [
        ("-n 5", "train.batch 12 is not divisible by 5 ranks: set it to 10 or 15"),
        ("gpt2", "gpt2 has a vocabulary of 50257 tokens and needs data"),
        ("num_heads=3", "model.hidden_size"),
        ("--run-dir existing", "resume it with --resume existing"),
        ("--launch --nonsense", "--launch: unexpected argument '--nonsense'"),
    ];
    for (words, expected) in cases {
        run(&folder, words).assert_error(expected);
        assert_eq!(folder.names(), ["existing"], "{words}");
    }
}

#[test]
fn unusable_data_is_rejected_with_its_path() {
    let folder = TempDir::new();
    folder.write("short.txt", "To be, or not to be.\n");
    folder.write("empty.txt", "");
    folder.write("bytes.txt", [0xff; 100]);
    let cases = [
        ("short.txt", "short.txt: 18 tokens are too few for model.seq_len 128, which needs 129"),
        ("empty.txt", "empty.txt is empty"),
        ("bytes.txt", "bytes.txt is not UTF-8: invalid byte at offset 0"),
        ("nowhere.txt", "data.source \"nowhere.txt\" does not exist"),
    ];
    for (file, expected) in cases {
        let run = run(&folder, &format!("source={file} -n 2 --run-dir of-{file}"));
        run.assert_code(1).assert_stderr(&format!("error: {expected}"));
    }
}

#[test]
fn checkpoints_in_another_folder_are_found_from_the_run_folder() {
    let folder = TempDir::new();
    let words = "train.steps=4 checkpoint.interval=2 checkpoint.dir=saved -n 1";
    tiny_run(&folder, "run", words);
    assert!(!folder.exists("run/checkpoints"));
    let run = folder.file("run");
    // From another working directory.
    run_line(&format!("checkpoint show {run}")).assert_ok("saved/step-00000004");
    run_line(&format!("checkpoint verify {run}")).ok();
    assert!(run_line(&format!("generate {run} -n 5 -p a")).ok().starts_with('a'));
    let words = format!("train.steps=6 checkpoint.resume={run} -n 1 --run-dir other");
    train_tiny(&folder, &words).assert_ok("resumed after step 4 from ");
}

#[test]
fn generate_rejects_the_tokenizer_of_another_model() {
    let folder = TempDir::new();
    tiny_run(&folder, "run", "train.steps=2 -n 1");
    // As many characters as the text has, but others.
    let characters: String = ('>'..='~').collect();
    let other = serde_json::json!({ "kind": "characters", "characters": characters }).to_string();
    let file = folder.write("run/checkpoints/tokenizer.json", other);
    let run = folder.file("run");
    run_line(&format!("generate {run} -n 5 -p a")).assert_error("is not the tokenizer of ");
    let explicit = run_line(&format!("generate {run} -n 5 -p a --tokenizer {file}"));
    explicit.assert_stderr(["note: ", "is not the tokenizer of "]).ok();
}

#[test]
fn a_run_folder_can_be_reused_after_a_failed_start() {
    let folder = TempDir::new();
    let words = "train.steps=4 source=later.txt -n 2 --run-dir run";
    train_tiny(&folder, words).assert_stderr("data.source \"later.txt\" does not exist");
    folder.write("later.txt", "It is an ancient Mariner.\n".repeat(99));
    train_tiny(&folder, words).ok();
    assert_eq!(metrics(&folder, "run").steps.len(), 4);
    // The folder now contains a run.
    let again = train_tiny(&folder, &format!("{words} checkpoint.resume=never"));
    again.assert_error("run already contains a run: resume it with --resume run");
}

#[test]
fn repeating_the_command_resumes_its_run() {
    let folder = TempDir::new();
    let full = tiny_run(&folder, "full", "train.steps=300 -n 2");
    let words = format!("{TINY} train.steps=300 -n 2 --run-dir run");
    let training = spawn(&folder, &words);
    wait_for_step(&folder, "run", 20);
    // The job holds the lock. It is paused, because it would end while the other one starts.
    training.signal(SIGTSTP);
    run(&folder, &words).assert_stderr("run is in use by another job (process ");
    training.signal(SIGCONT);
    let stopped = training.interrupt().assert_code(STOPPED_EARLY);
    assert_contains(stopped.out, "interrupted; checkpoint saved");
    run(&folder, &words).assert_ok("resumed after step ");
    assert_identical(&metrics(&folder, "run"), &full, 300);
    let other_seed = run(&folder, &format!("{words} train.seed=2"));
    other_seed.assert_error("with train.seed=1337, not 2: resume it with --resume");
}

#[test]
fn explanation_uses_the_vocabulary_of_the_data() {
    let folder = TempDir::new();
    folder.write("text.txt", "to be or not to be\n".repeat(200));
    run_in(&folder, "data prepare text.txt -o tokens --bpe 300").ok();
    let parameters = |words: &str| {
        let line = format!("train tiny -n 1 {words} --explain --json");
        let explained: serde_json::Value = run_in(&folder, &line).json();
        explained["parameters"].as_u64().unwrap()
    };
    let vocabulary: serde_json::Value = run_in(&folder, "data show tokens --json").json();
    let size = &vocabulary["prepared"]["vocabulary"];
    assert_eq!(parameters("data.source=tokens"), parameters(&format!("model.vocab_size={size}")));
    run_in(&folder, "train tiny -n 1 data.source=none --explain")
        .assert_stderr("vocabulary is not known");
}

#[test]
fn a_model_that_exceeds_the_memory_is_rejected_before_the_first_step() {
    let folder = TempDir::new();
    // About 100 TB: too large for any machine.
    let words = "-n 2 num_layers=1000 hidden_size=16384 num_heads=128 --run-dir run";
    let refused = run(&folder, words).assert_code(1);
    let fixes = ["model.hidden_size", "train.check_memory=false"];
    let cause = ["error: not enough memory on ", ": 2 ranks need "];
    refused.assert_stderr(cause).assert_stderr(fixes);
    tiny_run(&folder, "run", "train.steps=2 check_memory=false -n 2");
}
