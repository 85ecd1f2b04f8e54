//! Options shared by several commands: machine source, job size and binding, rank environment.

use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};
use regatta_model::{CpuSet, GpuVisibility, JobSpec, MemoryBinding, ReservedCores, SmtPolicy};
use regatta_place::environment::Framework;

/// Upper bound on `--nodes`, to catch typing errors.
const MAX_NODES: i64 = 1_000_000;

/// Where the machine description, the allocation and the site profile come from.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Machine")]
pub struct SourceArgs {
    /// Use the machine description in FILE instead of this node: a `map --dump` file, hwloc 2 XML,
    /// or a folder with a recorded /sys. Repeat it for heterogeneous nodes: each file describes the
    /// host it names, the first one all other hosts
    #[arg(long = "machine", value_name = "FILE")]
    pub machines: Vec<PathBuf>,
    /// Use a built-in machine description: lumi-g, frontier, perlmutter, polaris, aurora, alps,
    /// jupiter, marenostrum5-acc, el-capitan, dgx-h100, or cpu:SxNxC (sockets, NUMA nodes per
    /// socket, cores per NUMA node)
    #[arg(long, value_name = "NAME", conflicts_with = "machines")]
    pub system: Option<String>,
    /// Take the nodes from FILE instead of the scheduler; one host per line, optionally with slots:
    /// `host slots=4` or `host:4`
    #[arg(long, value_name = "FILE")]
    pub hostfile: Option<PathBuf>,
    /// Number of nodes: the first ones of the allocation, or hypothetical ones without an allocation
    #[arg(short = 'N', long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=MAX_NODES))]
    pub nodes: Option<u32>,
    /// Use this site profile instead of the detected one
    #[arg(long, value_name = "NAME")]
    pub profile: Option<String>,
    /// Read additional site profiles from a TOML file (repeatable)
    #[arg(long, value_name = "FILE")]
    pub profile_file: Vec<PathBuf>,
}

/// The job's size and binding.
#[derive(Debug, Args)]
#[command(next_help_heading = "Job")]
pub struct JobArgs {
    /// Total number of ranks, like `srun --ntasks` or `mpirun -n` [default: from the allocation, else
    /// one per GPU, else one per NUMA node]
    #[arg(short = 'n', long, value_name = "COUNT")]
    pub ranks: Option<u32>,
    /// Ranks per node, like `srun --ntasks-per-node` or `torchrun --nproc-per-node`
    #[arg(long, value_name = "COUNT")]
    pub ranks_per_node: Option<u32>,
    /// GPUs per rank
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub gpus_per_rank: u32,
    /// Assign no GPUs
    #[arg(long)]
    pub no_gpus: bool,
    /// Cores per rank, from other NUMA nodes if necessary [default: an equal share of the cores
    /// local to its GPU]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub cores_per_rank: Option<u32>,
    /// Cores to keep free of ranks: first-of-l3, none, or a CPU list like 0,52 [default: from the
    /// site profile]
    #[arg(long, value_name = "WHICH", value_parser = parse_reserve)]
    pub reserve: Option<ReservedCores>,
    /// Hardware threads per core to use [default: from the site profile]
    #[arg(long, value_enum, value_name = "WHICH")]
    pub smt: Option<SmtName>,
    /// Allow more ranks than cores
    #[arg(long)]
    pub oversubscribe: bool,
    /// GPUs visible to a rank: all GPUs of the node, or only its own
    #[arg(long, value_enum, value_name = "WHICH", default_value = "all")]
    pub visibility: VisibilityName,
    /// NUMA memory policy
    #[arg(long, value_enum, value_name = "POLICY", default_value = "prefer")]
    pub memory: MemoryName,
}

