//! Runs the cases, several at a time because most of a case is waiting.

use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use regatta_testbed::{Cluster, CommandOutput, cluster_or_skip, run, run_meanwhile};

use crate::chaos::case::{AgentLauncher, Case, Condition, HEARTBEAT_TIMEOUT, JobFault, When};
use crate::chaos::check::check;
use crate::chaos::env_number;
use crate::chaos::inject::{inject, wait_for};
use crate::chaos::job;
use crate::chaos::rank_script::{self, greeting};
use crate::chaos::scenario::{MANY_NODES, SCENARIOS};

/// Number of cases in a plain test run: one of every scenario.
const DEFAULT_CASES: u64 = SCENARIOS.len() as u64;
/// Nodes of a cluster. Cases with more use one cluster of [`MANY_NODES`] in turn.
const NODES: u32 = 8;
/// Concurrent cases per CPU.
const WORKERS_PER_CPU: usize = 3;
/// Time limit of a job.
const LIMIT: Duration = Duration::from_secs(300);
/// Time limit of a job with a large output.
const LARGE_OUTPUT_LIMIT: Duration = Duration::from_secs(600);

#[test]
fn injected_faults_are_reported_and_leave_no_processes() {
    let first = env_number("REGATTA_CHAOS_SEED", 1);
    let cases = env_number("REGATTA_CHAOS_CASES", DEFAULT_CASES);
    let run = ChaosRun {
        first,
        stride: env_number("REGATTA_CHAOS_STRIDE", 1),
        cases,
        started: AtomicU64::new(0),
        large: Mutex::new(None),
        failures: Mutex::new(Vec::new()),
    };
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..(cpus * WORKERS_PER_CPU).min(cases as usize) {
            scope.spawn(|| run.run_cases());
        }
    });
    let failures = run.failures.into_inner().unwrap();
    let count = failures.len();
    assert!(failures.is_empty(), "{count} of {cases} cases failed:\n{}", failures.join("\n"));
}

/// The state shared by all workers.
struct ChaosRun {
    /// The first seed, and the distance between seeds.
    first: u64,
    stride: u64,
    cases: u64,
    started: AtomicU64,
    /// The cluster of [`MANY_NODES`], if it is running. Locked during a case.
    large: Mutex<Option<Cluster>>,
    failures: Mutex<Vec<String>>,
}

impl ChaosRun {
    /// Runs cases one by one.
    fn run_cases(&self) {
        let mut small = None;
        loop {
            let index = self.started.fetch_add(1, Ordering::SeqCst);
            if index >= self.cases {
                return;
            }
            let case = Case::of(self.first + index * self.stride);
            if case.nodes > NODES {
                self.run_on(&mut self.large.lock().unwrap(), MANY_NODES, &case);
            } else {
                self.run_on(&mut small, NODES, &case);
            }
        }
    }

    /// Runs a case on a cluster, which is started if there is none, and reused until a case fails or
    /// loses a node.
    fn run_on(&self, reusable: &mut Option<Cluster>, nodes: u32, case: &Case) {
        let builder = Cluster::builder().nodes(nodes).cpus(2).ssh(true);
        let Some(cluster) = reusable.take().or_else(|| cluster_or_skip(&builder)) else { return };
        let start = Instant::now();
        let outcome = run_case(&cluster, case);
        println!("{:5.1} s  {case}", start.elapsed().as_secs_f64());
        match outcome {
            Ok(()) => *reusable = (!case.loses_node()).then_some(cluster),
            Err(why) => {
                let reproduce =
                    format!("cargo xtask accept launch-chaos --cases 1 --seed {}", case.seed);
                let why = why.replace('\n', "\n  ");
                let text = format!("{case}\n  {why}\n  reproduce with: {reproduce}\n");
                eprintln!("FAILED {text}");
                self.failures.lock().unwrap().push(text);
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
    let writes = case.has(|t| matches!(t, Condition::WritesAtExit { .. }));
    let limit = if writes { LARGE_OUTPUT_LIMIT } else { LIMIT };
    let (out, injected) =
        run_meanwhile(&mut command, limit, || inject_faults(cluster, case, &folder));
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
    let nodes = format!("--quiet --exclusive --nodelist=node[1-{}]", case.nodes);
    let timeout = if case.faults == [JobFault::TimeoutTerm] { "timeout 600 " } else { "" };
    let mut words = match case.launcher {
        // salloc reports success for a killed command; a shell does not.
        AgentLauncher::Srun => {
            format!("salloc {nodes} {SHELL} {timeout}{}", job::launch_words(folder))
        }
        AgentLauncher::Batch => {
            let script = folder.join("batch.sh");
            std::fs::write(&script, BATCH_SCRIPT).unwrap();
            let (dir, script) = (folder.display(), script.display());
            format!(
                "sh -c '{SUBMIT}' sh {dir} {nodes} {script} {dir} {}",
                job::launch_words(folder)
            )
        }
        // nsenter stops itself when its child stops; a shell between them does not stop.
        AgentLauncher::Ssh => {
            let launch = job::ssh_words(cluster, case.nodes as usize, folder);
            format!("{SHELL} {timeout}{launch}")
        }
    };
    let grace = if case.when == When::Ending { 4 } else { 1 };
    let grace = if case.has(|t| matches!(t, Condition::Saves { .. })) { 20 } else { grace };
    // A long timeout elsewhere: a busy machine must not count as lost.
    let short = case.faults.iter().any(JobFault::needs_short_timeout);
    let heartbeat_timeout = if short { HEARTBEAT_TIMEOUT } else { 30 };
    // Agents whose parent never connects try another one after ten seconds.
    let start_timeout = if case.when == When::Starting { 13 } else { 60 };
    for (option, value) in [
        ("--ranks-per-node", case.ranks_per_node),
        ("--spares", case.spares),
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

/// A shell that runs its arguments and returns their exit code.
const SHELL: &str = "sh -c '\"$@\"; exit $?' sh";
/// A batch job that runs its arguments and leaves their exit code in a file.
const BATCH_SCRIPT: &str = "#!/bin/sh
dir=$1; shift
\"$@\"
echo $? > $dir/code.new; mv $dir/code.new $dir/code
";
/// Submits a batch job with the remaining arguments, waits for it, and repeats its output and exit
/// code. `sbatch --wait` would take seconds to notice the end.
const SUBMIT: &str = "cd $1; shift; sbatch --output=out --error=err \"$@\" || exit; \
                      until [ -e code ]; do sleep 0.1; done; \
                      cat out; cat err >&2; exit $(cat code)";

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
    let cases: Vec<Case> = (1..=DEFAULT_CASES).map(Case::of).collect();
    let any = |is: fn(&JobFault) -> bool| cases.iter().any(|c| c.faults.iter().any(is));
    assert!(any(|f| matches!(f, JobFault::Killed { .. })));
    assert!(any(|f| matches!(f, JobFault::Cut { .. })));
    assert!(any(|f| matches!(f, JobFault::Crash { .. })) && any(|f| *f == JobFault::Term));
    assert!(any(|f| *f == JobFault::Pause) && any(|f| *f == JobFault::Suspend));
    assert!(any(|f| matches!(f, JobFault::AgentHangs { .. })));
    assert!(cases.iter().any(|c| c.nodes == MANY_NODES));
    for launcher in [AgentLauncher::Ssh, AgentLauncher::Srun] {
        assert!(cases.iter().any(|c| c.launcher == launcher), "{launcher:?}");
    }
}
