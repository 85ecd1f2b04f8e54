//! Built-in systems: public node topologies of supercomputers, for planning and tests without
//! access, and synthetic machines (`cpu:2x4x8`).

use regatta_model::{
    Core, CpuSet, Distance, Gpu, GpuLink, GpuVendor, L3Group, Machine, Nic, NicKind, NumaNode,
    Package, UsableResources,
};
use serde::Deserialize;

macro_rules! systems {
    ($($name:literal)*) => {
        /// Names of the built-in systems.
        pub const NAMES: &[&str] = &[$($name),*];
        fn text(name: &str) -> Option<&'static str> {
            match name {
                $($name => Some(include_str!(concat!("../systems/", $name, ".toml"))),)*
                _ => None,
            }
        }
    };
}

systems! {
    "lumi-g" "frontier" "perlmutter" "polaris" "aurora" "alps" "jupiter" "marenostrum5-acc"
    "el-capitan" "dgx-h100"
}

/// Why there is no machine of this name.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum SystemError {
    /// Unknown name.
    #[error("unknown system {name:?}; known: {}, and cpu:SxNxC (S sockets, N NUMA nodes per socket, C cores per NUMA node)", NAMES.join(", "))]
    Unknown { name: String },
    /// Invalid synthetic machine.
    #[error(
        "{name:?} is not cpu:SxNxC with 1 to 8 sockets, 1 to 16 NUMA nodes per socket and 1 to 512 cores per NUMA node, such as cpu:2x4x8"
    )]
    InvalidShape { name: String },
    /// Invalid system file.
    #[error("invalid system file {name}: {reason}")]
    InvalidSpec { name: String, reason: String },
}

