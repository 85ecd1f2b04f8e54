//! What the options ask to be measured. No I/O: a wrong option is refused before a rank is started.

use std::path::PathBuf;

use anyhow::{Result, bail};
use regatta_comm::tune;
use regatta_measure::baseline::Tolerance;
use regatta_measure::run::{Average, Memory, Plan, Rounds, Sizes, names};
use regatta_measure::{ceiling, pairs};
use regatta_model::Operation;
use regatta_model::bench::SizeStep;

use super::args::{MoreArgs, OutputArgs, RankArgs, RunArgs, SizeArgs, What};
use super::plot;

/// A run that is asked for.
pub struct Asked<'a> {
    pub job: Job,
    pub ranks: &'a RankArgs,
    pub output: &'a OutputArgs,
    /// Seconds after which a call that does not end is an error.
    pub timeout: Option<u64>,
}

/// What ranks do.
pub enum Job {
    /// Collectives over sizes, in buffers of the communicator or not.
    Tables { plan: Box<Plan>, sizes: Sizes, register: bool },
    /// Messages of every pair.
    Pairs(pairs::Options),
    /// All algorithms; the table goes into the file.
    Tune(PathBuf, tune::Effort),
    /// What each rank can do by itself, and by what fraction it may be slower than others.
    Ceiling(Ceiling, f64),
}

/// What a rank can do by itself.
pub enum Ceiling {
    Gemm(ceiling::gemm::Settings),
    Copy(ceiling::copy::Settings),
    Disk(ceiling::disk::Settings),
}

/// What is asked for, if it is something to measure.
pub fn asked(what: &What) -> Result<Option<Asked<'_>>> {
    let asked = parsed(what)?;
    if let Some(Asked { job, output: OutputArgs { plot: Some(path), .. }, .. }) = &asked {
        match job {
            Job::Tables { plan, .. } => plot::check_operations(path, plan.operations.len())?,
            Job::Pairs(_) => plot::check_pairs(path)?,
            Job::Tune(..) | Job::Ceiling(..) => bail!("--plot draws collectives and --pairs only"),
        }
    }
    Ok(asked)
}

fn parsed(what: &What) -> Result<Option<Asked<'_>>> {
    let (job, ranks, output) = match what {
        What::Gemm(args) => {
            let job = Ceiling::Gemm(ceiling::gemm::Settings::default());
            (Job::Ceiling(job, fraction(&args.judge.slower_than)?), &args.ranks, &args.output)
        }
        What::Copy(args) => {
            let job = Ceiling::Copy(ceiling::copy::Settings::default());
            (Job::Ceiling(job, fraction(&args.judge.slower_than)?), &args.ranks, &args.output)
        }
        What::Disk(args) => {
            let (folder, bytes) = (args.folder.clone(), args.size);
            let settings = ceiling::disk::Settings { folder, bytes, ..Default::default() };
            let job = Ceiling::Disk(settings);
            (
                Job::Ceiling(job, fraction(&args.ceiling.judge.slower_than)?),
                &args.ceiling.ranks,
                &args.ceiling.output,
            )
        }
        collectives => {
            let Some((operations, args)) = collectives.run() else { return Ok(None) };
            let job = job(operations, args)?;
            let timeout = args.rounds.timeout.filter(|seconds| *seconds > 0);
            return Ok(Some(Asked { job, ranks: &args.ranks, output: &args.output, timeout }));
        }
    };
    Ok(Some(Asked { job, ranks, output, timeout: None }))
}

fn fraction(percent: &str) -> Result<f64> {
    Ok(percent.parse::<Tolerance>()?.fraction)
}

fn job(operations: Vec<Operation>, args: &RunArgs) -> Result<Job> {
    let MoreArgs { pairs, every_rank, one_at_a_time, tune, .. } = &args.more;
    if let Some(file) = tune {
        return Ok(Job::Tune(file.clone(), effort(args)?));
    }
    if *pairs {
        let (every_rank, one_at_a_time) = (*every_rank, *one_at_a_time);
        return Ok(Job::Pairs(pairs::Options { every_rank, one_at_a_time, ..Default::default() }));
    }
    let (plan, sizes) = plan(operations, args)?;
    Ok(Job::Tables { plan: Box::new(plan), sizes, register: args.rounds.register != 0 })
}

