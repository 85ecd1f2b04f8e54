//! Options shared by several commands: machine source, job size and binding, rank environment.

use std::error::Error;
use std::path::PathBuf;

use clap::builder::{
    NonEmptyStringValueParser, PossibleValue, PossibleValuesParser, RangedI64ValueParser,
    TypedValueParser,
};
use clap::{Args, value_parser};
use regatta_discover::systems;
use regatta_events::record::settings::Level;
use regatta_launch::config::{JobSource, PlacementRequest, RankEnvOptions};
use regatta_model::{
    CpuSet, GpuVisibility, JobSpec, Machine, MemoryBinding, ReservedCores, SmtPolicy,
};
use regatta_place::environment::Framework;

/// Upper bound on `--nodes`, to catch typing errors.
pub const MAX_NODES: i64 = 1_000_000;

/// A value of an option: name, value and help. Values without help are hidden aliases.
pub type NamedValue<T> = (&'static str, T, &'static str);

/// Parses one of these values.
pub fn one_of<T: Copy + Send + Sync>(
    values: &'static [NamedValue<T>],
) -> impl TypedValueParser<Value = T> {
    let possible = |(name, _, help): &NamedValue<T>| {
        PossibleValue::new(*name).help(*help).hide(help.is_empty())
    };
    PossibleValuesParser::new(values.iter().map(possible)).try_map(|name| {
        values.iter().find(|value| value.0 == name).map(|value| value.1).ok_or("unknown value")
    })
}

/// Parses a number of at least `min`.
pub fn at_least<
    T: TryFrom<i64, Error: Into<Box<dyn Error + Send + Sync>>> + Clone + Send + Sync,
>(
    min: i64,
) -> RangedI64ValueParser<T> {
    RangedI64ValueParser::new().range(min..)
}

/// Parses a number that is valid by this predicate.
pub fn number(
    is_valid: fn(&f64) -> bool,
    expected: &'static str,
) -> impl TypedValueParser<Value = f64> {
    move |text: &str| text.parse().ok().filter(is_valid).ok_or(expected)
}

/// Parses a count of at least 1.
pub fn positive() -> RangedI64ValueParser<u32> {
    value_parser!(u32).range(1..)
}

/// Where the machine description, the allocation and the site profile come from.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Machine")]
pub struct SourceArgs {
    /// Use the machine description in FILE instead of this node: a `map --dump` file, hwloc XML,
    /// or a folder with a recorded /sys. Repeat it for heterogeneous nodes: each file describes the
    /// host named in it; the first one also describes all hosts without a file
    #[arg(long = "machine", value_name = "FILE")]
    pub machines: Vec<PathBuf>,
    /// Use a built-in machine description: lumi-g, frontier, perlmutter, polaris, aurora, alps,
    /// jupiter, marenostrum5-acc, el-capitan, dgx-h100, or cpu:SxNxC (sockets, NUMA nodes per
    /// socket, cores per NUMA node)
    #[arg(long, value_name = "NAME", value_parser = systems::system, conflicts_with = "machines")]
    pub system: Option<Machine>,
    /// Take the nodes from FILE instead of the scheduler; one host per line, optionally with slots:
    /// `host slots=4` or `host:4`
    #[arg(long, value_name = "FILE")]
    pub hostfile: Option<PathBuf>,
    /// Number of nodes: the first COUNT of the allocation; without one, COUNT nodes like this one
    #[arg(short = 'N', long, value_name = "COUNT", value_parser = value_parser!(u32).range(1..=MAX_NODES))]
    pub nodes: Option<u32>,
    /// Use this site profile instead of the detected one
    #[arg(long, value_name = "NAME")]
    pub site: Option<String>,
    /// Read additional site profiles from a TOML file (repeatable)
    #[arg(long, value_name = "FILE")]
    pub site_file: Vec<PathBuf>,
}

/// Levels of `--profile`.
pub const LEVELS: [NamedValue<Level>; 3] = [
    ("operations", Level::Operations, "Collectives and messages with their time on the GPU"),
    ("network", Level::Network, "Also the time of their network transfers (default)"),
    ("steps", Level::Steps, "Also each step of a transfer; with some overhead"),
];

