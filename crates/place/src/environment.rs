//! The environment variables of a rank: rendezvous, GPU visibility, network, caches, threads; each
//! with its reason.

use std::fmt;
use std::net::IpAddr;

pub use regatta_model::run_folder::EnvVar;
use regatta_model::{GpuVendor, GpuVisibility, Machine, Nic, PlacedNode, PlacedRank, Placement};
use serde::{Deserialize, Serialize};

use crate::{bind_address, nic};

/// The training framework.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Framework {
    /// PyTorch.
    #[default]
    Torch,
    /// DeepSpeed.
    Deepspeed,
    /// Hugging Face Accelerate.
    Accelerate,
    /// Horovod with the gloo controller.
    Horovod,
    /// JAX.
    Jax,
}

impl fmt::Display for Framework {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// A variable to set.
pub fn var(variable: &str, value: impl ToString, why: &str) -> EnvVar {
    EnvVar { variable: variable.to_owned(), value: Some(value.to_string()), why: why.to_owned() }
}

/// Rendezvous of the ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendezvous {
    /// The address of rank 0's node.
    pub address: String,
    /// The reason.
    pub address_why: String,
    /// The port.
    pub port: u16,
    /// The reason.
    pub port_why: String,
}

/// A node-local cache directory.
#[derive(Debug, Clone)]
pub struct CacheDir {
    /// Path.
    pub path: String,
    /// The reason.
    pub why: &'static str,
    /// Whether it is in memory (tmpfs), where datasets would use up the job's memory.
    pub in_memory: bool,
}

/// Inputs of [`environment`].
#[derive(Debug)]
pub struct EnvContext<'a> {
    /// The placement of the job.
    pub placement: &'a Placement,
    /// Global rank.
    pub rank: u32,
    /// The machine of the rank's node.
    pub machine: &'a Machine,
    /// The interfaces of the rank's own node, with addresses; `None` if unknown, because identical
    /// nodes share a description.
    pub nics: Option<&'a [Nic]>,
    /// The training framework.
    pub framework: Framework,
    /// Rendezvous of the ranks.
    pub rendezvous: &'a Rendezvous,
    /// Node-local directory for caches.
    pub cache: &'a CacheDir,
    /// Settings of the site profile.
    pub settings: &'a [EnvVar],
    /// Whether the launcher's own variables tell JAX number and index of the processes, as those of
    /// `srun` and of Open MPI 4 do.
    pub jax_detects_launcher: bool,
}

/// The environment of a rank; `None` if the job has no such rank. Site settings override general
/// ones.
pub fn environment(context: &EnvContext<'_>) -> Option<Vec<EnvVar>> {
    let (node, placed_node, rank) = context.placement.find_rank(context.rank)?;
    let nodes = context.placement.nodes.len();
    let env = RankEnv { context, node, nodes, placed_node, rank };
    let mut vars = env.framework_variables();
    vars.push(var("OMP_NUM_THREADS", rank.omp_num_threads, &rank.reasons.threads));
    vars.extend(visibility(context.machine, rank));
    if nodes > 1 {
        vars.extend(network(context.machine, context.framework));
        let bind = |nics| bind_address::regatta_bind(nics, rank.nic.as_deref());
        vars.extend(context.nics.and_then(bind));
    }
    vars.extend(caches(context.machine, context.framework, context.cache));
    for setting in context.settings.iter().filter(|s| !names_no_interface(s, context.machine)) {
        vars.retain(|v| v.variable != setting.variable);
        vars.push(setting.clone());
    }
    Some(vars)
}

/// Whether a setting selects interfaces by prefixes that none of the node's interfaces has: sites
/// name the interfaces of a fabric differently (`hsn0`, `hsi0`), and NCCL fails without one.
fn names_no_interface(setting: &EnvVar, machine: &Machine) -> bool {
    let Some(value) = setting.value.as_deref() else { return false };
    let selects = setting.variable.ends_with("_SOCKET_IFNAME") && !value.starts_with('^');
    let mut prefixes = value.trim_start_matches('=').split(',');
    let has = |prefix: &str| machine.nics.iter().any(|nic| nic.name.starts_with(prefix));
    selects && !machine.nics.is_empty() && !prefixes.any(has)
}

