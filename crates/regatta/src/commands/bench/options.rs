//! Validated options of a benchmark: invalid options are rejected before ranks are launched.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Error, Result, bail};
use regatta_comm::tune;
use regatta_measure::collectives::{
    IterationCounts, MemoryKind, RankAverage, RunConfig, SizeRange, nccl_names,
};
use regatta_measure::pairs::PairsOptions;
use regatta_measure::request::{BenchRequest, RooflineTest, Workload};
use regatta_model::Operation;
use regatta_model::bench::SizeStep;
use regatta_nccl_tuning::table::MAGIC;

use super::plot;
use crate::args::bench::nccl_tests::{IterationArgs, SizeArgs};
use crate::args::bench::{
    BenchCommand, BenchRankArgs, CollectiveArgs, DiskArgs, ModeArgs, OutputArgs, RooflineArgs,
    TableArgs,
};
use crate::options::NetPlugin;
use crate::output;

/// A benchmark to run, and where its result goes.
pub struct BenchOptions<'a> {
    /// What the ranks measure.
    pub request: BenchRequest,
    pub ranks: &'a BenchRankArgs,
    pub output: &'a OutputArgs,
    /// Of collectives only.
    pub table: Option<&'a TableArgs>,
    /// File of the tuning table (`--tune`).
    pub tuning_file: Option<&'a PathBuf>,
    /// Tolerance of slow ranks.
    pub outlier_tolerance: f64,
}

/// Validates the options; `None` for subcommands that do not measure.
pub fn parse(command: &BenchCommand) -> Result<Option<BenchOptions<'_>>> {
    let options = match (command, command.collective()) {
        (_, Some((operations, args))) => BenchOptions {
            request: collective_request(operations, args)?,
            ranks: &args.ranks,
            output: &args.output,
            table: Some(&args.table),
            tuning_file: args.mode.tune.as_ref(),
            outlier_tolerance: 0.0,
        },
        (BenchCommand::Gemm(args), _) => roofline(RooflineTest::Gemm, args),
        (BenchCommand::Copy(args), _) => roofline(RooflineTest::Copy, args),
        (BenchCommand::Disk(DiskArgs { dir, size, roofline: args }), _) => {
            roofline(RooflineTest::Disk { dir: dir.clone(), bytes: *size }, args)
        }
        _ => return Ok(None),
    };
    match (options.plot(), &options.request.workload) {
        (Some(path), Workload::Collectives { config, .. }) => {
            plot::check_operations(path, config.operations.len())?;
        }
        (Some(path), Workload::Pairs(_)) => plot::check_pairs(path)?,
        _ => {}
    }
    Ok(Some(options))
}

fn request(workload: Workload, ranks: &BenchRankArgs, output: &OutputArgs) -> BenchRequest {
    let net_plugin = match &ranks.plugins.net_plugin {
        Some(NetPlugin::Path(path)) => Some(path.clone()),
        Some(NetPlugin::Regatta) | None => None,
    };
    let (backend, label) = (ranks.backend, output.label.clone());
    BenchRequest { workload, backend, net_plugin, timeout: None, label }
}

fn roofline(test: RooflineTest, args: &RooflineArgs) -> BenchOptions<'_> {
    let RooflineArgs { ranks, output, outliers } = args;
    BenchOptions {
        request: request(Workload::Roofline(test), ranks, output),
        ranks,
        output,
        table: None,
        tuning_file: None,
        outlier_tolerance: outliers.slower_than.fraction,
    }
}

impl BenchOptions<'_> {
    /// The file of `--plot`.
    pub fn plot(&self) -> Option<&PathBuf> {
        self.table?.plot.as_ref()
    }

    /// Checks before a long run that the output files can be created.
    pub fn check_output_files(&self) -> Result<()> {
        let files = [
            ("-J", self.output.out.as_ref()),
            ("--plot", self.plot()),
            ("--tune", self.tuning_file),
        ];
        let mut given = files.into_iter().filter_map(|(option, file)| Some((option, file?)));
        given.try_for_each(|(option, file)| output::check_writable(option, file))?;
        match self.tuning_file {
            Some(file) if !self.ranks.backend.is_nccl() => check_not_of_nccl(file),
            _ => Ok(()),
        }
    }
}

