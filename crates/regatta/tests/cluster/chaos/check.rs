//! Checks the outcome of a job: report, exit code, leftover processes and logs.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use regatta_model::result::{RankExit, RunResult};
use regatta_model::{document, hostlist};
use regatta_testbed::{Cluster, CommandOutput, run};

use crate::chaos::case::{Case, Condition, ExpectedFailure, ExpectedOutcome, JobFault, When};
use crate::chaos::inject::wait_for;
use crate::chaos::rank_script::{LINE, exit_message, greeting, line_count, lines};

/// Runs all checks; returns the first failure.
pub fn check(
    cluster: &Cluster,
    case: &Case,
    run_dir: &Path,
    out: &CommandOutput,
) -> Result<(), String> {
    assert_no_leftovers(cluster)?;
    report(cluster, case, run_dir, out)?;
    overlaps(run_dir)?;
    shown_lines(case, out)?;
    logs(case, run_dir)
}

/// Checks that no rank ran next to its replacement.
fn overlaps(run_dir: &Path) -> Result<(), String> {
    match std::fs::read_to_string(run_dir.with_file_name("overlaps")) {
        Ok(ranks) => Err(format!("old ranks still ran when their replacements started: {ranks}")),
        Err(_) => Ok(()),
    }
}

/// Checks that every numbered line of every rank is shown once.
fn shown_lines(case: &Case, out: &CommandOutput) -> Result<(), String> {
    let mut shown = BTreeMap::<&str, u32>::new();
    for line in out.stdout.lines().filter_map(|line| Some(line.split_once("] ")?.1.trim_start())) {
        *shown.entry(line).or_default() += 1;
    }
    let lines = |rank| (1..=lines(case)).map(move |n| format!("line {n} of {rank}"));
    let expected: Vec<String> = (0..case.ranks()).flat_map(lines).collect();
    let wrong: Vec<String> = expected
        .iter()
        .map(|line| (line, shown.get(line.as_str()).copied().unwrap_or(0)))
        .filter(|(_, times)| *times != 1)
        .map(|(line, times)| format!("{line}: {times} times"))
        .collect();
    match wrong.as_slice() {
        [] => Ok(()),
        [first, ..] => {
            Err(format!("{} of {} lines are not shown once: {first}", wrong.len(), expected.len()))
        }
    }
}

/// Checks that no process and no listening port is left on any host.
pub fn assert_no_leftovers(cluster: &Cluster) -> Result<(), String> {
    let mut left = Vec::new();
    let gone = wait_for("all processes to exit", || {
        left = cluster.leftovers().unwrap();
        // Reading all processes is expensive.
        std::thread::sleep(Duration::from_millis(if left.is_empty() { 0 } else { 50 }));
        left.is_empty().then_some(())
    });
    gone.map_err(|why| format!("{why}: {left:?}"))
}

fn report(
    cluster: &Cluster,
    case: &Case,
    run_dir: &Path,
    out: &CommandOutput,
) -> Result<(), String> {
    use ExpectedOutcome::{
        Cancelled, Failed, NoReport, NotStarted, Restarted, Saved, Signalled, Success,
    };
    let code = out.status.code();
    let killed = code.or_else(|| out.status.signal().map(|s| 128 + s)) == Some(128 + libc::SIGKILL);
    let text = read(cluster, case, &run_dir.join("result.json"));
    let result: Option<RunResult> = text.and_then(|text| document::from_json(&text).ok());
    let names = |node: u32| names(&out.stderr, &cluster.nodes()[node as usize]);
    match (case.expected_outcome(), &result) {
        (NoReport, None) if killed => Ok(()),
        // Slurm ends the step when its command is killed; the worker may receive that TERM first.
        (NoReport, Some(result)) if killed && result.reason.contains("TERM") => Ok(()),
        (NotStarted(failure), None) if code == Some(1) && names(failure.node) => Ok(()),
        (NotStarted(failure), Some(result)) => failed(cluster, case, &[failure], result, out),
        (Failed(expected), Some(result)) => failed(cluster, case, &expected, result, out),
        (Success, result) if code == Some(0) => succeeded(case, result.as_ref(), out),
        (Saved, Some(result)) if code == Some(0) && result.reason.contains("TERM") => {
            succeeded(case, Some(result), out)
        }
        (Restarted, Some(result)) if code == Some(0) && result.restarts == 1 => {
            succeeded(case, Some(result), out)
        }
        (Cancelled, Some(result)) if result.failure.is_none() => Ok(()),
        (Signalled, Some(result)) => {
            let expected = RankExit::Signal(libc::SIGTERM).exit_code();
            let ok = result.exit_code == expected && code == Some(expected.into());
            let ok = ok && result.failure.is_none() && result.reason.contains("TERM");
            ok.then_some(()).ok_or_else(|| format!("code {code:?}, {result:?}"))
        }
        (expected, _) => {
            Err(format!("expected {expected:?}; exit code {code:?}, result {result:?}"))
        }
    }
}

/// Whether a text names a host, perhaps in a list such as `node[2,5]`.
fn names(text: &str, host: &str) -> bool {
    let words = text.split_whitespace().map(|word| word.trim_end_matches([';', ':', ',']));
    let mut hosts = words.filter_map(|word| hostlist::expand(word).ok()).flatten();
    hosts.any(|named| named == host)
}

/// Reads a file as seen by the login host.
fn read(cluster: &Cluster, case: &Case, path: &Path) -> Option<String> {
    match case.has_small_disk() {
        false => std::fs::read_to_string(path).ok(),
        true => Some(run(&mut cluster.login("cat", [path])).unwrap().stdout),
    }
}