struct RankEnv<'a> {
    context: &'a EnvContext<'a>,
    node: usize,
    nodes: usize,
    placed_node: &'a PlacedNode,
    rank: &'a PlacedRank,
}

impl RankEnv<'_> {
    fn framework_variables(&self) -> Vec<EnvVar> {
        match self.context.framework {
            Framework::Torch | Framework::Accelerate => self.torch(),
            Framework::Deepspeed => {
                let why = |what: &str| format!("{what}, as set by DeepSpeed's launcher");
                let mut vars = self.torch();
                vars.extend([
                    var("LOCAL_SIZE", self.local_size(), &why("ranks on this node")),
                    var("CROSS_RANK", self.node, &why("node index")),
                    var("CROSS_SIZE", self.nodes, &why("number of nodes")),
                ]);
                vars
            }
            Framework::Horovod => self.horovod(),
            Framework::Jax => self.jax(),
        }
    }

    fn local_size(&self) -> usize {
        self.placed_node.ranks.len()
    }

    fn rank_variables(&self) -> Vec<EnvVar> {
        let local_rank = self.rank.local_rank;
        vec![
            var("RANK", self.context.rank, "global rank"),
            var("WORLD_SIZE", self.context.placement.ranks, "world size"),
            var("LOCAL_RANK", local_rank, "local rank, which is also its device index"),
            var("LOCAL_WORLD_SIZE", self.local_size(), "ranks on this node"),
        ]
    }

    fn torch(&self) -> Vec<EnvVar> {
        let rendezvous = self.context.rendezvous;
        let abort = "a failed collective aborts the rank instead of hanging the job";
        let mut vars = self.rank_variables();
        vars.extend([
            var("GROUP_RANK", self.node, "node index"),
            var("GROUP_WORLD_SIZE", self.nodes, "number of nodes"),
            var("MASTER_ADDR", &rendezvous.address, &rendezvous.address_why),
            var("MASTER_PORT", rendezvous.port, &rendezvous.port_why),
            var("TORCH_NCCL_ASYNC_ERROR_HANDLING", 1, abort),
        ]);
        vars
    }

    fn horovod(&self) -> Vec<EnvVar> {
        let Rendezvous { address, address_why, port, port_why } = self.context.rendezvous;
        let server = format!("{address_why}; the rendezvous server of horovodrun listens there");
        let mut vars = vec![
            var("HOROVOD_HOSTNAME", &self.placed_node.host, "this node"),
            var("HOROVOD_RANK", self.context.rank, "global rank"),
            var("HOROVOD_SIZE", self.context.placement.ranks, "world size"),
            var("HOROVOD_LOCAL_RANK", self.rank.local_rank, "local rank"),
            var("HOROVOD_LOCAL_SIZE", self.local_size(), "ranks on this node"),
            var("HOROVOD_CROSS_RANK", self.node, "node index"),
            var("HOROVOD_CROSS_SIZE", self.nodes, "number of nodes"),
            var("HOROVOD_CONTROLLER", "gloo", "start without MPI"),
            var("HOROVOD_CPU_OPERATIONS", "gloo", "host collectives without MPI"),
            var("HOROVOD_GLOO_RENDEZVOUS_ADDR", address, &server),
            var("HOROVOD_GLOO_RENDEZVOUS_PORT", port, port_why),
        ];
        // The same on all ranks, because interfaces of different rails may not reach each other.
        if let Some(first) = nic::socket_interfaces(self.context.machine).first() {
            vars.push(var("HOROVOD_GLOO_IFACE", &first.name, "Gloo uses the fabric"));
        }
        vars
    }

    fn jax(&self) -> Vec<EnvVar> {
        let Rendezvous { address, address_why, port, port_why } = self.context.rendezvous;
        // An IPv6 address needs brackets, and an IPv6-only host does not listen on IPv4.
        let (host, any) = match address.contains(':') {
            true => (format!("[{address}]"), "[::]"),
            false => (address.clone(), "0.0.0.0"),
        };
        let (bind, listens) = match address.parse::<IpAddr>().is_ok_and(|a| a.is_loopback()) {
            true => (host.as_str(), "the coordinator accepts connections from its own node only"),
            false => (any, "the coordinator listens on all interfaces of its node"),
        };
        let why = format!("{address_why}; {port_why}");
        let mut vars = self.rank_variables();
        vars.extend([
            var("JAX_COORDINATOR_ADDRESS", format!("{host}:{port}"), &why),
            var("JAX_COORDINATOR_PORT", port, port_why),
            var("JAX_COORDINATOR_BIND_ADDRESS", format!("{bind}:{port}"), listens),
        ]);
        if !self.context.jax_detects_launcher {
            let detected = "JAX takes the processes from the first environment that it detects";
            let why = |what: &str| format!("{what}, in a form that JAX detects (Open MPI's)");
            let size = self.context.placement.ranks;
            vars.extend([
                var("OMPI_MCA_orte_hnp_uri", format!("0.0;tcp://{host}:{port}"), detected),
                var("OMPI_COMM_WORLD_SIZE", size, &why("world size")),
                var("OMPI_COMM_WORLD_RANK", self.context.rank, &why("global rank")),
                var("OMPI_COMM_WORLD_LOCAL_RANK", self.rank.local_rank, &why("local rank")),
            ]);
        }
        let ids = match self.rank.visibility {
            GpuVisibility::Own => (0..self.rank.gpus.len() as u32).collect(),
            GpuVisibility::All => visible_indices(self.context.machine, self.rank),
        };
        if !ids.is_empty() {
            let why = "devices of this rank, among those visible to it";
            vars.push(var("JAX_LOCAL_DEVICE_IDS", join(ids), why));
        }
        vars
    }
}

