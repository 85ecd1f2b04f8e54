//! The command line, declared once: parser, help, man page and completions all derive from it.

use std::path::PathBuf;

use anstyle::{AnsiColor, Style};
use clap::builder::{NonEmptyStringValueParser, Styles};
use clap::{Args, Parser, Subcommand, ValueEnum};
use regatta_place::binding::Launcher;
use regatta_place::environment::Framework;

use crate::options::{JobArgs, SourceArgs};

/// How errors are marked.
pub const ERROR: Style = AnsiColor::Red.on_default().bold();
/// How warnings are marked.
pub const WARNING: Style = AnsiColor::Yellow.on_default().bold();
/// How what is in order is marked.
pub const GOOD: Style = AnsiColor::Green.on_default().bold();
/// How headings are marked.
pub const HEADING: Style = Style::new().bold();
/// How what explains is marked.
pub const FAINT: Style = Style::new().dimmed();

const STYLES: Styles = Styles::styled()
    .header(HEADING)
    .usage(HEADING)
    .literal(AnsiColor::Cyan.on_default())
    .placeholder(AnsiColor::Green.on_default());

/// Takes an AI training job from one device to a whole supercomputer.
#[derive(Debug, Parser)]
#[command(name = "regatta", version, styles = STYLES, propagate_version = true, max_term_width = 100)]
pub struct Cli {
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show this machine and where each rank of a job belongs: GPU, cores, memory, NIC
    #[command(after_long_help = MAP_EXAMPLES)]
    Map(MapArgs),
    /// Print the environment of a rank, each line with its reason
    #[command(after_long_help = ENV_EXAMPLES)]
    Env(EnvArgs),
    /// Print a completion script for a shell
    Completions(CompletionArgs),
    /// Print the manual page of regatta, or of one of its commands
    Man(ManArgs),
}

const MAP_EXAMPLES: &str = "\
Examples:
  regatta map                                   this machine, one rank a GPU (or NUMA node)
  regatta map --system lumi-g                   a LUMI-G node, without being there
  regatta map --system frontier -N 2 --format srun
                                                the srun options that bind 16 ranks right
  regatta map --svg node.svg                    a drawing for a talk or a ticket
  regatta map --dump node.json                  record this machine...
  regatta map --machine node.json -n 4          ...and plan for it elsewhere
  srun -N2 --ntasks-per-node=8 regatta map --check
                                                does each rank have what the plan says?";

const ENV_EXAMPLES: &str = "\
Examples:
  regatta env                                   read it: every line says why
  eval \"$(regatta env)\"                         in a rank's start script, before python
  srun bash -c 'eval \"$(regatta env)\"; exec python train.py'
  regatta env --framework jax --json
  regatta env --system lumi-g -N 16 --rank 127 --master-addr nid001 --master-port 29500
                                                what the last rank of 128 would get";

/// `regatta map`.
#[derive(Debug, Args)]
pub struct MapArgs {
    #[command(flatten)]
    pub source: SourceArgs,
    #[command(flatten)]
    pub job: JobArgs,

    /// Write the machine as found to FILE (`-`: standard output), for `--machine`
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub dump: Option<PathBuf>,
    /// Print machine, allocation and placement as JSON
    #[arg(long, help_heading = "Output")]
    pub json: bool,
    /// Draw the node and its ranks into FILE (`-`: standard output)
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub svg: Option<PathBuf>,
    /// Print the options that make this launcher bind the ranks as planned
    #[arg(long, value_name = "LAUNCHER", conflicts_with = "json", help_heading = "Output")]
    pub format: Option<LauncherName>,
    /// In each rank: compare what it really has with the plan; exit 1 if they differ
    #[arg(long, conflicts_with_all = ["dump", "svg", "format"], help_heading = "Output")]
    pub check: bool,
    /// Say why each rank got what it got
    #[arg(long, help_heading = "Output")]
    pub why: bool,
}

/// `regatta env`.
#[derive(Debug, Args)]
pub struct EnvArgs {
    #[command(flatten)]
    pub source: SourceArgs,
    #[command(flatten)]
    pub job: JobArgs,

    /// Whose variables
    #[arg(long, value_enum, default_value = "torch", help_heading = "Environment")]
    pub framework: FrameworkName,
    /// The rank to print for; without it this process's own, or 0
    #[arg(long, value_name = "RANK", help_heading = "Environment")]
    pub rank: Option<u32>,
    /// Where rank 0 listens; without it rank 0's address on the fabric
    #[arg(long, value_name = "ADDRESS", value_parser = NonEmptyStringValueParser::new(), help_heading = "Environment")]
    pub master_addr: Option<String>,
    /// The port rank 0 listens on; without it one derived from the job
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..), help_heading = "Environment")]
    pub master_port: Option<u16>,
    /// Leave out this variable (may be repeated), for instance NCCL_NET_GDR_LEVEL
    #[arg(long, value_name = "VARIABLE", help_heading = "Environment")]
    pub without: Vec<String>,
    /// Print the lines as JSON
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

/// `regatta completions`.
#[derive(Debug, Args)]
pub struct CompletionArgs {
    /// The shell
    pub shell: clap_complete::Shell,
}

/// `regatta man`.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// The command; without it regatta itself
    pub page: Option<String>,
}

/// The launchers that `--format` knows.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum LauncherName {
    /// Slurm's srun
    Srun,
    /// HPE's PALS mpiexec (Polaris, Aurora)
    Pals,
    /// flux run
    Flux,
    /// Open MPI's mpirun
    Openmpi,
    /// MPICH's mpiexec (Hydra)
    Mpich,
}

impl From<LauncherName> for Launcher {
    fn from(name: LauncherName) -> Self {
        match name {
            LauncherName::Srun => Launcher::Srun,
            LauncherName::Pals => Launcher::Pals,
            LauncherName::Flux => Launcher::Flux,
            LauncherName::Openmpi => Launcher::OpenMpi,
            LauncherName::Mpich => Launcher::Mpich,
        }
    }
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
