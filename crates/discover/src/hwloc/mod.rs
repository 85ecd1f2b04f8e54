//! Parser for the XML of hwloc's `lstopo --of xml`, formats 1 to 3, which differ little.
//!
//! The input is untrusted: size, nesting and numbers have limits, and every error is one sentence
//! with its position.

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
mod topology;

pub use error::{HwlocError, TextPosition};

use regatta_model::{CpuSet, Document, Machine, Os, UsableResources};

use error::Result;
use gpus::GpuInputs;
use topology::{ObjectType, Topology};

/// Exclusive upper bound of CPU numbers, twice the limit of Linux.
const MAX_CPUS: usize = 16_384;

/// Parses hwloc XML. The `source` of the result is `hwloc`; the caller adds the file name.
pub fn parse(xml: &str) -> Result<Machine> {
    let document = topology::parse_xml(xml)?;
    let topology = Topology::new(&document)?;
    let mut cpus = cpus::read(&topology)?;
    let numa = memory::read(&topology, &cpus.online)?;
    let numa_by_cpu = cpus::owner_by_cpu(numa.iter().map(|n| (n.id, &n.cpus)));
    for core in &mut cpus.cores {
        core.numa = cpus::common_owner(&numa_by_cpu, &core.cpus);
    }
    let mut machine = Machine {
        host: topology.machine_info("HostName").unwrap_or_default().to_owned(),
        source: "hwloc".to_owned(),
        cpu_model: cpu_model(&topology),
        usable: usable_resources(&topology, &cpus.online)?,
        packages: cpus.packages,
        l3: cpus.l3,
        cores: cpus.cores,
        os: os(&topology),
        numa,
        ..Machine::default()
    };
    add_devices(&topology, &cpus.online, &mut machine)?;
    match machine.inconsistency() {
        Some(reason) => Err(HwlocError::Inconsistent { reason }),
        None => Ok(machine),
    }
}

fn cpu_model(topology: &Topology<'_>) -> Option<String> {
    let of_package = topology.of_type(ObjectType::Package).find_map(|(_, o)| o.info("CPUModel"));
    of_package.or_else(|| topology.machine_info("CPUModel")).map(str::to_owned)
}

fn os(topology: &Topology<'_>) -> Os {
    let host = topology.machine_info("HostName").unwrap_or_default();
    let domain = host.split_once('.').map(|(_, domain)| domain).filter(|d| !d.is_empty());
    Os {
        kernel: topology.machine_info("OSRelease").map(str::to_owned),
        domains: domain.map(str::to_owned).into_iter().collect(),
        ..Os::default()
    }
}

/// hwloc's allowed sets reflect the cgroup. They differ from the complete sets only if lstopo was
/// run with `--disallowed`.
fn usable_resources(topology: &Topology<'_>, online: &CpuSet) -> Result<UsableResources> {
    let mut usable = UsableResources { online: online.clone(), ..UsableResources::default() };
    let Some(machine) = topology.objects.first() else { return Ok(usable) };
    let allowed = machine.set("allowed_cpuset")?.map(|allowed| allowed.intersection(online));
    usable.cgroup = allowed.filter(|allowed| allowed != online);
    if let Some(nodes) = machine.set("nodeset")? {
        let allowed = machine.set("allowed_nodeset")?.map(|allowed| allowed.intersection(&nodes));
        usable.memory_nodes = allowed.filter(|allowed| *allowed != nodes);
    }
    Ok(usable)
}

fn add_devices(topology: &Topology<'_>, online: &CpuSet, machine: &mut Machine) -> Result<()> {
    let mut localities = pci::LocalityCache::new(online, &machine.numa);
    let devices = pci::read(topology, &mut localities)?;
    let by_pci = os_devices::read(topology)?;
    let nics = nics::read(topology, &devices, &by_pci, &mut localities)?;
    let inputs = GpuInputs { topology, pci_devices: &devices, by_pci: &by_pci };
    let gpus = gpus::read(&inputs, &mut localities, &mut machine.notes)?;
    machine.gpu_links = links::read(topology, &gpus)?;
    machine.gpus = gpus.into_iter().map(|found| found.gpu).collect();
    machine.nics = nics;
    machine.pci = devices.into_values().map(|device| device.pci).collect();
    machine.pci.sort_by(|a, b| a.address.cmp(&b.address));
    let Machine { gpus, pci, nics, numa, packages, .. } = machine;
    for gpu in gpus {
        gpu.nic_distance = crate::locality::nic_distances(gpu, pci, nics, numa, packages);
    }
    Ok(())
}
