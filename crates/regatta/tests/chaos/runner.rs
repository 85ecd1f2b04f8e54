//! Runs the cases, several at a time because most of a case is waiting.

use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use regatta_testbed::{Cluster, CommandOutput, cluster_or_skip, run, run_meanwhile};

use crate::case::{
    AgentLauncher, Case, Condition, HEARTBEAT_TIMEOUT, JobFault, SCENARIO_COUNT, When,
};
use crate::check::check;
use crate::env_number;
use crate::inject::{inject, wait_for};
use crate::job;
use crate::rank_script::{self, greeting};

/// Number of cases in a plain test run, which covers every scenario.
const DEFAULT_CASES: u64 = 36;
/// Nodes of a cluster: the maximum of a case.
const NODES: u32 = 8;
/// Concurrent cases.
const WORKERS: usize = 5;
/// Time limit of a job.
const LIMIT: Duration = Duration::from_secs(300);

#[test]
fn injected_faults_are_reported_and_leave_no_processes() {
    let first = env_number("REGATTA_CHAOS_SEED", 1);
    let cases = env_number("REGATTA_CHAOS_CASES", DEFAULT_CASES);
    let next = AtomicU64::new(first);
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..WORKERS.min(cases as usize) {
            scope.spawn(|| run_cases(&next, first + cases, &failures));
        }
    });
    let failures = failures.into_inner().unwrap();
    let count = failures.len();
    assert!(failures.is_empty(), "{count} of {cases} cases failed:\n{}", failures.join("\n"));
}

/// Runs cases one by one, reusing the cluster until a node is lost.
fn run_cases(next: &AtomicU64, end: u64, failures: &Mutex<Vec<String>>) {
    let mut reusable: Option<Cluster> = None;
    loop {
        let seed = next.fetch_add(1, Ordering::SeqCst);
        if seed >= end {
            return;
        }
        let builder = Cluster::builder().nodes(NODES).cpus(2).ssh(true);
        let Some(cluster) = reusable.take().or_else(|| cluster_or_skip(&builder)) else { return };
        let case = Case::of(seed);
        let start = Instant::now();
        let outcome = run_case(&cluster, &case);
        println!("{:5.1} s  {case}", start.elapsed().as_secs_f64());
        match outcome {
            Ok(()) => reusable = (!case.loses_node()).then_some(cluster),
            Err(why) => {
                let reproduce = format!("cargo xtask chaos --cases 1 --seed {seed}");
                let why = why.replace('\n', "\n  ");
                let text = format!("{case}\n  {why}\n  reproduce with: {reproduce}\n");
                eprintln!("FAILED {text}");
                failures.lock().unwrap().push(text);
            }
        }
    }
}

/// Runs the job of a case, injects its faults and checks the outcome.
fn run_case(cluster: &Cluster, case: &Case) -> Result<(), String> {
    let folder = cluster.shared().join(format!("case-{}", case.seed));
    std::fs::create_dir_all(folder.join("run/log")).unwrap();
    let run_dir = folder.join("run");
    rank_script::write(case, &folder);
    prepare(cluster, case, &run_dir);
    let mut command = job_command(cluster, case, &folder);
    let (out, injected) =
        run_meanwhile(&mut command, LIMIT, || inject_faults(cluster, case, &folder));
    let out = out.map_err(|e| format!("{injected:?}: {e}"))?;
    let checked = injected.and_then(|()| check(cluster, case, &run_dir, &out));
    if checked.is_ok() {
        clean_up(cluster, case, &folder);
    }
    checked.map_err(|why| format!("{why}\n{}", diagnostics(&out, &run_dir)))
}

fn diagnostics(out: &CommandOutput, run_dir: &Path) -> String {
    let events = std::fs::read_to_string(run_dir.join("events.jsonl")).unwrap_or_default();
    format!("{:?}\nstderr: {}\nevents: {events}", out.status, out.stderr)
}

fn prepare(cluster: &Cluster, case: &Case, run_dir: &Path) {
    for condition in &case.conditions {
        match *condition {
            Condition::FullLog { rank } => {
                let log = run_dir.join(format!("log/rank-{rank}.out"));
                std::os::unix::fs::symlink("/dev/full", log).unwrap();
            }
            Condition::SmallDisk { kib } => {
                cluster.limit_disk("login", run_dir, u64::from(kib) << 10).unwrap();
            }
            _ => {}
        }
    }
}

