//! The environment variables of a rank: rendezvous, GPU visibility, network, caches, threads; each
//! with its reason.

use regatta_model::{GpuVendor, GpuVisibility, Machine, Nic, PlacedNode, PlacedRank, Placement};
use serde::{Deserialize, Serialize};

use crate::{bind_address, nic};

/// The training framework.
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
    /// Its name in site profiles.
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

/// An environment variable to set, or to unset if it has no value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvVar {
    /// Name.
    pub variable: String,
    /// Value; `None`: unset.
    pub value: Option<String>,
    /// The reason.
    pub why: String,
}

impl EnvVar {
    pub(crate) fn new(variable: &str, value: impl ToString, why: &str) -> Self {
        Self { variable: variable.to_owned(), value: Some(value.to_string()), why: why.to_owned() }
    }
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
#[derive(Debug, Clone, Copy)]
pub struct CacheDir<'a> {
    /// Path.
    pub path: &'a str,
    /// The reason.
    pub why: &'a str,
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
    pub cache: CacheDir<'a>,
    /// Settings of the site profile.
    pub settings: &'a [EnvVar],
}

/// The environment of a rank; `None` if the job has no such rank. Site settings override general
/// ones.
pub fn environment(context: &EnvContext<'_>) -> Option<Vec<EnvVar>> {
    let (node, placed_node, rank) = context.placement.find_rank(context.rank)?;
    let env = RankEnv { context, node, placed_node, rank };
    let mut vars = env.framework_variables();
    vars.push(EnvVar::new("OMP_NUM_THREADS", rank.omp_num_threads, &rank.reasons.threads));
    vars.extend(visibility(context.machine, rank));
    if context.placement.nodes.len() > 1 {
        vars.extend(network(context.machine, context.framework));
        vars.extend(
            context.nics.and_then(|nics| bind_address::regatta_bind(nics, rank.nic.as_deref())),
        );
    }
    vars.extend(caches(context.machine, context.framework, context.cache));
    for setting in context.settings {
        vars.retain(|v| v.variable != setting.variable);
        vars.push(setting.clone());
    }
    Some(vars)
}

struct RankEnv<'a> {
    context: &'a EnvContext<'a>,
    node: usize,
    placed_node: &'a PlacedNode,
    rank: &'a PlacedRank,
}

