//! The rules of docs/architecture.md that a program can check.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// All library crates that the binary may use.
const LIBRARIES: &str = "model discover doctor draw events place wire launch comm measure nccl-tuning observe predict device kernels-cpu kernels-cuda train embed net profiler tuner";

/// The crates of this workspace that each crate may depend on, outside of tests.
const ALLOWED_DEPENDENCIES: [(&str, &str); 29] = [
    ("crates/model", ""),
    ("crates/discover", "model"),
    ("crates/doctor", "model discover wire"),
    ("crates/draw", ""),
    ("crates/embed", ""),
    ("crates/events", ""),
    ("crates/fabric", ""),
    ("crates/place", "model"),
    ("crates/wire", ""),
    ("crates/launch", "model discover events place wire"),
    ("crates/comm", "model wire events fabric plugin-abi"),
    ("crates/measure", "model comm draw"),
    ("crates/nccl-tuning", ""),
    ("crates/observe", "model events draw"),
    ("crates/predict", "model comm draw"),
    ("crates/kernels/device", "model comm"),
    ("crates/kernels/cpu", "model comm device"),
    ("crates/kernels/cuda", "comm device"),
    ("crates/kernels/conformance", "comm device"),
    ("crates/train", "model comm device kernels-cpu predict"),
    ("crates/testbed", "comm wire"),
    ("plugins/abi", ""),
    ("plugins/fake-net", "plugin-abi"),
    ("plugins/net", "fabric plugin-abi"),
    ("plugins/profiler", "events plugin-abi"),
    ("plugins/tuner", "nccl-tuning plugin-abi"),
    ("crates/regatta", LIBRARIES),
    (
        "bench",
        "model discover doctor events nccl-tuning place profiler wire launch comm observe predict device kernels-cpu kernels-cuda train testbed",
    ),
    ("xtask", ""),
];

/// Crates without any I/O, and the identifiers that would be I/O.
const PURE: [&str; 5] =
    ["crates/draw", "crates/model", "crates/nccl-tuning", "crates/place", "crates/predict"];
const IO: &str = "std::fs std::process std::env std::io:: TcpStream TcpListener UdpSocket \
                  ToSocketAddrs Instant::now SystemTime::now libc::";

/// The parts of `measure` that only read, write, compare and draw what they are given.
const RESULTS: [&str; 8] = [
    "baseline.rs",
    "buffer_mode.rs",
    "compare.rs",
    "bus_bandwidth.rs",
    "metric.rs",
    "plot/",
    "read/",
    "write/",
];

/// Files and folders of `train` that determine a run on any number of ranks and after a restart.
const DETERMINISTIC: [&str; 9] = [
    "lr_schedule.rs",
    "config/mesh.rs",
    "config/notes.rs",
    "config/suggest.rs",
    "config/validate.rs",
    "data/sampler.rs",
    "training/checkpointing/owned_shards.rs",
    "training/checkpointing/slices.rs",
    "training/step_stats.rs",
];

/// Where `discover` may open files by itself: the sysroot, files the user names, and the device files
/// that are opened to see whether they can be.
const OPENERS: [&str; 4] = ["sysroot.rs", "machine.rs", "allocation/mod.rs", "gpu/mod.rs"];

/// Endings of the names of files that are compiled for tests only.
const TEST_FILES: [&str; 4] = ["tests.rs", "testing.rs", "fake_sysfs.rs", "documented_commands.rs"];

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The crates of the workspace: folders with a manifest in `crates`, and those beside it.
fn crates() -> Vec<String> {
    let folder = workspace();
    let mut found = vec!["bench".to_owned(), "xtask".to_owned()];
    for parent in ["crates", "crates/kernels", "plugins"] {
        for entry in std::fs::read_dir(folder.join(parent)).unwrap().flatten() {
            if entry.path().join("Cargo.toml").exists() {
                found.push(format!("{parent}/{}", entry.file_name().to_string_lossy()));
            }
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
                let ends = ["mod tests {", "pub(super) mod tests {"];
                let ends = ends.map(|module| text.find(&format!("#[cfg(test)]\n{module}")));
                let code = &text[..ends.into_iter().flatten().min().unwrap_or(text.len())];
                found.insert(relative, code.to_owned());
            }
        }
    }
    // The files about nccl-tests are no tests.
    let is_test = |path: &str| {
        TEST_FILES.iter().any(|name| path.ends_with(name)) && !path.ends_with("nccl_tests.rs")
    };
    found.retain(|path, _| !is_test(path));
    assert!(!found.is_empty(), "{name} has no source");
    found
}

