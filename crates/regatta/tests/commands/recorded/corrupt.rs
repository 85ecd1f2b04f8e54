//! Corrupt sysfs files: no panic, and errors are one line.

use std::path::{Path, PathBuf};

use regatta_testbed::Random;

use super::{SysfsTree, document, run_line, system};
use crate::support::{CommandOutput, MapOutput, TempDir};

/// Asserts a plan or a one-line error. A plan must survive a round trip.
fn assert_no_panic(run: CommandOutput, json: bool, what: &str) {
    assert!(matches!(run.code, Some(0 | 1)), "{what}: {run:?}");
    assert!(!run.err.contains("panicked"), "{what}: {}", run.err);
    if run.code == Some(1) {
        run.error_line();
    } else if json {
        let machine = &run.json::<MapOutput>().machines[0];
        let text = document::to_json(machine).unwrap();
        let read = document::from_json::<regatta_model::Machine>(&text);
        let read = read.unwrap_or_else(|e| panic!("{what}: the dump is rejected: {e}"));
        assert_eq!(read, *machine, "{what}");
    }
}

/// All files, folders and links below a folder, as relative paths.
fn all_paths(base: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![base.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
            }
            found.push(entry.path().strip_prefix(base).unwrap().to_owned());
        }
    }
    found.sort();
    found
}

/// Groups of paths that are hit with equal probability: most files belong to CPUs, but those near
/// the root matter most.
fn groups(paths: Vec<PathBuf>) -> Vec<Vec<PathBuf>> {
    let beginnings =
        ["sys/devices/system/cpu/", "sys/devices/pci", "sys/devices/virtual", "sys/", "proc", ""];
    let mut groups: Vec<Vec<PathBuf>> = vec![Vec::new(); beginnings.len() + 1];
    for path in paths {
        if path.components().count() <= 5 {
            groups[beginnings.len()].push(path.clone());
        }
        let text = path.display().to_string();
        let group = beginnings.iter().position(|b| text.starts_with(b)).unwrap();
        groups[group].push(path);
    }
    groups.retain(|g| !g.is_empty());
    groups
}

const INVALID: [&[u8]; 16] = [
    b"",
    b"\n\n\n",
    b"-1\n",
    b"0\n",
    b"1\n",
    b"4294967295\n",
    b"4294967296\n",
    b"18446744073709551615\n",
    b"99999999999999999999999999\n",
    b"0-8191\n",
    b"0-99999999999\n",
    b"65535\n",
    b"3-1,,7-\n",
    b"0x\n",
    b"\xff\xfe\x00\x80nonsense\xc3\x28\n",
    b"simd_count 18446744073709551615\nlocation_id 18446744073709551615\ndomain 18446744073709551615\nnode_to 18446744073709551615\ntype 11\n",
];

/// Moves a file away and perhaps replaces it by invalid content.
fn corrupt(random: &mut Random, path: &Path, backup: &Path, other: &Path) {
    let content = std::fs::read(path).unwrap_or_default();
    std::fs::rename(path, backup).unwrap();
    let noise: Vec<u8> = (0..random.below(64)).map(|_| random.below(256) as u8).collect();
    match random.below(8) {
        0 => {}
        1 => std::fs::create_dir(path).unwrap(),
        2 => std::os::unix::fs::symlink("nowhere", path).unwrap(),
        // A link to itself, and one to an unrelated file.
        3 => std::os::unix::fs::symlink(path.file_name().unwrap(), path).unwrap(),
        4 => std::os::unix::fs::symlink(other, path).unwrap(),
        5 => std::fs::write(path, content.repeat(200)).unwrap(),
        6 => std::fs::write(path, noise).unwrap(),
        _ => std::fs::write(path, random.pick(&INVALID)).unwrap(),
    }
}

fn restore(path: &Path, backup: &Path) {
    match std::fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => std::fs::remove_dir_all(path).unwrap(),
        Ok(_) => std::fs::remove_file(path).unwrap(),
        Err(_) => {}
    }
    std::fs::rename(backup, path).unwrap();
}

