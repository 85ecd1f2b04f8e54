//! The command line, declared once: parser, help, man page and completions all derive from it.

use std::ffi::OsString;
use std::path::PathBuf;

use anstyle::AnsiColor;
use anyhow::{Context as _, Result, bail};
use clap::builder::Styles;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory, Parser, Subcommand};
use regatta_launch::agent_launcher::command::AgentLauncher;
use regatta_launch::wrap::Wrap;
use regatta_model::CpuSet;
use regatta_observe::net_log::Requirement;
use regatta_place::launcher_options::LauncherSyntax;

use crate::args::bench::BenchArgs;
use crate::args::checkpoint::CheckpointArgs;
use crate::args::comms::{self, CommsArgs};
use crate::args::data::{self, DataArgs};
use crate::args::doctor::{self, DoctorArgs};
use crate::args::eval::{self, EvalArgs};
use crate::args::generate::{self, GenerateArgs};
use crate::args::jobs::{self, JobsArgs};
use crate::args::net_log::{self, NetLogArgs};
use crate::args::plugin::{self, PluginArgs};
use crate::args::runs::{self, RunsArgs};
use crate::args::submit::{self, SubmitArgs};
use crate::args::train::{self, TrainArgs};
use crate::options::{
    JobArgs, NamedValue, NcclPluginArgs, RankEnvArgs, SourceArgs, at_least, one_of, positive,
};

/// Styles of headings, explanations, errors, success and warnings.
pub use regatta_draw::line::{BOLD as HEADING, DIM as FAINT, ERROR, GOOD, WARNING};

/// Longest grace period, in seconds.
const MAX_GRACE: i64 = 31 * 86_400;

const STYLES: Styles = Styles::styled()
    .header(HEADING)
    .usage(HEADING)
    .literal(AnsiColor::Cyan.on_default())
    .placeholder(AnsiColor::Green.on_default());

/// Place and launch AI jobs, benchmark the network, train models: from one core to a supercomputer.
#[derive(Debug, Parser)]
#[command(
    name = "regatta",
    version,
    styles = STYLES,
    propagate_version = true,
    max_term_width = 100,
    after_long_help = EXAMPLES
)]
pub struct Cli {
    /// Command to run
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// Parses the command line of this process.
    pub fn of_process() -> Result<Self, clap::Error> {
        Self::try_parse_from(arguments(std::env::args_os())).map_err(explained)
    }

    /// The declaration, from which help, man page and completions derive.
    pub fn declaration() -> clap::Command {
        Self::command()
    }
}

/// A usage error. An option of `regatta train` that is a configuration key gets its own hint.
fn explained(error: clap::Error) -> clap::Error {
    let option = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(option)) if error.kind() == ErrorKind::UnknownArgument => option,
        _ => return error,
    };
    let words: Vec<String> = std::env::args().skip(1).collect();
    let is_train = words.first().is_some_and(|word| word == "train");
    match train::key_as_option(&words, option).filter(|_| is_train) {
        Some(message) => usage_of("train").error(ErrorKind::UnknownArgument, message),
        None => error,
    }
}

/// A subcommand, whose errors show its own usage.
fn usage_of(subcommand: &str) -> clap::Command {
    let mut command = Cli::command();
    command.build();
    command.find_subcommand(subcommand).cloned().unwrap_or(command)
}

