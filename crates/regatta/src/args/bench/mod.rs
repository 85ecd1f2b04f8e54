//! The options of `regatta bench`: benchmarks with nccl-tests' options, ranks and output.

pub mod files;
pub mod nccl_tests;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use regatta_measure::baseline::Tolerance;
use regatta_measure::collectives::{operations, parse_size};
use regatta_measure::request::Backend;
use regatta_model::Operation;
use regatta_nccl_tuning::fit::MIN_ROUNDS;
use regatta_nccl_tuning::table::MAX_CHANNELS;

use self::files::{CompareArgs, ReadArgs};
use self::nccl_tests::{IterationArgs, SizeArgs};
use crate::options::{NamedValue, NcclPluginArgs, RankCountArgs, one_of, positive};

/// `regatta bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// Benchmark to run, or operation on result files
    #[command(subcommand)]
    pub command: BenchCommand,
}

/// Subcommands of `regatta bench`.
#[derive(Debug, Clone, Subcommand)]
pub enum BenchCommand {
    /// All-reduce: the reduction of all ranks' data, on every rank
    #[command(alias = "all_reduce", alias = "allreduce", alias = "all_reduce_perf")]
    AllReduce(CollectiveArgs),
    /// All-gather: all ranks' data, on every rank
    #[command(alias = "all_gather", alias = "allgather", alias = "all_gather_perf")]
    AllGather(CollectiveArgs),
    /// Reduce-scatter: the reduction of all ranks' data, one chunk on each rank
    #[command(alias = "reduce_scatter", alias = "reducescatter", alias = "reduce_scatter_perf")]
    ReduceScatter(CollectiveArgs),
    /// Broadcast: the root's data, on every rank
    #[command(alias = "broadcast_perf")]
    Broadcast(CollectiveArgs),
    /// Reduce: the reduction of all ranks' data, on the root
    #[command(alias = "reduce_perf")]
    Reduce(CollectiveArgs),
    /// All-to-all: one chunk from every rank to every rank
    #[command(alias = "all_to_all", alias = "alltoall", alias = "alltoall_perf")]
    AllToAll(CollectiveArgs),
    /// Gather: all ranks' data, on the root
    #[command(alias = "gather_perf")]
    Gather(CollectiveArgs),
    /// Scatter: one chunk of the root's data to each rank
    #[command(alias = "scatter_perf")]
    Scatter(CollectiveArgs),
    /// Send-recv: send to the next rank, receive from the previous one
    #[command(alias = "send_recv", alias = "sendrecv", alias = "sendrecv_perf")]
    SendRecv(CollectiveArgs),
    /// All of the above, one table each
    All(CollectiveArgs),
    /// GEMM throughput of each rank's cores and GPU; reports slow ranks
    Gemm(RooflineArgs),
    /// Memory and GPU copy bandwidth of each rank; reports slow ranks
    Copy(RooflineArgs),
    /// File-system bandwidth and metadata rate of each rank; reports slow ranks
    Disk(DiskArgs),
    /// Compare results side by side, with ratios to the first: files of `regatta bench`,
    /// nccl-tests, rccl-tests or the OSU micro-benchmarks
    Compare(CompareArgs),
    /// Read results of `regatta bench`, nccl-tests, rccl-tests or the OSU micro-benchmarks, and
    /// print, convert or plot them
    Read(ReadArgs),
}

impl BenchCommand {
    /// Operations and arguments of a collective benchmark; `None` for other subcommands.
    pub fn collective(&self) -> Option<(Vec<Operation>, &CollectiveArgs)> {
        let (operation, args) = match self {
            Self::AllReduce(args) => (Operation::AllReduce, args),
            Self::AllGather(args) => (Operation::AllGather, args),
            Self::ReduceScatter(args) => (Operation::ReduceScatter, args),
            Self::Broadcast(args) => (Operation::Broadcast, args),
            Self::Reduce(args) => (Operation::Reduce, args),
            Self::AllToAll(args) => (Operation::AllToAll, args),
            Self::Gather(args) => (Operation::Gather, args),
            Self::Scatter(args) => (Operation::Scatter, args),
            Self::SendRecv(args) => (Operation::SendRecv, args),
            Self::All(args) => return Some((operations().collect(), args)),
            _ => return None,
        };
        Some((vec![operation], args))
    }

