//! The rules of docs/architecture.md that a program can check.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What each crate may use of ours, outside of tests.
const MAY_USE: [(&str, &[&str]); 12] = [
    ("crates/model", &[]),
    ("crates/discover", &["model"]),
    ("crates/place", &["model"]),
    ("crates/wire", &[]),
    ("crates/launch", &["model", "discover", "place", "wire"]),
    ("crates/comm", &["model", "wire"]),
    ("crates/measure", &["model", "comm"]),
    ("crates/train", &["model", "comm"]),
    ("crates/testbed", &[]),
    (
        "crates/regatta",
        &["model", "discover", "place", "wire", "launch", "comm", "measure", "train"],
    ),
    ("bench", &["model", "discover", "place", "wire", "launch", "comm", "train", "testbed"]),
    ("xtask", &[]),
];

/// Crates without any I/O, and the words that would be some.
const PURE: [&str; 2] = ["crates/model", "crates/place"];
const IO: [&str; 11] = [
    "std::fs",
    "std::process",
    "std::env",
    "std::io::",
    "TcpStream",
    "TcpListener",
    "UdpSocket",
    "ToSocketAddrs",
    "Instant::now",
    "SystemTime::now",
    "libc::",
];

/// The parts of `measure` that only read, write, compare and draw what they are given.
const RESULTS: [&str; 8] = [
    "baseline.rs",
    "compare.rs",
    "figure.rs",
    "formula.rs",
    "place.rs",
    "plot/",
    "read/",
    "write/",
];

/// The parts of `train` that a run follows from, on any number of ranks and after a restart: files,
/// and folders.
const EXACT: [&str; 26] = [
    "shape.rs",
    "shape/",
    "schedule.rs",
    "random.rs",
    "optimizer.rs",
    "config/advice.rs",
    "config/notes.rs",
    "config/plan.rs",
    "config/split.rs",
    "data/order.rs",
    "explain.rs",
    "job/keep/holding.rs",
    "job/keep/place.rs",
    "job/tally.rs",
    "job/smoke/part.rs",
    "job/smoke/places.rs",
    "parallel/cost/",
    "parallel/mesh.rs",
    "parallel/pipeline/balance.rs",
    "parallel/pipeline/check.rs",
    "parallel/pipeline/draw/",
    "parallel/pipeline/error.rs",
    "parallel/pipeline/kinds/",
    "parallel/pipeline/mod.rs",
    "parallel/pipeline/simulate.rs",
    "parallel/pipeline/stage.rs",
];

/// Where `discover` may open files by itself: the root, files the user names, and the device files
/// that are opened to see whether they can be.
const OPENERS: [&str; 4] = ["root.rs", "machine.rs", "allocation/mod.rs", "gpu/mod.rs"];

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The crates of the workspace: folders with a manifest in `crates`, and those beside it.
fn crates() -> Vec<String> {
    let folder = workspace();
    let mut found = vec!["bench".to_owned(), "xtask".to_owned()];
    for entry in std::fs::read_dir(folder.join("crates")).unwrap().flatten() {
        if entry.path().join("Cargo.toml").exists() {
            found.push(format!("crates/{}", entry.file_name().to_string_lossy()));
        }
    }
    found.sort();
    found
}

/// The names in a manifest's `[dependencies]`.
fn dependencies(name: &str) -> Vec<String> {
    let text = std::fs::read_to_string(workspace().join(name).join("Cargo.toml")).unwrap();
    let section = text.split("\n[").find_map(|s| s.strip_prefix("dependencies]")).unwrap_or("");
    let key = |line: &str| line.split(['.', '=', ' ']).next().unwrap_or("").to_owned();
    section.lines().map(key).filter(|k| !k.is_empty()).collect()
}

