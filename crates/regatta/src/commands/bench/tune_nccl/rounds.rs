//! The rounds of a measurement. In each, NCCL's default is measured first and last, and every candidate
//! between, so that slow changes of the machine do not favour one of them.

use anyhow::{Context, Result};
use regatta_measure::buffer_mode::BufferMode;
use regatta_model::{BenchResult, BenchRow};
use regatta_nccl_tuning::Function;
use regatta_nccl_tuning::candidate::Candidate;
use regatta_nccl_tuning::fit::Timing;

/// A job to run.
#[derive(Debug, Clone, Copy)]
pub struct TuneRun<'a> {
    /// Number of the run, from 0 on.
    pub number: usize,
    /// Number of runs, if no candidate fails.
    pub total: usize,
    /// The round, from 0 on.
    pub round: u32,
    /// `None`: NCCL's default.
    pub candidate: Option<&'a Candidate>,
}

/// The end of a job.
#[derive(Debug)]
pub enum TuneOutcome {
    /// It was measured.
    Measured(Box<BenchResult>),
    /// It failed, for a reason.
    Failed(String),
    /// A signal ended it.
    Interrupted,
}

/// Runs jobs.
pub trait TuneRunner {
    /// Runs a job.
    fn run(&mut self, run: TuneRun<'_>) -> Result<TuneOutcome>;

    /// Reports that a candidate is not measured any more.
    fn dropped(&mut self, candidate: &Candidate, why: &str);
}

/// What was measured.
#[derive(Debug)]
pub struct MeasuredRounds {
    /// All times.
    pub timings: Vec<Timing>,
    /// The first result of NCCL's default, for the facts of the machine.
    pub first: BenchResult,
}

/// Measures all candidates. A candidate that fails is not available here, and is left out from then on.
/// `None` after a signal.
pub fn measure(
    runner: &mut dyn TuneRunner,
    mut candidates: Vec<Candidate>,
    rounds: u32,
) -> Result<Option<MeasuredRounds>> {
    let total = rounds as usize * (candidates.len() + 2);
    let (mut timings, mut first) = (Vec::new(), None);
    let mut number = 0;
    for round in 0..rounds {
        // Every other round in reverse order: none is always the first after the default.
        if round > 0 {
            candidates.reverse();
        }
        let all: Vec<Option<Candidate>> =
            [None].into_iter().chain(candidates.iter().cloned().map(Some)).chain([None]).collect();
        for candidate in &all {
            let candidate = candidate.as_ref();
            let outcome = runner.run(TuneRun { number, total, round, candidate })?;
            number += 1;
            match (outcome, candidate) {
                (TuneOutcome::Interrupted, _) => return Ok(None),
                (TuneOutcome::Measured(result), _) => {
                    timings.extend(times(&result, candidate, round));
                    first.get_or_insert(*result);
                }
                (TuneOutcome::Failed(why), None) => {
                    return Err(anyhow::Error::msg(why)).context("cannot measure NCCL's default");
                }
                (TuneOutcome::Failed(why), Some(candidate)) => {
                    runner.dropped(candidate, &why);
                    candidates.retain(|one| one != candidate);
                }
            }
        }
    }
    let first = first.context("nothing was measured")?;
    Ok(Some(MeasuredRounds { timings, first }))
}

/// The times of a result.
fn times(result: &BenchResult, candidate: Option<&Candidate>, round: u32) -> Vec<Timing> {
    let choice = candidate.map(|candidate| candidate.choice);
    let mut all = Vec::new();
    for table in &result.tables {
        let Some(function) = Function::from_name(&table.operation.to_string()) else { continue };
        // Without its own environment, a collective has NCCL's default.
        if candidate.is_some_and(|candidate| !candidate.functions.contains(&function)) {
            continue;
        }
        for row in table.rows.iter().filter(|row| row.size_bytes > 0) {
            let timing =
                |time_us| Timing { function, bytes: row.size_bytes, choice, round, time_us };
            all.extend(time(row).map(timing));
        }
    }
    all
}

/// The mean of the times out of place and in place; `None` if a result was wrong.
fn time(row: &BenchRow) -> Option<f64> {
    let measured: Vec<_> =
        BufferMode::ALL.into_iter().filter_map(|mode| mode.measurement(row)).collect();
    if measured.iter().any(|one| one.wrong.is_some_and(|wrong| wrong > 0)) {
        return None;
    }
    let times: Vec<f64> = measured.iter().filter_map(|one| one.time_us).collect();
    (!times.is_empty()).then(|| times.iter().sum::<f64>() / times.len() as f64)
}

#[cfg(test)]
mod tests {
    use regatta_model::{BenchTable, Measurement, Operation};
    use regatta_nccl_tuning::candidate::candidates;
    use regatta_nccl_tuning::fit::{fit, rows};
    use regatta_nccl_tuning::{Communicator, Row};

