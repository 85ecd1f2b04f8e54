//! The checks of the smoke test. Every rank runs them; rank 0 reports each when it finishes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use regatta_comm::gather::all_gather;
use regatta_comm::{Comm, DType, ReduceOp};
use regatta_doctor::Verdict;
use regatta_doctor::judge::majority::Groups;
use regatta_measure::collectives::{
    CallSpec, IterationCounts, MemoryKind, RankAverage, RunConfig, measure_call,
};
use regatta_model::units::{
    format_bytes, format_loss, format_params, format_si_unit, format_time, format_token_rate,
    pluralize,
};
use regatta_model::{CpuSet, Operation};
use regatta_observe::view::train::history::RunHistory;
use regatta_train::metrics::{EndReason, Event, StepSeconds};
use regatta_train::training::smoke::{SmokeRun, StateDigest};
use regatta_train::training::{TrainingSetup, check_agreement};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::report::{Check, CheckResult, SlowestRank, SmokeEvent};

/// Bytes of the all-reduces: latency-bound, in between, bandwidth-bound.
const ALL_REDUCE_BYTES: [u64; 3] = [8, 64 << 10, 4 << 20];

/// Smallest all-reduce whose bandwidth is shown. Smaller ones measure latency.
const MIN_BANDWIDTH_BYTES: u64 = 64 << 10;

/// Most ranks that an error names.
const MAX_NAMED_RANKS: usize = 4;

/// A signal ended the smoke test on all ranks.
#[derive(Debug, thiserror::Error)]
#[error("interrupted before all checks finished")]
pub struct Interrupted;

/// Host, cores and kernels of a rank.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct RankInfo {
    /// The rank.
    pub rank: u32,
    /// Its host.
    pub host: String,
    /// Its CPU affinity.
    pub cpus: CpuSet,
    /// Compute threads.
    pub threads: usize,
    /// Description of the kernels in use.
    pub kernels: String,
}

/// A smoke test on one of its ranks.
pub struct SmokeTest<'a> {
    comm: Arc<dyn Comm>,
    stop: &'a dyn Fn() -> bool,
    emit: &'a mut dyn FnMut(SmokeEvent),
    /// The current or last check.
    pub current: Check,
    /// Whether all checks passed so far.
    pub passed: bool,
}

impl<'a> SmokeTest<'a> {
    /// On ranks that have joined. `stop` is polled after every check and step; `emit` receives the events on
    /// rank 0.
    pub fn new(
        comm: Arc<dyn Comm>,
        stop: &'a dyn Fn() -> bool,
        emit: &'a mut dyn FnMut(SmokeEvent),
    ) -> Self {
        Self { comm, stop, emit, current: Check::Join, passed: true }
    }

    /// Reports the bootstrap.
    pub fn joined(&mut self, duration: Duration) -> Result<()> {
        let ranks = self.comm.size();
        let hosts: BTreeSet<String> = (0..ranks).map(|rank| self.comm.peer(rank).host).collect();
        let (ranks, hosts) = (ranks as usize, hosts.len());
        if self.comm.rank() == 0 {
            (self.emit)(SmokeEvent::World { ranks, hosts });
        }
        let details = json!({"world": {"ranks": ranks, "hosts": hosts}});
        let result = CheckResult::passed(details, ranks_on_hosts(ranks, hosts));
        self.report(Check::Join, duration, result)
    }

    /// Compares the ranks.
    pub fn ranks(&mut self, own: &RankInfo) -> Result<()> {
        self.check(Check::Ranks, |comm| {
            let ranks = all_gather(comm, own)?;
            // A rank that differs from the first has a note.
            let kernels = ranks.first().map_or_else(String::new, |rank| rank.kernels.clone());
            let notes = oversubscribed(&ranks).into_iter().chain(mixed_kernels(&ranks)).collect();
            let result = CheckResult::passed(json!({"ranks": ranks}), kernels);
            Ok(((), CheckResult { notes, ..result }))
        })
    }

