//! Options of nccl-tests: sizes, data types, iterations and timing.

use clap::Args;
use regatta_measure::collectives::{nccl_names, parse_size};

/// Sizes and data types.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Sizes (as in nccl-tests)")]
pub struct SizeArgs {
    /// Minimum size in bytes, with suffix K, M or G (powers of 1024) [default: 32M, or -e if smaller;
    /// without any of -b, -e, -f and -i: 8 to 32M, factor 2]
    #[arg(short = 'b', long = "minbytes", value_name = "SIZE", value_parser = parse_size)]
    pub min: Option<u64>,
    /// Maximum size [default: 32M]
    #[arg(short = 'e', long = "maxbytes", value_name = "SIZE", value_parser = parse_size)]
    pub max: Option<u64>,
    /// Multiplication factor between sizes
    #[arg(short = 'f', long = "stepfactor", value_name = "FACTOR", value_parser = clap::value_parser!(u64).range(1..))]
    pub factor: Option<u64>,
    /// Increment between sizes [default: 1M, without -f]
    #[arg(short = 'i', long = "stepbytes", value_name = "SIZE", value_parser = parse_size, conflicts_with = "factor")]
    pub step: Option<u64>,
    /// Data type: int8, uint8, int16, int32, int64, half, bfloat16, float, double, or all
    #[arg(short = 'd', long = "datatype", value_name = "TYPE", default_value = "float", value_parser = |name: &str| nccl_names::dtypes(name).map(|_| name.to_owned()))]
    pub datatype: String,
    /// Reduction: sum, prod, min, max, avg, or all
    #[arg(short = 'o', long = "op", value_name = "OP", default_value = "sum", value_parser = |name: &str| nccl_names::ops(name).map(|_| name.to_owned()))]
    pub op: String,
    /// Root rank of broadcast, reduce, gather and scatter
    #[arg(short = 'r', long, value_name = "RANK", default_value_t = 0)]
    pub root: u32,
}

impl SizeArgs {
    /// Whether no size option is given.
    pub fn is_default(&self) -> bool {
        [self.min, self.max, self.step, self.factor].iter().all(Option::is_none)
    }
}

/// Iterations and timing.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Iterations (as in nccl-tests)")]
pub struct IterationArgs {
    /// Timed iterations [default: 20, or more if they take less than 2 ms in total]
    #[arg(short = 'n', long = "iters", value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub timed: Option<u32>,
    /// Warm-up iterations
    #[arg(short = 'w', long = "warmup_iters", value_name = "COUNT", default_value_t = 5, value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    pub warmup: u32,
    /// Iterations whose results are checked element by element (0: none)
    #[arg(short = 'c', long = "check", value_name = "COUNT", default_value_t = 1)]
    pub check: u32,
    /// Time reported across ranks: 0 = rank 0, 1 = average, 2 = minimum, 3 = maximum [default:
    /// average; maximum for rooted operations in host memory]
    #[arg(short = 'a', long = "average", value_name = "0-3", value_parser = clap::value_parser!(u8).range(..=3))]
    pub average: Option<u8>,
    /// 1 or 2: use registered buffers in host memory, which saves a copy
    #[arg(short = 'R', long = "local_register", value_name = "0-2", default_value_t = 0, value_parser = clap::value_parser!(u8).range(..=2))]
    pub register: u8,
    /// Seconds after which a call fails with an error that names the missing ranks; 0: the default,
    /// 300 s
    #[arg(short = 'T', long = "timeout", value_name = "SECONDS")]
    pub timeout: Option<u64>,
    /// No effect: calls are not aggregated
    #[arg(short = 'm', long = "agg_iters", value_name = "COUNT", hide = true)]
    pub aggregated: Option<u32>,
    /// No effect: each rank is a process
    #[arg(short = 'p', long = "parallel_init", value_name = "0|1", hide = true)]
    pub parallel_init: Option<u32>,
    /// No effect: host calls block, device calls are queued
    #[arg(short = 'z', long = "blocking", value_name = "0|1", hide = true)]
    pub blocking: Option<u32>,
    /// No effect: the null stream is not used
    #[arg(short = 'y', long = "stream_null", value_name = "0|1", hide = true)]
    pub stream_null: Option<u32>,
    /// Accepted only with its default value
    #[arg(short = 'G', long = "cudagraph", value_name = "0", hide = true, value_parser = clap::value_parser!(u32).range(..=0))]
    pub graph: Option<u32>,
    /// Accepted only with its default value
    #[arg(short = 'C', long = "report_cputime", value_name = "0", hide = true, value_parser = clap::value_parser!(u32).range(..=0))]
    pub cpu_time: Option<u32>,
    /// Accepted only with its default value
    #[arg(short = 'N', long = "run_cycles", value_name = "1", hide = true, value_parser = clap::value_parser!(u32).range(1..=1))]
    pub cycles: Option<u32>,
    /// Accepted only with its default value
    #[arg(short = 'S', long = "report_timestamps", value_name = "0", hide = true, value_parser = clap::value_parser!(u32).range(..=0))]
    pub timestamps: Option<u32>,
}