    use super::*;

    /// A machine on which trees are fast for large all-reduces, and NVLS does not exist.
    #[derive(Default)]
    struct FakeMachine {
        runs: Vec<String>,
        dropped: Vec<String>,
        interrupt_at: Option<usize>,
        fail_default_at: Option<usize>,
        wrong: bool,
    }

    impl TuneRunner for FakeMachine {
        fn run(&mut self, run: TuneRun<'_>) -> Result<TuneOutcome> {
            let name = run.candidate.map_or("default".to_owned(), |one| one.choice.to_string());
            assert_eq!(run.number, self.runs.len());
            self.runs.push(name.clone());
            if self.interrupt_at == Some(run.number) {
                return Ok(TuneOutcome::Interrupted);
            }
            if name.starts_with("nvls") || self.fail_default_at == Some(run.number) {
                return Ok(TuneOutcome::Failed("no such algorithm".to_owned()));
            }
            let row = |bytes: u64| {
                let fast = name == "tree simple" && bytes >= 1 << 20;
                let time_us = Some(if fast { 50.0 } else { 100.0 } + f64::from(run.round));
                let wrong = Some(u64::from(self.wrong && fast));
                let measured = Measurement { time_us, wrong, ..Measurement::default() };
                BenchRow {
                    size_bytes: bytes,
                    out_of_place: Some(measured.clone()),
                    in_place: Some(Measurement { time_us: Some(100.0), ..measured }),
                    ..BenchRow::default()
                }
            };
            let table = |operation| BenchTable {
                operation,
                rows: [0, 8, 1 << 20, 4 << 20].map(row).to_vec(),
                ..BenchTable::default()
            };
            let tables = [Operation::AllReduce, Operation::Reduce, Operation::AllToAll].map(table);
            Ok(TuneOutcome::Measured(Box::new(BenchResult {
                tables: tables.to_vec(),
                ..BenchResult::default()
            })))
        }

        fn dropped(&mut self, candidate: &Candidate, why: &str) {
            self.dropped.push(format!("{}: {why}", candidate.choice));
        }
    }

    fn all() -> Vec<Candidate> {
        candidates(&[Function::AllReduce, Function::Reduce], &[])
    }

    fn rows_of(machine: &mut FakeMachine) -> Vec<String> {
        let measured = measure(machine, all(), 3).unwrap().unwrap();
        let communicator = Communicator { ranks: 4, nodes: 2 };
        rows(&fit(&measured.timings), communicator).iter().map(Row::to_string).collect()
    }

    #[test]
    fn the_faster_algorithm_is_found() {
        let mut machine = FakeMachine::default();
        let expected = "all-reduce ranks=4 nodes=2 bytes=2897..4194304 tree simple";
        assert_eq!(rows_of(&mut machine), [expected]);
        assert_eq!(
            machine.dropped,
            ["nvls simple: no such algorithm", "nvlstree simple: no such algorithm"]
        );
        let count = |name: &str| machine.runs.iter().filter(|run| *run == name).count();
        assert_eq!((count("default"), count("tree simple"), count("nvls simple")), (6, 3, 1));
        let second: Vec<&str> = machine.runs[12..].iter().map(String::as_str).take(3).collect();
        assert_eq!(second, ["default", "collnetchain simple", "collnetdirect simple"], "reversed");
    }

    #[test]
    fn wrong_results_are_not_chosen() {
        let mut machine = FakeMachine { wrong: true, ..FakeMachine::default() };
        assert!(rows_of(&mut machine).is_empty());
    }

    #[test]
    fn a_signal_or_a_failed_default_ends_the_measurement() {
        let mut machine = FakeMachine { interrupt_at: Some(4), ..FakeMachine::default() };
        assert!(measure(&mut machine, all(), 3).unwrap().is_none());
        assert_eq!(machine.runs.len(), 5);
        for at in [0, 11] {
            let mut machine = FakeMachine { fail_default_at: Some(at), ..FakeMachine::default() };
            let error = format!("{:#}", measure(&mut machine, all(), 3).unwrap_err());
            assert_eq!(error, "cannot measure NCCL's default: no such algorithm");
        }
    }
}