/// The arguments, without `--help` after `regatta help`, where clap does not accept it.
pub fn arguments(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut args: Vec<OsString> = args.collect();
    if args.get(1).is_some_and(|command| command == "help") {
        args.retain(|arg| arg != "--help" && arg != "-h");
    }
    args
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show the node's topology and the placement of each rank: GPU, cores, NUMA node, NIC
    #[command(after_long_help = MAP_EXAMPLES)]
    Map(MapArgs),
    /// Print a rank's environment variables, each with the reason for its value
    #[command(after_long_help = ENV_EXAMPLES)]
    Env(EnvArgs),
    /// Launch and supervise a job's ranks, each bound to its cores, GPU and NIC
    #[command(after_long_help = LAUNCH_EXAMPLES)]
    Launch(Box<LaunchArgs>),
    /// Write a batch script for this site and submit it; with --dry-run, only print it
    #[command(after_long_help = submit::EXAMPLES)]
    Submit(Box<SubmitArgs>),
    /// List the jobs of `regatta submit`: state, reason, time, progress
    #[command(after_long_help = jobs::EXAMPLES)]
    Jobs(JobsArgs),
    /// Benchmark collectives like nccl-tests on CPUs or GPUs; compare and plot results
    #[command(after_long_help = BENCH_EXAMPLES)]
    Bench(Box<BenchArgs>),
    /// Check that the nodes of the job, or this machine, are fit to run it; name the bad ones
    #[command(after_long_help = doctor::EXAMPLES)]
    Doctor(Box<DoctorArgs>),
    /// Show which network NCCL or RCCL used, from the logs of a job
    #[command(after_long_help = net_log::EXAMPLES)]
    NetLog(NetLogArgs),
    /// Check plug-ins of NCCL and RCCL, or install those of this program
    #[command(after_long_help = plugin::EXAMPLES)]
    Plugin(PluginArgs),
    /// Show what a job communicated: message sizes, bandwidths, slow ranks; write a trace
    #[command(after_long_help = comms::EXAMPLES)]
    Comms(CommsArgs),
    /// Train a GPT or Llama model on one device or many, with a live dashboard
    #[command(after_long_help = train::EXAMPLES)]
    Train(Box<TrainArgs>),
    /// Generate text from a trained model
    #[command(after_long_help = generate::EXAMPLES)]
    Generate(GenerateArgs),
    /// Evaluate a trained model: loss, perplexity and bits per byte
    #[command(after_long_help = eval::EXAMPLES)]
    Eval(EvalArgs),
    /// List, show and remove run folders
    #[command(after_long_help = runs::EXAMPLES)]
    Runs(RunsArgs),
    /// Inspect and verify checkpoints; import and export Hugging Face models
    #[command(after_long_help = CHECKPOINT_EXAMPLES)]
    Checkpoint(CheckpointArgs),
    /// Tokenize text for training, or inspect a tokenized dataset
    #[command(after_long_help = data::EXAMPLES)]
    Data(DataArgs),
    /// Run this node's ranks on behalf of `regatta launch`, which starts it
    #[command(hide = true)]
    Agent(AgentArgs),
    /// Run as a rank of `regatta bench`, `train` or `doctor`, which starts it
    #[command(hide = true)]
    RankWorker,
    /// Print a shell completion script
    Completions {
        /// Shell to complete for
        shell: clap_complete::Shell,
    },
    /// Print the manual page of regatta or of one of its commands
    Man {
        /// Command to document [default: regatta itself]
        page: Option<String>,
    },
}

const EXAMPLES: &str = "\
Examples:
  regatta train                                 train a small model, half a minute on two cores
  regatta train --smoke                         check that training on all ranks works
  regatta map                                   this node and the placement of its ranks
  regatta launch -n 2 python train.py           two bound ranks of any program
  regatta bench all-reduce                      measure a collective, like nccl-tests

`regatta COMMAND --help` shows the options and examples of a command.";

const MAP_EXAMPLES: &str = "\
Examples:
  regatta map                                   this node, one rank per GPU (or NUMA node)
  regatta map --system lumi-g                   a LUMI-G node, from anywhere
  regatta map --system frontier -N 2 --format srun
                                                the srun options that bind 16 ranks correctly
  regatta map --svg node.svg                    a figure for a talk or a support ticket
  regatta map --dump node.json                  record this node...
  regatta map --machine node.json -n 4          ...and place ranks on it elsewhere
  srun -N2 --ntasks-per-node=8 regatta map --check
                                                verify that each rank is bound as planned";

const ENV_EXAMPLES: &str = "\
Examples:
  regatta env                                   show the variables and the reason for each
  eval \"$(regatta env)\"                         in a rank's start script, before python
  srun bash -c 'eval \"$(regatta env)\"; exec python train.py'
  regatta env --framework jax --json
  regatta env --system lumi-g -N 16 --rank 127 --master-addr nid001 --master-port 29500
                                                what the last of 128 ranks would get";