/// The format of a system file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct SystemSpec {
    name: String,
    #[expect(dead_code, reason = "documents the file")]
    title: String,
    cpu: String,
    packages: u32,
    numa_per_package: u32,
    l3_per_numa: u32,
    cores_per_l3: u32,
    threads: u32,
    memory_gib_per_numa: u64,
    #[serde(default)]
    memory_node: Vec<MemoryNodeSpec>,
    #[serde(default)]
    gpu: Vec<GpuSpec>,
    #[serde(default)]
    nic: Vec<NicSpec>,
    #[serde(default)]
    link: Vec<GpuLink>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MemoryNodeSpec {
    id: u32,
    gib: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GpuSpec {
    name: String,
    vendor: GpuVendor,
    numa: u32,
    memory_gib: Option<u64>,
    card: u32,
    subdevice: Option<u32>,
    /// Indices of the NICs attached to it.
    #[serde(default)]
    nic: Vec<usize>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NicSpec {
    name: String,
    fabric: Option<String>,
    kind: NicKind,
    gbit: u64,
    numa: Option<u32>,
}

/// The machine with this name.
pub fn system(name: &str) -> Result<Machine, SystemError> {
    let invalid_spec = |reason| SystemError::InvalidSpec { name: name.to_owned(), reason };
    let spec = match name.strip_prefix("cpu:") {
        Some(shape) => synthetic(name, shape)?,
        None => {
            let text = text(name).ok_or_else(|| SystemError::Unknown { name: name.to_owned() })?;
            toml::from_str(text).map_err(|error| invalid_spec(error.to_string()))?
        }
    };
    let machine = build(spec);
    match regatta_model::Document::inconsistency(&machine) {
        Some(reason) => Err(invalid_spec(reason)),
        None => Ok(machine),
    }
}

fn synthetic(name: &str, shape: &str) -> Result<SystemSpec, SystemError> {
    let invalid = || SystemError::InvalidShape { name: name.to_owned() };
    let parts: Result<Vec<u32>, _> = shape.split('x').map(str::parse).collect();
    let parts = parts.map_err(|_| invalid())?;
    let [packages @ 1..=8, numa_per_package @ 1..=16, cores @ 1..=512] = parts[..] else {
        return Err(invalid());
    };
    Ok(SystemSpec {
        name: name.to_owned(),
        cpu: "synthetic CPU".to_owned(),
        packages,
        numa_per_package,
        l3_per_numa: 1,
        cores_per_l3: cores,
        threads: 1,
        memory_gib_per_numa: 64,
        ..SystemSpec::default()
    })
}

const GIB: u64 = 1 << 30;

fn build(d: SystemSpec) -> Machine {
    let per_numa = d.l3_per_numa * d.cores_per_l3;
    let total = d.packages * d.numa_per_package * per_numa;
    // Linux on these machines numbers the first threads of all cores, then the second threads.
    let cpus = |first: u32, count: u32| -> CpuSet {
        let thread = |t: u32| (first + t * total) as usize..(first + count + t * total) as usize;
        (0..d.threads).flat_map(thread).collect()
    };
    let per_package = d.numa_per_package * per_numa;
    let cores = (0..total).map(|i| Core {
        cpus: cpus(i, 1),
        package: i / per_package,
        numa: Some(i / per_numa),
        l3: Some(i / d.cores_per_l3),
    });
    let numa_node =
        |id, cpus, gib: u64| NumaNode { id, cpus, memory_bytes: gib * GIB, distances: Vec::new() };
    let numa = (0..d.packages * d.numa_per_package)
        .map(|id| numa_node(id, cpus(id * per_numa, per_numa), d.memory_gib_per_numa));
    let memory_nodes = d.memory_node.iter().map(|m| numa_node(m.id, CpuSet::new(), m.gib));
    let per_l3 = d.cores_per_l3;
    let l3_group = |id| L3Group { id, cpus: cpus(id * per_l3, per_l3), size_bytes: None };
    let package = |id| Package { id, cpus: cpus(id * per_package, per_package) };
    let gpu = |(i, g): (usize, &GpuSpec)| gpu(i, g, &d, &cpus(g.numa * per_numa, per_numa));
    Machine {
        host: d.name.clone(),
        source: format!("system:{}", d.name),
        system: Some(d.name.clone()),
        cpu_model: Some(d.cpu.clone()),
        packages: (0..d.packages).map(package).collect(),
        cores: cores.collect(),
        l3: (0..total / per_l3).map(l3_group).collect(),
        usable: UsableResources { online: cpus(0, total), ..UsableResources::default() },
        gpus: d.gpu.iter().enumerate().map(gpu).collect(),
        nics: d.nic.iter().map(nic).collect(),
        gpu_links: d.link.clone(),
        numa: numa.chain(memory_nodes).collect(),
        ..Machine::default()
    }
}

fn gpu(index: usize, spec: &GpuSpec, d: &SystemSpec, cpus: &CpuSet) -> Gpu {
    let package = |numa: u32| numa / d.numa_per_package;
    let distance = |(i, nic): (usize, &NicSpec)| match nic.numa {
        _ if spec.nic.contains(&i) => Distance::Switch,
        Some(numa) if numa == spec.numa => Distance::Numa,
        Some(numa) if package(numa) == package(spec.numa) => Distance::Package,
        Some(_) => Distance::Remote,
        None => Distance::Unknown,
    };
    Gpu {
        numa: Some(spec.numa),
        cpus: cpus.clone(),
        memory_bytes: spec.memory_gib.map(|g| g * GIB),
        card: spec.card,
        subdevice: spec.subdevice,
        nic_distance: d.nic.iter().enumerate().map(distance).collect(),
        ..Gpu::new(index as u32, spec.vendor, &spec.name)
    }
}

fn nic(spec: &NicSpec) -> Nic {
    Nic {
        fabric_device: spec.fabric.clone(),
        numa: spec.numa,
        speed_mbit: Some(spec.gbit * 1000),
        ..Nic::new(&spec.name, spec.kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_systems_are_consistent() {
        for name in NAMES {
            let machine = system(name).unwrap();
            assert_eq!(machine.system.as_deref(), Some(*name));
            assert!(!machine.gpus.is_empty() && !machine.nics.is_empty(), "{name}");
        }
    }

    #[test]
    fn synthetic_machines_are_built() {
        let machine = system("cpu:2x4x8").unwrap();
        assert_eq!((machine.packages.len(), machine.numa.len(), machine.cores.len()), (2, 8, 64));
        for bad in ["cpu:", "cpu:2", "cpu:0x1x1", "cpu:1x1x1x1", "cpu:9x1x1", "cpu:1x1x-1"] {
            assert!(matches!(system(bad), Err(SystemError::InvalidShape { .. })), "{bad}");
        }
        let unknown = system("lumi").unwrap_err().to_string();
        assert!(unknown.contains("lumi-g"), "{unknown}");
    }
}