    /// Which ranks to launch; `None` for subcommands that do not measure.
    pub fn ranks_mut(&mut self) -> Option<&mut BenchRankArgs> {
        match self {
            Self::Gemm(args) | Self::Copy(args) => Some(&mut args.ranks),
            Self::Disk(args) => Some(&mut args.roofline.ranks),
            Self::AllReduce(args) | Self::AllGather(args) | Self::ReduceScatter(args) => {
                Some(&mut args.ranks)
            }
            Self::Broadcast(args) | Self::Reduce(args) | Self::AllToAll(args) => {
                Some(&mut args.ranks)
            }
            Self::Gather(args) | Self::Scatter(args) => Some(&mut args.ranks),
            Self::SendRecv(args) | Self::All(args) => Some(&mut args.ranks),
            Self::Compare(_) | Self::Read(_) => None,
        }
    }
}

/// Arguments of a collective benchmark.
#[derive(Debug, Clone, Args)]
pub struct CollectiveArgs {
    #[command(flatten)]
    pub sizes: SizeArgs,
    #[command(flatten)]
    pub iterations: IterationArgs,
    #[command(flatten)]
    pub mode: ModeArgs,
    #[command(flatten)]
    pub ranks: BenchRankArgs,
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(flatten)]
    pub table: TableArgs,
}

impl CollectiveArgs {
    /// Whether it launches several jobs.
    pub fn is_multi_run(&self) -> bool {
        self.mode.scan || !self.mode.sweep.is_empty() || self.tunes_nccl()
    }

    /// Whether it measures a table for NCCL's tuner, not one for Regatta's own collectives.
    pub fn tunes_nccl(&self) -> bool {
        self.mode.tune.is_some() && self.ranks.backend.is_nccl()
    }
}

/// Other kinds of measurement.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Modes")]
pub struct ModeArgs {
    /// Run once for each combination of environment variables and show the best for each size, e.g.
    /// `--sweep NCCL_ALGO=Ring,Tree NCCL_NET_GDR_LEVEL=0,3`
    #[arg(long, value_name = "NAME=VALUE,VALUE", num_args = 1.., conflicts_with = "baseline")]
    pub sweep: Vec<String>,
    /// Run on 1, 2, 4, ... nodes up to all and show the scaling efficiency
    #[arg(long, conflicts_with_all = ["sweep", "baseline"])]
    pub scan: bool,
    /// Measure point-to-point latency and bandwidth between all pairs of nodes (on a single node:
    /// of ranks), print the matrix and report slow links and nodes; exit code 1 if there are any
    #[arg(long, conflicts_with_all = ["sweep", "scan", "baseline", "spread"])]
    pub pairs: bool,
    /// With --pairs: measure all pairs of ranks, also on several nodes
    #[arg(long, requires = "pairs")]
    pub every_rank: bool,
    /// With --pairs: measure one pair at a time, for shared networks
    #[arg(long, requires = "pairs")]
    pub one_at_a_time: bool,
    /// Benchmark all algorithms of all collectives over the network and write a tuning table to
    /// FILE, used by ranks with REGATTA_TUNING=FILE; -b, -e, -f, -i and -n set sizes and iterations.
    /// With --backend nccl or rccl: every algorithm and protocol of the library for these
    /// collectives, for `regatta launch --tuner FILE`; rows of other rank counts are kept
    #[arg(long, value_name = "FILE", conflicts_with_all = ["sweep", "scan", "pairs", "baseline", "spread", "plot", "out", "tuner"])]
    pub tune: Option<PathBuf>,
    /// With --tune --backend nccl: number of rounds, in each of which NCCL's default and every
    /// alternative are measured once (default: 5)
    #[arg(long, value_name = "COUNT", requires = "tune", value_parser = clap::value_parser!(u32).range(MIN_ROUNDS as i64..=1000))]
    pub tune_rounds: Option<u32>,
    /// With --tune --backend nccl: also measure rings and trees with these numbers of channels
    #[arg(long, value_name = "COUNT", requires = "tune", value_delimiter = ',', value_parser = clap::value_parser!(u8).range(1..=MAX_CHANNELS as i64))]
    pub tune_channels: Vec<u8>,
}

/// `regatta bench gemm` and `copy`.
#[derive(Debug, Clone, Args)]
#[command(mut_args(|arg| match arg.get_id() == "backend" {
    // In its place, unlike by `mut_arg`: the order of the sections depends on it.
    true => arg.help("Transport or library over which the ranks exchange results"),
    false => arg,
}))]
pub struct RooflineArgs {
    #[command(flatten)]
    pub outliers: OutlierArgs,
    #[command(flatten)]
    pub ranks: BenchRankArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `regatta bench disk`.
#[derive(Debug, Clone, Args)]
pub struct DiskArgs {
    /// Directory on the file system to measure
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
    /// Size of each rank's large file
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = parse_size)]
    pub size: u64,
    #[command(flatten)]
    pub roofline: RooflineArgs,
}