    /// Runs a check and reports its result.
    pub fn check<T>(
        &mut self,
        check: Check,
        work: impl FnOnce(&dyn Comm) -> Result<(T, CheckResult)>,
    ) -> Result<T> {
        self.current = check;
        let start = Instant::now();
        let (value, result) = work(&*self.comm)?;
        self.report(check, start.elapsed(), result)?;
        Ok(value)
    }

    fn report(&mut self, check: Check, duration: Duration, result: CheckResult) -> Result<()> {
        let (seconds, stop) = (duration.as_secs_f64(), (self.stop)());
        let all: Vec<(f64, bool)> = all_gather(&*self.comm, &(seconds, stop))?;
        if all.iter().any(|(_, stop)| *stop) {
            return Err(Interrupted.into());
        }
        let status = match (&result.error, result.notes.is_empty()) {
            (Some(_), _) => Verdict::Fail,
            (None, false) => Verdict::Warn,
            (None, true) => Verdict::Pass,
        };
        self.passed &= status != Verdict::Fail;
        let slowest = (0..).zip(&all).max_by(|(_, a), (_, b)| a.0.total_cmp(&b.0));
        let slowest = slowest.map(|(rank, (seconds, _))| {
            let host = self.comm.peer(rank).host;
            SlowestRank { rank, host, seconds: *seconds }
        });
        if self.comm.rank() == 0 {
            let result = CheckResult { check, status, seconds, slowest, ..result };
            (self.emit)(SmokeEvent::Check(Box::new(result)));
        }
        Ok(())
    }

    /// All checks of training, once the data is open. Wrong all-reduces end it.
    pub fn training(&mut self, setup: TrainingSetup) -> Result<()> {
        let stop = self.stop;
        self.check(Check::Agreement, |_| {
            Ok((check_agreement(&setup)?, CheckResult::passed(Value::Null, String::new())))
        })?;
        self.check(Check::AllReduce, |comm| Ok(((), all_reduces(comm)?)))?;
        if !self.passed {
            return Ok(());
        }
        let name = setup.name.clone();
        let mut run = self.check(Check::Broadcast, |comm| broadcast(comm, setup))?;
        self.check(Check::Steps, |_| Ok(((), steps(&mut run, &name, stop)?)))?;
        self.check(Check::Consistency, |comm| Ok(((), consistency(comm, &mut run)?)))?;
        self.check(Check::Checkpoint, |_| Ok(((), checkpoint(&mut run)?)))
    }
}

/// `2 ranks on 1 host`.
pub fn ranks_on_hosts(ranks: usize, hosts: usize) -> String {
    format!("{} on {}", pluralize(ranks, "rank"), pluralize(hosts, "host"))
}

/// Hosts with ranks that share cores and have more threads than those.
pub fn oversubscribed(all: &[RankInfo]) -> Vec<String> {
    let mut hosts: BTreeMap<&str, Vec<&RankInfo>> = BTreeMap::new();
    all.iter().for_each(|rank| hosts.entry(&rank.host).or_default().push(rank));
    let note = |(host, ranks): (&str, Vec<&RankInfo>)| {
        let shares_cores =
            |a: &&&RankInfo| ranks.iter().any(|b| a.rank != b.rank && a.cpus.intersects(&b.cpus));
        let sharing: Vec<&&RankInfo> = ranks.iter().filter(shares_cores).collect();
        let cpus = sharing.iter().fold(CpuSet::new(), |all, rank| all.union(&rank.cpus));
        let threads: usize = sharing.iter().map(|rank| rank.threads).sum();
        let ranks: CpuSet = sharing.iter().map(|rank| rank.rank as usize).collect();
        let cores = if cpus.len() == 1 { "core" } else { "cores" };
        (threads > cpus.len()).then(|| {
            format!(
                "ranks {ranks} on {host} run {threads} threads on {cores} {cpus}: use fewer ranks \
                 (-n) or threads (train.threads)"
            )
        })
    };
    hosts.into_iter().filter_map(note).collect()
}

