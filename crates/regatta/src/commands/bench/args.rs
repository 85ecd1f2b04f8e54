//! The command line of `regatta bench`: what is measured, as nccl-tests asks for it; by whom; and
//! what becomes of the result.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use regatta_measure::run::parse_size;
use regatta_model::Operation;

use super::file_args::{CompareArgs, ReadArgs};
use super::part::PartArgs;

/// `regatta bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// What to measure, or what to do with results
    #[command(subcommand)]
    pub what: What,
}

/// What to measure, or what to do with results.
#[derive(Debug, Subcommand)]
pub enum What {
    /// The sum of all ranks' data, at every rank
    #[command(alias = "all_reduce", alias = "allreduce", alias = "all_reduce_perf")]
    AllReduce(RunArgs),
    /// All ranks' data, at every rank
    #[command(alias = "all_gather", alias = "allgather", alias = "all_gather_perf")]
    AllGather(RunArgs),
    /// The sum of all ranks' data, a part of it at each rank
    #[command(alias = "reduce_scatter", alias = "reducescatter", alias = "reduce_scatter_perf")]
    ReduceScatter(RunArgs),
    /// One rank's data, at every rank
    #[command(alias = "broadcast_perf")]
    Broadcast(RunArgs),
    /// The sum of all ranks' data, at one rank
    #[command(alias = "reduce_perf")]
    Reduce(RunArgs),
    /// A part of each rank's data to each rank
    #[command(alias = "all_to_all", alias = "alltoall", alias = "alltoall_perf")]
    AllToAll(RunArgs),
    /// All ranks' data, at one rank
    #[command(alias = "gather_perf")]
    Gather(RunArgs),
    /// One rank's data, a part of it to each
    #[command(alias = "scatter_perf")]
    Scatter(RunArgs),
    /// A message to the next rank, and one from the rank before
    #[command(alias = "send_recv", alias = "sendrecv", alias = "sendrecv_perf")]
    SendRecv(RunArgs),
    /// All of these, one table each
    All(RunArgs),
    /// What matrix products each rank's cores and GPU can do, and which rank is slower than others
    Gemm(CeilingArgs),
    /// What each rank's memory and GPU can copy, and which rank is slower than others
    Copy(CeilingArgs),
    /// What each rank's file system can do, and which rank is slower than others
    Disk(DiskArgs),
    /// Put results side by side, with ratios to the first: files of `regatta bench`, nccl-tests,
    /// rccl-tests or the OSU micro-benchmarks
    Compare(CompareArgs),
    /// Read results of `regatta bench`, nccl-tests, rccl-tests or the OSU micro-benchmarks, and
    /// print, convert or draw them
    Read(ReadArgs),
}

impl What {
    /// The operations and the options of a run, if it is one.
    pub fn run(&self) -> Option<(Vec<Operation>, &RunArgs)> {
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
            Self::All(args) => return Some((ALL.to_vec(), args)),
            Self::Gemm(_) | Self::Copy(_) | Self::Disk(_) | Self::Compare(_) | Self::Read(_) => {
                return None;
            }
        };
        Some((vec![operation], args))
    }

    /// The options of a run, if it is one, to be changed.
    pub fn run_mut(&mut self) -> Option<&mut RunArgs> {
        match self {
            Self::AllReduce(args) | Self::AllGather(args) | Self::ReduceScatter(args) => Some(args),
            Self::Broadcast(args) | Self::Reduce(args) | Self::AllToAll(args) => Some(args),
            Self::Gather(args) | Self::Scatter(args) | Self::SendRecv(args) => Some(args),
            Self::All(args) => Some(args),
            Self::Gemm(_) | Self::Copy(_) | Self::Disk(_) | Self::Compare(_) | Self::Read(_) => {
                None
            }
        }
    }
}

/// What `all` means.
const ALL: [Operation; 9] = [
    Operation::AllReduce,
    Operation::AllGather,
    Operation::ReduceScatter,
    Operation::Broadcast,
    Operation::Reduce,
    Operation::AllToAll,
    Operation::Gather,
    Operation::Scatter,
    Operation::SendRecv,
];

/// What moves the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// NCCL or RCCL where every rank has a GPU and the library, else host
    Auto,
    /// Host memory: shared memory inside a node, the network across
    Host,
    /// Host memory, through TCP also inside a node
    Tcp,
    /// Host memory, through libfabric also inside a node; REGATTA_FABRIC names the provider
    Libfabric,
    /// NVIDIA's NCCL, on GPUs
    Nccl,
    /// AMD's RCCL, on GPUs
    Rccl,
}

/// The options of a run.
#[derive(Debug, Args)]
pub struct RunArgs {
    #[command(flatten)]
    pub sizes: SizeArgs,
    #[command(flatten)]
    pub rounds: RoundArgs,
    #[command(flatten)]
    pub more: MoreArgs,
    #[command(flatten)]
    pub ranks: RankArgs,
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(flatten)]
    pub part: PartArgs,
}

