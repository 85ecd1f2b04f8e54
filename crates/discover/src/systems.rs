//! Machines known by name: the public node maps of supercomputers, for planning and tests without
//! the machine, and made-up ones (`cpu:2x4x8`).

use regatta_model::{
    Core, CpuSet, Distance, Gpu, GpuLink, GpuVendor, L3Group, LinkKind, Machine, Nic, NicKind,
    NumaNode, Package, Usable,
};
use serde::Deserialize;

macro_rules! systems {
    ($($name:literal),* $(,)?) => {
        /// The names of the built-in systems.
        pub const NAMES: &[&str] = &[$($name),*];
        fn text(name: &str) -> Option<&'static str> {
            match name {
                $($name => Some(include_str!(concat!("../systems/", $name, ".toml"))),)*
                _ => None,
            }
        }
    };
}

systems!(
    "lumi-g",
    "frontier",
    "perlmutter",
    "polaris",
    "aurora",
    "alps",
    "jupiter",
    "marenostrum5-acc",
    "el-capitan",
    "dgx-h100",
);

/// Why there is no such machine.
#[derive(Debug, thiserror::Error)]
pub enum SystemError {
    /// No system of this name.
    #[error("no built-in system is called {name:?}; there are {}, and cpu:SxNxC (sockets, NUMA nodes a socket, cores a NUMA node)", NAMES.join(", "))]
    Unknown {
        /// The name.
        name: String,
    },
    /// A made-up machine that cannot be.
    #[error(
        "{name:?} is not cpu:SxNxC with 1 to 8 sockets, 1 to 16 NUMA nodes a socket and 1 to 512 cores a NUMA node, as in cpu:2x4x8"
    )]
    BadShape {
        /// What was asked for.
        name: String,
    },
    /// A description that is wrong.
    #[error("the description of {name} is wrong: {why}")]
    Broken {
        /// The system.
        name: String,
        /// What is wrong.
        why: String,
    },
}

