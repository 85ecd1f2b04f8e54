//! `map --dump` and `--machine`: round trips and invalid files.

use regatta_model::document;
use regatta_testbed::assert_contains;

use super::{SYSTEMS, SysfsTree, system};
use crate::support::process::{regatta_in, run_in, wrap};
use crate::support::{TempDir, map_json, run_line};

#[test]
fn plan_survives_dump_and_load() {
    let folder = TempDir::new();
    for name in SYSTEMS {
        let file = folder.file(&format!("{name}.json"));
        assert_eq!(run_line(&format!("map --system {name} --dump {file}")).ok(), "");
        let loaded = map_json(&format!("--machine {file}"));
        let described = map_json(&format!("--system {name}"));
        assert_eq!(loaded.machines, described.machines);
        assert_eq!(loaded.placement, described.placement);
    }
    assert!(folder.names().iter().all(|n| n.ends_with(".json")), "{:?}", folder.names());
}

#[test]
fn recorded_tree_and_its_dump_give_the_same_plan() {
    let tree = SysfsTree::of(&system("lumi-g"));
    tree.cgroup_v2("/job", "1-7,9-15,17-23,25-31,49-55,57-63", "0-3");
    let folder = TempDir::new();
    let file = folder.file("node.json");
    run_line(&format!("map --machine {} --dump {file}", tree.arg())).ok();
    let loaded = map_json(&format!("--machine {file} --site lumi-g"));
    let recorded = map_json(&format!("--machine {} --site lumi-g", tree.arg()));
    assert_eq!(loaded.placement, recorded.placement);
    assert_eq!(loaded.machines, recorded.machines);
}

#[test]
fn affinity_of_the_dumping_process_is_ignored() {
    let folder = TempDir::new();
    let mut machine = system("cpu:1x1x4");
    machine.source = "live".to_owned();
    machine.usable.affinity = Some("0".parse().unwrap());
    let file = folder.write("bound.json", document::to_json(&machine).unwrap());
    let found = map_json(&format!("--machine {file}"));
    assert_eq!(found.machine().source, format!("dump:{file}"));
    assert_eq!(found.cpus(), ["0-3"]);
}

/// Writes a machine file with a system under another host name.
fn host_file(folder: &TempDir, name: &str, host: &str) -> String {
    let mut machine = system(name);
    machine.host = host.to_owned();
    folder.write(&format!("{host}.json"), document::to_json(&machine).unwrap())
}

#[test]
fn heterogeneous_nodes_have_their_own_machine_files() {
    let folder = TempDir::new();
    let big = host_file(&folder, "lumi-g", "nid000001");
    let small = host_file(&folder, "cpu:1x2x4", "nid000002");
    let hosts = folder.write("hosts", "nid000001\nnid000002\nnid000003\n");
    let found = map_json(&format!("--machine {big} --machine {small} --hostfile {hosts}"));
    let nodes: Vec<(&str, u32, usize)> =
        found.placement.nodes.iter().map(|n| (&n.host[..], n.layout, n.ranks.len())).collect();
    // The first file also describes the host without its own.
    assert_eq!(nodes, [("nid000001", 0, 8), ("nid000002", 1, 2), ("nid000003", 0, 8)]);
    assert_eq!(found.placement.nodes[2].ranks[0], 10);
    let cpus: Vec<String> =
        found.placement.layouts[1].ranks.iter().map(|r| r.cpus.to_string()).collect();
    assert_eq!(cpus, ["1-3", "5-7"], "the site reserves cores on all nodes");

    let slots = folder.write("slots", "nid000001 slots=4\nnid000002:2\n");
    let found = map_json(&format!("--machine {big} --machine {small} --hostfile {slots}"));
    let counts: Vec<usize> = found.placement.nodes.iter().map(|n| n.ranks.len()).collect();
    assert_eq!(counts, [4, 2]);
}

