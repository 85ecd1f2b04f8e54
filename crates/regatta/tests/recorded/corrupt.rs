//! Files that no kernel writes: never a panic, and an error is one line.

use std::path::{Path, PathBuf};

use super::support::Run;
use super::{Tree, document, line, system};

/// The run ended in order. A plan must survive being written and read back.
fn ended_well(run: Run, json: bool, what: &str) {
    assert!(matches!(run.code, Some(0 | 1)), "{what}: {run:?}");
    assert!(!run.err.contains("panicked"), "{what}: {}", run.err);
    if run.code == Some(1) {
        run.sentence();
    } else if json {
        let machine = &run.plan().machines[0];
        let text = document::to_json(machine).unwrap();
        let read = document::from_json::<regatta_model::Machine>(&text);
        let read = read.unwrap_or_else(|e| panic!("{what}: the dump is refused: {e}"));
        assert_eq!(read, *machine, "{what}");
    }
}

/// A small generator, so that a failure can be repeated from its seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % limit
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

/// Every file, folder and link below a folder, as paths from it.
fn everything(base: &Path) -> Vec<PathBuf> {
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

/// The paths in groups that are equally likely to be hit: most files are those of CPUs, and the
/// files near the root matter most.
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

const NONSENSE: [&[u8]; 16] = [
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

/// Takes what is at a path away and perhaps puts nonsense in its place.
fn damage(random: &mut Random, path: &Path, aside: &Path, other: &Path) {
    let content = std::fs::read(path).unwrap_or_default();
    std::fs::rename(path, aside).unwrap();
    let noise: Vec<u8> = (0..random.below(64)).map(|_| random.below(256) as u8).collect();
    match random.below(8) {
        0 => {}
        1 => std::fs::create_dir(path).unwrap(),
        2 => std::os::unix::fs::symlink("nowhere", path).unwrap(),
        // A link to itself, and one to an unrelated place.
        3 => std::os::unix::fs::symlink(path.file_name().unwrap(), path).unwrap(),
        4 => std::os::unix::fs::symlink(other, path).unwrap(),
        5 => std::fs::write(path, content.repeat(200)).unwrap(),
        6 => std::fs::write(path, noise).unwrap(),
        _ => std::fs::write(path, random.pick(&NONSENSE)).unwrap(),
    }
}

fn restore(path: &Path, aside: &Path) {
    match std::fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => std::fs::remove_dir_all(path).unwrap(),
        Ok(_) => std::fs::remove_file(path).unwrap(),
        Err(_) => {}
    }
    std::fs::rename(aside, path).unwrap();
}

/// How often each system's tree is damaged.
const ROUNDS: u64 = 100;

/// Damages up to six places of a system's tree, again and again.
fn survive(name: &str, seed: u64) {
    let tree = Tree::of(&system(name));
    let groups = groups(everything(tree.path()));
    let aside = super::support::Folder::new();
    let words = |output: &str| format!("map --machine {} --profile {name} {output}", tree.arg());
    let unharmed = line(&words("--json")).ok();
    let mut noticed = 0;
    for round in 0..ROUNDS {
        let mut random = Random(seed * 1000 + round);
        let mut damaged: Vec<(PathBuf, PathBuf)> = Vec::new();
        for _ in 0..=random.below(6) {
            let group = random.pick(&groups);
            let path = tree.path().join(random.pick(group));
            let other = tree.path().join(random.pick(group));
            // What is above or below may be gone already.
            if std::fs::symlink_metadata(&path).is_ok() {
                let place = aside.path().join(damaged.len().to_string());
                damage(&mut random, &path, &place, &other);
                damaged.push((path, place));
            }
        }
        let json = round % 4 != 0;
        let output = if json { "--json" } else { "--why" };
        let run = line(&words(output));
        noticed += u64::from(json && run.out != unharmed);
        let what = format!("{name} seed {seed} round {round}, {damaged:?}");
        ended_well(run, json, &what);
        damaged.iter().rev().for_each(|(path, place)| restore(path, place));
    }
    assert!(noticed > ROUNDS / 4, "the damage changed only {noticed} plans");
    assert_eq!(line(&words("--json")).ok(), unharmed, "all damage was undone");
}

#[test]
fn damaged_files_of_nvidia_machines() {
    survive("polaris", 1);
}

#[test]
fn damaged_files_of_amd_machines() {
    survive("lumi-g", 2);
}

#[test]
fn damaged_files_of_intel_machines() {
    survive("aurora", 3);
}

#[test]
fn absurd_numbers_everywhere() {
    let tree = Tree::of(&system("polaris"));
    let absurd = |path: &str, text: &str| {
        let before = std::fs::read(tree.real(path));
        tree.file(path, text);
        let run = line(&format!("map --machine {} --json", tree.arg()));
        ended_well(run, true, path);
        match before {
            Ok(before) => std::fs::write(tree.real(path), before).unwrap(),
            Err(_) => tree.remove(path),
        }
    };
    let cpu = "/sys/devices/system/cpu";
    absurd(&format!("{cpu}/online"), "0-4294967295");
    absurd(&format!("{cpu}/online"), "0-8191");
    absurd(&format!("{cpu}/cpu0/topology/physical_package_id"), "-1");
    absurd(&format!("{cpu}/cpu0/topology/thread_siblings_list"), "0-63");
    absurd(&format!("{cpu}/cpu0/cache/index3/size"), "18446744073709551615K");
    let node = "/sys/devices/system/node";
    absurd(&format!("{node}/node0/meminfo"), "Node 0 MemTotal: 18446744073709551615 kB");
    absurd(&format!("{node}/node0/cpulist"), "0-63");
    absurd(&format!("{node}/node4294967295/cpulist"), "0-63");
    absurd("/proc/self/limits", "Max locked memory 99999999999999999999 1 bytes");
    absurd("/proc/self/mounts", "tmpfs /dev/shm tmpfs size=18446744073709551615k 0 0");
    absurd("/proc/self/cgroup", "::::\n0::/../../../../etc");
    absurd("/sys/kernel/mm/hugepages/hugepages-18446744073709551615kB/nr_hugepages", "1");
    absurd("/proc/driver/nvidia/gpus/ffffffff:ff:ff.7/information", "Device Minor: 99999999999");
    absurd("/proc/sys/kernel/hostname", "a\u{0}b\u{1b}[31m\nc");
}
