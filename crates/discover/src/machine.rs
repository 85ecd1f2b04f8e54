//! Assembles a machine from its sources, and loads one from a file.

use std::path::Path;

use regatta_model::{DocumentError, Machine, NumaNode, Software, document};

use crate::env::Env;
use crate::sysroot::Sysroot;
use crate::{cpu, gpu, hwloc, nic, os, pci, software};

/// Why a machine file cannot be loaded.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum MachineFileError {
    /// I/O error.
    #[error(
        "{path}: {source}; expected a file of `regatta map --dump`, hwloc XML, or a directory with a recorded /sys"
    )]
    Io { path: String, source: std::io::Error },
    /// Unknown format.
    #[error(
        "{path} is neither a file of `regatta map --dump`, nor hwloc XML, nor a directory that contains sys/devices/system/cpu"
    )]
    UnknownFormat { path: String },
    /// Invalid dump.
    #[error("{path}: {source}")]
    Dump { path: String, source: DocumentError },
    /// Invalid hwloc XML.
    #[error("{path}: {source}")]
    Hwloc { path: String, source: hwloc::HwlocError },
}

/// Discovers the machine below `root`, with the environment of the discovering process.
pub fn discover(root: &Sysroot, env: &Env) -> Machine {
    let host = os::hostname(root);
    let cpus = cpu::topology(root);
    let pci = pci::scan(root);
    let mut nics = nic::scan(root, &pci);
    let mut scan = gpu::scan(root, &pci, &nics, &cpus.numa, &cpus.packages);
    if let Some(only) = only_numa(&cpus.numa) {
        scan.gpus.iter_mut().for_each(|g| g.numa = g.numa.or(Some(only)));
        nics.iter_mut().filter(|n| n.pci.is_some()).for_each(|n| n.numa = n.numa.or(Some(only)));
    }
    Machine {
        os: os::scan(root, env, &host),
        source: root.describe(),
        host,
        pci,
        gpus: scan.gpus,
        gpu_links: scan.links,
        nics,
        software: Software {
            nvidia_driver: scan.nvidia_driver,
            cuda_driver: scan.cuda_driver,
            amdgpu_driver: scan.amdgpu_driver,
            ..software::scan(root, env)
        },
        notes: scan.notes,
        ..cpus
    }
}

/// The only NUMA node with cores, if there is one. All devices are local to it, even if the
/// firmware of a virtual machine does not report that.
fn only_numa(nodes: &[NumaNode]) -> Option<u32> {
    let mut with_cores = nodes.iter().filter(|n| !n.cpus.is_empty());
    let only = with_cores.next()?;
    with_cores.next().is_none().then_some(only.id)
}

/// The name of a file without extension, for a machine whose file has no host name.
fn file_stem(path: &Path) -> String {
    path.file_stem().map_or_else(|| "node".to_owned(), |stem| stem.to_string_lossy().into_owned())
}

/// Loads a machine from a dump, an hwloc XML file, or a recorded sysfs tree.
pub fn load(path: &Path) -> Result<Machine, MachineFileError> {
    let shown = || path.display().to_string();
    if path.is_dir() {
        let root = Sysroot::at(path);
        if !root.exists("/sys/devices/system/cpu") {
            return Err(MachineFileError::UnknownFormat { path: shown() });
        }
        return Ok(discover(&root, &Env::default()));
    }
    let bytes =
        std::fs::read(path).map_err(|source| MachineFileError::Io { path: shown(), source })?;
    let text = String::from_utf8_lossy(&bytes);
    match text.trim_start().chars().next() {
        Some('{') => {
            let invalid = |source| MachineFileError::Dump { path: shown(), source };
            let mut machine: Machine = document::from_json(&text).map_err(invalid)?;
            // It was live when written; now it is a recording.
            if machine.is_live() {
                machine.source = format!("dump:{}", shown());
                machine.usable.gpus = None;
            }
            Ok(machine)
        }
        Some('<') => {
            let invalid = |source| MachineFileError::Hwloc { path: shown(), source };
            let machine = hwloc::parse(&text).map_err(invalid)?;
            let host = Some(machine.host).filter(|host| !host.trim().is_empty());
            let host = host.unwrap_or_else(|| file_stem(path));
            Ok(Machine { source: format!("hwloc:{}", shown()), host, ..machine })
        }
        _ => Err(MachineFileError::UnknownFormat { path: shown() }),
    }
}