/// Checks the first failure in the result, on standard error and in the exit code.
fn failed(
    cluster: &Cluster,
    case: &Case,
    expected: &[ExpectedFailure],
    result: &RunResult,
    out: &CommandOutput,
) -> Result<(), String> {
    let wrong = |what: &str| Err(format!("{what}; result {result:?}"));
    let Some(failure) = &result.failure else { return wrong("no failure reported") };
    let host = |node: u32| cluster.nodes()[node as usize].as_str();
    let right = |b: &&ExpectedFailure| {
        let rank = b.rank.is_none_or(|r| r == failure.rank);
        let node = failure.host == host(b.node) && case.node_of(failure.rank) == b.node;
        rank && node && failure.exit == b.exit
    };
    let Some(failure_found) = expected.iter().find(right) else {
        return wrong(&format!("expected one of {expected:?}"));
    };
    let code = failure_found.exit.exit_code();
    if result.exit_code != code || out.status.code() != Some(code.into()) {
        return wrong(&format!("exit code {:?} instead of {code}", out.status.code()));
    }
    if !out.stderr.contains(&result.reason) || !result.reason.contains(host(failure_found.node)) {
        return wrong("the reason does not name the node, or is not on standard error");
    }
    if result.rank_exits.len() != case.ranks() as usize {
        return wrong("the exits of some ranks are missing");
    }
    let on_live_node = |rank: &u32| !case.is_lost(case.node_of(*rank));
    match result.rank_exits.iter().find(|(r, e)| on_live_node(r) && **e == RankExit::NodeLost) {
        Some((rank, _)) => wrong(&format!("rank {rank} is reported lost, but its node is up")),
        None => Ok(()),
    }
}

/// Checks that all ranks succeeded and that incomplete logs are reported.
fn succeeded(case: &Case, result: Option<&RunResult>, out: &CommandOutput) -> Result<(), String> {
    for condition in &case.conditions {
        let message = match condition {
            Condition::FullLog { rank } => format!("log rank-{rank}.out is incomplete"),
            Condition::SmallDisk { .. } => ".out is incomplete".to_owned(),
            _ => continue,
        };
        if !out.stderr.contains(&message) {
            return Err(format!("missing message: {message}"));
        }
    }
    match result {
        Some(RunResult { exit_code: 0, failure: None, rank_exits, .. })
            if rank_exits.values().all(|e| e.is_success()) =>
        {
            Ok(())
        }
        // It did not fit on the disk, which is reported.
        None if case.has_small_disk() && out.stderr.contains("result.json") => Ok(()),
        other => Err(format!("not successful: {other:?}")),
    }
}

/// Checks that every rank's output is in its log.
fn logs(case: &Case, run_dir: &Path) -> Result<(), String> {
    if case.when == When::Starting || case.has_small_disk() {
        return Ok(());
    }
    for rank in (0..case.ranks()).filter(|&r| !case.has(|t| *t == Condition::FullLog { rank: r })) {
        let attempt = if case.spares > 0 { "restart-1/" } else { "" };
        let log = |stream| run_dir.join(format!("log/{attempt}rank-{rank}.{stream}"));
        let (_, complaint) = greeting(rank);
        let out = possible_logs(case, rank);
        let complete = out.iter().any(|parts| consists_of(&log("out"), parts));
        if !complete || !consists_of(&log("err"), &[(complaint, 1)]) {
            let length = std::fs::metadata(log("out")).map_or(0, |m| m.len());
            let found = run(Command::new("head").args(["-c", "300"]).arg(log("out"))).unwrap();
            return Err(format!("the log of rank {rank} has {length} bytes: {}", found.stdout));
        }
    }
    Ok(())
}

/// Texts with their repetition counts.
type Parts = Vec<(String, usize)>;

/// Whether a file consists of exactly these texts.
fn consists_of(path: &Path, parts: &[(String, usize)]) -> bool {
    let Ok(mut file) = File::open(path).map(BufReader::new) else { return false };
    let mut found = Vec::new();
    for (text, times) in parts {
        found.resize(text.len(), 0);
        for _ in 0..*times {
            if file.read_exact(&mut found).is_err() || found != text.as_bytes() {
                return false;
            }
        }
    }
    matches!(file.read(&mut [0]), Ok(0))
}

/// The possible contents of a rank's log.
fn possible_logs(case: &Case, rank: u32) -> Vec<Parts> {
    let mut out = vec![(greeting(rank).0, 1)];
    for condition in &case.conditions {
        match *condition {
            Condition::Lines { count } => {
                out.extend((1..=count).map(|n| (format!("line {n} of {rank}\n"), 1)));
            }
            Condition::Writes { mib } => out.push((format!("{LINE}\n"), line_count(mib))),
            Condition::WritesAtExit { rank: r, mib } if r == rank => {
                out.push((format!("{LINE}\n"), line_count(mib)));
            }
            _ => {}
        }
    }
    let ended = [out.clone(), vec![(exit_message(rank), 1)]].concat();
    match () {
        () if case.succeeds() || case.spares > 0 => vec![ended],
        () if may_exit_without_term(case, rank) => vec![out, ended],
        () => vec![ended],
    }
}

/// Whether a rank may exit without receiving TERM: its node is lost, or the launcher is.
fn may_exit_without_term(case: &Case, rank: u32) -> bool {
    let own = |f: &JobFault| match *f {
        JobFault::Exits { rank: r, .. }
        | JobFault::Killed { rank: r }
        | JobFault::RankHangs { rank: r } => r == rank,
        JobFault::Launcher { .. } | JobFault::LauncherHangs { .. } | JobFault::Term => true,
        _ => false,
    };
    let ignores_term = case.has(|t| matches!(t, Condition::IgnoresTerm { .. }));
    case.faults.iter().any(own) || ignores_term || case.is_lost(case.node_of(rank))
}
