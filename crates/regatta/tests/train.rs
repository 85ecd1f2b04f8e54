//! `regatta train`, as far as it needs no ranks: keys, presets, configurations.

#![allow(clippy::unwrap_used, reason = "a test's own functions may panic as it may")]

mod support;

use support::{Folder, Run, command, line};

#[test]
fn help_teaches_by_examples() {
    let text = line("train --help").ok();
    for part in
        ["Usage: regatta train", "[CONFIG] [KEY=VALUE]...", "regatta train shakespeare-char"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn keys_and_presets_are_listed() {
    let keys = line("train --keys").ok();
    assert!(keys.contains("  train.steps = 1000  (a whole number, 1 or more)\n"), "{keys}");
    assert!(keys.contains("\noptimizer: how parameters follow their gradients\n"), "{keys}");
    let presets = line("train --presets").ok();
    let gpt2 = presets.lines().find(|line| line.starts_with("gpt2 ")).unwrap();
    assert!(gpt2.contains("124 M"), "{gpt2}");
    let tiny = presets.lines().find(|line| line.starts_with("tiny ")).unwrap();
    assert!(tiny.contains("~804 k"), "{tiny}");
}

#[test]
fn a_printed_configuration_can_be_used_again() {
    let folder = Folder::new();
    let printed = line("train llama-tiny steps=7 --print-config").ok();
    assert!(printed.contains("steps = 7                     # command line, default 1000\n"));
    assert!(printed.contains("# preset llama-tiny"), "{printed}");
    std::fs::write(folder.path().join("run.toml"), &printed).unwrap();
    let words = ["train", "run.toml", "--print-config"];
    let again = Run::from(command().args(words).current_dir(folder.path()).output().unwrap()).ok();
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
        let sentence = line(words).sentence();
        assert!(sentence.contains(expected), "{words}: {sentence}");
    }
}