/// The plug-ins that NCCL or RCCL loads in the ranks.
#[derive(Debug, Default, Clone, Args)]
pub struct NcclPluginArgs {
    /// Record every collective of NCCL or RCCL, for `regatta comms` and for the hang report, which then
    /// names the rank that is missing from a collective; the files go to the folder `comms` of the run
    /// folder
    #[arg(long, value_name = "LEVEL", num_args = 0..=1, require_equals = true, default_missing_value = "network", value_parser = one_of(&LEVELS), help_heading = "Profile")]
    pub profile: Option<Level>,
    /// Have NCCL or RCCL select algorithms and protocols from TABLE, which
    /// `regatta bench all --tune TABLE --backend nccl` has written: all ranks load the tuner plug-in, and a
    /// copy of the table in the run folder
    #[arg(long, value_name = "TABLE", help_heading = "NCCL plug-ins")]
    pub tuner: Option<PathBuf>,
    /// Have NCCL or RCCL use this network plug-in on all ranks: `regatta`, the libfabric plug-in of this
    /// program, or the path of a library
    #[arg(long, value_name = "regatta|PATH", value_parser = NonEmptyStringValueParser::new().map(NetPlugin::from), help_heading = "NCCL plug-ins")]
    pub net_plugin: Option<NetPlugin>,
}

/// A network plug-in of NCCL or RCCL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NetPlugin {
    /// The one that this program contains.
    Regatta,
    /// The library at this path.
    Path(PathBuf),
}

impl From<String> for NetPlugin {
    fn from(text: String) -> Self {
        match text.as_str() {
            "regatta" => Self::Regatta,
            _ => Self::Path(text.into()),
        }
    }
}

/// How many ranks a command launches itself, and where.
#[derive(Debug, Default, Clone, Args)]
pub struct RankCountArgs {
    /// Number of ranks
    #[arg(long, value_name = "COUNT", value_parser = positive())]
    pub ranks: Option<u32>,
    /// Ranks per node
    #[arg(long, value_name = "COUNT", value_parser = positive())]
    pub ranks_per_node: Option<u32>,
    /// Use this many nodes of the allocation or of --hostfile
    #[arg(long, value_name = "COUNT", value_parser = positive())]
    pub nodes: Option<u32>,
    /// Take the nodes from FILE instead of the scheduler
    #[arg(long, value_name = "FILE")]
    pub hostfile: Option<PathBuf>,
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
    #[arg(long, value_name = "COUNT", visible_alias = "nproc-per-node", alias = "nproc_per_node")]
    pub ranks_per_node: Option<u32>,
    /// GPUs per rank [default: 1; all of the node with one rank per node, for torchrun and other
    /// programs that start a worker per GPU]
    #[arg(long, value_name = "COUNT", value_parser = positive())]
    pub gpus_per_rank: Option<u32>,
    /// Assign no GPUs
    #[arg(long)]
    pub no_gpus: bool,
    /// Cores per rank, from other NUMA nodes if necessary [default: an equal share of the cores
    /// local to its GPU]
    #[arg(long, value_name = "COUNT", value_parser = positive())]
    pub cores_per_rank: Option<u32>,
    /// Cores to keep free of ranks: first-of-l3, none, or a CPU list like 0,52 [default: from the
    /// site profile]
    #[arg(long, value_name = "WHICH", value_parser = parse_reserve)]
    pub reserve: Option<ReservedCores>,
    /// Hardware threads per core to use [default: from the site profile]
    #[arg(long, value_parser = one_of(&SMT_POLICIES), value_name = "WHICH")]
    pub smt: Option<SmtPolicy>,
    /// Allow more ranks than cores
    #[arg(long)]
    pub oversubscribe: bool,
    /// GPUs visible to a rank: all GPUs of the node, or only its own
    #[arg(long, value_parser = one_of(&VISIBILITIES), value_name = "WHICH", default_value = "all")]
    pub visibility: GpuVisibility,
    /// NUMA memory policy
    #[arg(long, value_parser = one_of(&MEMORY_BINDINGS), value_name = "POLICY", default_value = "prefer")]
    pub memory: MemoryBinding,
}

const SMT_POLICIES: [NamedValue<SmtPolicy>; 2] = [
    ("all", SmtPolicy::All, "All hardware threads"),
    ("one", SmtPolicy::One, "The first hardware thread"),
];

