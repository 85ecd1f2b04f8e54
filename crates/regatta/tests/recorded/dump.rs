//! `map --dump` and `--machine`: round trips and invalid files.

use std::process::Command;

use regatta_model::document;

use super::support::{MapOutput, TempDir, clean_env, map_json, regatta, run_line};
use super::{SYSTEMS, SysfsTree, system};

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
    let loaded = map_json(&format!("--machine {file} --profile lumi-g"));
    let recorded = map_json(&format!("--machine {} --profile lumi-g", tree.arg()));
    assert_eq!(loaded.placement, recorded.placement);
    assert_eq!(loaded.machines, recorded.machines);
}

#[test]
fn affinity_of_the_dumping_process_is_ignored() {
    let folder = TempDir::new();
    let mut machine = system("cpu:1x1x4");
    machine.source = "live".to_owned();
    machine.usable.affinity = Some("0".parse().unwrap());
    let file = folder.write("bound.json", &document::to_json(&machine).unwrap());
    let found = map_json(&format!("--machine {file}"));
    assert_eq!(found.machine().source, format!("dump:{file}"));
    assert_eq!(found.cpus(), ["0-3"]);
}

/// Writes a machine file with a system under another host name.
fn host_file(folder: &TempDir, name: &str, host: &str) -> String {
    let mut machine = system(name);
    machine.host = host.to_owned();
    folder.write(&format!("{host}.json"), &document::to_json(&machine).unwrap())
}

#[test]
fn heterogeneous_nodes_have_their_own_machine_files() {
    let folder = TempDir::new();
    let big = host_file(&folder, "lumi-g", "nid000001");
    let small = host_file(&folder, "cpu:1x2x4", "nid000002");
    let hosts = folder.write("hosts", "nid000001\nnid000002\nnid000003\n");
    let found: MapOutput =
        map_json(&format!("--machine {big} --machine {small} --hostfile {hosts}"));
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
    let refused = |name: &str, text: &str| {
        let path = folder.write(name, text);
        let error = run_line(&format!("map --machine {path}")).error_line();
        assert!(error.contains(name), "the file is named: {error}");
        error
    };
    let words = refused("prose.txt", "hello\n");
    assert!(words.contains("is neither a file of `regatta map --dump`, nor"), "{words}");
    assert!(refused("nothing", "").contains("is neither"));
    let cut = refused("cut.json", &good[..good.len() / 2]);
    assert!(cut.contains("not a machine file: EOF") && cut.contains("line "), "{cut}");
    let newer = refused("newer.json", &good.replace("regatta-machine/1", "regatta-machine/99"));
    assert!(newer.contains("regatta-machine/99") && newer.contains("regatta-machine/1"), "{newer}");
    let other = refused("other.json", r#"{"format":"regatta-placement/1"}"#);
    assert!(other.contains("regatta-placement/1"), "{other}");
    let plain = refused("plain.json", r#"{"host":"a"}"#);
    assert!(plain.contains("format"), "{plain}");
    let twice = refused("twice.json", &good.replace("\"cpus\": \"1,33\"", "\"cpus\": \"0,33\""));
    assert!(twice.contains("inconsistent machine file: CPU 0 belongs to two cores"), "{twice}");
    let shape = refused("shape.json", &good.replace("\"gpus\": [", "\"gpus\": {\"a\": ["));
    assert!(shape.contains("line "), "{shape}");
    let nested = format!("{{\"format\":\"regatta-machine/1\",\"x\":{}", "[".repeat(100_000));
    let deep = refused("deep.json", &nested);
    assert!(deep.contains("line 1"), "{deep:.300}");

    let missing = run_line(&format!("map --machine {}", folder.file("missing.json"))).error_line();
    assert_eq!(missing.matches("No such file").count(), 1, "{missing}");
    std::fs::write(folder.path().join("bytes"), [0xff, 0xfe, 0, 1]).unwrap();
    let bytes = run_line(&format!("map --machine {}", folder.file("bytes"))).error_line();
    assert!(bytes.contains("is neither"), "{bytes}");
}

#[test]
fn failed_dump_leaves_no_files() {
    let folder = TempDir::new();
    let dump = |path: &str| regatta(&["map", "--system", "polaris", "--dump", path]).error_line();
    // Through a link, so that a bug replaces the link and not the device.
    let full = folder.file("full");
    std::os::unix::fs::symlink("/dev/full", &full).unwrap();
    let error = dump(&full);
    assert!(error.contains("full: No space left on device"), "{error}");
    let missing = folder.file("no/such/folder.json");
    let error = dump(&missing);
    assert!(error.contains("folder.json: No such file or directory"), "{error}");
    let error = dump(&folder.path().display().to_string());
    assert!(error.contains("Is a directory"), "{error}");
    assert_eq!(folder.names(), ["full"]);
    assert_eq!(std::fs::read_link(&full).unwrap().to_string_lossy(), "/dev/full");
}

#[test]
fn dump_is_written_atomically() {
    let folder = TempDir::new();
    let file = folder.write("node.json", "old");
    // Killed while writing, by a file size limit.
    let killed = clean_env(&mut Command::new("sh"))
        .args(["-c", "ulimit -f 1; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_regatta")])
        .args(["map", "--system", "polaris", "--dump", &file])
        .status()
        .unwrap();
    assert!(!killed.success());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "old");
    for name in folder.names().iter().filter(|n| n.ends_with(".part")) {
        std::fs::remove_file(folder.path().join(name)).unwrap();
    }
    // A link stays a link.
    let link = folder.file("latest.json");
    std::os::unix::fs::symlink("node.json", &link).unwrap();
    regatta(&["map", "--system", "polaris", "--dump", &link]).ok();
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    assert!(std::fs::read_to_string(&file).unwrap().contains("regatta-machine/1"));
    assert_eq!(folder.names(), ["latest.json", "node.json"]);
}

#[test]
fn svg_is_written_atomically() {
    let folder = TempDir::new();
    let file = folder.file("node.svg");
    run_line(&format!("map --system lumi-g --svg {file}")).ok();
    let text = std::fs::read_to_string(&file).unwrap();
    roxmltree::Document::parse(&text).unwrap();
    assert_eq!(run_line("map --system lumi-g --svg -").ok(), text);
    assert_eq!(folder.names(), ["node.svg"]);
}