/// Outlier detection.
#[derive(Debug, Clone, Args)]
pub struct OutlierArgs {
    /// Report ranks slower than the median of all ranks by more than this
    #[arg(long, value_name = "PERCENT", default_value = "10%")]
    pub slower_than: Tolerance,
}

/// Which ranks to launch.
#[derive(Debug, Clone, Args)]
#[command(
    next_help_heading = "Ranks to launch (outside a job)",
    mut_arg("ranks", |arg| arg.help(
        "Number of ranks [default: one per GPU, or one per core of this machine (2 to 8)]"
    )),
    mut_arg("net_plugin", |arg| arg.help(NET_PLUGIN).help_heading("Communication"))
)]
pub struct BenchRankArgs {
    /// Transport or library to benchmark
    #[arg(long, value_parser = one_of(&BACKENDS), value_name = "BACKEND", default_value = "auto", help_heading = "Communication")]
    pub backend: Backend,
    #[command(flatten)]
    pub counts: RankCountArgs,
    /// As in nccl-tests, but with processes: launches (-t) x (-g) ranks
    #[arg(short = 't', long = "nthreads", value_name = "COUNT", value_parser = positive(), conflicts_with = "ranks")]
    pub threads: Option<u32>,
    /// GPUs per thread, as in nccl-tests: each is one rank (see -t)
    #[arg(short = 'g', long = "ngpus", value_name = "COUNT", value_parser = positive(), conflicts_with = "ranks")]
    pub gpus: Option<u32>,
    #[command(flatten)]
    pub plugins: NcclPluginArgs,
    /// Additional options for `regatta launch`, e.g. '--launcher ssh --start-timeout 60'
    #[arg(long, value_name = "OPTIONS", allow_hyphen_values = true)]
    pub launch: Option<String>,
    /// Run folder [default: a new one in runs/]
    #[arg(long, value_name = "FOLDER", help_heading = "Output")]
    pub run_dir: Option<PathBuf>,
}

/// Help of `--net-plugin`, which also selects what is measured.
const NET_PLUGIN: &str = "Benchmark this network plug-in of NCCL, without a GPU and without NCCL \
                          (backend net-plugin); with --backend nccl or rccl, have the library use it: \
                          `regatta`, the libfabric plug-in of this program, or the path of a library";

/// Values of `--backend`.
pub const BACKENDS: [NamedValue<Backend>; 7] = [
    ("auto", Backend::Auto, "NCCL or RCCL if every rank has a GPU and the library, else host"),
    (
        "host",
        Backend::Host,
        "Host memory: shared memory within a node (REGATTA_CMA=0: without cross memory attach), the \
         network between nodes",
    ),
    ("tcp", Backend::Tcp, "Host memory over TCP, also within a node"),
    (
        "libfabric",
        Backend::Libfabric,
        "Host memory over libfabric, also within a node; REGATTA_FABRIC selects the provider",
    ),
    (
        "net-plugin",
        Backend::NetPlugin,
        "Host memory over the network plug-in of NCCL that --net-plugin names, also within a node",
    ),
    ("nccl", Backend::Nccl, "NCCL on NVIDIA GPUs"),
    ("rccl", Backend::Rccl, "RCCL on AMD GPUs"),
];

/// Output options.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Output")]
pub struct OutputArgs {
    /// Write the result to FILE, updated during the run [default: bench.json in the run folder]
    #[arg(short = 'J', long = "output_file", visible_alias = "out", value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Print the final result as JSON instead of the table
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,
    /// Print the final result as CSV instead of the table
    #[arg(long)]
    pub csv: bool,
    /// Label of this run
    #[arg(long, value_name = "TEXT")]
    pub label: Option<String>,
}

/// Output options of collective benchmarks.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Output")]
pub struct TableArgs {
    /// Plot bandwidth and latency over size to FILE: .svg, or .html with tables
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
    /// Add per-iteration statistics: minimum, maximum, 99th percentile, coefficient of variation
    #[arg(short = 'I', long)]
    pub spread: bool,
    /// Compare with the result in FILE; exit code 1 on a regression
    #[arg(long, value_name = "FILE")]
    pub baseline: Option<PathBuf>,
    /// Allowed regression against the baseline
    #[arg(long, value_name = "PERCENT", default_value = "10%", requires = "baseline")]
    pub tolerance: Tolerance,
}
