//! `regatta checkpoint`: Hugging Face models round-trip, and corruption is reported.

use std::collections::BTreeMap;
use std::path::Path;

use regatta_testbed::assert_contains;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::support::parallel_cases::{LLAMA, MODEL};
use crate::support::process::run_in;
use crate::support::train::{corrupt, run, tiny_run};
use crate::support::{TempDir, from_json};

/// Models in Hugging Face format.
const MODELS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../train/tests/fixtures/huggingface");

/// A byte-level BPE tokenizer in Hugging Face format.
const BPE: &str = include_str!("../../../train/tests/tokenizer/bpe.json");

/// Imports a model into the run folder `run` of a temporary folder.
fn imported(name: &str) -> TempDir {
    let folder = TempDir::new();
    let import =
        run_in(&folder, &format!("checkpoint import {MODELS}/{name} --to run/checkpoints"));
    import.assert_ok("step-00000000");
    folder
}

#[test]
fn imported_model_is_shown_verified_and_exported_unchanged() {
    for name in ["gpt2", "llama"] {
        let folder = imported(name);
        let shown = run_in(&folder, "checkpoint show run");
        shown.assert_ok([&*format!("{name}, "), "hidden size 32", " unsharded", "1 from 1 rank, "]);
        let text = run_in(&folder, "checkpoint verify run/checkpoints/step-00000000").ok();
        assert!(text.starts_with("ok "), "{text}");
        let shown: Value = run_in(&folder, "checkpoint show run --json").json();
        assert_eq!(shown["checkpoint"]["meta"]["shape"]["num_layers"], 2);
        assert_eq!(shown["shards"]["ranges"], 0);
        let made: Value = run_in(&folder, "checkpoint export run --to model --json").json();
        assert_eq!(made["model"], "model");
        run_in(&folder, "checkpoint import model --to again").ok();
        let [before, after] = ["run/checkpoints", "again"].map(|checkpoints| {
            let shard = format!("{checkpoints}/step-00000000/rank-00000.safetensors");
            std::fs::read(folder.join(shard)).unwrap()
        });
        assert_eq!(after, before);
    }
}

#[test]
fn corruption_is_reported_by_file_and_exit_code() {
    let folder = imported("llama");
    let shard = folder.join("run/checkpoints/step-00000000/rank-00000.safetensors");
    let mut bytes = std::fs::read(&shard).unwrap();
    *bytes.last_mut().unwrap() ^= 4;
    std::fs::write(&shard, &bytes).unwrap();
    let run = run_in(&folder, "checkpoint verify run").assert_code(1);
    assert_contains(&run.out, ["rank-00000.safetensors", "checksum"]);
    let run = run_in(&folder, "checkpoint verify run --json").assert_code(1);
    let report: Value = from_json(&run.out);
    assert_eq!(report["ok"], false);
    assert_eq!(report["errors"].as_array().unwrap().len(), 1);
    run_in(&folder, "checkpoint export run --to model").assert_error("checksum");
    assert!(!folder.exists("model/model.safetensors"));
}

#[test]
fn folders_without_a_checkpoint_or_model_are_rejected() {
    let folder = TempDir::new();
    run_in(&folder, "checkpoint show .").assert_error("no checkpoint found in . or ./checkpoints");
    run_in(&folder, "checkpoint show nowhere").assert_error("cannot read nowhere: No such file");
    run_in(&folder, "checkpoint import . --to x").assert_error("config.json");
    folder.write("config.json", "{\"model_type\": \"mamba\"}");
    run_in(&folder, "checkpoint show config.json").assert_error("config.json is not a directory");
    run_in(&folder, "checkpoint import . --to x").assert_error("mamba");
    assert!(!folder.exists("x"));
}

/// The f32 tensors of a model, by name.
type Tensors = BTreeMap<String, Vec<f32>>;

