//! Puts a machine together from its sources, and reads one back from a file.

use std::path::Path;

use regatta_model::{DocumentError, Machine, NumaNode, document};

use crate::env::Env;
use crate::root::Root;
use crate::{cpu, gpu, hwloc, nic, os, pci, software};

/// Why a machine file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// It cannot be opened.
    #[error(
        "{path}: {source}; a machine is a file of `regatta map --dump`, hwloc 2 XML, or a folder with a recorded /sys"
    )]
    Io {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// It is none of the three kinds.
    #[error(
        "{path} is neither a file of `regatta map --dump`, nor hwloc 2 XML, nor a folder with sys/devices/system/cpu in it"
    )]
    UnknownKind {
        /// The file.
        path: String,
    },
    /// A dump that cannot be read.
    #[error("{path}: {source}")]
    Dump {
        /// The file.
        path: String,
        /// What is wrong.
        source: DocumentError,
    },
    /// An XML file that cannot be read.
    #[error("{path}: {source}")]
    Hwloc {
        /// The file.
        path: String,
        /// What is wrong.
        source: hwloc::HwlocError,
    },
}

/// Describes the machine below `root`, with the environment of the describing process.
pub fn discover(root: &Root, env: &Env) -> Machine {
    let host = os::host(root);
    let cpus = cpu::processors(root);
    let pci = pci::devices(root);
    let mut nics = nic::nics(root, &pci);
    let mut scan = gpu::gpus(root, &pci, &nics, &cpus.numa, &cpus.packages);
    if let Some(only) = only_numa(&cpus.numa) {
        scan.gpus.iter_mut().for_each(|g| g.numa = g.numa.or(Some(only)));
        nics.iter_mut().filter(|n| n.pci.is_some()).for_each(|n| n.numa = n.numa.or(Some(only)));
    }
    let mut software = software::software(root, env);
    software.nvidia_driver = scan.nvidia_driver;
    software.cuda_driver = scan.cuda_driver;
    software.amdgpu_driver = scan.amdgpu_driver;
    Machine {
        os: os::os(root, env, &host),
        source: root.describe(),
        host,
        system: None,
        cpu_model: cpus.model,
        packages: cpus.packages,
        numa: cpus.numa,
        l3: cpus.l3,
        cores: cpus.cores,
        usable: cpus.usable,
        pci,
        gpus: scan.gpus,
        gpu_links: scan.links,
        nics,
        software,
        notes: scan.notes,
    }
}

/// Where there is one memory node with cores every device is on it, also if the firmware of a
/// virtual machine does not say so.
fn only_numa(nodes: &[NumaNode]) -> Option<u32> {
    let mut with_cores = nodes.iter().filter(|n| !n.cpus.is_empty());
    let only = with_cores.next()?;
    with_cores.next().is_none().then_some(only.id)
}

/// Reads a machine from a dump, an hwloc 2 XML file, or a recorded sysfs tree.
pub fn load(path: &Path) -> Result<Machine, LoadError> {
    let shown = || path.display().to_string();
    if path.is_dir() {
        let root = Root::at(path);
        if !root.exists("/sys/devices/system/cpu") {
            return Err(LoadError::UnknownKind { path: shown() });
        }
        return Ok(discover(&root, &Env::default()));
    }
    let bytes = std::fs::read(path).map_err(|source| LoadError::Io { path: shown(), source })?;
    let text = String::from_utf8_lossy(&bytes);
    match text.trim_start().chars().next() {
        Some('{') => {
            let mut machine: Machine = document::from_json(&text)
                .map_err(|source| LoadError::Dump { path: shown(), source })?;
            // It was live where it was written; here nothing of it can be asked any more.
            if machine.is_live() {
                machine.source = format!("dump:{}", shown());
                machine.usable.gpus = None;
            }
            Ok(machine)
        }
        Some('<') => {
            let mut machine =
                hwloc::parse(&text).map_err(|source| LoadError::Hwloc { path: shown(), source })?;
            machine.source = format!("hwloc:{}", shown());
            Ok(machine)
        }
        _ => Err(LoadError::UnknownKind { path: shown() }),
    }
}