const LAUNCH_EXAMPLES: &str = "\
Examples:
  regatta launch python train.py                one rank per GPU (or NUMA node) of this node
  regatta launch -n 2 --dry-run ./train         print commands, binding and environment only
  regatta launch --standalone --nproc-per-node 4 ./train.sh
                                                4 ranks on this node, as with torchrun
  regatta launch --rank 0 python train.py       show only rank 0's output; the logs keep all of it
  regatta launch --wrap 'nsys profile -o {host}-{rank}' --wrap-ranks 0 python train.py
                                                profile rank 0 only
  salloc -N 16 regatta launch python train.py   on all nodes of a Slurm, PBS or Flux allocation
  regatta launch --hostfile hosts python train.py
                                                on the listed hosts, over ssh
  salloc -N 18 regatta launch --spares 2 --max-restarts 5 python train.py
                                                restart on failure; replace lost nodes by spares
  salloc -N 16 regatta launch --require-net cxi/GDRDMA python train.py
                                                end at once if NCCL falls back to TCP
  salloc -N 16 regatta launch --profile --hang-timeout 600 python train.py
                                                record collectives; name the rank that hangs
  salloc -N 16 regatta launch --tuner tuning.txt python train.py
                                                algorithms measured by `bench all --tune tuning.txt
                                                --backend nccl`
  salloc -N 16 regatta launch --net-plugin regatta --require-net cxi python train.py
                                                NCCL over libfabric, without another plug-in
  salloc -N 18 regatta launch --preflight --spares 2 python train.py
                                                check the nodes first, and replace bad ones
  srun $(regatta map -N 2 --format srun) regatta launch python train.py
                                                one process per task: each becomes its rank";

const BENCH_EXAMPLES: &str = "\
Examples:
  regatta bench all-reduce                      on this node, 8 B to 32 MiB
  regatta bench all-reduce -b 8 -e 4G -f 2      with the options of nccl-tests
  salloc -N 2 regatta bench all -b 8 -e 1G -f 4
                                                on the nodes of an allocation, without MPI
  regatta launch -n 4 -- regatta bench broadcast
                                                under regatta launch, like any other program
  regatta bench send-recv --pairs               find the slow link or node
  regatta bench all-reduce --net-plugin ./libnccl-net.so
                                                a network plug-in of NCCL, without a GPU
  regatta bench compare old.txt new.json        compare nccl-tests output with a regatta result";

const CHECKPOINT_EXAMPLES: &str = "\
Examples:
  regatta checkpoint show runs/shakespeare      the latest checkpoint of a run
  regatta checkpoint show runs/shakespeare/checkpoints/step-00000250 --json
                                                one checkpoint, with all its tensors
  regatta checkpoint verify runs/shakespeare    all tensors present, all checksums correct
  regatta checkpoint import gpt2 --to start     from a folder with config.json and model.safetensors
  regatta train gpt2 data.source=books checkpoint.resume=start
                                                train the imported model
  regatta checkpoint export runs/shakespeare --to model
                                                to a folder that transformers loads";

/// `regatta map`.
#[derive(Debug, Args)]
pub struct MapArgs {
    #[command(flatten)]
    pub source: SourceArgs,
    #[command(flatten)]
    pub job: JobArgs,

    /// Write the discovered machine to FILE (`-`: standard output), to be read by `--machine`
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub dump: Option<PathBuf>,
    /// Print machine, allocation and placement as JSON
    #[arg(long, help_heading = "Output")]
    pub json: bool,
    /// Draw the node and its ranks as SVG to FILE (`-`: standard output)
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub svg: Option<PathBuf>,
    /// Print the placement as binding options of this launcher
    #[arg(long, value_parser = one_of(&SYNTAXES), value_name = "LAUNCHER", conflicts_with = "json", help_heading = "Output")]
    pub format: Option<LauncherSyntax>,
    /// Run in each rank: compare its actual binding with the plan; exit 1 on a mismatch
    #[arg(long, conflicts_with_all = ["dump", "svg", "format"], help_heading = "Output")]
    pub check: bool,
    /// Print the reason for each placement decision
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
    pub rank_env: RankEnvArgs,
    /// Rank to print the environment of [default: this process's rank, or 0]
    #[arg(long, value_name = "RANK", help_heading = "Environment")]
    pub rank: Option<u32>,
    /// Print the variables as JSON
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

/// `regatta launch`.
#[derive(Debug, Args)]
#[command(mut_arg("nodes", |arg| arg.help("Use the first COUNT nodes of the allocation or of --hostfile")))]
pub struct LaunchArgs {
    #[command(flatten)]
    pub source: SourceArgs,
    #[command(flatten)]
    pub job: JobArgs,
    #[command(flatten)]
    pub rank_env: RankEnvArgs,