/// A rank whose kernels differ from the majority's: the slowest rank limits all.
pub fn mixed_kernels(ranks: &[RankInfo]) -> Option<String> {
    let name = |rank: &RankInfo| format!("rank {} on {}", rank.rank, rank.host);
    let names: Vec<String> = ranks.iter().map(name).collect();
    let kernels = ranks.iter().map(|rank| Some(&rank.kernels));
    let groups = Groups::new(names.iter().map(String::as_str).zip(kernels));
    let (most_common, (kernels, differing)) = (groups.most_common()?, groups.others().first()?);
    Some(format!(
        "{} has {kernels}, most ranks have {most_common}: the slowest rank limits all",
        differing[0]
    ))
}

/// Verifies and times all-reduces.
fn all_reduces(comm: &dyn Comm) -> Result<CheckResult> {
    let config = RunConfig {
        operations: vec![Operation::AllReduce],
        dtypes: vec![DType::F32],
        ops: vec![ReduceOp::Sum],
        root: 0,
        sizes: ALL_REDUCE_BYTES.to_vec(),
        iterations: IterationCounts { warmup: 1, timed: 5, adaptive: false, check: 2 },
        average: Some(RankAverage::Max),
        memory: MemoryKind::Heap,
    };
    let (mut timings, mut summary, mut error) = (Vec::new(), Vec::new(), None);
    for &bytes in &config.sizes {
        let (operation, dtype, op) = (Operation::AllReduce, DType::F32, ReduceOp::Sum);
        let count = bytes as usize / dtype.size();
        let call = CallSpec { operation, dtype, op, root: 0, count, in_place: false };
        let (measured, wrong) = measure_call(comm, &config, call, bytes)?;
        let seconds = measured.time_us.unwrap_or_default() * 1e-6;
        let bus_bandwidth = measured.busbw.unwrap_or_default() * 1e9;
        timings.push(json!({"bytes": bytes, "seconds": seconds, "bus_bandwidth": bus_bandwidth}));
        let time = format!("{} in {}", format_bytes(bytes), format_time(seconds));
        // A single rank has no bus bandwidth.
        summary.push(match bytes >= MIN_BANDWIDTH_BYTES && bus_bandwidth > 0.0 {
            true => format!("{time} ({})", format_si_unit(bus_bandwidth, "B/s")),
            false => time,
        });
        let wrong = (0..).zip(wrong).find(|(_, count)| *count > 0);
        error = error.or(wrong.map(|(rank, count)| {
            let size = format_bytes(bytes);
            format!("{} received {count} wrong elements in a sum of {size}", comm.peer(rank))
        }));
    }
    let result = CheckResult::passed(json!({"all-reduce": timings}), summary.join(", "));
    Ok(CheckResult { error, ..result })
}

/// Starts the training: all replicas receive the initial state.
fn broadcast(comm: &dyn Comm, setup: TrainingSetup) -> Result<(SmokeRun, CheckResult)> {
    let mut run = SmokeRun::start(setup)?;
    let error = differing_ranks(comm, &run.digest()?)?;
    let (parameters, bytes) = (run.parameters(), run.state_bytes());
    let summary = format!(
        "{} parameters, {} with optimizer state",
        format_params(parameters as f64),
        format_bytes(bytes)
    );
    let details = json!({"state": {"parameters": parameters, "bytes": bytes}});
    Ok((run, CheckResult { error, ..CheckResult::passed(details, summary) }))
}

