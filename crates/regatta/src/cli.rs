//! The command line, declared once: parser, help, man page and completions all derive from it.

use std::ffi::OsString;
use std::path::PathBuf;

use anstyle::{AnsiColor, Style};
use clap::builder::Styles;
use clap::{Args, Parser, Subcommand, ValueEnum};
use regatta_launch::starter::Starter;
use regatta_model::CpuSet;
use regatta_place::binding::Launcher;

use crate::commands::bench::BenchArgs;
use crate::commands::checkpoint::CheckpointArgs;
use crate::commands::data::{self, DataArgs};
use crate::commands::generate::{self, GenerateArgs};
use crate::commands::train::{self, TrainArgs};
use crate::options::{EnvChoices, JobArgs, SourceArgs};

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

/// No job takes longer to end, in seconds.
const MONTH: u64 = 31 * 86_400;

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
    /// Start a job's ranks on its nodes, each bound and with its environment, and see to their end
    #[command(after_long_help = LAUNCH_EXAMPLES)]
    Launch(Box<LaunchArgs>),
    /// Measure collectives as nccl-tests does, on host memory or GPUs; compare and draw results
    #[command(after_long_help = BENCH_EXAMPLES)]
    Bench(Box<BenchArgs>),
    /// Train a GPT or Llama model on one device or many, and watch it learn
    #[command(after_long_help = train::args::EXAMPLES)]
    Train(Box<TrainArgs>),
    /// Write text with a trained model
    #[command(after_long_help = generate::EXAMPLES)]
    Generate(GenerateArgs),
    /// Look at checkpoints and check them; import and export models of Hugging Face
    #[command(after_long_help = CHECKPOINT_EXAMPLES)]
    Checkpoint(CheckpointArgs),
    /// Make token files of texts for training, or show what is in them
    #[command(after_long_help = data::EXAMPLES)]
    Data(DataArgs),
    /// Run the ranks of this node for a `regatta launch` elsewhere; started by it
    #[command(hide = true)]
    Agent(AgentArgs),
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

const LAUNCH_EXAMPLES: &str = "\
Examples:
  regatta launch -- python train.py             one rank a GPU (or NUMA node) of this machine
  regatta launch -n 2 --dry-run -- ./train      what would be started, where and why
  regatta launch --rank 0 -- python train.py    show rank 0's lines only; all are in the run folder
  regatta launch --wrap 'nsys profile -o {host}-{rank}' --wrap-ranks 0 -- python train.py
                                                a tool around rank 0 only
  salloc -N 16 regatta launch -- python train.py
                                                in an allocation of Slurm, PBS or Flux: on its nodes
  regatta launch --hostfile hosts -- python train.py
                                                on these hosts, by ssh
  regatta launch --spares 2 --max-restarts 5 -- python train.py
                                                a node that fails is replaced by a spare one
  srun $(regatta map -N 2 --format srun) regatta launch -- python train.py
                                                started once a rank: becomes that rank";

const BENCH_EXAMPLES: &str = "\
Examples:
  regatta bench all-reduce                      on this machine, 8 bytes to 32 MiB
  regatta bench all-reduce -b 8 -e 4G -f 2      with the options of nccl-tests
  salloc -N 2 regatta bench all -b 8 -e 1G -f 4 on the nodes of an allocation, without MPI
  regatta launch -n 4 -- regatta bench broadcast
                                                as any other command of ranks
  regatta bench send-recv --pairs               which link or node is slow?
  regatta bench compare old.txt new.json        nccl-tests' output beside a result of ours";

const CHECKPOINT_EXAMPLES: &str = "\
Examples:
  regatta checkpoint show runs/shakespeare      the newest checkpoint of a run
  regatta checkpoint show step-00001000 --json  this one, with all its tensors
  regatta checkpoint verify runs/shakespeare    read it all and compare the checksums
  regatta checkpoint import gpt2 --to start     a folder with config.json and model.safetensors
  regatta checkpoint export runs/shakespeare --to model
                                                a folder that transformers loads";

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

    #[command(flatten)]
    pub choices: EnvChoices,
    /// The rank to print for; without it this process's own, or 0
    #[arg(long, value_name = "RANK", help_heading = "Environment")]
    pub rank: Option<u32>,
    /// Print the lines as JSON
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

/// `regatta launch`.
#[derive(Debug, Args)]
pub struct LaunchArgs {
    #[command(flatten)]
    pub source: SourceArgs,
    #[command(flatten)]
    pub job: JobArgs,
    #[command(flatten)]
    pub choices: EnvChoices,