    /// Print each rank's command, binding and environment, with reasons; start nothing
    #[arg(long, help_heading = "Launch")]
    pub dry_run: bool,
    /// Run folder for logs, placement and result [default: a new folder below runs/]
    #[arg(long, value_name = "FOLDER", help_heading = "Launch")]
    pub run_dir: Option<PathBuf>,
    /// Show only this rank's output (repeatable); the logs keep the output of all ranks
    #[arg(long = "rank", value_name = "RANK", help_heading = "Launch")]
    pub show: Vec<u32>,
    /// Also write the shown output to FILE
    #[arg(long, value_name = "FILE", help_heading = "Launch")]
    pub tee: Option<PathBuf>,
    /// Restart all ranks after a failure, at most COUNT times [default: the number of spares, plus 1
    /// with --min-nodes]
    #[arg(long, value_name = "COUNT", help_heading = "Launch")]
    pub max_restarts: Option<u32>,
    /// Hold back the last COUNT nodes of the allocation as spares. A spare replaces a node that is
    /// lost, or on which the job fails twice in a row
    #[arg(long, value_name = "COUNT", default_value_t = 0, help_heading = "Launch")]
    pub spares: u32,
    /// Continue on fewer nodes, but at least COUNT, when a node is lost and no spare is left
    #[arg(long, value_name = "COUNT", value_parser = positive(), help_heading = "Launch")]
    pub min_nodes: Option<u32>,
    /// Prefix the command with a tool, as in 'rocprof --stats -o {host}-{rank}.csv'; {rank} and
    /// {host} are replaced by the rank number and its host name
    #[arg(long, value_name = "TOOL", value_parser = |tool: &str| Wrap::new(tool, None).map(|_| tool.to_owned()), help_heading = "Launch")]
    pub wrap: Option<String>,
    /// Ranks to apply --wrap to, as in 0,4-7 [default: all]
    #[arg(long, value_name = "RANKS", requires = "wrap", help_heading = "Launch")]
    pub wrap_ranks: Option<CpuSet>,
    /// Fail the job if no rank writes output or uses CPU time for this many seconds or, with --profile,
    /// if a collective is in flight without progress for this long
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = at_least::<u64>(1), help_heading = "Launch")]
    pub hang_timeout: Option<u64>,
    /// Seconds between SIGTERM and SIGKILL when ranks are stopped [default: 30; for the ranks of
    /// `regatta train`, which save on a signal, no limit after a signal]
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = at_least::<u64>(0).range(..=MAX_GRACE), help_heading = "Launch")]
    pub grace: Option<u64>,
    /// Report which network NCCL or RCCL uses, as soon as all ranks have connected and at the end; the
    /// debug log of each rank goes to the folder `net` of the run folder
    #[arg(long, help_heading = "Network")]
    pub check_net: bool,
    /// Like --check-net, and end the job with status 1 and the fix if a rank uses another network: ib,
    /// ofi, cxi, efa, socket, or a plug-in by its name in NCCL's log; NAME/GDRDMA also requires GPUDirect
    /// RDMA
    #[arg(long, value_name = "NAME", help_heading = "Network")]
    pub require_net: Option<Requirement>,
    #[command(flatten)]
    pub plugins: NcclPluginArgs,
    /// Check all nodes first, like `regatta doctor`: bad nodes are replaced by spares, and nothing is
    /// started without enough good ones
    #[arg(long, help_heading = "Nodes")]
    pub preflight: bool,
    /// Launcher that starts one agent per node [default: the scheduler's own, else ssh]
    #[arg(long, value_parser = one_of(&AGENT_LAUNCHERS), value_name = "LAUNCHER", help_heading = "Nodes")]
    pub launcher: Option<AgentLauncher>,
    /// Further option for the launcher of the agents, as in --launcher-option=--environment=env.toml
    /// (repeatable)
    #[arg(
        long,
        value_name = "OPTION",
        allow_hyphen_values = true,
        conflicts_with = "standalone",
        help_heading = "Nodes"
    )]
    pub launcher_option: Vec<String>,
    /// ssh command with options, as in 'ssh -p 2222'
    #[arg(long, value_name = "COMMAND", help_heading = "Nodes")]
    pub ssh: Option<String>,
    /// Path of regatta on the nodes [default: the path of this program]
    #[arg(long, value_name = "PATH", help_heading = "Nodes")]
    pub agent: Option<PathBuf>,
    /// Seconds to wait for all agents to start and connect
    #[arg(long, value_name = "SECONDS", default_value_t = 120, allow_negative_numbers = true, value_parser = at_least::<u64>(1), help_heading = "Nodes")]
    pub start_timeout: u64,
    /// Seconds without a heartbeat after which a node counts as lost, and a hung process of the
    /// launcher is killed with its ranks
    #[arg(long, value_name = "SECONDS", default_value_t = 30, allow_negative_numbers = true, value_parser = at_least::<u64>(1), help_heading = "Nodes")]
    pub heartbeat_timeout: u64,
    /// Fan-out of the agent tree
    #[arg(long, value_name = "COUNT", default_value_t = 32, hide = true, value_parser = positive())]
    pub fan_out: u32,
    /// Run on this machine only and ignore the allocation, like `torchrun --standalone`
    #[arg(long, conflicts_with_all = ["nodes", "hostfile", "spares", "min_nodes", "launcher"], help_heading = "Nodes")]
    pub standalone: bool,
    /// Command of every rank, executed without a shell. It starts with the first word that is not an
    /// option: options after that word belong to the command, options of `regatta launch` come before
    /// it. `--` before the command is optional
    #[arg(
        trailing_var_arg = true,
        required = true,
        value_name = "COMMAND",
        help_heading = "Launch"
    )]
    pub command: Vec<OsString>,
}

