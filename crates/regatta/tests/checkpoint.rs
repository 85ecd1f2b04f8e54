//! `regatta checkpoint`: models of Hugging Face come in and go out as they were, and damage is told.

#![allow(clippy::unwrap_used, reason = "a test's own functions may panic as it may")]

mod support;

use std::path::Path;

use serde_json::Value;
use support::{Folder, line};

fn fixture(name: &str) -> String {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../train/tests/fixtures/huggingface");
    crates.join(name).display().to_string()
}

/// A folder with an imported model.
fn imported(name: &str) -> Folder {
    let folder = Folder::new();
    let to = folder.file("run/checkpoints");
    let text = line(&format!("checkpoint import {} --to {to}", fixture(name))).ok();
    assert!(text.contains("step-00000000"), "{text}");
    folder
}

#[test]
fn what_is_imported_is_shown_verified_and_exported_as_it_was() {
    for name in ["gpt2", "llama"] {
        let folder = imported(name);
        let run = folder.file("run");
        let text = line(&format!("checkpoint show {run}")).ok();
        assert!(text.contains(&format!("{name} of")) && text.contains("width 32"), "{text}");
        assert!(text.contains(" whole"), "{text}");
        let text = line(&format!("checkpoint verify {run}/checkpoints/step-00000000")).ok();
        assert!(text.starts_with("good"), "{text}");
        let shown = line(&format!("checkpoint show {run} --json")).ok();
        let shown: Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(shown["checkpoint"]["about"]["shape"]["layers"], 2);
        assert_eq!(shown["pieces"]["ranges"], 0);
        let model = folder.file("model");
        let made = line(&format!("checkpoint export {run} --to {model} --json")).ok();
        let made: Value = serde_json::from_str(&made).unwrap();
        assert_eq!(made["model"], model.as_str());
        let again = folder.file("again");
        line(&format!("checkpoint import {model} --to {again}")).ok();
        let read =
            |folder: &str| std::fs::read(format!("{folder}/step-00000000/rank-00000.safetensors"));
        assert_eq!(read(&again).unwrap(), read(&format!("{run}/checkpoints")).unwrap());
    }
}

#[test]
fn damage_is_told_by_file_and_the_exit_code() {
    let folder = imported("llama");
    let shard = folder.path().join("run/checkpoints/step-00000000/rank-00000.safetensors");
    let mut bytes = std::fs::read(&shard).unwrap();
    *bytes.last_mut().unwrap() ^= 4;
    std::fs::write(&shard, &bytes).unwrap();
    let run = line(&format!("checkpoint verify {}", folder.file("run")));
    assert_eq!(run.code, Some(1));
    assert!(
        run.out.contains("rank-00000.safetensors") && run.out.contains("checksum"),
        "{}",
        run.out
    );
    let run = line(&format!("checkpoint verify {} --json", folder.file("run")));
    let report: Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!((run.code, &report["good"]), (Some(1), &Value::Bool(false)));
    assert_eq!(report["wrong"].as_array().unwrap().len(), 1);
    let sentence =
        line(&format!("checkpoint export {} --to {}", folder.file("run"), folder.file("m")))
            .sentence();
    assert!(sentence.contains("checksum"), "{sentence}");
    assert!(!folder.path().join("m/model.safetensors").exists());
}

#[test]
fn folders_that_are_something_else_are_refused_in_a_sentence() {
    let folder = Folder::new();
    let here = folder.path().display();
    let sentence = line(&format!("checkpoint show {here}")).sentence();
    assert!(sentence.contains("is no checkpoint"), "{sentence}");
    let sentence = line(&format!("checkpoint show {here}/nowhere")).sentence();
    assert!(sentence.contains("is no folder"), "{sentence}");
    let sentence = line(&format!("checkpoint import {here} --to {here}/x")).sentence();
    assert!(sentence.contains("config.json"), "{sentence}");
    folder.write("config.json", "{\"model_type\": \"mamba\"}");
    let sentence = line(&format!("checkpoint import {here} --to {here}/x")).sentence();
    assert!(sentence.contains("mamba"), "{sentence}");
    assert!(!folder.path().join("x").exists());
}