#[test]
fn invalid_machine_files_are_rejected() {
    let folder = TempDir::new();
    let good = run_line("map --system polaris --dump -").ok();
    let replaced = |from: &str, to: &str| good.replace(from, to).into_bytes();
    let nested = format!("{{\"format\":\"regatta-machine/1\",\"x\":{}", "[".repeat(100_000));
    let cases: [(&str, &[u8], &[&str]); 10] = [
        ("prose.txt", b"hello\n", &["is neither a file of `regatta map --dump`, nor"]),
        ("nothing", b"", &["is neither"]),
        ("bytes", &[0xff, 0xfe, 0, 1], &["is neither"]),
        ("cut.json", &good.as_bytes()[..good.len() / 2], &["EOF", "line ", "regatta map --dump"]),
        ("newer.json", &replaced("machine/1", "machine/99"), &["machine/99", "machine/1"]),
        ("other.json", br#"{"format":"regatta-placement/1"}"#, &["regatta-placement/1"]),
        ("plain.json", br#"{"host":"a"}"#, &["format"]),
        (
            "twice.json",
            &replaced("\"cpus\": \"1,33\"", "\"cpus\": \"0,33\""),
            &["inconsistent machine file: CPU 0 belongs to two cores"],
        ),
        ("shape.json", &replaced("\"gpus\": [", "\"gpus\": {\"a\": ["), &["line "]),
        ("deep.json", nested.as_bytes(), &["line 1"]),
    ];
    for (name, content, parts) in cases {
        let path = folder.write(name, content);
        let error = run_line(&format!("map --machine {path}")).error_line();
        assert!(error.contains(name), "the file is named: {error:.300}");
        assert!(parts.iter().all(|part| error.contains(part)), "{name}: {parts:?} {error:.300}");
    }
    let missing = run_line(&format!("map --machine {}", folder.file("missing.json"))).error_line();
    assert_eq!(missing.matches("No such file").count(), 1, "{missing}");
}

#[test]
fn failed_dump_leaves_no_files() {
    let folder = TempDir::new();
    let dump = |path: &str| run_in(&folder, &format!("map --system polaris --dump {path}"));
    // Through a link, so that a bug replaces the link and not the device.
    let full = folder.file("full");
    std::os::unix::fs::symlink("/dev/full", &full).unwrap();
    dump(&full).assert_error("full: No space left on device");
    dump("no/such/folder.json").assert_error("folder.json: No such file or directory");
    dump(&folder.path().display().to_string()).assert_error("Is a directory");
    assert_eq!(folder.names(), ["full"]);
    assert_eq!(std::fs::read_link(&full).unwrap().to_string_lossy(), "/dev/full");
}

#[test]
fn dump_is_written_atomically() {
    let folder = TempDir::new();
    folder.write("node.json", "old");
    // Killed while writing, by a file size limit.
    let dump = regatta_in(&folder, "map --system polaris --dump node.json");
    let limited = wrap(&dump, "sh", &["-c", "ulimit -f 1; exec \"$@\"", "sh"]).status().unwrap();
    assert!(!limited.success());
    assert_eq!(folder.read("node.json"), "old");
    for name in folder.names().iter().filter(|n| n.ends_with(".part")) {
        std::fs::remove_file(folder.join(name)).unwrap();
    }
    // A link stays a link.
    std::os::unix::fs::symlink("node.json", folder.join("latest.json")).unwrap();
    run_in(&folder, "map --system polaris --dump latest.json").ok();
    assert!(folder.join("latest.json").is_symlink());
    assert_contains(folder.read("node.json"), "regatta-machine/1");
    assert_eq!(folder.names(), ["latest.json", "node.json"]);
}

#[test]
fn svg_is_written_atomically() {
    let folder = TempDir::new();
    run_in(&folder, "map --system lumi-g --svg node.svg").ok();
    let text = folder.read("node.svg");
    roxmltree::Document::parse(&text).unwrap();
    assert_eq!(run_line("map --system lumi-g --svg -").ok(), text);
    assert_eq!(folder.names(), ["node.svg"]);
}