    /// Show what would be started where, with which environment and why, and start nothing
    #[arg(long, help_heading = "Launch")]
    pub dry_run: bool,
    /// The run's folder; without it a new one below runs/
    #[arg(long, value_name = "FOLDER", help_heading = "Launch")]
    pub run_dir: Option<PathBuf>,
    /// Show only the lines of this rank (may be repeated); the logs have all
    #[arg(long = "rank", value_name = "RANK", help_heading = "Launch")]
    pub show: Vec<u32>,
    /// Write what is shown to FILE too
    #[arg(long, value_name = "FILE", help_heading = "Launch")]
    pub tee: Option<PathBuf>,
    /// Start all ranks anew after a failure, at most this often; without it never, or as often as
    /// nodes can be replaced or left out
    #[arg(long, value_name = "COUNT", help_heading = "Launch")]
    pub max_restarts: Option<u32>,
    /// Keep the last nodes of the allocation as spares: one takes the place of a node that is lost,
    /// or on which the job fails twice in a row
    #[arg(long, value_name = "COUNT", default_value_t = 0, help_heading = "Launch")]
    pub spares: u32,
    /// Go on with fewer nodes when one is lost and no spare is left, but not with fewer than this
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Launch")]
    pub min_nodes: Option<u32>,
    /// Put a tool before the command, as in 'rocprof --stats -o {host}-{rank}.csv'; {rank} and
    /// {host} stand for the rank's
    #[arg(long, value_name = "TOOL", help_heading = "Launch")]
    pub wrap: Option<String>,
    /// The ranks that --wrap is for, as in 0,4-7; without it all
    #[arg(long, value_name = "RANKS", requires = "wrap", help_heading = "Launch")]
    pub wrap_ranks: Option<CpuSet>,
    /// Take it for a failure if for this many seconds no rank writes anything or uses a processor
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..), help_heading = "Launch")]
    pub hang_after: Option<u64>,
    /// Seconds that ranks have to end when they are told to, before they are killed
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(..=MONTH), help_heading = "Launch")]
    pub grace: u64,
    /// What starts an agent on each node; without it what the scheduler has
    #[arg(long, value_enum, value_name = "STARTER", help_heading = "Nodes")]
    pub starter: Option<StarterName>,
    /// The ssh program and its options, as in 'ssh -p 2222'
    #[arg(long, value_name = "COMMAND", help_heading = "Nodes")]
    pub ssh: Option<String>,
    /// Where regatta is on the nodes, if not where it is here
    #[arg(long, value_name = "PATH", help_heading = "Nodes")]
    pub agent: Option<PathBuf>,
    /// Seconds that agents have to start and connect
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..), help_heading = "Nodes")]
    pub start_within: u64,
    /// Seconds without a word after which a node is lost
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..), help_heading = "Nodes")]
    pub lost_after: u64,
    /// Agents that connect to one agent
    #[arg(long, value_name = "COUNT", default_value_t = 32, hide = true, value_parser = clap::value_parser!(u32).range(1..))]
    pub fan_out: u32,
    /// The command of every rank, run as it stands: no shell reads it
    #[arg(last = true, required = true, value_name = "COMMAND", help_heading = "Launch")]
    pub command: Vec<OsString>,
}

impl LaunchArgs {
    /// How often the job may be started anew.
    pub fn restarts(&self) -> u32 {
        let replaced = self.spares.saturating_add(u32::from(self.min_nodes.is_some()));
        self.max_restarts.unwrap_or(replaced)
    }
}

/// `regatta agent`.
#[derive(Debug, Args)]
pub struct AgentArgs {
    /// What it must know to connect (`-`: standard input)
    #[arg(long, value_name = "FILE")]
    pub boot: PathBuf,
    /// Which of the job's nodes this is
    #[arg(long, value_name = "POSITION")]
    pub node: Option<u32>,
}

/// What starts agents.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum StarterName {
    /// One step of Slurm's srun
    Srun,
    /// HPE's PALS mpiexec
    Pals,
    /// MPICH's or Intel MPI's mpiexec
    Hydra,
    /// Open MPI's mpirun
    Openmpi,
    /// flux run
    Flux,
    /// ssh to each node
    Ssh,
}

impl From<StarterName> for Starter {
    fn from(name: StarterName) -> Self {
        match name {
            StarterName::Srun => Starter::Srun,
            StarterName::Pals => Starter::Pals,
            StarterName::Hydra => Starter::Hydra,
            StarterName::Openmpi => Starter::OpenMpi,
            StarterName::Flux => Starter::Flux,
            StarterName::Ssh => Starter::Ssh,
        }
    }
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
