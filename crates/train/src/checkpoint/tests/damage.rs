//! Damaged checkpoints are detected, named and skipped.

use std::fs;
use std::path::{Path, PathBuf};

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

/// Makes a checkpoint one of another format version.
fn set_version(scratch: &TempDir, step: &str, version: u32) {
    let folder = scratch.0.join(step);
    let text = fs::read_to_string(folder.join(MANIFEST)).unwrap();
    let text = text.replacen("\"version\": 2", &format!("\"version\": {version}"), 1);
    set_manifest(&folder, &text);
}

/// Writes a manifest and its checksum.
fn set_manifest(folder: &Path, text: &str) {
    fs::write(folder.join(MANIFEST), text).unwrap();
    let sum = regatta_model::text::hex(&Sha256::digest(text));
    fs::write(folder.join("checkpoint.json.sha256"), sum).unwrap();
}

#[test]
fn another_format_version_is_refused_instead_of_skipped() {
    let fixes = [(3, "update regatta"), (1, "export it with the regatta that wrote it")];
    for (version, fix) in fixes {
        let scratch = two();
        set_version(&scratch, "step-00000002", version);
        let expected = format!(
            "step-00000002/checkpoint.json has format version {version}, but this regatta reads version 2: {fix}"
        );
        let error = latest_valid(&scratch.0).unwrap_err();
        assert!(matches!(error, CheckpointError::Version { .. }), "{error}");
        assert!(error.to_string().ends_with(&expected), "{error}");
        let of_run = has_checkpoint_of_run(&scratch.0, "run").unwrap_err();
        assert!(matches!(of_run, CheckpointError::Version { .. }), "{of_run}");
        let loaded = crate::load::load(&scratch.0, &Reference).unwrap_err().to_string();
        assert!(loaded.ends_with(&expected), "{loaded}");
        // It may not have a checksum there.
        fs::remove_file(scratch.0.join("step-00000002/checkpoint.json.sha256")).unwrap();
        assert!(matches!(latest_valid(&scratch.0), Err(CheckpointError::Version { .. })));
    }
}

#[test]
fn another_format_version_is_neither_pruned_nor_replaced() {
    let scratch = two();
    set_version(&scratch, "step-00000001", 3);
    let mut writers = writers(&scratch.0, 1, 1);
    save(&mut writers, 3, Split::Flat).unwrap();
    assert_eq!(super::names(&scratch), ["step-00000001", "step-00000003"]);
    let error = save(&mut writers, 1, Split::Flat).unwrap_err();
    assert!(matches!(&*error, CheckpointError::Version { found: 3, .. }), "{error}");
    assert_eq!(super::names(&scratch), ["step-00000001", "step-00000003"]);
}

#[test]
fn missing_layers_and_optimizer_state_are_named() {
    let without = |is_removed: fn(&manifest::Tensor) -> bool, config: &str| {
        let scratch = two();
        let folder = scratch.0.join("step-00000002");
        let mut manifest = Checkpoint::open(&folder).unwrap().manifest().clone();
        manifest.tensors.retain(|tensor| !is_removed(tensor));
        config.clone_into(&mut manifest.meta.config);
        set_manifest(&folder, &manifest::to_text(&manifest));
        let errors = Checkpoint::open(&folder).unwrap().verify().err().unwrap_or_default();
        errors.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let layer = without(|tensor| tensor.name.starts_with("layer.1."), "");
    let per_layer = tensors().iter().filter(|(_, name, _)| name.starts_with("layer.1.")).count();
    assert_eq!(layer.len(), per_layer, "{layer:?}");
    assert!(layer[0].ends_with("step-00000002 has no parameter/layer.1.norm1.weight"), "{layer:?}");
    let moment = |tensor: &manifest::Tensor| tensor.kind != StateTensor::Parameter;
    let missing = without(moment, "[train]\nsteps = 10\n");
    assert_eq!(missing.len(), tensors().len() * 2 / 3, "{missing:?}");
    assert!(missing[0].ends_with("has no moment1/embed.tokens"), "{missing:?}");
    assert!(without(moment, "").is_empty(), "an imported model has no optimizer state");
    assert_eq!(
        without(|tensor| tensor.kind == StateTensor::Moment2, "").len(),
        tensors().len() / 3
    );
}

#[test]
fn special_files_are_damage_and_do_not_block() {
    for file in [SHARD, MANIFEST, "checkpoint.json.sha256"] {
        for make_special in [TempDir::fifo, link_to_zeros] {
            let scratch = two();
            fs::remove_file(scratch.0.join("step-00000002").join(file)).unwrap();
            make_special(&scratch, &format!("step-00000002/{file}"));
            let why = skipped(&scratch);
            assert!(why.contains(file) && why.contains("not a regular file"), "{why}");
        }
    }
}

fn link_to_zeros(scratch: &TempDir, name: &str) -> PathBuf {
    std::os::unix::fs::symlink("/dev/zero", scratch.0.join(name)).unwrap();
    scratch.0.join(name)
}

#[test]
fn other_files_are_distinguished() {
    let scratch = two();
    let manifest = scratch.0.join("step-00000002/checkpoint.json");
    let text = fs::read_to_string(&manifest).unwrap();
    // The checksum shows that this is not another version.
    fs::write(&manifest, text.replacen("\"version\": 2", "\"version\": 3", 1)).unwrap();
    let why = skipped(&scratch);
    assert!(why.contains("has format version 3, expected 2"), "{why}");
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
        let text = fs::read_to_string(path(&scratch).join(MANIFEST)).unwrap();
        set_manifest(&path(&scratch), &text);
        crate::load::load(&path(&scratch), &Reference).unwrap_err().to_string()
    };
    let error = lie("\"vocab_size\": 7", "\"vocab_size\": 16777216");
    assert!(error.contains("has shape [7, 4] instead of [16777216, 4]"), "{error}");
    let error = lie("\"num_layers\": 2", "\"num_layers\": 16777216");
    assert!(error.contains("has no parameters of 16777216 layers"), "{error}");
    assert!(crate::load::load(&path(&two()), &Reference).is_ok());
}
