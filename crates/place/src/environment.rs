//! The environment of one rank: rendezvous, device visibility, network, caches, threads; each line
//! with its reason.

use regatta_model::{GpuVendor, Machine, Nic, PlacedNode, PlacedRank, Placement, Visibility};
use serde::{Deserialize, Serialize};

use crate::{addresses, nic};

/// Whose variables are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Framework {
    /// PyTorch.
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

impl Framework {
    /// Its name in profiles.
    pub fn name(self) -> &'static str {
        match self {
            Framework::Torch => "torch",
            Framework::Deepspeed => "deepspeed",
            Framework::Accelerate => "accelerate",
            Framework::Horovod => "horovod",
            Framework::Jax => "jax",
        }
    }
}

/// A variable to set, or to unset if it has no value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvLine {
    /// The variable.
    pub variable: String,
    /// Its value; `None`: it must not be set.
    pub value: Option<String>,
    /// Why.
    pub why: String,
}

impl EnvLine {
    pub(crate) fn new(variable: &str, value: impl ToString, why: &str) -> Self {
        Self { variable: variable.to_owned(), value: Some(value.to_string()), why: why.to_owned() }
    }
}

/// Where the ranks meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendezvous {
    /// The address of rank 0's node.
    pub address: String,
    /// Why this one.
    pub address_why: String,
    /// The port.
    pub port: u16,
    /// Why this one.
    pub port_why: String,
}

/// All that a rank's environment depends on.
#[derive(Debug)]
pub struct RankContext<'a> {
    /// The job.
    pub placement: &'a Placement,
    /// The rank.
    pub rank: u32,
    /// The rank's node.
    pub machine: &'a Machine,
    /// The interfaces of that very node, with its addresses; `None` if they are not known, for nodes
    /// that are alike share a description.
    pub nics: Option<&'a [Nic]>,
    /// Whose variables are wanted.
    pub framework: Framework,
    /// Where the ranks meet.
    pub rendezvous: &'a Rendezvous,
    /// A folder on the node itself for caches, and why this one.
    pub cache: (&'a str, &'a str),
    /// The site's settings.
    pub settings: &'a [EnvLine],
}

/// The environment of a rank; `None` if the job has no such rank. A site's setting replaces a
/// general one of the same name.
pub fn environment(context: &RankContext<'_>) -> Option<Vec<EnvLine>> {
    let (node, placed_node, rank) = context.placement.find(context.rank)?;
    let world = World { context, node, placed_node, rank };
    let mut lines = world.framework();
    lines.push(EnvLine::new("OMP_NUM_THREADS", rank.omp_num_threads, &rank.reasons.threads));
    lines.extend(visibility(context.machine, rank));
    if context.placement.nodes.len() > 1 {
        lines.extend(network(context.machine, context.framework));
        lines.extend(context.nics.and_then(|nics| addresses::bind(nics, rank.nic.as_deref())));
    }
    lines.extend(caches(context.machine, context.framework, context.cache));
    for setting in context.settings {
        lines.retain(|l| l.variable != setting.variable);
        lines.push(setting.clone());
    }
    Some(lines)
}

struct World<'a> {
    context: &'a RankContext<'a>,
    node: usize,
    placed_node: &'a PlacedNode,
    rank: &'a PlacedRank,
}

