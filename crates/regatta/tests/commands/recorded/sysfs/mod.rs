//! Writes the sysfs and procfs files of a machine.

mod cpu;
mod gpu;
mod net;
mod pci;
mod procfs;

use std::path::{Path, PathBuf};

use regatta_model::{CpuSet, Machine};

use crate::support::TempDir;

/// Kernel driver of Intel GPUs.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub enum IntelDriver {
    #[default]
    I915,
    Xe,
}

/// Differences between a recorded machine and its description.
#[derive(Debug, Clone, Default)]
pub struct SysfsOptions {
    /// CPUs that are offline.
    pub offline: CpuSet,
    /// Firmware that reports no NUMA node for PCI devices, as in a virtual machine.
    pub no_pci_numa: bool,
    /// GH200: seven more NUMA nodes per GPU, empty and reserved for MIG instances.
    pub empty_mig_nodes: bool,
    pub intel: IntelDriver,
}

/// A recorded machine, removed on drop.
pub struct SysfsTree {
    folder: TempDir,
}

impl SysfsTree {
    /// The machine exactly as described.
    pub fn of(machine: &Machine) -> SysfsTree {
        SysfsTree::with_options(machine, &SysfsOptions::default())
    }

    pub fn with_options(machine: &Machine, options: &SysfsOptions) -> SysfsTree {
        let tree = SysfsTree { folder: TempDir::new() };
        let online = machine.usable.online.difference(&options.offline);
        let cpus = cpu::OnlineCpus { machine, online: &online };
        cpus.write(&tree);
        cpu::nodes(&tree, &cpus, options);
        let pci = pci::PciTree::new(machine, options);
        pci.write(&tree, &cpus);
        gpu::write(&tree, machine, &pci, options);
        net::write(&tree, machine, &pci);
        procfs::write(&tree, machine, &online);
        tree
    }

    /// A machine without any files.
    pub fn empty() -> SysfsTree {
        SysfsTree { folder: TempDir::new() }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Path of the tree, as an argument.
    pub fn arg(&self) -> String {
        self.path().display().to_string()
    }

    /// Host path of a path on the machine.
    pub fn real(&self, path: &str) -> PathBuf {
        self.path().join(path.trim_start_matches('/'))
    }

    /// Writes a file with a trailing newline, like the kernel.
    pub fn file(&self, path: &str, text: impl std::fmt::Display) {
        let path = self.real(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, format!("{text}\n")).unwrap();
    }

    pub fn folder(&self, path: &str) {
        std::fs::create_dir_all(self.real(path)).unwrap();
    }

    /// Creates a relative symbolic link, like sysfs.
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

    /// Puts the recorded process into a version 1 cgroup with a restricted cpuset, like Slurm.
    pub fn cgroup_v1(&self, cgroup: &str, cpus: &str, mems: &str) {
        let others = "4:cpu,cpuacct:/\n1:name=systemd:/system.slice\n0::/system.slice";
        let cgroups = format!("12:memory:{cgroup}\n11:cpuset:{cgroup}\n{others}");
        self.file("/proc/self/cgroup", cgroups);
        for (name, ids) in [("cpus", cpus), ("mems", mems)] {
            let folder = format!("/sys/fs/cgroup/cpuset{cgroup}");
            self.file(&format!("{folder}/cpuset.{name}"), ids);
            self.file(&format!("{folder}/cpuset.effective_{name}"), ids);
        }
    }

    /// Puts the recorded process into a version 2 cgroup; `cpuset.cpus` is empty if inherited.
    pub fn cgroup_v2(&self, cgroup: &str, cpus: &str, mems: &str) {
        self.file("/proc/self/cgroup", format!("0::{cgroup}"));
        self.file("/sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids");
        let folder = format!("/sys/fs/cgroup{}", cgroup.trim_end_matches('/'));
        for (name, ids) in [("cpus", cpus), ("mems", mems)] {
            self.file(&format!("{folder}/cpuset.{name}"), "");
            self.file(&format!("{folder}/cpuset.{name}.effective"), ids);
        }
    }
}

/// The relative path between two absolute ones.
fn relative(from: &str, to: &str) -> String {
    let [from, to] = [from, to].map(|path| path.trim_matches('/').split('/').collect::<Vec<_>>());
    let shared = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
    let up = "../".repeat(from.len() - 1 - shared);
    format!("{up}{}", to[shared..].join("/"))
}

#[test]
fn links_are_relative() {
    let device = "/sys/devices/pci0000:c0/0000:c1:00.0";
    let link = relative("/sys/bus/pci/devices/0000:c1:00.0", device);
    assert_eq!(link, "../../../devices/pci0000:c0/0000:c1:00.0");
}