/// The Rust files of a crate with their text, tests cut off.
fn sources(name: &str) -> BTreeMap<String, String> {
    let folder = workspace().join(name).join("src");
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.clone()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let relative = path.strip_prefix(&folder).unwrap().to_string_lossy().into_owned();
                let text = std::fs::read_to_string(&path).unwrap();
                let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap().to_owned();
                found.insert(relative, code);
            }
        }
    }
    found.retain(|path, _| !path.ends_with("tests.rs") && !path.ends_with("testing.rs"));
    assert!(!found.is_empty(), "{name} has no source");
    found
}

/// The code lines of a crate that hold a word, as `file: line`.
fn lines_with(name: &str, word: &str) -> Vec<String> {
    let hit = |line: &&str| line.contains(word) && !line.trim_start().starts_with("//");
    let of_file = |(path, text): (&String, &String)| {
        text.lines().filter(hit).map(|l| format!("{name}/src/{path}: {l}")).collect::<Vec<_>>()
    };
    sources(name).iter().flat_map(of_file).collect()
}

#[test]
fn crates_use_only_what_they_may() {
    let known: Vec<&str> = MAY_USE.iter().map(|(name, _)| *name).collect();
    for name in crates() {
        assert!(known.contains(&name.as_str()), "{name} is new: say in MAY_USE what it may use");
    }
    for (name, may) in MAY_USE {
        for used in dependencies(name).iter().filter_map(|d| d.strip_prefix("regatta-")) {
            assert!(may.contains(&used), "{name} uses {used}, and may not");
        }
    }
}

#[test]
fn decisions_do_no_io() {
    for name in PURE {
        for word in IO {
            let found = lines_with(name, word);
            assert!(found.is_empty(), "{word} in a crate without I/O:\n{}", found.join("\n"));
        }
    }
}

#[test]
fn forms_of_results_do_no_io() {
    for (path, text) in sources("crates/measure") {
        if RESULTS.iter().any(|part| path.starts_with(part)) {
            for word in IO {
                assert!(!text.contains(word), "{word} in crates/measure/src/{path}");
            }
        }
    }
}

#[test]
fn what_a_training_follows_from_does_no_io() {
    let sources = sources("crates/train");
    for part in EXACT {
        let is_part = |path: &str| path == part || part.ends_with('/') && path.starts_with(part);
        let mut files = sources.iter().filter(|(path, _)| is_part(path)).peekable();
        assert!(files.peek().is_some(), "crates/train/src/{part} is gone");
        for (path, text) in files {
            for word in IO {
                assert!(!text.contains(word), "{word} in crates/train/src/{path}");
            }
        }
    }
}

#[test]
fn discover_reads_through_its_root() {
    for (path, text) in sources("crates/discover") {
        if OPENERS.contains(&path.as_str()) {
            continue;
        }
        for word in ["std::fs", "File::open", "read_to_string"] {
            assert!(!text.contains(word), "{path} opens files by itself: use Root");
        }
    }
}

#[test]
fn only_the_binary_prints() {
    for name in [
        "crates/model",
        "crates/discover",
        "crates/place",
        "crates/launch",
        "crates/measure",
        "crates/train",
    ] {
        for word in ["println!", "eprint", "print!", "dbg!"] {
            let found = lines_with(name, word);
            assert!(found.is_empty(), "{}", found.join("\n"));
        }
    }
}

#[test]
fn nothing_runs_a_shell() {
    for name in [
        "crates/model",
        "crates/discover",
        "crates/place",
        "crates/launch",
        "crates/train",
        "crates/regatta",
    ] {
        for shell in ["sh", "bash", "/bin/sh", "/bin/bash"] {
            let found = lines_with(name, &format!("Command::new(\"{shell}\")"));
            assert!(found.is_empty(), "{}", found.join("\n"));
        }
    }
}

#[test]
fn the_documentation_names_every_crate() {
    let page = std::fs::read_to_string(workspace().join("docs/architecture.md")).unwrap();
    for name in crates() {
        assert!(page.contains(&format!("`{name}`")), "docs/architecture.md does not name {name}");
    }
}