impl RankEnv<'_> {
    fn framework_variables(&self) -> Vec<EnvVar> {
        match self.context.framework {
            Framework::Torch | Framework::Accelerate => self.torch(),
            Framework::Deepspeed => {
                let mut vars = self.torch();
                vars.extend([
                    EnvVar::new(
                        "LOCAL_SIZE",
                        self.local_size(),
                        "ranks on this node, as set by DeepSpeed's launcher",
                    ),
                    EnvVar::new(
                        "CROSS_RANK",
                        self.node,
                        "node index, as set by DeepSpeed's launcher",
                    ),
                    EnvVar::new(
                        "CROSS_SIZE",
                        self.nodes(),
                        "number of nodes, as set by DeepSpeed's launcher",
                    ),
                ]);
                vars
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

    fn rank_variables(&self) -> [EnvVar; 4] {
        [
            EnvVar::new("RANK", self.context.rank, "global rank"),
            EnvVar::new("WORLD_SIZE", self.context.placement.ranks, "world size"),
            EnvVar::new(
                "LOCAL_RANK",
                self.rank.local_rank,
                "local rank, which is also its device index",
            ),
            EnvVar::new("LOCAL_WORLD_SIZE", self.local_size(), "ranks on this node"),
        ]
    }

    fn torch(&self) -> Vec<EnvVar> {
        let rendezvous = self.context.rendezvous;
        let mut vars = self.rank_variables().to_vec();
        vars.extend([
            EnvVar::new("GROUP_RANK", self.node, "node index"),
            EnvVar::new("GROUP_WORLD_SIZE", self.nodes(), "number of nodes"),
            EnvVar::new("MASTER_ADDR", &rendezvous.address, &rendezvous.address_why),
            EnvVar::new("MASTER_PORT", rendezvous.port, &rendezvous.port_why),
            EnvVar::new(
                "TORCH_NCCL_ASYNC_ERROR_HANDLING",
                1,
                "a failed collective aborts the rank instead of hanging the job",
            ),
        ]);
        vars
    }

    fn horovod(&self) -> Vec<EnvVar> {
        let rendezvous = self.context.rendezvous;
        let mut vars = vec![
            EnvVar::new("HOROVOD_HOSTNAME", &self.placed_node.host, "this node"),
            EnvVar::new("HOROVOD_RANK", self.context.rank, "global rank"),
            EnvVar::new("HOROVOD_SIZE", self.context.placement.ranks, "world size"),
            EnvVar::new("HOROVOD_LOCAL_RANK", self.rank.local_rank, "local rank"),
            EnvVar::new("HOROVOD_LOCAL_SIZE", self.local_size(), "ranks on this node"),
            EnvVar::new("HOROVOD_CROSS_RANK", self.node, "node index"),
            EnvVar::new("HOROVOD_CROSS_SIZE", self.nodes(), "number of nodes"),
            EnvVar::new("HOROVOD_CONTROLLER", "gloo", "start without MPI"),
            EnvVar::new("HOROVOD_CPU_OPERATIONS", "gloo", "host collectives without MPI"),
            EnvVar::new(
                "HOROVOD_GLOO_RENDEZVOUS_ADDR",
                &rendezvous.address,
                &format!(
                    "{}; the rendezvous server of horovodrun listens there",
                    rendezvous.address_why
                ),
            ),
            EnvVar::new("HOROVOD_GLOO_RENDEZVOUS_PORT", rendezvous.port, &rendezvous.port_why),
        ];
        // The same on all ranks, because interfaces of different rails may not reach each other.
        if let Some(first) = first_interface(self.context.machine) {
            vars.push(EnvVar::new("HOROVOD_GLOO_IFACE", first, "Gloo uses the fabric"));
        }
        vars
    }

    fn jax(&self) -> Vec<EnvVar> {
        let rendezvous = self.context.rendezvous;
        let ids = match self.rank.visibility {
            GpuVisibility::Own => {
                (0..self.rank.gpus.len()).map(|i| i.to_string()).collect::<Vec<_>>()
            }
            GpuVisibility::All => visible_indices(self.context.machine, self.rank)
                .iter()
                .map(u32::to_string)
                .collect(),
        };
        // An IPv6-only host does not listen on IPv4.
        let any = if rendezvous.address.contains(':') { "[::]" } else { "0.0.0.0" };
        let mut vars = self.rank_variables().to_vec();
        vars.extend([
            EnvVar::new(
                "JAX_COORDINATOR_ADDRESS",
                format!("{}:{}", bracketed(&rendezvous.address), rendezvous.port),
                &format!("{}; {}", rendezvous.address_why, rendezvous.port_why),
            ),
            EnvVar::new("JAX_COORDINATOR_PORT", rendezvous.port, &rendezvous.port_why),
            EnvVar::new(
                "JAX_COORDINATOR_BIND_ADDRESS",
                format!("{any}:{}", rendezvous.port),
                "the coordinator listens on all interfaces of its node",
            ),
        ]);
        if !ids.is_empty() {
            vars.push(EnvVar::new(
                "JAX_LOCAL_DEVICE_IDS",
                ids.join(","),
                "devices of this rank, among those visible to it",
            ));
        }
        vars
    }
}

/// IPv6 addresses need brackets before a port.
fn bracketed(address: &str) -> String {
    match address.contains(':') {
        true => format!("[{address}]"),
        false => address.to_owned(),
    }
}

fn first_interface(machine: &Machine) -> Option<&str> {
    nic::socket_interfaces(machine).first().map(|n| n.name.as_str())
}

fn visibility(machine: &Machine, rank: &PlacedRank) -> Vec<EnvVar> {
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
        true => "all GPUs of the node, which permits peer-to-peer copies between ranks",
        false => "all GPUs of the job, which permits peer-to-peer copies between ranks",
    };
    let own_why = "only the GPU of this rank, as requested";
    let (shown, why) = match rank.visibility {
        GpuVisibility::All => (all.clone(), all_why),
        GpuVisibility::Own => (own, own_why),
    };
    // HIP indices refer to the devices of ROCR_VISIBLE_DEVICES.
    let hip_indices = match rank.visibility {
        GpuVisibility::All => join(&mut (0..visible.len() as u32)),
        GpuVisibility::Own => join(&mut visible_indices(machine, rank).into_iter()),
    };
    match vendor {
        GpuVendor::Nvidia => vec![
            EnvVar::new(
                "CUDA_DEVICE_ORDER",
                "PCI_BUS_ID",
                "CUDA indices follow the PCI bus order, even with different GPU models",
            ),
            EnvVar::new("CUDA_VISIBLE_DEVICES", shown, why),
        ],
        // HIP_VISIBLE_DEVICES hides GPUs from the program only; ROCR_VISIBLE_DEVICES would also
        // hide them from the runtime below, which copies between GPUs.
        GpuVendor::Amd => vec![
            EnvVar::new("ROCR_VISIBLE_DEVICES", all, all_why),
            EnvVar::new("HIP_VISIBLE_DEVICES", hip_indices, why),
        ],
        GpuVendor::Intel => vec![
            EnvVar::new("ZE_FLAT_DEVICE_HIERARCHY", "FLAT", "each tile is one device"),
            EnvVar::new("ZE_AFFINITY_MASK", shown, why),
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
    let names: Vec<&str> =
        nic::socket_interfaces(machine).iter().map(|n| n.name.as_str()).collect();
    let Some(first) = names.first() else { return Vec::new() };
    let on_fabric = machine.fabric_nics().iter().any(|n| n.name == *first);
    let (why, gloo) = match on_fabric {
        true => ("fabric interfaces, never the management network", "Gloo uses the fabric"),
        false => (
            "interfaces with an IP address, because the fabric interfaces have none",
            "Gloo uses these, because the fabric has no IP address",
        ),
    };
    let mut vars = vec![EnvVar::new("NCCL_SOCKET_IFNAME", format!("={}", names.join(",")), why)];
    if !matches!(framework, Framework::Jax | Framework::Horovod) {
        vars.push(EnvVar::new("GLOO_SOCKET_IFNAME", first, gloo));
    }
    vars
}

fn caches(machine: &Machine, framework: Framework, cache: CacheDir<'_>) -> Vec<EnvVar> {
    let amd = machine.gpus.iter().any(|g| g.vendor == GpuVendor::Amd);
    let torch = !matches!(framework, Framework::Jax);
    let mut vars = Vec::new();
    let mut add = |variable: &str, name: &str, why: &str| {
        vars.push(EnvVar::new(
            variable,
            format!("{}/{name}", cache.path),
            &format!("{why}; {}", cache.why),
        ));
    };
    if amd {
        let why = "MIOpen's SQLite databases deadlock on parallel file systems";
        add("MIOPEN_USER_DB_PATH", "miopen", why);
        add("MIOPEN_CUSTOM_CACHE_DIR", "miopen", why);
    }
    if torch {
        add("TRITON_CACHE_DIR", "triton", "ranks of all nodes would compile into one directory");
        add(
            "TORCH_EXTENSIONS_DIR",
            "torch-extensions",
            "ranks of all nodes would contend for one lock",
        );
        add(
            "TORCHINDUCTOR_CACHE_DIR",
            "inductor",
            "ranks of all nodes would compile into one directory",
        );
        add("HF_DATASETS_CACHE", "hf-datasets", "Arrow caches are locked and memory-mapped");
        add("HF_MODULES_CACHE", "hf-modules", "every rank copies model code there");
    }
    vars
}
