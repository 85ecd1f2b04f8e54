//! The commands in the documentation: `regatta` lines parse, and `cargo` lines build what they name.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Parser;
use clap::error::ErrorKind;

use crate::cli::{self, Cli};

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// All pages of the documentation.
fn pages() -> Vec<PathBuf> {
    let in_folder = |folder: &str| {
        let entries = std::fs::read_dir(workspace().join(folder)).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        paths.filter(|path| path.extension().is_some_and(|end| end == "md")).collect::<Vec<_>>()
    };
    let top = ["README.md", "CONTRIBUTING.md"].map(|name| workspace().join(name));
    let folders = ["docs", "docs/parallel", "docs/sites", "docs/train", "fuzz"];
    top.into_iter().chain(folders.into_iter().flat_map(in_folder)).collect()
}

/// Commands of `sh` and `bash` blocks, with continued lines joined, and of inline code.
fn commands(page: &str) -> Vec<String> {
    let (mut found, mut fence, mut continued) = (Vec::new(), None, String::new());
    for line in page.lines() {
        match (line.trim_start().strip_prefix("```"), fence) {
            (Some(_), Some(_)) => fence = None,
            (Some(language), None) => fence = Some(language),
            (None, Some("sh" | "bash")) => {
                continued += line.trim_end_matches('\\');
                if !line.ends_with('\\') {
                    found.push(std::mem::take(&mut continued));
                }
            }
            (None, Some(_)) => {}
            (None, None) => found.extend(line.split('`').skip(1).step_by(2).map(str::to_owned)),
        }
    }
    found
}

/// The simple commands of a line, without comments, redirections and what follows a pipe.
fn simple_commands(line: &str) -> Vec<Vec<String>> {
    let words = shlex::split(line).unwrap_or_default();
    let all = words.split(|word| word == "&&" || word == ";");
    let until_pipe = |words: &[String]| {
        words
            .iter()
            .take_while(|word| !["|", ">", "2>", "&"].contains(&word.as_str()))
            .cloned()
            .collect()
    };
    all.map(until_pipe).collect()
}

/// The words after an option, `-p NAME`.
fn values<'a>(words: &'a [String], option: &'a str) -> impl Iterator<Item = &'a str> {
    let pairs = words.windows(2).filter(move |pair| pair[0] == option);
    pairs.map(|pair| pair[1].as_str())
}

/// The folder of a package of the workspace.
fn package_folder(package: &str) -> Option<PathBuf> {
    let name = package.strip_prefix("regatta-").unwrap_or(package);
    let folders = [
        format!("crates/{name}"),
        format!("crates/kernels/{}", name.trim_start_matches("kernels-")),
        name.replace("benchmarks", "bench"),
    ];
    folders.iter().map(|folder| workspace().join(folder)).find(|folder| {
        let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap_or_default();
        manifest.contains(&format!("name = \"{package}\""))
    })
}

/// The packages of a cargo command: those named, else the default member.
fn packages(words: &[String]) -> Vec<&str> {
    let named: Vec<&str> = values(words, "-p").collect();
    if named.is_empty() { vec!["regatta"] } else { named }
}

/// Whether a folder has a target of this name: `NAME.rs` or `NAME/main.rs`.
fn has_target(package: &str, folder: &str, name: &str) -> bool {
    let folder = package_folder(package).unwrap_or_default().join(folder);
    folder.join(format!("{name}.rs")).exists() || folder.join(name).join("main.rs").exists()
}

/// What a cargo command names that does not exist.
fn missing_in_cargo_command(words: &[String]) -> Vec<String> {
    let packages = packages(words);
    let unknown = packages.iter().filter(|package| package_folder(package).is_none());
    let mut missing: Vec<String> = unknown.map(|package| format!("package {package}")).collect();
    for (option, folder) in [("--bin", "src/bin"), ("--test", "tests"), ("--example", "examples")] {
        let exists = |name: &str| packages.iter().any(|package| has_target(package, folder, name));
        let absent = values(words, option).filter(|name| !exists(name));
        missing.extend(absent.map(|name| format!("{option} {name}")));
    }
    missing
}