/// Whether a text holds a word. A constant of libc, such as the number of a signal, is no use of it.
fn uses(text: &str, word: &str) -> bool {
    let is_constant = |at: usize| text[at + word.len()..].starts_with(char::is_uppercase);
    text.match_indices(word).any(|(at, _)| word != "libc::" || !is_constant(at))
}

/// The code lines of a crate that hold a word, as `file: line`.
fn lines_with(name: &str, word: &str) -> Vec<String> {
    let hit = |line: &&str| uses(line, word) && !line.trim_start().starts_with("//");
    let of_file = |(path, text): (&String, &String)| {
        text.lines().filter(hit).map(|l| format!("{name}/src/{path}: {l}")).collect::<Vec<_>>()
    };
    sources(name).iter().flat_map(of_file).collect()
}

#[test]
fn crates_depend_only_on_allowed_crates() {
    let known: Vec<&str> = ALLOWED_DEPENDENCIES.iter().map(|(name, _)| *name).collect();
    for name in crates() {
        assert!(known.contains(&name.as_str()), "{name} is missing from ALLOWED_DEPENDENCIES");
    }
    for (name, may) in ALLOWED_DEPENDENCIES {
        for used in dependencies(name).iter().filter_map(|d| d.strip_prefix("regatta-")) {
            let is_allowed = may.split(' ').any(|name| name == used);
            assert!(is_allowed, "{name} must not depend on {used}");
        }
    }
}

/// Asserts that no code line of these crates has one of these words.
fn assert_no_line_with<'a>(crates: &[&str], words: impl IntoIterator<Item = &'a str>) {
    for word in words {
        let found: Vec<String> = crates.iter().flat_map(|name| lines_with(name, word)).collect();
        assert!(found.is_empty(), "{word}:\n{}", found.join("\n"));
    }
}

#[test]
fn pure_crates_do_no_io() {
    assert_no_line_with(&PURE, IO.split_whitespace());
}

/// Asserts that `parts` (files, or folders with a trailing slash) of a crate exist and do no I/O.
fn assert_no_io(name: &str, parts: &[&str]) {
    let sources = sources(name);
    for part in parts {
        let is_part = |path: &str| path == *part || part.ends_with('/') && path.starts_with(part);
        let mut files = sources.iter().filter(|(path, _)| is_part(path)).peekable();
        assert!(files.peek().is_some(), "{name}/src/{part} does not exist");
        for (path, text) in files {
            for word in IO.split_whitespace() {
                assert!(!uses(text, word), "{word} in {name}/src/{path}");
            }
        }
    }
}

#[test]
fn result_formats_do_no_io() {
    assert_no_io("crates/measure", &RESULTS);
}

#[test]
fn matching_and_schedules_do_no_io() {
    assert_no_io("crates/comm", &["matching.rs", "schedule/"]);
}

#[test]
fn decisions_of_launch_do_no_io() {
    let agents = ["agent_state", "bootstrap_document", "message", "node_table", "routes", "tree"];
    let agents = agents.map(|name| format!("agents/{name}.rs"));
    let agents = agents.each_ref().map(String::as_str);
    let launchers = ["agent_launcher/command.rs", "agent_launcher/slurm_gres.rs"];
    let nodes = ["restart_policy.rs", "restart_backoff.rs", "node_pool.rs", "preflight.rs"];
    let ranks = ["supervisor.rs", "failure_attribution.rs", "signal_dedup.rs", "lines.rs"];
    assert_no_io("crates/launch", &[&agents[..], &launchers, &nodes, &ranks].concat());
}