fn clean_up(cluster: &Cluster, case: &Case, folder: &Path) {
    if case.has_small_disk() {
        run(&mut cluster.login("umount", [folder.join("run")])).unwrap();
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// The command line of the job.
fn job_command(cluster: &Cluster, case: &Case, folder: &Path) -> Command {
    let mut words = match case.launcher {
        AgentLauncher::Srun => {
            let salloc = format!("salloc --quiet --exclusive --nodelist=node[1-{}]", case.nodes);
            // salloc reports success for a killed command; a shell does not.
            format!("{salloc} sh -c '\"$@\"; exit $?' sh {}", job::launch_words(folder))
        }
        AgentLauncher::Ssh => job::ssh_words(cluster, case.nodes as usize, folder),
    };
    let grace = if case.when == When::Ending { 4 } else { 1 };
    // A short timeout only where a node is lost: elsewhere a busy machine must not count as lost.
    let heartbeat_timeout = if case.needs_heartbeats() { HEARTBEAT_TIMEOUT } else { 30 };
    // Agents whose parent never connects try another one after ten seconds.
    let start_timeout = if case.when == When::Starting { 13 } else { 60 };
    for (option, value) in [
        ("--ranks-per-node", case.ranks_per_node),
        ("--fan-out", case.fan_out),
        ("--heartbeat-timeout", heartbeat_timeout),
        ("--grace", grace),
        ("--start-timeout", start_timeout),
    ] {
        words += &format!(" {option} {value}");
    }
    // Do not show very large outputs; smaller ones cover that path.
    let large_writer = |t: &Condition| match *t {
        Condition::WritesAtExit { rank, mib: 65.. } => Some(rank),
        _ => None,
    };
    if let Some(rank) = case.conditions.iter().find_map(large_writer) {
        words += &format!(" --rank {}", u32::from(rank == 0));
    }
    let mut command = job::login(cluster, &format!("{words} --"));
    command.args(rank_script::COMMAND).arg(folder);
    command
}

/// Injects the faults of a case at their time.
fn inject_faults(cluster: &Cluster, case: &Case, folder: &Path) -> Result<(), String> {
    if case.when != When::Starting {
        wait_for_ranks(case, folder)?;
    }
    std::thread::sleep(Duration::from_millis(case.pause.into()));
    let now = if case.when == When::Ending { 1 } else { case.faults.len() };
    for fault in &case.faults[..now] {
        inject(cluster, case, *fault, folder)?;
    }
    if case.succeeds() {
        std::fs::write(folder.join("go"), "").unwrap();
    }
    for fault in &case.faults[now..] {
        wait_for_term(case, folder)?;
        inject(cluster, case, *fault, folder)?;
    }
    Ok(())
}

/// Waits until every rank runs and its first output is logged.
fn wait_for_ranks(case: &Case, folder: &Path) -> Result<(), String> {
    job::wait_for_ranks(folder, case.ranks())?;
    if case.has(|t| matches!(t, Condition::SmallDisk { .. } | Condition::FullLog { .. })) {
        return Ok(());
    }
    for rank in 0..case.ranks() {
        let starts_with = |stream: &str, text: &str| {
            let log = std::fs::read(folder.join(format!("run/log/rank-{rank}.{stream}")));
            log.is_ok_and(|found| found.starts_with(text.as_bytes()))
        };
        let (out, err) = greeting(rank);
        wait_for(&format!("the log of rank {rank}"), || {
            (starts_with("out", &out) && starts_with("err", &err)).then_some(())
        })?;
    }
    Ok(())
}

/// Waits until the ranks that ignore TERM have received it.
fn wait_for_term(case: &Case, folder: &Path) -> Result<(), String> {
    for condition in &case.conditions {
        if let Condition::IgnoresTerm { rank } = condition {
            job::wait_for_file(&folder.join(format!("term-{rank}")))?;
        }
    }
    Ok(())
}

#[test]
fn default_cases_cover_every_fault() {
    const { assert!(SCENARIO_COUNT <= DEFAULT_CASES) };
    let cases: Vec<Case> = (1..=DEFAULT_CASES).map(Case::of).collect();
    let any = |is: fn(&JobFault) -> bool| cases.iter().any(|c| c.faults.iter().any(is));
    assert!(any(|f| matches!(f, JobFault::Killed { .. })));
    assert!(any(|f| matches!(f, JobFault::Cut { .. })));
    assert!(any(|f| matches!(f, JobFault::Crash { .. })) && any(|f| *f == JobFault::Term));
    for launcher in [AgentLauncher::Ssh, AgentLauncher::Srun] {
        assert!(cases.iter().any(|c| c.launcher == launcher), "{launcher:?}");
    }
}
