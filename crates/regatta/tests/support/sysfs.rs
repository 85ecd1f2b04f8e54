//! Writes the files that the Linux kernel and its drivers would show on a machine.

mod cpu;
mod gpu;
mod net;
mod pci;
mod process;

use std::path::{Path, PathBuf};

use regatta_model::{CpuSet, Machine};

use super::Folder;

/// Which driver serves Intel's GPUs.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub enum IntelDriver {
    #[default]
    I915,
    Xe,
}

/// In what a recorded machine differs from its description.
#[derive(Debug, Clone, Default)]
pub struct Shape {
    /// CPUs that are switched off.
    pub offline: CpuSet,
    /// Firmware that names no memory node for any PCI device, as in a virtual machine.
    pub no_pci_numa: bool,
    /// GH200: besides its memory node, each GPU has seven empty ones, kept for MIG instances.
    pub empty_mig_nodes: bool,
    /// Which driver serves Intel's GPUs.
    pub intel: IntelDriver,
}

/// A recorded machine, removed when it goes out of scope.
pub struct Tree {
    folder: Folder,
}

impl Tree {
    /// The machine as described.
    pub fn of(machine: &Machine) -> Tree {
        Tree::shaped(machine, &Shape::default())
    }

    pub fn shaped(machine: &Machine, shape: &Shape) -> Tree {
        let tree = Tree { folder: Folder::new() };
        let online = machine.usable.online.difference(&shape.offline);
        let cpus = cpu::Online { machine, online: &online };
        cpus.write(&tree);
        cpu::nodes(&tree, &cpus, shape);
        let board = pci::Board::of(machine, shape);
        board.write(&tree, &cpus);
        gpu::write(&tree, machine, &board, shape);
        net::write(&tree, machine, &board);
        process::write(&tree, machine, &online);
        tree
    }

    /// A machine of which nothing is known.
    pub fn empty() -> Tree {
        Tree { folder: Folder::new() }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The tree as an argument.
    pub fn arg(&self) -> String {
        self.path().display().to_string()
    }

    /// The real path of a path of the machine.
    pub fn real(&self, path: &str) -> PathBuf {
        self.path().join(path.trim_start_matches('/'))
    }

    /// Writes a file as the kernel does, with a line end.
    pub fn file(&self, path: &str, text: impl std::fmt::Display) {
        let path = self.real(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, format!("{text}\n")).unwrap();
    }

    pub fn folder(&self, path: &str) {
        std::fs::create_dir_all(self.real(path)).unwrap();
    }

    /// Links one path of the machine to another, relatively, as sysfs does.
    pub fn link(&self, path: &str, to: &str) {
        let real = self.real(path);
        std::fs::create_dir_all(real.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(relative(path, to), real).unwrap();
    }

    pub fn remove(&self, path: &str) {
        let path = self.real(path);
        if path.is_dir() {
            std::fs::remove_dir_all(path).unwrap();
        } else {
            std::fs::remove_file(path).unwrap();
        }
    }

    /// Puts the describing process into a cgroup of version 1, of which Slurm restricted the cpuset.
    pub fn cgroup_v1(&self, place: &str, cpus: &str, mems: &str) {
        self.file(
            "/proc/self/cgroup",
            format!(
                "12:memory:{place}\n11:cpuset:{place}\n4:cpu,cpuacct:/\n1:name=systemd:/system.slice\n0::/system.slice"
            ),
        );
        let folder = format!("/sys/fs/cgroup/cpuset{place}");
        self.file(&format!("{folder}/cpuset.cpus"), cpus);
        self.file(&format!("{folder}/cpuset.effective_cpus"), cpus);
        self.file(&format!("{folder}/cpuset.mems"), mems);
        self.file(&format!("{folder}/cpuset.effective_mems"), mems);
    }

    /// Puts it into a cgroup of version 2, where `cpuset.cpus` is empty in groups that only inherit.
    pub fn cgroup_v2(&self, place: &str, cpus: &str, mems: &str) {
        self.file("/proc/self/cgroup", format!("0::{place}"));
        self.file("/sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids");
        let folder = format!("/sys/fs/cgroup{}", place.trim_end_matches('/'));
        self.file(&format!("{folder}/cpuset.cpus"), "");
        self.file(&format!("{folder}/cpuset.cpus.effective"), cpus);
        self.file(&format!("{folder}/cpuset.mems"), "");
        self.file(&format!("{folder}/cpuset.mems.effective"), mems);
    }
}

/// `../` as often as needed, then the way down.
fn relative(from: &str, to: &str) -> String {
    let parts =
        |path: &str| path.trim_matches('/').split('/').map(str::to_owned).collect::<Vec<String>>();
    let (from, to) = (parts(from), parts(to));
    let shared = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
    let up = "../".repeat(from.len() - 1 - shared);
    format!("{up}{}", to[shared..].join("/"))
}

#[test]
fn links_are_relative_as_in_sysfs() {
    assert_eq!(
        relative("/sys/bus/pci/devices/0000:c1:00.0", "/sys/devices/pci0000:c0/0000:c1:00.0"),
        "../../../devices/pci0000:c0/0000:c1:00.0"
    );
}