/// Whether a program in `target/release` is built by one of the commands before it.
fn is_built(program: &str, commands_before: &[Vec<String>]) -> bool {
    let name = program.trim_start_matches("target/release/");
    let (folder, name) =
        name.strip_prefix("examples/").map_or(("src/bin", name), |e| ("examples", e));
    // The program of the README's build command.
    let is_default = folder == "src/bin" && name == "regatta";
    let builds = |words: &Vec<String>| {
        let is_build = words.iter().any(|word| word == "cargo")
            && words.iter().any(|word| word == "build" || word == "run");
        is_build && packages(words).iter().any(|package| has_target(package, folder, name))
    };
    is_default || commands_before.iter().any(builds)
}

#[test]
fn cargo_commands_build_what_they_name() {
    let mut checked = 0;
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        let mut before: Vec<Vec<String>> = Vec::new();
        for words in commands(&text).iter().flat_map(|line| simple_commands(line)) {
            let is_cargo =
                words.iter().find(|word| !word.contains('=')).is_some_and(|w| w == "cargo");
            if is_cargo {
                checked += 1;
                let missing = missing_in_cargo_command(&words);
                assert!(missing.is_empty(), "{}: {words:?}: no {missing:?}", page.display());
            }
            for program in words.iter().filter(|word| word.starts_with("target/release/")) {
                assert!(is_built(program, &before), "{}: nothing builds {program}", page.display());
            }
            before.push(words);
        }
    }
    assert!(checked > 15, "{checked} commands found");
}

/// Inline code may omit arguments and the value of its last option.
fn is_acceptable(error: &clap::Error) -> bool {
    let help = ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    let incomplete = [ErrorKind::DisplayHelp, help, ErrorKind::MissingRequiredArgument];
    incomplete.contains(&error.kind()) || error.to_string().contains("a value is required")
}

#[test]
fn regatta_commands_parse() {
    let (mut checked, mut invalid) = (0, Vec::new());
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        for words in commands(&text).iter().flat_map(|line| simple_commands(line)) {
            // Abbreviated or with placeholders such as FILE.
            let is_placeholder = |word: &String| {
                let is_name =
                    word.len() > 1 && !word.contains(|c: char| !matches!(c, 'A'..='Z' | '_'));
                is_name || word.contains("...") || word.contains('…')
            };
            if words.iter().any(is_placeholder) {
                continue;
            }
            // Also the command of `regatta launch`.
            for (at, _) in words.iter().enumerate().filter(|(_, word)| *word == "regatta") {
                // Without a subcommand it is a mention of the program.
                if !words.get(at + 1).is_some_and(|next| next.starts_with(char::is_lowercase)) {
                    continue;
                }
                let own = words[at..].iter().map(OsString::from);
                let error = Cli::try_parse_from(cli::arguments(own)).err();
                let error =
                    error.filter(|error| !is_acceptable(error)).map(|error| error.to_string());
                invalid
                    .extend(error.map(|error| format!("{}: {words:?}: {error}", page.display())));
                checked += 1;
            }
        }
    }
    assert!(invalid.is_empty(), "{}", invalid.join("\n"));
    assert!(checked > 60, "{checked} commands found");
}

#[test]
fn programs_of_other_packages_are_not_built_by_default() {
    let words = |line: &str| simple_commands(line).concat();
    let nccl = "target/release/nccl";
    assert!(!is_built(nccl, &[words("cargo build --release")]));
    assert!(is_built(nccl, &[words("cargo build --release -p regatta -p regatta-benchmarks")]));
    assert_eq!(missing_in_cargo_command(&words("cargo run -p regatta-comm --bin x")), ["--bin x"]);
    assert_eq!(missing_in_cargo_command(&words("cargo test -p no")), ["package no"]);
}
