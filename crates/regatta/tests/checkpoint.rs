//! `regatta checkpoint`: Hugging Face models round-trip, and corruption is reported.

#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

mod support;

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use support::splits::{LLAMA, MODEL};
use support::train::run;
use support::{TempDir, run_line};

fn fixture(name: &str) -> String {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../train/tests/fixtures/huggingface");
    crates.join(name).display().to_string()
}

/// Imports a model into a temporary folder.
fn imported(name: &str) -> TempDir {
    let folder = TempDir::new();
    let to = folder.file("run/checkpoints");
    let text = run_line(&format!("checkpoint import {} --to {to}", fixture(name))).ok();
    assert!(text.contains("step-00000000"), "{text}");
    folder
}

#[test]
fn imported_model_is_shown_verified_and_exported_unchanged() {
    for name in ["gpt2", "llama"] {
        let folder = imported(name);
        let run = folder.file("run");
        let text = run_line(&format!("checkpoint show {run}")).ok();
        assert!(text.contains(&format!("{name}, ")) && text.contains("hidden size 32"), "{text}");
        assert!(text.contains(" unsharded"), "{text}");
        let text = run_line(&format!("checkpoint verify {run}/checkpoints/step-00000000")).ok();
        assert!(text.starts_with("ok "), "{text}");
        let shown = run_line(&format!("checkpoint show {run} --json")).ok();
        let shown: Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(shown["checkpoint"]["meta"]["shape"]["num_layers"], 2);
        assert_eq!(shown["shards"]["ranges"], 0);
        let model = folder.file("model");
        let made = run_line(&format!("checkpoint export {run} --to {model} --json")).ok();
        let made: Value = serde_json::from_str(&made).unwrap();
        assert_eq!(made["model"], model.as_str());
        let again = folder.file("again");
        run_line(&format!("checkpoint import {model} --to {again}")).ok();
        let read =
            |folder: &str| std::fs::read(format!("{folder}/step-00000000/rank-00000.safetensors"));
        assert_eq!(read(&again).unwrap(), read(&format!("{run}/checkpoints")).unwrap());
    }
}

#[test]
fn corruption_is_reported_by_file_and_exit_code() {
    let folder = imported("llama");
    let shard = folder.path().join("run/checkpoints/step-00000000/rank-00000.safetensors");
    let mut bytes = std::fs::read(&shard).unwrap();
    *bytes.last_mut().unwrap() ^= 4;
    std::fs::write(&shard, &bytes).unwrap();
    let run = run_line(&format!("checkpoint verify {}", folder.file("run")));
    assert_eq!(run.code, Some(1));
    assert!(
        run.out.contains("rank-00000.safetensors") && run.out.contains("checksum"),
        "{}",
        run.out
    );
    let run = run_line(&format!("checkpoint verify {} --json", folder.file("run")));
    let report: Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!((run.code, &report["ok"]), (Some(1), &Value::Bool(false)));
    assert_eq!(report["errors"].as_array().unwrap().len(), 1);
    let error =
        run_line(&format!("checkpoint export {} --to {}", folder.file("run"), folder.file("m")))
            .error_line();
    assert!(error.contains("checksum"), "{error}");
    assert!(!folder.path().join("m/model.safetensors").exists());
}

#[test]
fn folders_without_a_checkpoint_or_model_are_rejected() {
    let folder = TempDir::new();
    let here = folder.path().display();
    let error = run_line(&format!("checkpoint show {here}")).error_line();
    assert!(error.contains("is not a checkpoint"), "{error}");
    let error = run_line(&format!("checkpoint show {here}/nowhere")).error_line();
    assert!(error.contains("is not a folder"), "{error}");
    let error = run_line(&format!("checkpoint import {here} --to {here}/x")).error_line();
    assert!(error.contains("config.json"), "{error}");
    folder.write("config.json", "{\"model_type\": \"mamba\"}");
    let error = run_line(&format!("checkpoint import {here} --to {here}/x")).error_line();
    assert!(error.contains("mamba"), "{error}");
    assert!(!folder.path().join("x").exists());
}

/// The f32 tensors of a safetensors file, by name.
fn tensors(file: &str) -> BTreeMap<String, Vec<f32>> {
    let bytes = std::fs::read(file).unwrap();
    let (length, rest) = bytes.split_first_chunk().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let header: BTreeMap<String, Value> = serde_json::from_slice(header).unwrap();
    let tensor = |(name, about): (&String, &Value)| {
        assert_eq!(about["dtype"], "F32", "{name}");
        let [from, to] = [0, 1].map(|end| about["data_offsets"][end].as_u64().unwrap() as usize);
        let read = |four: &[u8]| f32::from_le_bytes(four.try_into().unwrap());
        (name.clone(), data[from..to].chunks_exact(4).map(read).collect())
    };
    header.iter().filter(|(name, _)| *name != "__metadata__").map(tensor).collect()
}