impl World<'_> {
    fn framework(&self) -> Vec<EnvLine> {
        match self.context.framework {
            Framework::Torch | Framework::Accelerate => self.torch(),
            Framework::Deepspeed => {
                let mut lines = self.torch();
                lines.extend([
                    EnvLine::new(
                        "LOCAL_SIZE",
                        self.local_size(),
                        "ranks on this node, as DeepSpeed's launcher says it",
                    ),
                    EnvLine::new(
                        "CROSS_RANK",
                        self.node,
                        "this node's number, as DeepSpeed's launcher says it",
                    ),
                    EnvLine::new(
                        "CROSS_SIZE",
                        self.nodes(),
                        "nodes, as DeepSpeed's launcher says it",
                    ),
                ]);
                lines
            }
            Framework::Horovod => self.horovod(),
            Framework::Jax => self.jax(),
        }
    }

    fn nodes(&self) -> usize {
        self.context.placement.nodes.len()
    }

    fn local_size(&self) -> usize {
        self.placed_node.ranks.len()
    }

    fn ranks(&self) -> [EnvLine; 4] {
        [
            EnvLine::new("RANK", self.context.rank, "this rank's number in the job"),
            EnvLine::new("WORLD_SIZE", self.context.placement.ranks, "ranks in the job"),
            EnvLine::new(
                "LOCAL_RANK",
                self.rank.local_rank,
                "this rank's number on its node, and its device's",
            ),
            EnvLine::new("LOCAL_WORLD_SIZE", self.local_size(), "ranks on this node"),
        ]
    }

    fn torch(&self) -> Vec<EnvLine> {
        let meet = self.context.rendezvous;
        let mut lines = self.ranks().to_vec();
        lines.extend([
            EnvLine::new("GROUP_RANK", self.node, "this node's number"),
            EnvLine::new("GROUP_WORLD_SIZE", self.nodes(), "nodes in the job"),
            EnvLine::new("MASTER_ADDR", &meet.address, &meet.address_why),
            EnvLine::new("MASTER_PORT", meet.port, &meet.port_why),
            EnvLine::new(
                "TORCH_NCCL_ASYNC_ERROR_HANDLING",
                1,
                "a failed collective ends the rank instead of hanging the job",
            ),
        ]);
        lines
    }

    fn horovod(&self) -> Vec<EnvLine> {
        let meet = self.context.rendezvous;
        let mut lines = vec![
            EnvLine::new("HOROVOD_HOSTNAME", &self.placed_node.host, "this node"),
            EnvLine::new("HOROVOD_RANK", self.context.rank, "this rank's number in the job"),
            EnvLine::new("HOROVOD_SIZE", self.context.placement.ranks, "ranks in the job"),
            EnvLine::new(
                "HOROVOD_LOCAL_RANK",
                self.rank.local_rank,
                "this rank's number on its node",
            ),
            EnvLine::new("HOROVOD_LOCAL_SIZE", self.local_size(), "ranks on this node"),
            EnvLine::new("HOROVOD_CROSS_RANK", self.node, "this node's number"),
            EnvLine::new("HOROVOD_CROSS_SIZE", self.nodes(), "nodes in the job"),
            EnvLine::new("HOROVOD_CONTROLLER", "gloo", "no MPI is needed to start"),
            EnvLine::new("HOROVOD_CPU_OPERATIONS", "gloo", "no MPI is needed on the host"),
            EnvLine::new(
                "HOROVOD_GLOO_RENDEZVOUS_ADDR",
                &meet.address,
                &format!("{}; the server that horovodrun starts listens there", meet.address_why),
            ),
            EnvLine::new("HOROVOD_GLOO_RENDEZVOUS_PORT", meet.port, &meet.port_why),
        ];
        // The same for all ranks: interfaces of different rails may not reach each other.
        if let Some(first) = first_interface(self.context.machine) {
            lines.push(EnvLine::new(
                "HOROVOD_GLOO_IFACE",
                first,
                "gloo's connections on the fabric",
            ));
        }
        lines
    }

    fn jax(&self) -> Vec<EnvLine> {
        let meet = self.context.rendezvous;
        let ids = match self.rank.visibility {
            Visibility::Own => (0..self.rank.gpus.len()).map(|i| i.to_string()).collect::<Vec<_>>(),
            Visibility::All => {
                places(self.context.machine, self.rank).iter().map(u32::to_string).collect()
            }
        };
        // Where IPv6 is all there is, IPv4 is not heard.
        let any = if meet.address.contains(':') { "[::]" } else { "0.0.0.0" };
        let mut lines = self.ranks().to_vec();
        lines.extend([
            EnvLine::new(
                "JAX_COORDINATOR_ADDRESS",
                format!("{}:{}", bracketed(&meet.address), meet.port),
                &format!("{}; {}", meet.address_why, meet.port_why),
            ),
            EnvLine::new("JAX_COORDINATOR_PORT", meet.port, &meet.port_why),
            EnvLine::new(
                "JAX_COORDINATOR_BIND_ADDRESS",
                format!("{any}:{}", meet.port),
                "the coordinator hears on every interface of its node",
            ),
        ]);
        if !ids.is_empty() {
            lines.push(EnvLine::new(
                "JAX_LOCAL_DEVICE_IDS",
                ids.join(","),
                "this rank's devices, as it sees them numbered",
            ));
        }
        lines
    }
}

/// An IPv6 address needs brackets before a port.
fn bracketed(address: &str) -> String {
    match address.contains(':') {
        true => format!("[{address}]"),
        false => address.to_owned(),
    }
}

fn first_interface(machine: &Machine) -> Option<&str> {
    nic::sockets(machine).first().map(|n| n.name.as_str())
}

