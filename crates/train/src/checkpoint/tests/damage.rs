//! Damaged checkpoints are detected, named and skipped.

use std::fs;

use sha2::{Digest, Sha256};

use super::*;
use crate::checkpoint::MANIFEST;
use regatta_device::reference::Reference;

/// Two checkpoints, of steps 1 and 2, by two ranks.
fn two() -> TempDir {
    let scratch = TempDir::in_memory();
    let mut writers = writers(&scratch.0, 2, 5);
    save(&mut writers, 1, Split::Columns).unwrap();
    save(&mut writers, 2, Split::Flat).unwrap();
    scratch
}

/// The newest is skipped, and the previous one is valid.
fn skipped(scratch: &TempDir) -> String {
    let (good, skipped) = latest_valid(&scratch.0).unwrap();
    assert_is(&good.unwrap(), 1);
    let [newest] = skipped.as_slice() else { panic!("{skipped:?}") };
    assert_eq!(newest.folder, scratch.0.join("step-00000002"));
    newest.why.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

fn change(scratch: &TempDir, file: &str, with: impl FnOnce(&mut Vec<u8>)) {
    let path = scratch.0.join("step-00000002").join(file);
    let mut bytes = fs::read(&path).unwrap();
    with(&mut bytes);
    fs::write(path, bytes).unwrap();
}

const SHARD: &str = "rank-00001.safetensors";

#[test]
fn a_truncated_file_is_named() {
    let scratch = two();
    change(&scratch, SHARD, |bytes| bytes.truncate(bytes.len() - 4));
    let why = skipped(&scratch);
    assert!(why.contains(SHARD) && why.contains("truncated"), "{why}");
    assert_eq!(why.lines().count(), 1, "reported once, not for each tensor");
}

#[test]
fn a_missing_file_is_named() {
    let scratch = two();
    fs::remove_file(scratch.0.join("step-00000002").join(SHARD)).unwrap();
    let why = skipped(&scratch);
    assert!(why.contains(SHARD) && why.contains("missing"), "{why}");
}

#[test]
fn a_flipped_bit_is_detected_in_its_tensor_only() {
    let scratch = two();
    change(&scratch, SHARD, |bytes| *bytes.last_mut().unwrap() ^= 1);
    let why = skipped(&scratch);
    assert!(why.contains(SHARD) && why.contains("checksum differs"), "{why}");
    assert_eq!(why.lines().count(), 1, "{why}");
    // Other tensors can still be read.
    let checkpoint = Checkpoint::latest(&scratch.0).unwrap().unwrap();
    let (mut good, mut bad) = (0, 0);
    for (kind, name, shape) in tensors() {
        match checkpoint.read_whole(&name, kind) {
            Ok(read) => {
                good += 1;
                assert_eq!(read, elements(2, kind, &name, shape.iter().product()));
            }
            Err(error) => {
                bad += 1;
                assert!(error.to_string().contains(&name), "{error}");
            }
        }
    }
    assert_eq!((good, bad), (tensors().len() - 1, 1));
}

#[test]
fn a_flipped_bit_in_any_file_is_detected() {
    let scratch = two();
    for file in ["rank-00000.safetensors", "checkpoint.json", "checkpoint.json.sha256"] {
        let path = scratch.0.join("step-00000002").join(file);
        let original = fs::read(&path).unwrap();
        // The file name after the checksum is not checked.
        let end = if file.ends_with("sha256") { 64 } else { original.len() };
        for at in (0..end).step_by(end.div_ceil(200)) {
            let mut bytes = original.clone();
            bytes[at] ^= 1 << (at % 8);
            fs::write(&path, &bytes).unwrap();
            let checked = Checkpoint::open(&scratch.0.join("step-00000002"))
                .map_err(|error| vec![error])
                .and_then(|checkpoint| checkpoint.verify());
            let errors = checked.expect_err(&format!("byte {at} of {file} was flipped"));
            for error in errors {
                let text = error.to_string();
                assert!(text.contains("step-00000002") && text.len() < 1000, "{text}");
            }
        }
        fs::write(&path, &original).unwrap();
    }
    assert_is(&Checkpoint::latest(&scratch.0).unwrap().unwrap(), 2);
}

#[test]
fn other_versions_and_other_files_are_distinguished() {
    let scratch = two();
    let manifest = scratch.0.join("step-00000002/checkpoint.json");
    let text = fs::read_to_string(&manifest).unwrap();
    fs::write(&manifest, text.replacen("\"version\": 2", "\"version\": 3", 1)).unwrap();
    let why = skipped(&scratch);
    assert!(why.contains("version 3") && why.contains("newer regatta"), "{why}");
    fs::write(&manifest, "{\"weights\": 3}").unwrap();
    let why = skipped(&scratch);
    assert!(why.contains("checkpoint.json is damaged: missing field `version`"), "{why}");
    assert!(why.ends_with("; use an earlier checkpoint of the run"), "{why}");
    fs::remove_file(&manifest).unwrap();
    let why = skipped(&scratch);
    assert!(why.contains("is missing"), "{why}");
}

#[test]
fn shards_of_another_checkpoint_are_detected() {
    let scratch = two();
    let other = fs::read(scratch.0.join("step-00000001").join(SHARD)).unwrap();
    change(&scratch, SHARD, |bytes| *bytes = other);
    let why = skipped(&scratch);
    assert!(why.contains(SHARD), "{why}");
}

#[test]
fn missing_elements_are_named() {
    let scratch = TempDir::in_memory();
    let mut writer = Writer::new(&scratch.0, 0, 1, 1).unwrap();
    let slice = TensorSlice::Rectangle { rows: 0..2, columns: 1..3 };
    let whole = Shard::full_tensor("a", StateTensor::Parameter, &[2, 3], vec![0.5; 4]);
    let shard = Shard { meta: ShardMeta { slice, ..whole.meta }, ..whole };
    writer.begin(meta(1), vec![shard]).unwrap();
    writer.finish(TIMEOUT);
    writer.commit(1).unwrap();
    let checkpoint = Checkpoint::latest(&scratch.0).unwrap().unwrap();
    let error = checkpoint.read_whole("a", StateTensor::Parameter).unwrap_err().to_string();
    assert!(error.contains("parameter/a") && error.contains("element 0"), "{error}");
    let mut elements = [0.0; 2];
    checkpoint.read("a", StateTensor::Parameter, &TensorSlice::Flat(4..6), &mut elements).unwrap();
    assert_eq!(elements, [0.5; 2]);
    assert!(checkpoint.verify().unwrap_err()[0].to_string().contains("element 0"));
}

/// Even with a valid checksum of the manifest.
#[test]
fn a_shape_beyond_the_files_is_refused_before_memory_is_allocated() {
    let path = |scratch: &TempDir| scratch.0.join("step-00000002");
    let lie = |from: &str, to: &str| {
        let scratch = two();
        change(&scratch, MANIFEST, |bytes| {
            let text = String::from_utf8(bytes.clone()).unwrap();
            assert!(text.contains(from), "{text}");
            *bytes = text.replace(from, to).into_bytes();
        });
        let text = fs::read(path(&scratch).join(MANIFEST)).unwrap();
        let sum = regatta_model::text::hex(&Sha256::digest(&text));
        fs::write(path(&scratch).join("checkpoint.json.sha256"), sum).unwrap();
        crate::load::load(&path(&scratch), &Reference).unwrap_err().to_string()
    };
    let error = lie("\"vocab_size\": 7", "\"vocab_size\": 16777216");
    assert!(error.contains("has 28 elements instead of 67108864"), "{error}");
    let error = lie("\"num_layers\": 2", "\"num_layers\": 16777216");
    assert!(error.contains("has no parameters of 16777216 layers"), "{error}");
    assert!(crate::load::load(&path(&two()), &Reference).is_ok());
}