/// Reads a safetensors file.
fn tensors(file: &Path) -> Tensors {
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
fn max_relative_difference(model: &Tensors, other: &Tensors) -> f32 {
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
        let model = format!("{MODEL} {LLAMA} checkpoint.interval=100 grad_clip=0 train.steps=6");
        run(&folder, &format!("{model} {words} --run-dir {name}")).ok();
        run_in(&folder, &format!("checkpoint export {name} --to {name}-model")).ok();
        tensors(&folder.join(format!("{name}-model/model.safetensors")))
    };
    let one = export("one", "-n 1");
    let two = export("two", "-n 2");
    // The sum of two gradients does not depend on the order, unlike the clipping norm.
    let sharded = "zero=3 offload.optimizer=disk offload.parameters=disk -n 2";
    assert!(export("sharded", sharded) == two);
    // A tiled head sums exponentials in another order.
    let tiled = export("tiled", &format!("{sharded} tiles=2"));
    let diff = max_relative_difference(&one, &export("longer", "train.steps=7 -n 1"));
    assert!(diff > 1e-3, "{diff}");
    let parallel = export("parallel", "tp=2 pp=2 -n 4");
    for (name, model) in [("two", two), ("tiled", tiled), ("parallel", parallel)] {
        let diff = max_relative_difference(&model, &one);
        assert!(diff < 1e-4, "{name}: {diff}");
    }
}

#[test]
fn tokenizer_is_imported_and_exported_with_the_model() {
    let folder = TempDir::new();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(format!("{MODELS}/gpt2/{file}"), folder.join(file)).unwrap();
    }
    folder.write("tokenizer.json", BPE);
    run_in(&folder, "checkpoint import . --to run/checkpoints").ok();
    assert_eq!(folder.read("run/checkpoints/tokenizer.json"), BPE);
    let shown = run_in(&folder, "checkpoint show run/checkpoints").ok();
    assert!(!shown.contains("tokenizer unknown"), "{shown}");
    run_in(&folder, "checkpoint export run/checkpoints --to back").ok();
    assert_eq!(folder.read("back/tokenizer.json"), BPE);
    // Another model's tokenizer is not overwritten, and an unsupported one is noted.
    folder.write("tokenizer.json", BPE.replace("<|end|>", "<|END|>"));
    let import = run_in(&folder, "checkpoint import . --to run/checkpoints --force");
    import.assert_error("tokenizer.json belongs to another model");
    folder.write("tokenizer.json", "{\"model\": {\"type\": \"Unigram\"}}");
    let import = run_in(&folder, "checkpoint import . --to other");
    import.assert_stderr("importing the model without a tokenizer").ok();
    assert!(!folder.exists("other/tokenizer.json"));
}

#[test]
fn character_tokenizer_is_exported_for_transformers_and_read_again() {
    let folder = imported("gpt2");
    let tokenizer = "{\"kind\":\"characters\",\"characters\":\"\\n ab\"}\n";
    folder.write("run/checkpoints/tokenizer.json", tokenizer);
    run_in(&folder, "checkpoint export run --to model").ok();
    let exported: Value = from_json(&folder.read("model/tokenizer.json"));
    assert_eq!(exported["model"]["type"], "WordLevel");
    assert_eq!(exported["model"]["vocab"], serde_json::json!({"\n": 0, " ": 1, "a": 2, "b": 3}));
    let config: Value = from_json(&folder.read("model/tokenizer_config.json"));
    assert_eq!(config["tokenizer_class"], "PreTrainedTokenizerFast");
    assert_eq!(config["clean_up_tokenization_spaces"], false);
    run_in(&folder, "checkpoint import model --to again").ok();
    assert_eq!(folder.read("again/tokenizer.json"), tokenizer);
}

#[test]
fn exports_overwrite_files_only_by_force_and_run_folders_never() {
    let folder = imported("llama");
    run_in(&folder, "checkpoint export run --to model").ok();
    let before = folder.read("model/config.json");
    folder.write("model/config.json", "mine");
    let refused = run_in(&folder, "checkpoint export run --to model");
    refused
        .assert_error("model/config.json already exists: choose another folder, or overwrite it");
    assert_eq!(folder.read("model/config.json"), "mine");
    run_in(&folder, "checkpoint export run --to model --force").ok();
    assert_eq!(folder.read("model/config.json"), before);
    for target in ["run", "run/checkpoints", "run/checkpoints/step-00000000"] {
        let refused = run_in(&folder, &format!("checkpoint export run --to {target} --force"));
        refused.assert_error(&format!("{target} is a run folder or has checkpoints"));
        assert!(!folder.exists(format!("{target}/config.json")));
    }
}