#[test]
fn calls_of_libc_are_told_from_its_constants() {
    assert!(!uses("Terminate(libc::SIGTERM)", "libc::"));
    assert!(uses("(libc::SIGTERM, libc::kill(1, 0))", "libc::"));
    assert!(uses("use std::fs;", "std::fs") && !uses("fs", "std::fs"));
}

#[test]
fn judgement_of_hangs_does_no_io() {
    assert_no_io("crates/events", &["hang/"]);
}

#[test]
fn judgements_of_doctor_do_no_io() {
    let parts = ["facts.rs", "diagnosis.rs", "judge/", "plugin/"];
    assert_no_io("crates/doctor", &parts);
}

#[test]
fn analyses_of_observe_do_no_io() {
    assert_no_io("crates/observe", &["lib.rs", "analyse/", "view/"]);
}

#[test]
fn deterministic_parts_of_train_do_no_io() {
    assert_no_io("crates/train", &DETERMINISTIC);
}

/// Beginnings of names in run folders that have a number.
const NUMBERED_NAMES: [&str; 5] =
    ["\"restart-{", "\"repetition-{", "}-nodes\"", "\"rank-{rank}.log", "\"rank-{rank}.out"];

/// The names of files and folders that `model::run_folder` declares.
fn declared_names() -> Vec<String> {
    let sources = sources("crates/model");
    let of_line = |line: &str| {
        let (constant, value) = line.trim().split_once(" = \"")?;
        let others = ["VARIABLE", "ROOT", "SUFFIX"];
        let is_name = !others.iter().any(|name| constant.contains(name));
        value.strip_suffix("\";").filter(|_| is_name).map(str::to_owned)
    };
    sources["run_folder/mod.rs"].lines().filter_map(of_line).collect()
}

/// Names of run folders that folders of the system and files of users in examples have, too.
const COMMON_NAMES: [&str; 2] = ["net", "tuning.txt"];

/// Whether a line of code names a file or folder of a run folder: a file anywhere in a text, and a
/// folder, whose name may be a word, in a path.
fn has_name(line: &str, name: &str) -> bool {
    let is_alone = ["join(\"{}\")", ": &str = \"{}\";"];
    let is_alone = is_alone.iter().any(|form| line.contains(&form.replace("{}", name)));
    let is_end = |rest: &str| rest.starts_with(['/', '"']);
    let path = format!("/{name}");
    let mut starts = line.match_indices(&path).map(|(at, found)| at + found.len());
    is_alone
        || !COMMON_NAMES.contains(&name)
            && match name.contains('.') {
                true => line.contains(name),
                false => {
                    line.contains(&format!("\"{name}/")) || starts.any(|end| is_end(&line[end..]))
                }
            }
}

#[test]
fn names_in_run_folders_are_declared_once() {
    let names = declared_names();
    assert!(names.len() > 20 && names.iter().any(|name| name == "events.jsonl"), "{names:?}");
    let others = crates().into_iter().filter(|name| !["crates/model", "xtask"].contains(&&**name));
    let others: Vec<String> = others.filter(|name| name != "crates/testbed").collect();
    let of_crate = |name: &String| lines_with(name, "\"");
    // The help has paths in examples.
    let is_help = |line: &String| line.starts_with("crates/regatta/src/cli.rs: ");
    let lines = others.iter().flat_map(of_crate).filter(|line| !is_help(line));
    let lines: Vec<String> = lines.collect();
    let is_found = |line: &&String| {
        let code = line.split_once(": ").map_or("", |(_, code)| code);
        names.iter().any(|name| has_name(code, name))
            || NUMBERED_NAMES.iter().any(|name| code.contains(name))
            || code.contains("\"REGATTA_RUN_DIR\"")
    };
    let found: Vec<&String> = lines.iter().filter(is_found).collect();
    assert!(found.is_empty(), "names that model::run_folder declares:\n{found:#?}");
}

