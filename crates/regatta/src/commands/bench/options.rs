//! Validated options of a benchmark. No I/O: invalid options are rejected before ranks are
//! launched.

use std::path::PathBuf;

use anyhow::{Result, bail};
use regatta_comm::tune;
use regatta_measure::baseline::Tolerance;
use regatta_measure::collectives::{
    IterationCounts, MemoryKind, RankAverage, RunConfig, SizeRange, nccl_names,
};
use regatta_measure::pairs::PairsOptions;
use regatta_measure::roofline::copy::CopySettings;
use regatta_measure::roofline::disk::DiskSettings;
use regatta_measure::roofline::gemm::GemmSettings;
use regatta_model::Operation;
use regatta_model::bench::SizeStep;

use super::args::{
    BenchCommand, BenchRankArgs, CollectiveArgs, DiskArgs, ModeArgs, OutputArgs, SizeArgs,
};
use super::plot;

/// A benchmark to run.
pub struct BenchOptions<'a> {
    pub workload: Workload,
    pub ranks: &'a BenchRankArgs,
    pub output: &'a OutputArgs,
    /// Timeout of a call in seconds.
    pub timeout: Option<u64>,
}

/// What the ranks measure.
pub enum Workload {
    /// Collectives over a size range, optionally in registered buffers.
    Collectives { config: Box<RunConfig>, sizes: SizeRange, register: bool },
    /// All pairs of ranks.
    Pairs(PairsOptions),
    /// All algorithms; the tuning table goes to the file.
    Tune(PathBuf, tune::TuneConfig),
    /// Node roofline, and the tolerance of slow ranks.
    Roofline(RooflineTest, f64),
}

/// Roofline benchmarks.
pub enum RooflineTest {
    Gemm(GemmSettings),
    Copy(CopySettings),
    Disk(DiskSettings),
}

/// Validates the options; `None` for subcommands that do not measure.
pub fn parse(command: &BenchCommand) -> Result<Option<BenchOptions<'_>>> {
    let Some(options) = parse_command(command)? else { return Ok(None) };
    if let Some(path) = &options.output.plot {
        match &options.workload {
            Workload::Collectives { config, .. } => {
                plot::check_operations(path, config.operations.len())?;
            }
            Workload::Pairs(_) => plot::check_pairs(path)?,
            Workload::Tune(..) | Workload::Roofline(..) => {
                bail!("--plot supports collectives and --pairs only")
            }
        }
    }
    Ok(Some(options))
}

fn parse_command(command: &BenchCommand) -> Result<Option<BenchOptions<'_>>> {
    let (test, args) = match command {
        BenchCommand::Gemm(args) => (RooflineTest::Gemm(Default::default()), args),
        BenchCommand::Copy(args) => (RooflineTest::Copy(Default::default()), args),
        BenchCommand::Disk(DiskArgs { dir, size, roofline }) => {
            let (dir, bytes) = (dir.clone(), *size);
            let settings = DiskSettings { dir, bytes, ..Default::default() };
            (RooflineTest::Disk(settings), roofline)
        }
        collective => {
            let Some((operations, args)) = collective.collective() else { return Ok(None) };
            let workload = collective_workload(operations, args)?;
            let timeout = args.iterations.timeout.filter(|seconds| *seconds > 0);
            let (ranks, output) = (&args.ranks, &args.output);
            return Ok(Some(BenchOptions { workload, ranks, output, timeout }));
        }
    };
    let workload = Workload::Roofline(test, fraction(&args.outliers.slower_than)?);
    let (ranks, output) = (&args.ranks, &args.output);
    Ok(Some(BenchOptions { workload, ranks, output, timeout: None }))
}

fn fraction(percent: &str) -> Result<f64> {
    Ok(percent.parse::<Tolerance>()?.fraction)
}

fn collective_workload(operations: Vec<Operation>, args: &CollectiveArgs) -> Result<Workload> {
    let ModeArgs { pairs, every_rank, one_at_a_time, tune, .. } = &args.mode;
    if let Some(file) = tune {
        return Ok(Workload::Tune(file.clone(), tuning_effort(args)?));
    }
    if *pairs {
        let (all_ranks, serialized) = (*every_rank, *one_at_a_time);
        let options = PairsOptions { all_ranks, serialized, ..Default::default() };
        return Ok(Workload::Pairs(options));
    }
    let (config, sizes) = run_config(operations, args)?;
    Ok(Workload::Collectives {
        config: Box::new(config),
        sizes,
        register: args.iterations.register != 0,
    })
}