/// How much of every algorithm is measured: what the options say, and usually enough.
fn effort(args: &RunArgs) -> Result<tune::Effort> {
    let mut effort = tune::Effort::default();
    if !args.sizes.is_usual() {
        effort.bytes =
            sizes(&args.sizes).and_then(|sizes| sizes.list()).map_err(anyhow::Error::msg)?;
    }
    if let Some(iterations) = args.rounds.iterations {
        effort.most = u64::from(iterations);
    }
    Ok(effort)
}

impl Job {
    /// Whether so many ranks can do it.
    pub fn check_ranks(&self, ranks: u32) -> Result<()> {
        match self {
            Self::Tables { plan, .. } if plan.root >= ranks => {
                bail!("-r {}, but the ranks are 0 to {}", plan.root, ranks.saturating_sub(1))
            }
            Self::Pairs(_) if ranks < 2 => bail!("--pairs needs two ranks"),
            _ => Ok(()),
        }
    }
}

/// What is to be measured, and the sizes as they were asked for.
fn plan(operations: Vec<Operation>, args: &RunArgs) -> Result<(Plan, Sizes)> {
    let sizes = sizes(&args.sizes).map_err(anyhow::Error::msg)?;
    let plan = Plan {
        operations,
        dtypes: names::dtypes(&args.sizes.datatype).map_err(anyhow::Error::msg)?,
        ops: names::ops(&args.sizes.op).map_err(anyhow::Error::msg)?,
        root: args.sizes.root,
        sizes: sizes.list().map_err(anyhow::Error::msg)?,
        rounds: Rounds {
            warmup: args.rounds.warmup,
            iterations: args.rounds.iterations.unwrap_or(20),
            or_more: args.rounds.iterations.is_none(),
            check: args.rounds.check,
        },
        average: args.rounds.average.map(|whose| match whose {
            0 => Average::First,
            2 => Average::Least,
            3 => Average::Greatest,
            _ => Average::Mean,
        }),
        memory: Memory::Heap,
    };
    Ok((plan, sizes))
}

/// The sizes that the options ask for; nccl-tests would measure one only if none does.
fn sizes(args: &SizeArgs) -> Result<Sizes, String> {
    const LARGEST: u64 = 32 << 20;
    if args.is_usual() {
        return Ok(Sizes { min: 8, max: LARGEST, step: SizeStep::Factor(2) });
    }
    let step = match (args.factor, args.step) {
        (Some(factor), None) => SizeStep::Factor(factor),
        (None, step) => SizeStep::Bytes(step.unwrap_or(1 << 20)),
        (Some(_), Some(_)) => return Err("give -f or -i, not both".to_owned()),
    };
    let max = args.max.unwrap_or(LARGEST);
    Ok(Sizes { min: args.min.unwrap_or(LARGEST.min(max)), max, step })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    fn asked(options: &str) -> Result<(Plan, Sizes)> {
        let words = format!("regatta bench all-reduce {options}");
        let Command::Bench(args) = Cli::try_parse_from(words.split_whitespace())?.command else {
            anyhow::bail!("no benchmark");
        };
        let (operations, args) = args.what.run().unwrap();
        plan(operations, args)
    }

    #[test]
    fn the_options_of_nccl_tests_mean_the_same() {
        let (plan, sizes) =
            asked("-b 8 -e 4G -f 2 -n 100 -w 3 -c 0 -o max -d bfloat16 -a 3").unwrap();
        assert_eq!((sizes.min, sizes.max, sizes.step), (8, 4 << 30, SizeStep::Factor(2)));
        assert_eq!(plan.sizes.len(), 30);
        let rounds = Rounds { warmup: 3, iterations: 100, or_more: false, check: 0 };
        assert_eq!((plan.rounds, plan.average), (rounds, Some(Average::Greatest)));
        let (plan, sizes) = asked("-b 8").unwrap();
        assert_eq!((sizes.max, sizes.step), (32 << 20, SizeStep::Bytes(1 << 20)));
        assert_eq!(plan.sizes[1], 8 + (1 << 20));
        assert_eq!(asked("-e 1M").unwrap().0.sizes, [1 << 20]);
        assert_eq!(asked("").unwrap().0.sizes.len(), 23);
        assert!(asked("-t 2 -g 4 -p 1 -z 0 -m 1 -y 0 -R 1 -T 0 -G 0 -C 0 -N 1 -S 0").is_ok());
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for wrong in
            ["-b 8 -e 4", "-f 2 -i 8", "-d fp8", "-o mulsum", "-b eight", "-n 0", "-a 4", "-G 1"]
        {
            assert!(asked(wrong).is_err(), "{wrong}");
        }
    }
}