/// Runs the steps, after which the loss must be lower.
fn steps(run: &mut SmokeRun, model: &str, stop: &dyn Fn() -> bool) -> Result<CheckResult> {
    let (mut history, mut losses) = (RunHistory::default(), Vec::new());
    let reason = run.train(stop, &mut |event| {
        history.on_event(&event, 0.0);
        losses.extend(if let Event::Step(step) = event { Some(step.loss) } else { None });
    })?;
    if reason == EndReason::Interrupted {
        return Err(Interrupted.into());
    }
    let (steps, (first, last), times) = (losses.len(), ends(&losses), history.step_times());
    let rate = history.throughput(|step| step.tokens_per_second).unwrap_or_default();
    let summary = format!(
        "{} of {model}, loss {} to {}, {}\n{}",
        pluralize(steps, "step"),
        format_loss(first),
        format_loss(last),
        format_token_rate(rate),
        phases(&times)
    );
    let details = json!({"steps": {
        "model": model,
        "steps": steps,
        "first_loss": first,
        "last_loss": last,
        "tokens_per_second": rate,
        "step_seconds": times,
    }});
    // A single step proves nothing.
    let is_rising = steps > 1 && last >= first;
    let error = is_rising.then(|| {
        format!("the loss did not decrease: {first:.4} at the start, {last:.4} at the end")
    });
    Ok(CheckResult { error, ..CheckResult::passed(details, summary) })
}

/// Mean loss of the first and of the last steps, because single ones fluctuate.
pub fn ends(losses: &[f64]) -> (f64, f64) {
    let some = (losses.len() / 5).max(1).min(losses.len());
    let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
    (mean(&losses[..some]), mean(&losses[losses.len() - some..]))
}

/// The step time and its phases.
pub fn phases(times: &StepSeconds) -> String {
    let step = times.step.max(f64::MIN_POSITIVE);
    let phase = |(name, seconds): (&str, f64)| {
        let percent = (seconds / step * 100.0).round();
        (percent >= 1.0).then(|| format!("{name} {percent}%"))
    };
    let phases: Vec<String> = times.phases().into_iter().filter_map(phase).collect();
    format!("{}/step: {}", format_time(times.step), phases.join(", "))
}

/// All replicas must have the same state after the steps.
fn consistency(comm: &dyn Comm, run: &mut SmokeRun) -> Result<CheckResult> {
    let own = run.digest()?;
    let error = differing_ranks(comm, &own)?;
    let summary = format!("bitwise identical on all ranks, SHA-256 {:.12}", own.sha256);
    Ok(CheckResult::verified(json!({"digest": own.sha256}), summary, error))
}

/// A checkpoint must restore the state.
fn checkpoint(run: &mut SmokeRun) -> Result<CheckResult> {
    let (folder, error) = run.save_and_restore()?;
    let bytes = run.state_bytes();
    let folder = folder.display().to_string();
    let details = json!({"checkpoint": {"bytes": bytes, "folder": folder}});
    let summary = format!("{} written and read back", format_bytes(bytes));
    Ok(CheckResult::verified(details, summary, error))
}

/// The ranks whose state differs from that of most of their replicas, as text.
fn differing_ranks(comm: &dyn Comm, own: &StateDigest) -> Result<Option<String>> {
    let all = all_gather(comm, own)?;
    let names: Vec<String> = (0..comm.size()).map(|rank| comm.peer(rank).to_string()).collect();
    Ok(differing(&names, &all))
}

/// Names the first few ranks that differ from most of their replicas; in a tie, from the first.
pub fn differing(names: &[String], all: &[StateDigest]) -> Option<String> {
    let mut replicas: BTreeMap<_, Vec<(&str, Option<&str>)>> = BTreeMap::new();
    for (name, StateDigest { replica_key, sha256 }) in names.iter().zip(all) {
        replicas.entry(*replica_key).or_default().push((name, Some(sha256)));
    }
    let groups: Vec<_> = replicas.into_values().map(Groups::new).collect();
    let others = groups.iter().flat_map(Groups::others);
    let ranks: Vec<&str> = others.flat_map(|(_, ranks)| ranks.iter().copied()).collect();
    let shown = &ranks[..ranks.len().min(MAX_NAMED_RANKS)];
    let more = match ranks.len() - shown.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let verb = if ranks.len() == 1 { "has" } else { "have" };
    let shown = shown.join(", ");
    (!ranks.is_empty())
        .then(|| format!("{shown}{more} {verb} different parameters than the other ranks"))
}