/// Sizes and iterations of the tuning run; defaults unless given.
fn tuning_effort(args: &CollectiveArgs) -> Result<tune::TuneConfig> {
    let mut effort = tune::TuneConfig::default();
    if !args.sizes.is_default() {
        effort.bytes =
            sizes(&args.sizes).and_then(|sizes| sizes.list()).map_err(anyhow::Error::msg)?;
    }
    if let Some(iterations) = args.iterations.timed {
        effort.max_repeats = u64::from(iterations);
    }
    Ok(effort)
}

impl Workload {
    /// Checks the number of ranks.
    pub fn check_ranks(&self, ranks: u32) -> Result<()> {
        match self {
            Self::Collectives { config, .. } if config.root >= ranks => {
                bail!(
                    "root rank {} (-r) is out of range: the ranks are 0 to {}",
                    config.root,
                    ranks.saturating_sub(1)
                )
            }
            Self::Pairs(_) if ranks < 2 => bail!("--pairs needs at least two ranks"),
            _ => Ok(()),
        }
    }
}

/// The run configuration and the requested size range.
fn run_config(operations: Vec<Operation>, args: &CollectiveArgs) -> Result<(RunConfig, SizeRange)> {
    let sizes = sizes(&args.sizes).map_err(anyhow::Error::msg)?;
    let config = RunConfig {
        operations,
        dtypes: nccl_names::dtypes(&args.sizes.datatype).map_err(anyhow::Error::msg)?,
        ops: nccl_names::ops(&args.sizes.op).map_err(anyhow::Error::msg)?,
        root: args.sizes.root,
        sizes: sizes.list().map_err(anyhow::Error::msg)?,
        iterations: IterationCounts {
            warmup: args.iterations.warmup,
            timed: args.iterations.timed.unwrap_or(20),
            adaptive: args.iterations.timed.is_none(),
            check: args.iterations.check,
        },
        average: args.iterations.average.map(|whose| match whose {
            0 => RankAverage::Rank0,
            2 => RankAverage::Min,
            3 => RankAverage::Max,
            _ => RankAverage::Avg,
        }),
        memory: MemoryKind::Heap,
    };
    Ok((config, sizes))
}

/// The requested size range; unlike nccl-tests, the default is more than one size.
fn sizes(args: &SizeArgs) -> Result<SizeRange, String> {
    const LARGEST: u64 = 32 << 20;
    if args.is_default() {
        return Ok(SizeRange { min: 8, max: LARGEST, step: SizeStep::Factor(2) });
    }
    let step = match (args.factor, args.step) {
        (Some(factor), None) => SizeStep::Factor(factor),
        (None, step) => SizeStep::Bytes(step.unwrap_or(1 << 20)),
        (Some(_), Some(_)) => return Err("-f and -i are mutually exclusive".to_owned()),
    };
    let max = args.max.unwrap_or(LARGEST);
    Ok(SizeRange { min: args.min.unwrap_or(LARGEST.min(max)), max, step })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    fn parse_run(options: &str) -> Result<(RunConfig, SizeRange)> {
        let words = format!("regatta bench all-reduce {options}");
        let Command::Bench(args) = Cli::try_parse_from(words.split_whitespace())?.command else {
            anyhow::bail!("not a benchmark");
        };
        let (operations, args) = args.command.collective().unwrap();
        run_config(operations, args)
    }

    #[test]
    fn nccl_tests_options_are_accepted() {
        let (config, sizes) =
            parse_run("-b 8 -e 4G -f 2 -n 100 -w 3 -c 0 -o max -d bfloat16 -a 3").unwrap();
        assert_eq!((sizes.min, sizes.max, sizes.step), (8, 4 << 30, SizeStep::Factor(2)));
        assert_eq!(config.sizes.len(), 30);
        let iterations = IterationCounts { warmup: 3, timed: 100, adaptive: false, check: 0 };
        assert_eq!((config.iterations, config.average), (iterations, Some(RankAverage::Max)));
        let (config, sizes) = parse_run("-b 8").unwrap();
        assert_eq!((sizes.max, sizes.step), (32 << 20, SizeStep::Bytes(1 << 20)));
        assert_eq!(config.sizes[1], 8 + (1 << 20));
        assert_eq!(parse_run("-e 1M").unwrap().0.sizes, [1 << 20]);
        assert_eq!(parse_run("").unwrap().0.sizes.len(), 23);
        assert!(parse_run("-t 2 -g 4 -p 1 -z 0 -m 1 -y 0 -R 1 -T 0 -G 0 -C 0 -N 1 -S 0").is_ok());
    }

    #[test]
    fn invalid_options_are_rejected() {
        for wrong in
            ["-b 8 -e 4", "-f 2 -i 8", "-d fp8", "-o mulsum", "-b eight", "-n 0", "-a 4", "-G 1"]
        {
            assert!(parse_run(wrong).is_err(), "{wrong}");
        }
    }
}