/// Maximum difference between two models, relative to the largest element of each tensor.
fn max_relative_difference(
    model: &BTreeMap<String, Vec<f32>>,
    other: &BTreeMap<String, Vec<f32>>,
) -> f32 {
    assert!(model.keys().eq(other.keys()));
    let max_abs = |values: &mut dyn Iterator<Item = f32>| values.map(f32::abs).fold(0.0, f32::max);
    let relative = |(a, b): (&Vec<f32>, &Vec<f32>)| {
        assert_eq!(a.len(), b.len());
        let scale = max_abs(&mut b.iter().copied());
        max_abs(&mut a.iter().zip(b).map(|(a, b)| a - b)) / scale
    };
    max_abs(&mut model.values().zip(other.values()).map(relative))
}

#[test]
fn sharded_checkpoints_export_the_same_model_as_a_single_rank() {
    let folder = TempDir::new();
    let export = |name: &str, words: &str| {
        let words = format!(
            "{MODEL} {LLAMA} checkpoint.interval=100 grad_clip=0 train.steps=6 {words} --run-dir {name}"
        );
        run(&folder, &words).ok();
        let to = folder.file(&format!("{name}-model"));
        run_line(&format!("checkpoint export {} --to {to}", folder.file(name))).ok();
        tensors(&format!("{to}/model.safetensors"))
    };
    let one = export("one", "-n 1");
    let two = export("two", "-n 2");
    // The sum of two gradients does not depend on the order, unlike the clipping norm.
    let shared = "zero=3 offload.optimizer=disk offload.parameters=disk -n 2";
    assert!(export("shared", shared) == two);
    // A tiled head sums exponentials in another order.
    let tiled = export("tiled", &format!("{shared} tiles=2"));
    let diff = max_relative_difference(&one, &export("longer", "train.steps=7 -n 1"));
    assert!(diff > 1e-3, "{diff}");
    let cut = export("cut", "tp=2 pp=2 -n 4");
    for (name, model) in [("two", two), ("tiled", tiled), ("cut", cut)] {
        let diff = max_relative_difference(&model, &one);
        assert!(diff < 1e-4, "{name}: {diff}");
    }
}

/// A byte-level BPE tokenizer in Hugging Face format.
fn bpe() -> String {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../train/tests/tokenizer/bpe.json");
    std::fs::read_to_string(crates).unwrap()
}

#[test]
fn tokenizer_is_imported_and_exported_with_the_model() {
    let folder = TempDir::new();
    for file in ["config.json", "model.safetensors"] {
        let copied = std::fs::copy(format!("{}/{file}", fixture("gpt2")), folder.file(file));
        copied.unwrap();
    }
    folder.write("tokenizer.json", &bpe());
    let (model, to) = (folder.path().display(), folder.file("run/checkpoints"));
    run_line(&format!("checkpoint import {model} --to {to}")).ok();
    assert_eq!(std::fs::read_to_string(format!("{to}/tokenizer.json")).unwrap(), bpe());
    let shown = run_line(&format!("checkpoint show {to}")).ok();
    assert!(!shown.contains("tokenizer unknown"), "{shown}");
    let back = folder.file("back");
    run_line(&format!("checkpoint export {to} --to {back}")).ok();
    assert_eq!(std::fs::read_to_string(format!("{back}/tokenizer.json")).unwrap(), bpe());
    // Another model's tokenizer is not overwritten, and an unsupported one is noted.
    folder.write("tokenizer.json", &bpe().replace("<|end|>", "<|END|>"));
    let error = run_line(&format!("checkpoint import {model} --to {to}")).error_line();
    assert!(error.contains("tokenizer.json belongs to another model"), "{error}");
    folder.write("tokenizer.json", "{\"model\": {\"type\": \"Unigram\"}}");
    let run = run_line(&format!("checkpoint import {model} --to {}", folder.file("other")));
    assert!(run.err.contains("importing the model without a tokenizer"), "{run:?}");
    run.ok();
    assert!(!folder.path().join("other/tokenizer.json").exists());
}

#[test]
fn character_tokenizer_is_not_exported() {
    let folder = imported("gpt2");
    let (run, to) = (folder.file("run"), folder.file("model"));
    folder
        .write("run/checkpoints/tokenizer.json", "{\"kind\":\"characters\",\"characters\":\"ab\"}");
    let exported = run_line(&format!("checkpoint export {run} --to {to}"));
    assert!(
        exported.err.contains("is a character-level tokenizer, which transformers"),
        "{exported:?}"
    );
    exported.ok();
    assert!(!folder.path().join("model/tokenizer.json").exists());
    assert!(!folder.path().join("model/tokenizer_config.json").exists());
}
