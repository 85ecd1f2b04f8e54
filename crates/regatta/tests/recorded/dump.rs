//! Writing a machine to a file and reading it back.

use std::process::Command;

use regatta_model::document;

use super::support::{Folder, Plan, clean, line, plan, regatta};
use super::{SYSTEMS, Tree, system};

#[test]
fn a_plan_survives_dump_and_load() {
    let folder = Folder::new();
    for name in SYSTEMS {
        let file = folder.file(&format!("{name}.json"));
        assert_eq!(line(&format!("map --system {name} --dump {file}")).ok(), "");
        let loaded = plan(&format!("--machine {file}"));
        let described = plan(&format!("--system {name}"));
        assert_eq!(loaded.machines, described.machines);
        assert_eq!(loaded.placement, described.placement);
    }
    assert!(folder.names().iter().all(|n| n.ends_with(".json")), "{:?}", folder.names());
}

#[test]
fn a_recorded_tree_and_its_dump_give_the_same_plan() {
    let tree = Tree::of(&system("lumi-g"));
    tree.cgroup_v2("/job", "1-7,9-15,17-23,25-31,49-55,57-63", "0-3");
    let folder = Folder::new();
    let file = folder.file("node.json");
    line(&format!("map --machine {} --dump {file}", tree.arg())).ok();
    let loaded = plan(&format!("--machine {file} --profile lumi-g"));
    let recorded = plan(&format!("--machine {} --profile lumi-g", tree.arg()));
    assert_eq!(loaded.placement, recorded.placement);
    assert_eq!(loaded.machines, recorded.machines);
}

#[test]
fn a_dump_is_not_bound_as_its_writer_was() {
    let folder = Folder::new();
    let mut machine = system("cpu:1x1x4");
    machine.source = "live".to_owned();
    machine.usable.affinity = Some("0".parse().unwrap());
    let file = folder.write("bound.json", &document::to_json(&machine).unwrap());
    let found = plan(&format!("--machine {file}"));
    assert_eq!(found.machine().source, format!("dump:{file}"));
    assert_eq!(found.cpus(), ["0-3"]);
}

/// A system under the name of a host, as a file.
fn host_file(folder: &Folder, name: &str, host: &str) -> String {
    let mut machine = system(name);
    machine.host = host.to_owned();
    folder.write(&format!("{host}.json"), &document::to_json(&machine).unwrap())
}

#[test]
fn nodes_that_differ_have_their_own_files() {
    let folder = Folder::new();
    let big = host_file(&folder, "lumi-g", "nid000001");
    let small = host_file(&folder, "cpu:1x2x4", "nid000002");
    let hosts = folder.write("hosts", "nid000001\nnid000002\nnid000003\n");
    let found: Plan = plan(&format!("--machine {big} --machine {small} --hostfile {hosts}"));
    let nodes: Vec<(&str, u32, usize)> =
        found.placement.nodes.iter().map(|n| (&n.host[..], n.layout, n.ranks.len())).collect();
    // The first file also stands for the host that none describes.
    assert_eq!(nodes, [("nid000001", 0, 8), ("nid000002", 1, 2), ("nid000003", 0, 8)]);
    assert_eq!(found.placement.nodes[2].ranks[0], 10);
    let cpus: Vec<String> =
        found.placement.layouts[1].ranks.iter().map(|r| r.cpus.to_string()).collect();
    assert_eq!(cpus, ["1-3", "5-7"], "the site's reservation counts for all nodes");

    let slots = folder.write("slots", "nid000001 slots=4\nnid000002:2\n");
    let found = plan(&format!("--machine {big} --machine {small} --hostfile {slots}"));
    let counts: Vec<usize> = found.placement.nodes.iter().map(|n| n.ranks.len()).collect();
    assert_eq!(counts, [4, 2]);
}

#[test]
fn files_that_are_no_machine_are_refused_in_words() {
    let folder = Folder::new();
    let good = line("map --system polaris --dump -").ok();
    let refused = |name: &str, text: &str| {
        let path = folder.write(name, text);
        let sentence = line(&format!("map --machine {path}")).sentence();
        assert!(sentence.contains(name), "the file is named: {sentence}");
        sentence
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
    assert!(twice.contains("contradicts itself: CPU 0 is in two cores"), "{twice}");
    let shape = refused("shape.json", &good.replace("\"gpus\": [", "\"gpus\": {\"a\": ["));
    assert!(shape.contains("line "), "{shape}");
    let nested = format!("{{\"format\":\"regatta-machine/1\",\"x\":{}", "[".repeat(100_000));
    let deep = refused("deep.json", &nested);
    assert!(deep.contains("line 1"), "{deep:.300}");

    let missing = line(&format!("map --machine {}", folder.file("missing.json"))).sentence();
    assert_eq!(missing.matches("No such file").count(), 1, "{missing}");
    std::fs::write(folder.path().join("bytes"), [0xff, 0xfe, 0, 1]).unwrap();
    let bytes = line(&format!("map --machine {}", folder.file("bytes"))).sentence();
    assert!(bytes.contains("is neither"), "{bytes}");
}

#[test]
fn a_dump_that_cannot_be_written_leaves_nothing_behind() {
    let folder = Folder::new();
    let dump = |path: &str| regatta(&["map", "--system", "polaris", "--dump", path]).sentence();
    // Through a link: should it ever be replaced, then not the device.
    let full = folder.file("full");
    std::os::unix::fs::symlink("/dev/full", &full).unwrap();
    let sentence = dump(&full);
    assert!(sentence.contains("full: No space left on device"), "{sentence}");
    let missing = folder.file("no/such/folder.json");
    let sentence = dump(&missing);
    assert!(sentence.contains("folder.json: No such file or directory"), "{sentence}");
    let sentence = dump(&folder.path().display().to_string());
    assert!(sentence.contains("Is a directory"), "{sentence}");
    assert_eq!(folder.names(), ["full"]);
    assert_eq!(std::fs::read_link(&full).unwrap().to_string_lossy(), "/dev/full");
}

#[test]
fn an_older_dump_stays_whole_or_is_replaced_whole() {
    let folder = Folder::new();
    let file = folder.write("node.json", "old");
    // Killed in the middle of writing, by a limit on the size of files.
    let killed = clean(&mut Command::new("sh"))
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
fn drawings_are_written_whole_too() {
    let folder = Folder::new();
    let file = folder.file("node.svg");
    line(&format!("map --system lumi-g --svg {file}")).ok();
    let text = std::fs::read_to_string(&file).unwrap();
    roxmltree::Document::parse(&text).unwrap();
    assert_eq!(line("map --system lumi-g --svg -").ok(), text);
    assert_eq!(folder.names(), ["node.svg"]);
}