impl RunArgs {
    /// Whether it is made of several runs.
    pub fn is_repeated(&self) -> bool {
        self.more.scan || !self.more.sweep.is_empty()
    }
}

/// What else can be measured by collectives and messages.
#[derive(Debug, Args)]
#[command(next_help_heading = "Instead of one table")]
pub struct MoreArgs {
    /// Measure once for each of these settings, and show the best for each size, as in
    /// `--sweep NCCL_ALGO=Ring,Tree NCCL_NET_GDR_LEVEL=0,3`
    #[arg(long, value_name = "NAME=VALUE,VALUE", num_args = 1.., conflicts_with = "baseline")]
    pub sweep: Vec<String>,
    /// Measure on 1, 2, 4... nodes up to all, and show how it scales
    #[arg(long, conflicts_with_all = ["sweep", "baseline"])]
    pub scan: bool,
    /// Measure messages between every pair of nodes (on one node: of ranks), draw the matrix, and
    /// name links and nodes that are slow; exit 1 if there are any
    #[arg(long, conflicts_with_all = ["sweep", "scan", "baseline"])]
    pub pairs: bool,
    /// With --pairs: every pair of ranks, on several nodes too
    #[arg(long, requires = "pairs")]
    pub every_rank: bool,
    /// With --pairs: one pair after the other, for networks that pairs would share
    #[arg(long, requires = "pairs")]
    pub one_at_a_time: bool,
    /// Measure all algorithms of all collectives over the network, and write the table to FILE by
    /// which ranks with REGATTA_TUNING=FILE choose; -b, -e, -f, -i and -n say how much is measured
    #[arg(long, value_name = "FILE", conflicts_with_all = ["sweep", "scan", "pairs", "baseline"])]
    pub tune: Option<PathBuf>,
}

/// `regatta bench gemm` and `copy`.
#[derive(Debug, Args)]
pub struct CeilingArgs {
    #[command(flatten)]
    pub judge: JudgeArgs,
    #[command(flatten)]
    pub ranks: RankArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `regatta bench disk`.
#[derive(Debug, Args)]
pub struct DiskArgs {
    /// The folder whose file system is measured
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    pub folder: PathBuf,
    /// The size of the large file of each rank
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = parse_size)]
    pub size: u64,
    #[command(flatten)]
    pub ceiling: CeilingArgs,
}

/// Who is slow.
#[derive(Debug, Args)]
pub struct JudgeArgs {
    /// A rank that is slower than the median of all by more than this is named
    #[arg(long, value_name = "PERCENT", default_value = "10%")]
    pub slower_than: String,
}

/// Which sizes and elements.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sizes (as nccl-tests)")]
pub struct SizeArgs {
    /// The least size, in bytes (K, M, G: powers of 1024). Without any of -b, -e, -f and -i: 8 to
    /// 32M by 2
    #[arg(short = 'b', long = "minbytes", value_name = "SIZE", value_parser = parse_size)]
    pub min: Option<u64>,
    /// The greatest size; without it 32M
    #[arg(short = 'e', long = "maxbytes", value_name = "SIZE", value_parser = parse_size)]
    pub max: Option<u64>,
    /// From one size to the next: times this
    #[arg(short = 'f', long = "stepfactor", value_name = "FACTOR", value_parser = clap::value_parser!(u64).range(1..))]
    pub factor: Option<u64>,
    /// From one size to the next: plus this; without -f and -i 1M
    #[arg(short = 'i', long = "stepbytes", value_name = "SIZE", value_parser = parse_size)]
    pub step: Option<u64>,
    /// The elements: int8, uint8, int16, int32, int64, half, bfloat16, float, double, or all
    #[arg(short = 'd', long = "datatype", value_name = "TYPE", default_value = "float")]
    pub datatype: String,
    /// How they are reduced: sum, prod, min, max, avg, or all
    #[arg(short = 'o', long = "op", value_name = "OP", default_value = "sum")]
    pub op: String,
    /// The root of broadcast, reduce, gather and scatter
    #[arg(short = 'r', long, value_name = "RANK", default_value_t = 0)]
    pub root: u32,
}

impl SizeArgs {
    /// Whether no sizes were asked for.
    pub fn is_usual(&self) -> bool {
        [self.min, self.max, self.step, self.factor].iter().all(Option::is_none)
    }
}