fn join(ids: impl IntoIterator<Item = u32>) -> String {
    ids.into_iter().map(|id| id.to_string()).collect::<Vec<_>>().join(",")
}

fn visibility(machine: &Machine, rank: &PlacedRank) -> Vec<EnvVar> {
    let Some(vendor) = machine.gpus.first().map(|g| g.vendor).filter(|_| !rank.gpus.is_empty())
    else {
        return Vec::new();
    };
    let visible = machine.visible_gpus();
    let all_why = match visible.len() == machine.gpus.len() {
        true => "all GPUs of the node, which permits peer-to-peer copies between ranks",
        false => "all GPUs of the job, which permits peer-to-peer copies between ranks",
    };
    let all = join(visible.iter().copied());
    // HIP indices refer to the devices of ROCR_VISIBLE_DEVICES.
    let (shown, hip_indices, why) = match rank.visibility {
        GpuVisibility::All => (all.clone(), join(0..visible.len() as u32), all_why),
        GpuVisibility::Own => {
            let why = "only the GPU of this rank, as requested";
            (join(rank.gpus.iter().copied()), join(visible_indices(machine, rank)), why)
        }
    };
    let pci_order = "CUDA indices follow the PCI bus order, even with different GPU models";
    match vendor {
        GpuVendor::Nvidia => vec![
            var("CUDA_DEVICE_ORDER", "PCI_BUS_ID", pci_order),
            var("CUDA_VISIBLE_DEVICES", shown, why),
        ],
        // HIP_VISIBLE_DEVICES hides GPUs from the program only; ROCR_VISIBLE_DEVICES would also
        // hide them from the runtime below, which copies between GPUs.
        GpuVendor::Amd => vec![
            var("ROCR_VISIBLE_DEVICES", all, all_why),
            var("HIP_VISIBLE_DEVICES", hip_indices, why),
        ],
        GpuVendor::Intel => vec![
            var("ZE_FLAT_DEVICE_HIERARCHY", "FLAT", "each tile is one device"),
            var("ZE_AFFINITY_MASK", shown, why),
        ],
    }
}