/// The environment variables that a rank gets.
#[derive(Debug, Args)]
#[command(next_help_heading = "Environment")]
pub struct RankEnvArgs {
    /// Framework to set variables for
    #[arg(long, value_enum, default_value = "torch")]
    pub framework: FrameworkName,
    /// Address rank 0 listens on [default: rank 0's address on the high-speed network]
    #[arg(long, value_name = "ADDRESS", value_parser = NonEmptyStringValueParser::new())]
    pub master_addr: Option<String>,
    /// Port rank 0 listens on [default: derived from the job]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub master_port: Option<u16>,
    /// Do not set this variable (repeatable), for example NCCL_NET_GDR_LEVEL
    #[arg(long, value_name = "VARIABLE")]
    pub without: Vec<String>,
    /// Like --without, but silent if the variable would not be set anyway
    #[arg(long, value_name = "VARIABLE", hide = true)]
    pub inherit: Vec<String>,
}

/// `--framework`.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum FrameworkName {
    /// PyTorch
    Torch,
    /// DeepSpeed
    Deepspeed,
    /// Hugging Face Accelerate
    Accelerate,
    /// Horovod with gloo
    Horovod,
    /// JAX
    Jax,
}

impl From<FrameworkName> for Framework {
    fn from(name: FrameworkName) -> Self {
        match name {
            FrameworkName::Torch => Framework::Torch,
            FrameworkName::Deepspeed => Framework::Deepspeed,
            FrameworkName::Accelerate => Framework::Accelerate,
            FrameworkName::Horovod => Framework::Horovod,
            FrameworkName::Jax => Framework::Jax,
        }
    }
}

/// `--smt`.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum SmtName {
    /// All hardware threads
    All,
    /// The first hardware thread
    One,
}

/// `--visibility`.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum VisibilityName {
    /// All GPUs of the node: keeps peer-to-peer copies; the program selects device LOCAL_RANK
    All,
    /// Its own GPU only, as device 0: breaks programs that select device LOCAL_RANK
    Own,
}

/// `--memory`.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum MemoryName {
    /// Prefer the NUMA node of the rank's cores
    Prefer,
    /// Bind to the NUMA node of the rank's cores
    Bind,
    /// The kernel's default policy
    #[value(alias = "system")]
    Default,
}

fn parse_reserve(text: &str) -> Result<ReservedCores, String> {
    match text {
        "first-of-l3" => Ok(ReservedCores::FirstOfL3),
        "none" => Ok(ReservedCores::None),
        list => match list.parse::<CpuSet>() {
            Ok(cpus) if !cpus.is_empty() => Ok(ReservedCores::Cpus(cpus)),
            Ok(_) => Err("expected first-of-l3, none, or a CPU list like 0,52".to_owned()),
            Err(error) => {
                Err(format!("{error}; expected first-of-l3, none, or a CPU list like 0,52"))
            }
        },
    }
}

impl JobArgs {
    /// The job, with defaults from the site profile.
    pub fn job(
        &self,
        site_reserve: Option<&ReservedCores>,
        site_smt: Option<SmtPolicy>,
    ) -> JobSpec {
        JobSpec {
            ranks: self.ranks,
            ranks_per_node: self.ranks_per_node,
            gpus_per_rank: self.gpus_per_rank,
            use_gpus: !self.no_gpus,
            cores_per_rank: self.cores_per_rank,
            reserve: self.reserve.clone().or_else(|| site_reserve.cloned()).unwrap_or_default(),
            smt: match self.smt {
                Some(SmtName::All) => SmtPolicy::All,
                Some(SmtName::One) => SmtPolicy::One,
                None => site_smt.unwrap_or_default(),
            },
            oversubscribe: self.oversubscribe,
            visibility: match self.visibility {
                VisibilityName::All => GpuVisibility::All,
                VisibilityName::Own => GpuVisibility::Own,
            },
            memory: match self.memory {
                MemoryName::Prefer => MemoryBinding::Prefer,
                MemoryName::Bind => MemoryBinding::Bind,
                MemoryName::Default => MemoryBinding::Default,
            },
        }
    }
}