/// Fails if a file has a table of NCCL's tuner, which took long to measure: a table of Regatta's own
/// collectives would replace it.
fn check_not_of_nccl(file: &Path) -> Result<()> {
    let mut start = Vec::new();
    let read = |opened: File| opened.take(MAGIC.len() as u64).read_to_end(&mut start);
    // Opening a pipe would wait for a writer.
    if file.is_file() && File::open(file).and_then(read).is_ok() && start == MAGIC.as_bytes() {
        bail!(
            "--tune {}: the file has a table of NCCL's tuner: add --backend nccl (or rccl) to measure for it, or \
             choose another file for the table of Regatta's own collectives",
            file.display()
        );
    }
    Ok(())
}

fn collective_request(operations: Vec<Operation>, args: &CollectiveArgs) -> Result<BenchRequest> {
    let ModeArgs { pairs, every_rank, one_at_a_time, tune, .. } = &args.mode;
    let (all_ranks, serialized) = (*every_rank, *one_at_a_time);
    let workload = match (tune, pairs) {
        // Each case of NCCL's tuner is a benchmark of its own.
        (Some(_), _) if !args.tunes_nccl() => Workload::Tune(tune_config(args)?),
        (_, true) => Workload::Pairs(PairsOptions { all_ranks, serialized, ..Default::default() }),
        (_, false) => {
            let (config, sizes) = run_config(operations, args)?;
            let register = args.iterations.register != 0;
            Workload::Collectives { config: Box::new(config), sizes, register }
        }
    };
    let timeout = args.iterations.timeout.filter(|seconds| *seconds > 0).map(Duration::from_secs);
    Ok(BenchRequest { timeout, ..request(workload, &args.ranks, &args.output) })
}

/// Sizes and iterations of the tuning run; defaults unless given.
fn tune_config(args: &CollectiveArgs) -> Result<tune::TuneConfig> {
    let ModeArgs { tune_rounds, tune_channels, .. } = &args.mode;
    let of_nccl =
        [("--tune-rounds", tune_rounds.is_some()), ("--tune-channels", !tune_channels.is_empty())];
    if let Some((option, _)) = of_nccl.iter().find(|(_, is_given)| *is_given) {
        bail!("{option} is for tables of NCCL's tuner: add --backend nccl (or rccl), or remove it");
    }
    let mut config = tune::TuneConfig::default();
    if !args.sizes.is_default() {
        config.bytes = sizes(&args.sizes).and_then(|sizes| sizes.list()).map_err(Error::msg)?;
    }
    config.max_repeats = args.iterations.timed.map_or(config.max_repeats, u64::from);
    Ok(config)
}

/// The run configuration and the requested size range.
fn run_config(operations: Vec<Operation>, args: &CollectiveArgs) -> Result<(RunConfig, SizeRange)> {
    let sizes = sizes(&args.sizes).map_err(Error::msg)?;
    let IterationArgs { timed, warmup, check, average, .. } = args.iterations;
    let config = RunConfig {
        operations,
        dtypes: nccl_names::dtypes(&args.sizes.datatype).map_err(Error::msg)?,
        ops: nccl_names::ops(&args.sizes.op).map_err(Error::msg)?,
        root: args.sizes.root,
        sizes: sizes.list().map_err(Error::msg)?,
        iterations: IterationCounts {
            warmup,
            timed: timed.unwrap_or(20),
            adaptive: timed.is_none(),
            check,
        },
        average: average.map(|average| match average {
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
        (Some(factor), _) => SizeStep::Factor(factor),
        (_, step) => SizeStep::Bytes(step.unwrap_or(1 << 20)),
    };
    let max = args.max.unwrap_or(LARGEST);
    Ok(SizeRange { min: args.min.unwrap_or(LARGEST.min(max)), max, step })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::tests::parse_bench;

    fn parse_run(options: &str) -> Result<(RunConfig, SizeRange)> {
        let command = parse_bench(format!("all-reduce {options}").split_whitespace())?;
        let (operations, args) = command.collective().unwrap();
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
        let sizes = ["-b 8 -e 4", "-f 2 -i 8", "-b eight"];
        for invalid in sizes.into_iter().chain(["-d fp8", "-o mulsum", "-n 0", "-a 4", "-G 1"]) {
            assert!(parse_run(invalid).is_err(), "{invalid}");
        }
    }
}