/// The indices of a rank's GPUs among the job's visible GPUs.
fn visible_indices(machine: &Machine, rank: &PlacedRank) -> Vec<u32> {
    let visible = machine.visible_gpus();
    let index = |gpu: &u32| visible.iter().position(|v| v == gpu).map(|i| i as u32);
    rank.gpus.iter().filter_map(index).collect()
}

/// Keeps bootstrap and TCP traffic on the fabric, independent of the site profile.
fn network(machine: &Machine, framework: Framework) -> Vec<EnvVar> {
    let names: Vec<_> = nic::socket_interfaces(machine).iter().map(|n| n.name.as_str()).collect();
    let Some(first) = names.first() else { return Vec::new() };
    let on_fabric = machine.fabric_nics().iter().any(|n| n.name == *first);
    let (why, gloo) = match on_fabric {
        true => ("fabric interfaces, never the management network", "Gloo uses the fabric"),
        false => (
            "interfaces with an IP address, because the fabric interfaces have none",
            "Gloo uses these, because the fabric has no IP address",
        ),
    };
    let mut vars = vec![var("NCCL_SOCKET_IFNAME", format!("={}", names.join(",")), why)];
    if !matches!(framework, Framework::Jax | Framework::Horovod) {
        vars.push(var("GLOO_SOCKET_IFNAME", first, gloo));
    }
    vars
}

fn caches(machine: &Machine, framework: Framework, cache: &CacheDir) -> Vec<EnvVar> {
    let mut vars = Vec::new();
    let mut add = |variable: &str, name: &str, why: &str| {
        let (path, why) = (format!("{}/{name}", cache.path), format!("{}: {why}", cache.why));
        vars.push(var(variable, path, &why));
    };
    if machine.gpus.iter().any(|g| g.vendor == GpuVendor::Amd) {
        let why = "MIOpen's SQLite databases deadlock on parallel file systems";
        add("MIOPEN_USER_DB_PATH", "miopen", why);
        add("MIOPEN_CUSTOM_CACHE_DIR", "miopen", why);
    }
    if framework != Framework::Jax {
        let compile = "avoids compiling into one directory from all nodes";
        let lock = "avoids contention of all nodes for one lock";
        add("TRITON_CACHE_DIR", "triton", compile);
        add("TORCH_EXTENSIONS_DIR", "torch-extensions", lock);
        add("TORCHINDUCTOR_CACHE_DIR", "inductor", compile);
        if !cache.in_memory {
            add("HF_DATASETS_CACHE", "hf-datasets", "Arrow caches are locked and memory-mapped");
        }
        add("HF_MODULES_CACHE", "hf-modules", "every rank copies model code there");
    }
    vars
}

#[cfg(test)]
mod tests {
    use super::*;
    use regatta_model::NicKind;

    #[test]
    fn setting_that_names_no_interface_of_the_node_is_ignored() {
        let nics = ["nmn0", "hsi0", "hsi1"].map(|name| Nic::new(name, NicKind::Slingshot));
        let tioga = Machine { nics: nics.to_vec(), ..Machine::default() };
        let ignored = |value| names_no_interface(&var("NCCL_SOCKET_IFNAME", value, ""), &tioga);
        assert_eq!(
            ["hsn", "hsi", "=hsn0,hsi1", "^docker"].map(ignored),
            [true, false, false, false]
        );
        assert!(!names_no_interface(&var("NCCL_NET", "hsn", ""), &tioga));
        let unknown = Machine::default();
        assert!(!names_no_interface(&var("NCCL_SOCKET_IFNAME", "hsn", ""), &unknown));
    }
}