/// The file format of a built-in system.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Description {
    name: String,
    #[expect(dead_code, reason = "for whoever reads the file")]
    title: String,
    cpu: String,
    packages: u32,
    numa_per_package: u32,
    l3_per_numa: u32,
    cores_per_l3: u32,
    threads: u32,
    memory_gib_per_numa: u64,
    #[serde(default)]
    memory_node: Vec<MemoryNode>,
    #[serde(default)]
    gpu: Vec<GpuLine>,
    #[serde(default)]
    nic: Vec<NicLine>,
    #[serde(default)]
    link: Vec<LinkLine>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MemoryNode {
    id: u32,
    gib: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GpuLine {
    name: String,
    vendor: GpuVendor,
    numa: u32,
    memory_gib: Option<u64>,
    card: u32,
    part: Option<u32>,
    /// Positions of the NICs attached to it.
    #[serde(default)]
    nic: Vec<usize>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NicLine {
    name: String,
    fabric: Option<String>,
    kind: NicKind,
    gbit: u64,
    numa: Option<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkLine {
    a: u32,
    b: u32,
    kind: LinkKind,
    count: Option<u32>,
}

/// The machine called `name`.
pub fn system(name: &str) -> Result<Machine, SystemError> {
    let description = match name.strip_prefix("cpu:") {
        Some(shape) => made_up(name, shape)?,
        None => {
            let text = text(name).ok_or_else(|| SystemError::Unknown { name: name.to_owned() })?;
            toml::from_str(text).map_err(|e| broken(name, e.to_string()))?
        }
    };
    let machine = build(description);
    match regatta_model::Document::fault(&machine) {
        Some(fault) => Err(broken(name, fault)),
        None => Ok(machine),
    }
}

fn broken(name: &str, why: String) -> SystemError {
    SystemError::Broken { name: name.to_owned(), why }
}

fn made_up(name: &str, shape: &str) -> Result<Description, SystemError> {
    let bad = || SystemError::BadShape { name: name.to_owned() };
    let parts: Vec<u32> =
        shape.split('x').map(|p| p.parse().map_err(|_| bad())).collect::<Result<_, _>>()?;
    let [packages @ 1..=8, numa_per_package @ 1..=16, cores @ 1..=512] = parts[..] else {
        return Err(bad());
    };
    Ok(Description {
        name: name.to_owned(),
        title: String::new(),
        cpu: "made-up processor".to_owned(),
        packages,
        numa_per_package,
        l3_per_numa: 1,
        cores_per_l3: cores,
        threads: 1,
        memory_gib_per_numa: 64,
        memory_node: Vec::new(),
        gpu: Vec::new(),
        nic: Vec::new(),
        link: Vec::new(),
    })
}

const GIB: u64 = 1 << 30;

fn build(d: Description) -> Machine {
    let per_numa = d.l3_per_numa * d.cores_per_l3;
    let total = d.packages * d.numa_per_package * per_numa;
    // Linux on these machines numbers the first threads of all cores, then the second ones.
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
    let numa = (0..d.packages * d.numa_per_package).map(|id| NumaNode {
        id,
        cpus: cpus(id * per_numa, per_numa),
        memory_bytes: d.memory_gib_per_numa * GIB,
        distances: Vec::new(),
    });
    let memory_nodes = d.memory_node.iter().map(|m| NumaNode {
        id: m.id,
        cpus: CpuSet::new(),
        memory_bytes: m.gib * GIB,
        distances: Vec::new(),
    });
    let l3 = (0..total / d.cores_per_l3).map(|id| L3Group {
        id,
        cpus: cpus(id * d.cores_per_l3, d.cores_per_l3),
        size_bytes: None,
    });
    Machine {
        host: d.name.clone(),
        source: format!("system:{}", d.name),
        system: Some(d.name.clone()),
        cpu_model: Some(d.cpu.clone()),
        packages: (0..d.packages)
            .map(|id| Package { id, cpus: cpus(id * per_package, per_package) })
            .collect(),
        cores: cores.collect(),
        l3: l3.collect(),
        usable: Usable { online: cpus(0, total), ..Usable::default() },
        gpus: d
            .gpu
            .iter()
            .enumerate()
            .map(|(i, g)| gpu(i, g, &d, &cpus(g.numa * per_numa, per_numa)))
            .collect(),
        nics: d.nic.iter().map(nic).collect(),
        gpu_links: d.link.iter().map(link).collect(),
        numa: numa.chain(memory_nodes).collect(),
        ..Machine::default()
    }
}

fn gpu(index: usize, line: &GpuLine, d: &Description, cpus: &CpuSet) -> Gpu {
    let package = |numa: u32| numa / d.numa_per_package;
    let distance = |(i, nic): (usize, &NicLine)| match nic.numa {
        _ if line.nic.contains(&i) => Distance::Switch,
        Some(numa) if numa == line.numa => Distance::Numa,
        Some(numa) if package(numa) == package(line.numa) => Distance::Package,
        Some(_) => Distance::Remote,
        None => Distance::Unknown,
    };
    Gpu {
        numa: Some(line.numa),
        cpus: cpus.clone(),
        memory_bytes: line.memory_gib.map(|g| g * GIB),
        card: line.card,
        part: line.part,
        nic_distance: d.nic.iter().enumerate().map(distance).collect(),
        ..Gpu::new(index as u32, line.vendor, &line.name)
    }
}

fn nic(line: &NicLine) -> Nic {
    Nic {
        fabric_device: line.fabric.clone(),
        numa: line.numa,
        speed_mbit: Some(line.gbit * 1000),
        ..Nic::new(&line.name, line.kind)
    }
}

fn link(line: &LinkLine) -> GpuLink {
    GpuLink { a: line.a, b: line.b, kind: line.kind, count: line.count, megabytes_per_second: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_system_is_sound() {
        for name in NAMES {
            let machine = system(name).unwrap();
            assert_eq!(machine.system.as_deref(), Some(*name));
            assert!(!machine.gpus.is_empty() && !machine.nics.is_empty(), "{name}");
        }
    }

    #[test]
    fn made_up_machines() {
        let machine = system("cpu:2x4x8").unwrap();
        assert_eq!((machine.packages.len(), machine.numa.len(), machine.cores.len()), (2, 8, 64));
        for bad in ["cpu:", "cpu:2", "cpu:0x1x1", "cpu:1x1x1x1", "cpu:9x1x1", "cpu:1x1x-1"] {
            assert!(matches!(system(bad), Err(SystemError::BadShape { .. })), "{bad}");
        }
        let unknown = system("lumi").unwrap_err().to_string();
        assert!(unknown.contains("lumi-g"), "{unknown}");
    }
}
