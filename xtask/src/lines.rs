//! Counts lines of code: without comments, blank lines, tests, and fakes that only tests use.

mod lexer;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::steps::output;
use lexer::{SourceLine, TestModule};

/// Folders that hold tests, fakes and fuzz targets alone.
const TEST_FOLDERS: [&str; 5] = [
    "crates/testbed/",
    "crates/kernels/conformance/",
    "crates/kernels/cuda/src/fake/",
    "fuzz/",
    "plugins/fake-net/",
];

/// Source files by path from the root of the workspace.
type Sources = BTreeMap<PathBuf, String>;

/// Lines of a crate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Count {
    /// Lines of code.
    code: usize,
    /// Lines of code, comments and blank lines.
    all: usize,
}

/// Prints the lines of each crate of the working tree, or of a revision.
pub fn run(revision: Option<&str>) -> Result<()> {
    let sources = match revision {
        Some(revision) => read_revision(revision)?,
        None => read_working_tree()?,
    };
    let counts = count(&sources)?;
    println!("{:<28} {:>8} {:>22}", "crate", "code", "with comments, blanks");
    for (name, Count { code, all }) in &counts {
        println!("{name:<28} {code:>8} {all:>22}");
    }
    let (code, all) = counts.values().fold((0, 0), |sum, c| (sum.0 + c.code, sum.1 + c.all));
    println!("{:<28} {code:>8} {all:>22}", "total");
    Ok(())
}

fn git(arguments: &[&str]) -> Result<String> {
    output(Command::new("git").args(arguments))
}

fn read_working_tree() -> Result<Sources> {
    let list = git(&["ls-files", "--cached", "--others", "--exclude-standard", "*.rs"])?;
    let files = list.lines().map(PathBuf::from).filter(|path| path.exists());
    files.map(|path| Ok((path.clone(), std::fs::read_to_string(&path)?))).collect()
}

fn read_revision(revision: &str) -> Result<Sources> {
    let list = git(&["ls-tree", "-r", "--name-only", revision])?;
    let files = list.lines().filter(|path| path.ends_with(".rs"));
    files.map(|path| Ok((path.into(), git(&["show", &format!("{revision}:{path}")])?))).collect()
}

/// The lines of each crate.
fn count(sources: &Sources) -> Result<BTreeMap<String, Count>> {
    let mut lexed: BTreeMap<&Path, lexer::File> = BTreeMap::new();
    for (path, text) in sources {
        let file = lexer::lex(text).with_context(|| path.display().to_string())?;
        lexed.insert(path, file);
    }
    let tests: BTreeSet<PathBuf> = lexed
        .iter()
        .flat_map(|(path, file)| {
            file.test_modules.iter().flat_map(|module| module_paths(path, module))
        })
        .collect();
    let mut counts: BTreeMap<String, Count> = BTreeMap::new();
    for (path, file) in lexed.iter().filter(|(path, _)| !is_test(path, &tests)) {
        let sum = counts.entry(crate_of(path)).or_default();
        sum.code += file.lines.iter().filter(|line| **line == SourceLine::Code).count();
        sum.all += file.lines.iter().filter(|line| **line != SourceLine::Test).count();
    }
    Ok(counts)
}

/// Whether a file is compiled for tests alone.
fn is_test(path: &Path, tests: &BTreeSet<PathBuf>) -> bool {
    let in_folder = TEST_FOLDERS.iter().any(|folder| path.starts_with(folder));
    let is_integration =
        path.components().any(|c| matches!(c.as_os_str().to_str(), Some("tests" | "examples")));
    in_folder || is_integration || path.ancestors().any(|parent| tests.contains(parent))
}

/// The file of a module that its parent declares for tests, and the folder of its own modules.
fn module_paths(parent: &Path, module: &TestModule) -> Vec<PathBuf> {
    let folder = parent.parent().unwrap_or(Path::new(""));
    if let Some(path) = &module.path {
        let file = normalize(&folder.join(path));
        return vec![file.with_extension(""), file];
    }
    let stem = parent.file_stem().unwrap_or_default();
    let own = match stem.to_str() {
        Some("mod" | "lib" | "main") => folder.to_owned(),
        _ => folder.join(stem),
    };
    vec![own.join(&module.name), own.join(format!("{}.rs", module.name))]
}

/// The path without `..`.
fn normalize(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => drop(normal.pop()),
            component => normal.push(component),
        }
    }
    normal
}

/// The folder of a file's crate: all before `src`, or the folder of `build.rs`.
fn crate_of(path: &Path) -> String {
    let parts: Vec<_> = path.components().map(|c| c.as_os_str().to_string_lossy()).collect();
    let end = parts.iter().position(|part| part == "src").unwrap_or(parts.len() - 1);
    parts[..end].join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(files: &[(&str, &str)]) -> Sources {
        files.iter().map(|(path, text)| (path.into(), (*text).to_owned())).collect()
    }

    #[test]
    fn modules_declared_for_tests_are_left_out_with_their_folders() {
        let counts = count(&sources(&[
            ("crates/a/src/lib.rs", "pub mod b;\n#[cfg(test)]\nmod testing;\n"),
            ("crates/a/src/testing.rs", "mod more;\n"),
            ("crates/a/src/testing/more.rs", "fn f() {}\n"),
            (
                "crates/a/src/b.rs",
                "// Why.\n\nfn f() {}\n#[cfg(test)]\n#[path = \"b_tests.rs\"]\nmod tests;\n",
            ),
            ("crates/a/src/b_tests.rs", "fn test() {}\n"),
            ("crates/a/tests/it.rs", "fn test() {}\n"),
            ("crates/testbed/src/lib.rs", "fn cluster() {}\n"),
        ]))
        .unwrap();
        assert_eq!(counts, BTreeMap::from([("crates/a".to_owned(), Count { code: 2, all: 4 })]));
    }
}
