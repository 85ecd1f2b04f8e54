//! Reads the XML that hwloc's `lstopo --of xml` writes, format 2 (and 3, which differs little).
//!
//! The text is foreign: sizes, depths and numbers have limits, and whatever is wrong is said in one
//! sentence with its place.

mod cpus;
mod distances;
mod error;
mod gpus;
mod links;
mod mask;
mod memory;
mod nics;
mod os_devices;
mod pci;
mod tree;

pub use error::{HwlocError, Place};

use regatta_model::{CpuSet, Document, Machine, Os, Usable};

use gpus::Sources;
use tree::{Kind, Tree};

/// One more than the highest CPU number accepted, twice what Linux can be built for.
const MAX_CPUS: usize = 16_384;

/// The machine that an hwloc XML text describes. Its `source` is `hwloc`; the caller knows the file.
pub fn parse(xml: &str) -> Result<Machine, HwlocError> {
    let document = tree::document(xml)?;
    let tree = Tree::of(&document)?;
    let mut processors = cpus::read(&tree)?;
    let numa = memory::read(&tree, &processors.online)?;
    let numa_of = cpus::owners(numa.iter().map(|n| (n.id, &n.cpus)));
    for core in &mut processors.cores {
        core.numa = cpus::owner(&numa_of, &core.cpus);
    }
    let mut machine = Machine {
        host: tree.machine_info("HostName").unwrap_or_default().to_owned(),
        source: "hwloc".to_owned(),
        cpu_model: cpu_model(&tree),
        usable: usable(&tree, &processors.online)?,
        packages: processors.packages,
        l3: processors.l3,
        cores: processors.cores,
        os: os(&tree),
        numa,
        ..Machine::default()
    };
    add_devices(&tree, &processors.online, &mut machine)?;
    match machine.fault() {
        Some(fault) => Err(HwlocError::Fault { fault }),
        None => Ok(machine),
    }
}

fn cpu_model(tree: &Tree<'_>) -> Option<String> {
    let of_package = tree.of_kind(Kind::Package).find_map(|(_, o)| o.info("CPUModel"));
    of_package.or_else(|| tree.machine_info("CPUModel")).map(str::to_owned)
}

fn os(tree: &Tree<'_>) -> Os {
    let host = tree.machine_info("HostName").unwrap_or_default();
    let domain = host.split_once('.').map(|(_, domain)| domain).filter(|d| !d.is_empty());
    Os {
        kernel: tree.machine_info("OSRelease").map(str::to_owned),
        domains: domain.map(str::to_owned).into_iter().collect(),
        ..Os::default()
    }
}

/// hwloc's allowed sets are what the cgroup leaves; they differ from the whole only if lstopo was
/// asked to show what is disallowed.
fn usable(tree: &Tree<'_>, online: &CpuSet) -> Result<Usable, HwlocError> {
    let mut usable = Usable { online: online.clone(), ..Usable::default() };
    let Some(machine) = tree.objects.first() else { return Ok(usable) };
    let allowed = machine.set("allowed_cpuset")?.map(|allowed| allowed.intersection(online));
    usable.cgroup = allowed.filter(|allowed| allowed != online);
    if let Some(nodes) = machine.set("nodeset")? {
        let allowed = machine.set("allowed_nodeset")?.map(|allowed| allowed.intersection(&nodes));
        usable.memory_nodes = allowed.filter(|allowed| *allowed != nodes);
    }
    Ok(usable)
}

fn add_devices(tree: &Tree<'_>, online: &CpuSet, machine: &mut Machine) -> Result<(), HwlocError> {
    let mut nears = pci::Nears::new(online, &machine.numa);
    let devices = pci::read(tree, &mut nears)?;
    let by_pci = os_devices::read(tree)?;
    let nics = nics::read(tree, &devices, &by_pci, &mut nears)?;
    let sources = Sources { tree, devices: &devices, by_pci: &by_pci };
    let gpus = gpus::read(&sources, &mut nears, &mut machine.notes)?;
    machine.gpu_links = links::read(tree, &gpus)?;
    machine.gpus = gpus.into_iter().map(|found| found.gpu).collect();
    machine.nics = nics;
    machine.pci = devices.into_values().map(|device| device.pci).collect();
    machine.pci.sort_by(|a, b| a.address.cmp(&b.address));
    for gpu in &mut machine.gpus {
        gpu.nic_distance = crate::distance::to_nics(
            gpu,
            &machine.pci,
            &machine.nics,
            &machine.numa,
            &machine.packages,
        );
    }
    Ok(())
}