/// Rounds per system.
const ROUNDS: u64 = 100;

/// Corrupts up to six files of a system's tree per round.
fn fuzz_tree(name: &str, seed: u64) {
    let tree = SysfsTree::of(&system(name));
    let groups = groups(all_paths(tree.path()));
    let backups = TempDir::new();
    let words = |output: &str| format!("map --machine {} --site {name} {output}", tree.arg());
    let intact = run_line(&words("--json")).ok();
    let mut noticed = 0;
    for round in 0..ROUNDS {
        let mut random = Random::new(seed * 1000 + round);
        let mut corrupted: Vec<(PathBuf, PathBuf)> = Vec::new();
        for _ in 0..=random.below(6) {
            let group = random.pick(&groups);
            let path = tree.path().join(random.pick(&group));
            let other = tree.path().join(random.pick(&group));
            // A parent may already be gone.
            if std::fs::symlink_metadata(&path).is_ok() {
                let backup = backups.path().join(corrupted.len().to_string());
                corrupt(&mut random, &path, &backup, &other);
                corrupted.push((path, backup));
            }
        }
        let json = round % 4 != 0;
        let output = if json { "--json" } else { "--why" };
        let run = run_line(&words(output));
        noticed += u64::from(json && run.out != intact);
        let what = format!("{name} seed {seed} round {round}, {corrupted:?}");
        assert_no_panic(run, json, &what);
        corrupted.iter().rev().for_each(|(path, backup)| restore(path, backup));
    }
    assert!(noticed > ROUNDS / 4, "the corruption changed only {noticed} plans");
    assert_eq!(run_line(&words("--json")).ok(), intact, "all files were restored");
}

#[test]
fn corrupt_files_of_nvidia_machines_never_panic() {
    fuzz_tree("polaris", 1);
}

#[test]
fn corrupt_files_of_amd_machines_never_panic() {
    fuzz_tree("lumi-g", 2);
}

#[test]
fn corrupt_files_of_intel_machines_never_panic() {
    fuzz_tree("aurora", 3);
}

#[test]
fn out_of_range_values_never_panic() {
    let tree = SysfsTree::of(&system("polaris"));
    let check = |path: &str, text: &str| {
        let before = std::fs::read(tree.real(path));
        tree.file(path, text);
        let run = run_line(&format!("map --machine {} --json", tree.arg()));
        assert_no_panic(run, true, path);
        match before {
            Ok(before) => std::fs::write(tree.real(path), before).unwrap(),
            Err(_) => tree.remove(path),
        }
    };
    let cpu = "/sys/devices/system/cpu";
    check(&format!("{cpu}/online"), "0-4294967295");
    check(&format!("{cpu}/online"), "0-8191");
    check(&format!("{cpu}/cpu0/topology/physical_package_id"), "-1");
    check(&format!("{cpu}/cpu0/topology/thread_siblings_list"), "0-63");
    check(&format!("{cpu}/cpu0/cache/index3/size"), "18446744073709551615K");
    let node = "/sys/devices/system/node";
    check(&format!("{node}/node0/meminfo"), "Node 0 MemTotal: 18446744073709551615 kB");
    check(&format!("{node}/node0/cpulist"), "0-63");
    check(&format!("{node}/node4294967295/cpulist"), "0-63");
    check("/proc/self/limits", "Max locked memory 99999999999999999999 1 bytes");
    check("/proc/self/mounts", "tmpfs /dev/shm tmpfs size=18446744073709551615k 0 0");
    check("/proc/self/cgroup", "::::\n0::/../../../../etc");
    check("/sys/kernel/mm/hugepages/hugepages-18446744073709551615kB/nr_hugepages", "1");
    check("/proc/driver/nvidia/gpus/ffffffff:ff:ff.7/information", "Device Minor: 99999999999");
    check("/proc/sys/kernel/hostname", "a\u{0}b\u{1b}[31m\nc");
}
