//! Replays the corpora of all fuzz targets without a fuzzer, as a regression test.

#[path = "../../../../fuzz/bodies.rs"]
mod bodies;

use std::path::{Path, PathBuf};

const CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus");

fn inputs(target: &str) -> Vec<PathBuf> {
    let dir = Path::new(CORPUS).join(target);
    let entries =
        std::fs::read_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{} holds no input", dir.display());
    files
}

#[test]
fn no_corpus_input_panics() {
    for (target, _) in bodies::TARGETS {
        for file in inputs(target) {
            let data = std::fs::read(&file).unwrap();
            let result = std::panic::catch_unwind(|| bodies::run(target, &data));
            assert!(result.is_ok(), "{target} failed on {}", file.display());
        }
    }
}

#[test]
fn every_corpus_has_a_fuzz_target() {
    for entry in std::fs::read_dir(CORPUS).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        assert!(bodies::TARGETS.iter().any(|(target, _)| *target == name), "{name} has no target");
    }
}
