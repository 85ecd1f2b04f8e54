//! Options that several commands share: where the machine comes from, and what the job wants.

use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};
use regatta_model::{CpuSet, Job, MemoryChoice, Reserve, SmtUse, Visibility};
use regatta_place::environment::Framework;

/// More nodes than any machine has: beyond it is a typing error.
const MAX_NODES: i64 = 1_000_000;

/// Where machine, allocation and site come from.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Machine")]
pub struct SourceArgs {
    /// Describe nodes by FILE, not by the live machine: a file of `map --dump`, hwloc 2 XML, or a
    /// folder with a recorded /sys. Repeat it for nodes that differ: each file is used for the
    /// host it names, the first for all others
    #[arg(long = "machine", value_name = "FILE")]
    pub machines: Vec<PathBuf>,
    /// Use a built-in description: lumi-g, frontier, perlmutter, polaris, aurora, alps, jupiter,
    /// marenostrum5-acc, el-capitan, dgx-h100, or cpu:SxNxC (sockets, NUMA nodes a socket, cores a
    /// NUMA node)
    #[arg(long, value_name = "NAME", conflicts_with = "machines")]
    pub system: Option<String>,
    /// Take the nodes from FILE (one host a line, `host slots=4` or `host:4`), not from the
    /// scheduler
    #[arg(long, value_name = "FILE")]
    pub hostfile: Option<PathBuf>,
    /// Use this many nodes: the first ones of the allocation, or made-up ones outside of any
    #[arg(short = 'N', long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=MAX_NODES))]
    pub nodes: Option<u32>,
    /// Use this site profile instead of the one recognised
    #[arg(long, value_name = "NAME")]
    pub profile: Option<String>,
    /// Read site profiles from a TOML file, in addition to the built-in ones
    #[arg(long, value_name = "FILE")]
    pub profile_file: Vec<PathBuf>,
}

/// What the job wants.
#[derive(Debug, Args)]
#[command(next_help_heading = "Job")]
pub struct JobArgs {
    /// Ranks in all; without it what the allocation says, else one a GPU, else one a NUMA node
    #[arg(short = 'n', long, value_name = "COUNT")]
    pub ranks: Option<u32>,
    /// Ranks on each node
    #[arg(long, value_name = "COUNT")]
    pub ranks_per_node: Option<u32>,
    /// GPUs for each rank
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub gpus_per_rank: u32,
    /// Give ranks no GPU
    #[arg(long)]
    pub no_gpus: bool,
    /// Cores each rank must have, also from other NUMA nodes; without it an equal share of those
    /// near its GPU
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub cores_per_rank: Option<u32>,
    /// Cores no rank gets: first-of-l3, none, or a list of CPUs like 0,52; without it what the
    /// site's profile says
    #[arg(long, value_name = "WHICH", value_parser = parse_reserve)]
    pub reserve: Option<Reserve>,
    /// Hardware threads of a core that ranks use; without it what the site's profile says
    #[arg(long, value_enum, value_name = "WHICH")]
    pub smt: Option<SmtName>,
    /// Let ranks share cores when there are more ranks than cores
    #[arg(long)]
    pub oversubscribe: bool,
    /// GPUs a rank sees: all of the node's, or only its own
    #[arg(long, value_enum, value_name = "WHICH", default_value = "all")]
    pub visibility: VisibilityName,
    /// Where a rank's memory comes from
    #[arg(long, value_enum, value_name = "HOW", default_value = "prefer")]
    pub memory: MemoryName,
}

/// What a rank's environment is made for.
#[derive(Debug, Args)]
#[command(next_help_heading = "Environment")]
pub struct EnvChoices {
    /// Whose variables
    #[arg(long, value_enum, default_value = "torch")]
    pub framework: FrameworkName,
    /// Where rank 0 listens; without it rank 0's address on the fabric
    #[arg(long, value_name = "ADDRESS", value_parser = NonEmptyStringValueParser::new())]
    pub master_addr: Option<String>,
    /// The port rank 0 listens on; without it one derived from the job
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub master_port: Option<u16>,
    /// Leave out this variable (may be repeated), for instance NCCL_NET_GDR_LEVEL
    #[arg(long, value_name = "VARIABLE")]
    pub without: Vec<String>,
    /// Leave out this variable, if it is there: what the environment has for it is tried
    #[arg(long, value_name = "VARIABLE", hide = true)]
    pub trying: Vec<String>,
}

/// The frameworks that `env` knows.
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
    /// All threads
    All,
    /// The first thread
    One,
}

/// `--visibility`.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum VisibilityName {
    /// All GPUs of the node: keeps peer-to-peer copies; the program picks device LOCAL_RANK
    All,
    /// Its own only, as device 0: breaks programs that pick device LOCAL_RANK
    Own,
}

/// `--memory`.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum MemoryName {
    /// Its cores' NUMA node first
    Prefer,
    /// Its cores' NUMA node only
    Bind,
    /// As the kernel does by default
    System,
}

fn parse_reserve(text: &str) -> Result<Reserve, String> {
    match text {
        "first-of-l3" => Ok(Reserve::FirstOfL3),
        "none" => Ok(Reserve::None),
        list => match list.parse::<CpuSet>() {
            Ok(cpus) if !cpus.is_empty() => Ok(Reserve::Cpus(cpus)),
            Ok(_) => Err("write first-of-l3, none, or a list of CPUs like 0,52".to_owned()),
            Err(error) => {
                Err(format!("{error}; write first-of-l3, none, or a list of CPUs like 0,52"))
            }
        },
    }
}

impl JobArgs {
    /// The job, with the site's choice where the user made none.
    pub fn job(&self, site_reserve: Option<&Reserve>, site_smt: Option<SmtUse>) -> Job {
        Job {
            ranks: self.ranks,
            ranks_per_node: self.ranks_per_node,
            gpus_per_rank: self.gpus_per_rank,
            use_gpus: !self.no_gpus,
            cores_per_rank: self.cores_per_rank,
            reserve: self.reserve.clone().or_else(|| site_reserve.cloned()).unwrap_or_default(),
            smt: match self.smt {
                Some(SmtName::All) => SmtUse::All,
                Some(SmtName::One) => SmtUse::One,
                None => site_smt.unwrap_or_default(),
            },
            oversubscribe: self.oversubscribe,
            visibility: match self.visibility {
                VisibilityName::All => Visibility::All,
                VisibilityName::Own => Visibility::Own,
            },
            memory: match self.memory {
                MemoryName::Prefer => MemoryChoice::Prefer,
                MemoryName::Bind => MemoryChoice::Bind,
                MemoryName::System => MemoryChoice::System,
            },
        }
    }
}