#[test]
fn names_in_run_folders_are_found_in_paths_and_formats() {
    for line in ["\"runs/result.json\"", "format!(\"{x}/log/.{run}\")", "join(\"log\")"] {
        assert!(["result.json", "log"].iter().any(|name| has_name(line, name)), "{line}");
    }
    for line in ["pluralize(2, \"log\")", "\"/logs\"", "// log/"] {
        assert!(!has_name(line, "log"), "{line}");
    }
}

#[test]
fn discover_reads_files_through_sysroot() {
    for (path, text) in sources("crates/discover") {
        if OPENERS.contains(&path.as_str()) {
            continue;
        }
        for word in ["std::fs", "File::open", "read_to_string"] {
            assert!(!text.contains(word), "{path} opens files by itself: use Sysroot");
        }
    }
}

/// Crates that do not run a shell.
const QUIET: [&str; 6] = [
    "crates/model",
    "crates/discover",
    "crates/doctor",
    "crates/place",
    "crates/launch",
    "crates/train",
];

/// Crates that print: programs, and tests in files of their own.
const PRINTING: [&str; 5] =
    ["bench", "crates/kernels/cuda", "crates/regatta", "crates/testbed", "xtask"];

#[test]
fn only_the_binary_prints() {
    let libraries = crates().into_iter().filter(|name| !PRINTING.contains(&name.as_str()));
    let libraries: Vec<String> = libraries.collect();
    let libraries: Vec<&str> = libraries.iter().map(String::as_str).collect();
    assert_no_line_with(&libraries, ["println!", "eprint", "print!", "dbg!"]);
}

/// Markup and escape sequences, in the forms in which code has them.
const DRAWN: &str =
    "<svg <html <!DOCTYPE <style <path <rect <text <title \\x1b \\u{1b} \\u{9b} \\033";

#[test]
fn only_draw_emits_markup_and_escape_sequences() {
    let others = crates().into_iter().filter(|name| !["crates/draw", "xtask"].contains(&&**name));
    let others: Vec<String> = others.collect();
    let others: Vec<&str> = others.iter().map(String::as_str).collect();
    assert_no_line_with(&others, DRAWN.split(' '));
    assert!(!lines_with("crates/draw", "\\x1b").is_empty(), "the form of escape sequences");
}

/// The files and folders of the binary that declare its command line; its commands get what was parsed.
const COMMAND_LINE: [&str; 3] = ["cli.rs", "options.rs", "args/"];

