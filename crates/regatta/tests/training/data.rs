//! `regatta data`: preparing, showing and overwriting datasets, and errors.

use serde_json::Value;

use crate::support::process::{regatta_in, run_command, run_in};
use crate::support::{CommandOutput, TempDir, from_json, run_line};

const TEXT: &str = "The wind came from the north-west.\nThe crew's oars were ready.\n";
const BPE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../train/tests/tokenizer/bpe.json");

/// A folder with a text to prepare.
fn folder_with_text() -> TempDir {
    let folder = TempDir::new();
    folder.write("text.txt", TEXT.repeat(20));
    folder
}

/// Prepares the text as the dataset `out`.
fn prepare(folder: &TempDir, options: &str) -> CommandOutput {
    run_in(folder, &format!("data prepare text.txt -o out {options}"))
}

#[test]
fn prepare_writes_token_files_that_show_reads() {
    let folder = folder_with_text();
    let parts = ["prepared", "1,134 training", "126 validation", "data.source="];
    prepare(&folder, "").assert_ok(parts);
    let files = ["prepared.json", "tokenizer.json", "train.tokens", "validation.tokens"];
    assert_eq!(folder.list("out"), files);
    assert_eq!(folder.names(), ["out", "text.txt"]);
    run_in(&folder, "data show out").assert_ok(["checksum ok", "The wind came from"]);
    let shown: Value = run_in(&folder, "data show --json out/train.tokens").json();
    assert_eq!(shown["files"][0]["tokens"], 1134);
    assert_eq!(shown["files"][0]["sha256"].as_str().unwrap().len(), 64);
}

#[test]
fn bpe_gives_fewer_tokens_than_characters() {
    let folder = folder_with_text();
    let made: Value = prepare(&folder, &format!("--tokenizer {BPE} --json --validation 0")).json();
    assert_eq!(made["format"], "regatta-prepared/1");
    assert_eq!((made["vocabulary"].as_u64(), made["tokenizer"].as_str()), (Some(384), Some("BPE")));
    assert!(made["train_tokens"].as_u64().unwrap() < 1000, "{made}");
    assert_eq!(made["validation_tokens"], 0);
    assert_eq!(folder.read("out/tokenizer.json"), std::fs::read_to_string(BPE).unwrap());
}

#[test]
fn characters_are_refused_for_data_prepared_with_bpe() {
    let folder = folder_with_text();
    prepare(&folder, &format!("--tokenizer {BPE}")).ok();
    let refused = run_in(&folder, "train data.source=out data.tokenizer=char -n 1 --run-dir run");
    refused
        .assert_error("data.tokenizer is char, but out was prepared with a BPE tokenizer of 384");
    assert!(!folder.exists("run"));
}

#[test]
fn bpe_is_trained_on_the_text() {
    let folder = folder_with_text();
    let made: Value = prepare(&folder, "--bpe 280 --json").json();
    assert_eq!((made["vocabulary"].as_u64(), made["tokenizer"].as_str()), (Some(280), Some("BPE")));
    assert!(made["train_tokens"].as_u64().unwrap() < 800, "{made}");
    let file: Value = from_json(&folder.read("out/tokenizer.json"));
    assert_eq!(file["added_tokens"][0]["content"], "<|endoftext|>");
    assert_eq!(file["model"]["merges"].as_array().unwrap().len(), 280 - 257);
    run_in(&folder, "data show out").assert_ok("The wind came from");
    // The trained tokenizer is used like any other.
    let other =
        run_in(&folder, "data prepare text.txt -o other --tokenizer out/tokenizer.json --json");
    assert_eq!(other.json::<Value>()["fingerprint"], made["fingerprint"]);
    let small = prepare(&folder, "--bpe 4096 --force");
    small.assert_stderr(["tokens instead of 4096", "use more text or a smaller --bpe"]).ok();
}

#[test]
fn overwriting_requires_force() {
    let folder = folder_with_text();
    prepare(&folder, "").ok();
    prepare(&folder, "").assert_error(["already exists", "--force"]);
    prepare(&folder, "--force --validation 0.5").ok();
    let shown: Value = run_in(&folder, "data show --json out").json();
    assert_eq!(shown["prepared"]["validation_tokens"], 630);
    folder.write("out/notes.txt", "mine");
    prepare(&folder, "--force").assert_error("notes.txt");
    assert_eq!(folder.names(), ["out", "text.txt"]);
}

#[test]
fn corrupt_files_are_reported() {
    let folder = folder_with_text();
    prepare(&folder, "").ok();
    let intact = std::fs::read(folder.join("out/train.tokens")).unwrap();
    let mut flipped = intact.clone();
    flipped[1000] ^= 1;
    for (content, error) in [
        (&intact[..intact.len() - 1], "train.tokens has 2395 bytes instead of 2396"),
        (&flipped, "train.tokens are damaged"),
        (b"text", "is not a regatta token file"),
    ] {
        folder.write("out/train.tokens", content);
        run_in(&folder, "data show out").assert_error(error);
    }
}

#[test]
fn invalid_inputs_are_rejected() {
    let folder = folder_with_text();
    folder.write("empty.txt", "");
    folder.write("bad.txt", b"ab\xff");
    folder.write("tokenizer.json", "{\"model\": {\"type\": \"Unigram\"}}");
    for (words, error) in [
        ("nowhere.txt", "\"nowhere.txt\" does not exist, and is not"),
        ("empty.txt", "empty.txt is empty"),
        ("bad.txt", "not UTF-8: invalid byte at offset 2"),
        ("text.txt --tokenizer tokenizer.json", "tokenizer.json as a tokenizer"),
    ] {
        run_in(&folder, &format!("data prepare {words} -o out")).assert_error(error);
    }
    for fraction in ["1", "-1", "x"] {
        let run = prepare(&folder, &format!("--validation {fraction}"));
        run.assert_usage_error("'--validation <FRACTION>': expected a number in [0, 1)");
    }
    let both = prepare(&folder, "--characters --tokenizer tokenizer.json");
    both.assert_usage_error("cannot be used with");
    prepare(&folder, "--bpe 300 --characters").assert_usage_error("cannot be used with");
    prepare(&folder, "--bpe 256").assert_usage_error("256 is not in 257..=1048576");
    assert!(!folder.exists("out"));
}

#[test]
fn the_built_in_dataset_is_prepared_without_a_download() {
    let folder = TempDir::new();
    let mut prepare = regatta_in(&folder, "data prepare tinyshakespeare -o out");
    prepare.env("XDG_CACHE_HOME", folder.join("cache"));
    run_command(&mut prepare).assert_ok(["1,003,854 training", "111,540 validation"]);
    let shown: Value = run_in(&folder, "data show --json out").json();
    let sum = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed";
    assert_eq!(shown["prepared"]["inputs"][0]["sha256"], sum);
}

#[test]
fn help_has_examples() {
    run_line("data --help").assert_ok("regatta data prepare tinyshakespeare -o shakespeare");
    run_line("data prepare --help").assert_ok("--validation <FRACTION>");
}