impl LaunchArgs {
    /// The options that a user passes on to `regatta launch` (`--launch`).
    pub fn of_option(launch: Option<&str>) -> Result<Box<Self>> {
        let options =
            shlex::split(launch.unwrap_or_default()).context("--launch: unclosed quote")?;
        let words = ["regatta", "launch"].map(str::to_owned).into_iter().chain(options);
        match Cli::try_parse_from(words.chain(["--", "regatta"].map(str::to_owned))) {
            Ok(Cli { command: Command::Launch(args) }) if args.command.len() == 1 => Ok(args),
            Ok(_) => bail!("--launch accepts only options of `regatta launch`"),
            Err(error) => {
                let error = error.to_string();
                let first_line = error.lines().next().unwrap_or_default();
                bail!("--launch: {}", first_line.trim_start_matches("error: "))
            }
        }
    }
}

/// `regatta agent`.
#[derive(Debug, Args)]
pub struct AgentArgs {
    /// Boot document: how to connect to the launcher (`-`: standard input)
    #[arg(long, value_name = "FILE")]
    pub boot: PathBuf,
    /// Index of this node in the job
    #[arg(long, value_name = "INDEX")]
    pub node: Option<u32>,
}

/// Names of the agent launchers.
pub const AGENT_LAUNCHERS: [NamedValue<AgentLauncher>; 6] = [
    ("srun", AgentLauncher::Srun, "Slurm's srun, as one step"),
    ("pals", AgentLauncher::Pals, "HPE's PALS mpiexec"),
    ("hydra", AgentLauncher::Hydra, "MPICH's or Intel MPI's mpiexec"),
    ("openmpi", AgentLauncher::OpenMpi, "Open MPI's mpirun"),
    ("flux", AgentLauncher::Flux, "flux run"),
    ("ssh", AgentLauncher::Ssh, "ssh to each node"),
];

const SYNTAXES: [NamedValue<LauncherSyntax>; 5] = [
    ("srun", LauncherSyntax::Srun, "Slurm's srun"),
    ("pals", LauncherSyntax::Pals, "HPE's PALS mpiexec (Polaris, Aurora)"),
    ("flux", LauncherSyntax::Flux, "flux run"),
    ("openmpi", LauncherSyntax::OpenMpi, "Open MPI's mpirun"),
    ("mpich", LauncherSyntax::Mpich, "MPICH's mpiexec (Hydra)"),
];

#[cfg(test)]
pub mod tests;