#[test]
fn only_the_command_line_of_the_binary_uses_clap() {
    for name in crates().iter().filter(|name| *name != "crates/regatta") {
        assert!(!dependencies(name).iter().any(|used| used == "clap"), "{name} uses clap");
    }
    let of_command_line = |line: &String| {
        let file = line.trim_start_matches("crates/regatta/src/");
        COMMAND_LINE.iter().any(|part| file.starts_with(part))
    };
    let mut found = lines_with("crates/regatta", "clap::");
    found.retain(|line| !of_command_line(line));
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// Crates whose modules have no cycles.
const ACYCLIC: [&str; 3] = ["crates/launch", "crates/measure", "crates/regatta"];

#[test]
fn modules_have_no_cycles() {
    for name in ACYCLIC {
        let graph = module_graph(name);
        let mut visited = BTreeSet::new();
        for module in graph.keys() {
            let mut path = Vec::new();
            let cycle = find_cycle(&graph, module, &mut path, &mut visited);
            assert!(!cycle, "{name} has a cycle of modules: {}", path.join(" -> "));
        }
    }
}

#[test]
fn cycles_of_modules_are_found() {
    let mut used = Vec::new();
    expand("{a::b, c::{self, d as e, f}, g::h};", &[], &mut used);
    let used: Vec<String> = used.iter().map(|path| path.join("::")).collect();
    assert_eq!(used, ["a::b", "c::self", "c::d", "c::f", "g::h"]);
    let edge = |from: &str, to: &str| (from.to_owned(), BTreeSet::from([to.to_owned()]));
    let graph = BTreeMap::from([edge("a", "b"), edge("b", "c"), edge("c", "b")]);
    let mut path = Vec::new();
    assert!(find_cycle(&graph, "a", &mut path, &mut BTreeSet::new()));
    assert_eq!(path, ["a", "b", "c", "b"]);
}

/// Which modules use which, by path. Uses between modules of two folders count for the folders, and
/// a folder and what is in it are one module to each other.
fn module_graph(name: &str) -> BTreeMap<String, BTreeSet<String>> {
    let modules: BTreeMap<Vec<String>, String> =
        sources(name).into_iter().map(|(file, text)| (module_of(&file), text)).collect();
    let mut graph: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (module, text) in &modules {
        for mut used in used_paths(module, text) {
            while !used.is_empty() && !modules.contains_key(&used) {
                used.pop();
            }
            let common = module.iter().zip(&used).take_while(|(a, b)| a == b).count();
            if common < module.len().min(used.len()) {
                let part = |path: &[String]| path[..=common].join("::");
                graph.entry(part(module)).or_default().insert(part(&used));
            }
        }
    }
    graph
}

/// The path of a module by its file: that of `agents/mod.rs` is `agents`, that of `lib.rs` is empty.
fn module_of(file: &str) -> Vec<String> {
    let path = file.trim_end_matches(".rs").split('/').map(str::to_owned);
    path.filter(|name| !["mod", "lib", "main"].contains(&name.as_str())).collect()
}

/// The paths below `crate` and `super` in the text of a module.
fn used_paths(module: &[String], text: &str) -> Vec<Vec<String>> {
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let code = code.collect::<Vec<_>>().join("\n");
    let mut used = Vec::new();
    for (at, root) in code.match_indices("crate::").chain(code.match_indices("super::")) {
        let before = code[..at].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || "_:".contains(c)) {
            continue;
        }
        let mut base = if root == "crate::" { &[][..] } else { parent(module) };
        let mut rest = &code[at + root.len()..];
        while let Some(next) = rest.strip_prefix("super::") {
            (base, rest) = (parent(base), next);
        }
        expand(rest, base, &mut used);
    }
    used
}

fn parent(module: &[String]) -> &[String] {
    &module[..module.len().saturating_sub(1)]
}

/// Collects the paths of a tree like `a::{b, c::d}`; returns the text after it.
fn expand<'a>(text: &'a str, prefix: &[String], used: &mut Vec<Vec<String>>) -> &'a str {
    let text = text.trim_start();
    if let Some(mut rest) = text.strip_prefix('{') {
        loop {
            rest = expand(rest, prefix, used);
            let end = rest.find([',', '}']).unwrap_or(rest.len());
            let is_last = !rest[end..].starts_with(',');
            rest = rest.get(end + 1..).unwrap_or("");
            if is_last {
                return rest;
            }
        }
    }
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    let path = [prefix, &[text[..end].to_owned()]].concat();
    match text[end..].strip_prefix("::") {
        Some(rest) => expand(rest, &path, used),
        None => {
            used.push(path);
            &text[end..]
        }
    }
}

/// Whether a cycle can be reached from a module; `path` then leads into it.
fn find_cycle(
    graph: &BTreeMap<String, BTreeSet<String>>,
    module: &str,
    path: &mut Vec<String>,
    visited: &mut BTreeSet<String>,
) -> bool {
    let is_cycle = path.iter().any(|earlier| earlier == module);
    path.push(module.to_owned());
    if is_cycle {
        return true;
    }
    if visited.insert(module.to_owned()) {
        for used in graph.get(module).into_iter().flatten() {
            if find_cycle(graph, used, path, visited) {
                return true;
            }
        }
    }
    path.pop();
    false
}

#[test]
fn no_crate_runs_a_shell() {
    let commands =
        ["sh", "bash", "/bin/sh", "/bin/bash"].map(|shell| format!("Command::new(\"{shell}\")"));
    let crates = [&QUIET[..], &["crates/regatta"]].concat();
    assert_no_line_with(&crates, commands.iter().map(String::as_str));
}

#[test]
fn architecture_page_names_every_crate() {
    let page = std::fs::read_to_string(workspace().join("docs/architecture.md")).unwrap();
    for name in crates() {
        assert!(page.contains(&format!("`{name}`")), "docs/architecture.md does not name {name}");
    }
}