/// How it is measured.
#[derive(Debug, Args)]
#[command(next_help_heading = "Rounds (as nccl-tests)")]
pub struct RoundArgs {
    /// Timed calls; without it 20, and more where those take less than 2 ms together
    #[arg(short = 'n', long = "iters", value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub iterations: Option<u32>,
    /// Calls before the timed ones
    #[arg(short = 'w', long = "warmup_iters", value_name = "COUNT", default_value_t = 5, value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    pub warmup: u32,
    /// Calls whose results are compared with what must come, element by element (0: none)
    #[arg(short = 'c', long = "check", value_name = "COUNT", default_value_t = 1)]
    pub check: u32,
    /// Whose time counts: 0 rank 0's, 1 the mean, 2 the least, 3 the greatest of all ranks; without
    /// it the mean, and of operations with a root in host memory the greatest
    #[arg(short = 'a', long = "average", value_name = "WHOSE", value_parser = clap::value_parser!(u8).range(..=3))]
    pub average: Option<u8>,
    /// 1: use buffers of the communicator, which need a copy less, for host memory
    #[arg(short = 'R', long = "local_register", value_name = "0|1", default_value_t = 0, value_parser = clap::value_parser!(u8).range(..=2))]
    pub register: u8,
    /// Seconds after which a call that does not end is an error, which names who did not come (0: as
    /// without it)
    #[arg(short = 'T', long = "timeout", value_name = "SECONDS")]
    pub timeout: Option<u64>,
    /// Has no effect: calls are not put into groups
    #[arg(short = 'm', long = "agg_iters", value_name = "COUNT", hide = true)]
    pub aggregated: Option<u32>,
    /// Has no effect: ranks are processes
    #[arg(short = 'p', long = "parallel_init", value_name = "0|1", hide = true)]
    pub parallel_init: Option<u32>,
    /// Has no effect: each call is waited for on the host, and queued on a device
    #[arg(short = 'z', long = "blocking", value_name = "0|1", hide = true)]
    pub blocking: Option<u32>,
    /// Has no effect: there is no null stream
    #[arg(short = 'y', long = "stream_null", value_name = "0|1", hide = true)]
    pub stream_null: Option<u32>,
    /// Of other options of nccl-tests only what they are without it is taken
    #[arg(short = 'G', long = "cudagraph", value_name = "0", hide = true, value_parser = clap::value_parser!(u32).range(..=0))]
    pub graph: Option<u32>,
    /// See -G
    #[arg(short = 'C', long = "report_cputime", value_name = "0", hide = true, value_parser = clap::value_parser!(u32).range(..=0))]
    pub cpu_time: Option<u32>,
    /// See -G
    #[arg(short = 'N', long = "run_cycles", value_name = "1", hide = true, value_parser = clap::value_parser!(u32).range(1..=1))]
    pub cycles: Option<u32>,
    /// See -G
    #[arg(short = 'S', long = "report_timestamps", value_name = "0", hide = true, value_parser = clap::value_parser!(u32).range(..=0))]
    pub timestamps: Option<u32>,
}

/// Who measures: local ranks, or those of an allocation.
#[derive(Debug, Args)]
#[command(next_help_heading = "Ranks (without `regatta launch`)")]
pub struct RankArgs {
    /// What moves the bytes
    #[arg(long, value_enum, value_name = "WHAT", default_value = "auto")]
    pub backend: Backend,
    /// Ranks in all; without it one a GPU, or one a core of this machine (at least 2, at most 8)
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub ranks: Option<u32>,
    /// Ranks on each node
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub ranks_per_node: Option<u32>,
    /// Use this many nodes of the allocation, or of --hostfile
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub nodes: Option<u32>,
    /// Take the nodes from FILE, not from the scheduler
    #[arg(long, value_name = "FILE")]
    pub hostfile: Option<PathBuf>,
    /// Threads times GPUs: as many ranks
    #[arg(short = 't', long = "nthreads", value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub threads: Option<u32>,
    /// See -t
    #[arg(short = 'g', long = "ngpus", value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub gpus: Option<u32>,
    /// More options for `regatta launch`, as in '--starter ssh --start-within 60'
    #[arg(long, value_name = "OPTIONS", allow_hyphen_values = true)]
    pub launch: Option<String>,
    /// The run's folder; without it a new one below runs/
    #[arg(long, value_name = "FOLDER")]
    pub run_dir: Option<PathBuf>,
    /// A variable that a sweep tries: what the site sets would win over it
    #[arg(long, value_name = "VARIABLE", hide = true)]
    pub trying: Vec<String>,
    /// Tell what happens to the process that started this one, not to a person
    #[arg(long, hide = true)]
    pub events: bool,
}

/// What becomes of the result.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub struct OutputArgs {
    /// Write the result to FILE, while it goes on, too; without it to bench.json in the run folder
    #[arg(short = 'J', long = "output_file", visible_alias = "out", value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Print the result as JSON when it is complete, not the table
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,
    /// Print the result as CSV when it is complete, not the table
    #[arg(long)]
    pub csv: bool,
    /// Draw bandwidth and latency over size into FILE: .svg, or .html with the tables
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
    /// Show how single calls spread, too: least, greatest, 99th percentile, deviation
    #[arg(short = 'I', long)]
    pub spread: bool,
    /// What to call this run beside others
    #[arg(long, value_name = "TEXT")]
    pub label: Option<String>,
    /// Compare with the result in FILE, and exit 1 where a size is worse
    #[arg(long, value_name = "FILE")]
    pub baseline: Option<PathBuf>,
    /// By how much a size may be worse than the baseline
    #[arg(long, value_name = "PERCENT", default_value = "10%", requires = "baseline")]
    pub tolerance: String,
}
