//! `regatta checkpoint`: models of Hugging Face come in and go out as they were, and damage is told.

#![allow(clippy::unwrap_used, reason = "a test's own functions may panic as it may")]

mod support;

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use support::splits::{LLAMA, MODEL};
use support::train::run;
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

/// The tensors of a safetensors file of f32, by their names.
fn tensors(file: &str) -> BTreeMap<String, Vec<f32>> {
    let bytes = std::fs::read(file).unwrap();
    let (length, rest) = bytes.split_first_chunk().unwrap();
    let (header, numbers) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let header: BTreeMap<String, Value> = serde_json::from_slice(header).unwrap();
    let tensor = |(name, about): (&String, &Value)| {
        assert_eq!(about["dtype"], "F32", "{name}");
        let [from, to] = [0, 1].map(|end| about["data_offsets"][end].as_u64().unwrap() as usize);
        let read = |four: &[u8]| f32::from_le_bytes(four.try_into().unwrap());
        (name.clone(), numbers[from..to].chunks_exact(4).map(read).collect())
    };
    header.iter().filter(|(name, _)| *name != "__metadata__").map(tensor).collect()
}

/// The greatest difference of two models' numbers, as a part of the greatest number of the tensor.
fn difference(model: &BTreeMap<String, Vec<f32>>, other: &BTreeMap<String, Vec<f32>>) -> f32 {
    assert!(model.keys().eq(other.keys()));
    let most = |numbers: &mut dyn Iterator<Item = f32>| numbers.map(f32::abs).fold(0.0, f32::max);
    let one = |(a, b): (&Vec<f32>, &Vec<f32>)| {
        assert_eq!(a.len(), b.len());
        let scale = most(&mut b.iter().copied());
        most(&mut a.iter().zip(b).map(|(a, b)| a - b)) / scale
    };
    most(&mut model.values().zip(other.values()).map(one))
}

#[test]
fn what_ranks_have_shared_is_exported_as_if_one_had_had_it() {
    let folder = Folder::new();
    let export = |name: &str, words: &str| {
        let words = format!(
            "{MODEL} {LLAMA} checkpoint.every=100 clip=0 train.steps=6 {words} --run-dir {name}"
        );
        run(&folder, &words).ok();
        let to = folder.file(&format!("{name}-model"));
        line(&format!("checkpoint export {} --to {to}", folder.file(name))).ok();
        tensors(&format!("{to}/model.safetensors"))
    };
    let one = export("one", "-n 1");
    let two = export("two", "-n 2");
    // Two numbers have one sum, whoever makes it; the norm that clips would have many.
    let shared = "zero=3 offload.optimizer=disk offload.parameters=disk -n 2";
    assert!(export("shared", shared) == two);
    // Tiles of the head sum exponentials in another order.
    let tiled = export("tiled", &format!("{shared} tiles=2"));
    let apart = difference(&one, &export("longer", "train.steps=7 -n 1"));
    assert!(apart > 1e-3, "{apart}");
    let cut = export("cut", "tp=2 pp=2 -n 4");
    for (name, model) in [("two", two), ("tiled", tiled), ("cut", cut)] {
        let apart = difference(&model, &one);
        assert!(apart < 1e-4, "{name}: {apart}");
    }
}

/// A byte-level BPE as Hugging Face writes it.
fn bpe() -> String {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../train/tests/tokenizer/bpe.json");
    std::fs::read_to_string(crates).unwrap()
}

#[test]
fn the_tokenizer_comes_and_goes_with_the_model() {
    let folder = Folder::new();
    for file in ["config.json", "model.safetensors"] {
        let copied = std::fs::copy(format!("{}/{file}", fixture("gpt2")), folder.file(file));
        copied.unwrap();
    }
    folder.write("tokenizer.json", &bpe());
    let (model, to) = (folder.path().display(), folder.file("run/checkpoints"));
    line(&format!("checkpoint import {model} --to {to}")).ok();
    assert_eq!(std::fs::read_to_string(format!("{to}/tokenizer.json")).unwrap(), bpe());
    let shown = line(&format!("checkpoint show {to}")).ok();
    assert!(!shown.contains("tokenizer unknown"), "{shown}");
    let back = folder.file("back");
    line(&format!("checkpoint export {to} --to {back}")).ok();
    assert_eq!(std::fs::read_to_string(format!("{back}/tokenizer.json")).unwrap(), bpe());
    // One that is of something else is not written over, and one that we cannot read is said.
    folder.write("tokenizer.json", &bpe().replace("<|end|>", "<|END|>"));
    let sentence = line(&format!("checkpoint import {model} --to {to}")).sentence();
    assert!(sentence.contains("tokenizer.json is another model's"), "{sentence}");
    folder.write("tokenizer.json", "{\"model\": {\"type\": \"Unigram\"}}");
    let run = line(&format!("checkpoint import {model} --to {}", folder.file("other")));
    assert!(run.err.contains("the model is imported without it"), "{run:?}");
    run.ok();
    assert!(!folder.path().join("other/tokenizer.json").exists());
}

#[test]
fn a_list_of_characters_is_not_given_to_others() {
    let folder = imported("gpt2");
    let (run, to) = (folder.file("run"), folder.file("model"));
    folder
        .write("run/checkpoints/tokenizer.json", "{\"kind\":\"characters\",\"characters\":\"ab\"}");
    let exported = line(&format!("checkpoint export {run} --to {to}"));
    assert!(exported.err.contains("is a list of characters, which transformers"), "{exported:?}");
    exported.ok();
    assert!(!folder.path().join("model/tokenizer.json").exists());
    assert!(!folder.path().join("model/tokenizer_config.json").exists());
}