fn visibility(machine: &Machine, rank: &PlacedRank) -> Vec<EnvLine> {
    let Some(vendor) = machine.gpus.first().map(|g| g.vendor).filter(|_| !rank.gpus.is_empty())
    else {
        return Vec::new();
    };
    let join = |ids: &mut dyn Iterator<Item = u32>| {
        ids.map(|i| i.to_string()).collect::<Vec<_>>().join(",")
    };
    let visible = machine.visible_gpus();
    let all = join(&mut visible.iter().copied());
    let own = join(&mut rank.gpus.iter().copied());
    let all_why = match visible.len() == machine.gpus.len() {
        true => "all GPUs of the node, so that ranks can copy between them directly",
        false => "all GPUs that the job was left, so that ranks can copy between them directly",
    };
    let own_why = "this rank's GPU only, as asked for";
    let (shown, why) = match rank.visibility {
        Visibility::All => (all.clone(), all_why),
        Visibility::Own => (own, own_why),
    };
    // HIP counts what ROCR_VISIBLE_DEVICES leaves.
    let places = match rank.visibility {
        Visibility::All => join(&mut (0..visible.len() as u32)),
        Visibility::Own => join(&mut places(machine, rank).into_iter()),
    };
    match vendor {
        GpuVendor::Nvidia => vec![
            EnvLine::new(
                "CUDA_DEVICE_ORDER",
                "PCI_BUS_ID",
                "CUDA numbers GPUs as the driver does, also when they differ",
            ),
            EnvLine::new("CUDA_VISIBLE_DEVICES", shown, why),
        ],
        // HIP's variable hides GPUs from the program only: the layer below still reaches all of
        // them, which ROCR_VISIBLE_DEVICES would prevent.
        GpuVendor::Amd => vec![
            EnvLine::new("ROCR_VISIBLE_DEVICES", all, all_why),
            EnvLine::new("HIP_VISIBLE_DEVICES", places, why),
        ],
        GpuVendor::Intel => vec![
            EnvLine::new("ZE_FLAT_DEVICE_HIERARCHY", "FLAT", "each tile is a device"),
            EnvLine::new("ZE_AFFINITY_MASK", shown, why),
        ],
    }
}

/// What a program that sees all of the job's GPUs calls a rank's own.
fn places(machine: &Machine, rank: &PlacedRank) -> Vec<u32> {
    let visible = machine.visible_gpus();
    let place = |gpu: &u32| visible.iter().position(|v| v == gpu).map(|i| i as u32);
    rank.gpus.iter().filter_map(place).collect()
}

/// Keeps bootstrap and TCP traffic on the fabric, whatever the site says beyond that.
fn network(machine: &Machine, framework: Framework) -> Vec<EnvLine> {
    let names: Vec<&str> = nic::sockets(machine).iter().map(|n| n.name.as_str()).collect();
    let Some(first) = names.first() else { return Vec::new() };
    let on_fabric = machine.fabric().iter().any(|n| n.name == *first);
    let (why, gloo) = match on_fabric {
        true => (
            "the fabric's interfaces, never the management network",
            "gloo's connections on the fabric",
        ),
        false => (
            "the fabric's interfaces have no IP address; these have one",
            "gloo's connections: the fabric has no IP address",
        ),
    };
    let mut lines = vec![EnvLine::new("NCCL_SOCKET_IFNAME", format!("={}", names.join(",")), why)];
    if !matches!(framework, Framework::Jax | Framework::Horovod) {
        lines.push(EnvLine::new("GLOO_SOCKET_IFNAME", first, gloo));
    }
    lines
}

fn caches(
    machine: &Machine,
    framework: Framework,
    (folder, where_why): (&str, &str),
) -> Vec<EnvLine> {
    let amd = machine.gpus.iter().any(|g| g.vendor == GpuVendor::Amd);
    let torch = !matches!(framework, Framework::Jax);
    let mut lines = Vec::new();
    let mut add = |variable: &str, name: &str, why: &str| {
        lines.push(EnvLine::new(
            variable,
            format!("{folder}/{name}"),
            &format!("{why}; {where_why}"),
        ));
    };
    if amd {
        let why = "MIOpen's SQLite databases lock up on parallel file systems";
        add("MIOPEN_USER_DB_PATH", "miopen", why);
        add("MIOPEN_CUSTOM_CACHE_DIR", "miopen", why);
    }
    if torch {
        add("TRITON_CACHE_DIR", "triton", "ranks of all nodes would compile into one folder");
        add(
            "TORCH_EXTENSIONS_DIR",
            "torch-extensions",
            "ranks of all nodes would wait for one lock",
        );
        add(
            "TORCHINDUCTOR_CACHE_DIR",
            "inductor",
            "ranks of all nodes would compile into one folder",
        );
        add("HF_DATASETS_CACHE", "hf-datasets", "Arrow caches are locked and memory-mapped");
        add("HF_MODULES_CACHE", "hf-modules", "model code is copied there by every rank");
    }
    lines
}