const ALL_GPUS: &str =
    "All GPUs of the node: keeps peer-to-peer copies; the program selects device LOCAL_RANK";
const OWN_GPU: &str =
    "Its own GPU only, as device 0: breaks programs that select device LOCAL_RANK";
const VISIBILITIES: [NamedValue<GpuVisibility>; 2] =
    [("all", GpuVisibility::All, ALL_GPUS), ("own", GpuVisibility::Own, OWN_GPU)];

const MEMORY_BINDINGS: [NamedValue<MemoryBinding>; 4] = [
    ("prefer", MemoryBinding::Prefer, "Prefer the NUMA node of the rank's cores"),
    ("bind", MemoryBinding::Bind, "Bind to the NUMA node of the rank's cores"),
    ("default", MemoryBinding::Default, "The kernel's default policy"),
    ("system", MemoryBinding::Default, ""),
];

/// The environment variables that a rank gets.
#[derive(Debug, Args)]
#[command(next_help_heading = "Environment")]
pub struct RankEnvArgs {
    /// Framework to set variables for
    #[arg(long, value_parser = one_of(&FRAMEWORKS), default_value = "torch")]
    pub framework: Framework,
    /// Address rank 0 listens on [default: rank 0's address on the high-speed network; 127.0.0.1 on
    /// a single node]
    #[arg(long, value_name = "ADDRESS", value_parser = NonEmptyStringValueParser::new())]
    pub master_addr: Option<String>,
    /// Port rank 0 listens on [default: derived from the job]
    #[arg(long, value_name = "PORT", value_parser = value_parser!(u16).range(1..))]
    pub master_port: Option<u16>,
    /// Do not set this variable (repeatable), for example NCCL_NET_GDR_LEVEL
    #[arg(long, value_name = "VARIABLE")]
    pub without: Vec<String>,
}

const FRAMEWORKS: [NamedValue<Framework>; 5] = [
    ("torch", Framework::Torch, "PyTorch"),
    ("deepspeed", Framework::Deepspeed, "DeepSpeed"),
    ("accelerate", Framework::Accelerate, "Hugging Face Accelerate"),
    ("horovod", Framework::Horovod, "Horovod with gloo"),
    ("jax", Framework::Jax, "JAX"),
];

fn parse_reserve(text: &str) -> Result<ReservedCores, String> {
    const EXPECTED: &str = "expected first-of-l3, none, or a CPU list like 0,52";
    match text {
        "first-of-l3" => Ok(ReservedCores::FirstOfL3),
        "none" => Ok(ReservedCores::None),
        list => match list.parse::<CpuSet>() {
            Ok(cpus) if !cpus.is_empty() => Ok(ReservedCores::Cpus(cpus)),
            Ok(_) => Err(EXPECTED.to_owned()),
            Err(error) => Err(format!("{error}; {EXPECTED}")),
        },
    }
}

impl SourceArgs {
    /// The source of machines and nodes.
    pub fn source(&self) -> JobSource {
        JobSource {
            machines: self.machines.clone(),
            system: self.system.clone(),
            hostfile: self.hostfile.clone(),
            nodes: self.nodes,
            site: self.site.clone(),
            site_files: self.site_file.clone(),
            standalone: false,
        }
    }
}

impl JobArgs {
    /// The job, still without the defaults of the site.
    pub fn request(&self) -> PlacementRequest {
        let job = JobSpec {
            ranks: self.ranks,
            ranks_per_node: self.ranks_per_node,
            gpus_per_rank: self.gpus_per_rank,
            use_gpus: !self.no_gpus,
            cores_per_rank: self.cores_per_rank,
            oversubscribe: self.oversubscribe,
            visibility: self.visibility,
            memory: self.memory,
            ..JobSpec::default()
        };
        PlacementRequest { job, reserve: self.reserve.clone(), smt: self.smt }
    }
}

impl RankEnvArgs {
    /// The environment of the ranks.
    pub fn options(&self) -> RankEnvOptions {
        RankEnvOptions {
            framework: self.framework,
            master_addr: self.master_addr.clone(),
            master_port: self.master_port,
            without: self.without.clone(),
            set: Vec::new(),
        }
    }
}