#[test]
fn imports_replace_checkpoints_only_by_force_and_run_folders_never() {
    let folder = imported("llama");
    run_in(&folder, "checkpoint export run --to model").ok();
    run_in(&folder, "checkpoint import model --to imported").ok();
    let refused = run_in(&folder, "checkpoint import model --to imported");
    refused.assert_error("imported already has a checkpoint: choose another folder with --to");
    run_in(&folder, "checkpoint import model --to imported --force").ok();
    std::fs::create_dir(folder.join("trained")).unwrap();
    folder.write("trained/config.toml", "");
    for target in ["trained", "trained/checkpoints"] {
        let refused = run_in(&folder, &format!("checkpoint import model --to {target} --force"));
        refused.assert_error("trained is a run folder: import to another folder");
    }
    assert!(!folder.exists("trained/checkpoints"));
}

/// Rewrites the manifest of a checkpoint, with its checksum.
fn change_manifest(folder: &TempDir, checkpoint: &str, change: impl FnOnce(&mut Value)) {
    let mut manifest: Value = from_json(&folder.read(format!("{checkpoint}/checkpoint.json")));
    change(&mut manifest);
    let text = manifest.to_string();
    let sum = regatta_model::text::hex(&Sha256::digest(&text));
    folder.write(&format!("{checkpoint}/checkpoint.json"), text);
    folder.write(&format!("{checkpoint}/checkpoint.json.sha256"), sum);
}

#[test]
fn missing_layers_fail_the_verification() {
    let folder = imported("llama");
    change_manifest(&folder, "run/checkpoints/step-00000000", |manifest| {
        let tensors = manifest["tensors"].as_array_mut().unwrap();
        tensors.retain(|tensor| !tensor["name"].as_str().unwrap().starts_with("layer.1."));
    });
    let verified = run_in(&folder, "checkpoint verify run").assert_code(1);
    assert_contains(&verified.out, "has no parameter/layer.1.qkv.weight");
}

#[test]
fn a_newer_format_version_is_refused_and_kept() {
    let folder = TempDir::new();
    tiny_run(&folder, "run", "train.steps=10 -n 1");
    let checkpoint = "run/checkpoints/step-00000010";
    change_manifest(&folder, checkpoint, |manifest| manifest["version"] = 3.into());
    let before = folder.list("run/checkpoints");
    let expected = format!(
        "{checkpoint}/checkpoint.json has format version 3, but this regatta reads version 2: update regatta"
    );
    for words in ["generate run", "checkpoint verify run", "checkpoint export run --to model"] {
        run_in(&folder, words).assert_error(&*expected);
    }
    run(&folder, "--resume run -n 1 train.steps=12").assert_code(1).assert_stderr(&*expected);
    assert_eq!(folder.list("run/checkpoints"), before);
}

#[test]
fn generate_names_the_damaged_checkpoint_and_the_one_it_uses() {
    let folder = TempDir::new();
    tiny_run(&folder, "run", "train.steps=10 -n 1");
    corrupt(&folder.join("run/checkpoints/step-00000010/rank-00000.safetensors"));
    let generated = run_in(&folder, "generate run -n 1 --json");
    let damaged = "note: skipped damaged checkpoint run/checkpoints/step-00000010: rank-00000";
    let used = "; using run/checkpoints/step-00000005";
    let report: Value = generated.assert_stderr([damaged, used]).json();
    assert_eq!(report["step"], 5);
    corrupt(&folder.join("run/checkpoints/step-00000005/rank-00000.safetensors"));
    let none = "no valid checkpoint in run: run/checkpoints/step-00000010/rank-00000";
    run_in(&folder, "generate run").assert_error(none);
}
