//! Runs the cases, a few at a time: most of a case is waiting.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use regatta_testbed::{Cluster, Output, cluster_or_skip, run, run_within};

use crate::case::{By, Case, Fault, KIND_COUNT, LOST_AFTER, Trait, When};
use crate::check::check;
use crate::harm::{harm, until};
use crate::launch;
use crate::number;
use crate::script::{self, greeting};

/// Cases of a plain test; each kind is among them.
const DOZENS: u64 = 36;
/// As many nodes as a case has at most.
const NODES: u32 = 8;
/// Cases at a time.
const LANES: usize = 5;
/// What no job takes.
const LIMIT: Duration = Duration::from_secs(300);

#[test]
fn every_fault_is_reported_and_leaves_nothing() {
    let first = number("REGATTA_CHAOS_SEED", 1);
    let cases = number("REGATTA_CHAOS_CASES", DOZENS);
    let next = AtomicU64::new(first);
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..LANES.min(cases as usize) {
            scope.spawn(|| lane(&next, first + cases, &failures));
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(
        failures.is_empty(),
        "{} of {cases} cases failed:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

/// Runs cases one after the other, on one cluster as long as that is whole.
fn lane(next: &AtomicU64, end: u64, failures: &Mutex<Vec<String>>) {
    let mut kept: Option<Cluster> = None;
    loop {
        let seed = next.fetch_add(1, Ordering::SeqCst);
        if seed >= end {
            return;
        }
        let builder = Cluster::builder().nodes(NODES).cpus(2).ssh(true);
        let Some(cluster) = kept.take().or_else(|| cluster_or_skip(&builder)) else { return };
        let case = Case::of(seed);
        let start = Instant::now();
        let done = play(&cluster, &case);
        println!("{:5.1} s  {case}", start.elapsed().as_secs_f64());
        match done {
            Ok(()) => kept = (!case.spoils()).then_some(cluster),
            Err(why) => {
                let again = format!("again: cargo xtask chaos --cases 1 --seed {seed}");
                let text = format!("{case}\n  {}\n  {again}\n", why.replace('\n', "\n  "));
                eprintln!("FAILED {text}");
                failures.lock().unwrap().push(text);
            }
        }
    }
}

/// Runs a case's job, harms it, and sees how it ends.
fn play(cluster: &Cluster, case: &Case) -> Result<(), String> {
    let folder = cluster.shared().join(format!("case-{}", case.seed));
    std::fs::create_dir_all(folder.join("run/log")).unwrap();
    let run_dir = folder.join("run");
    script::write(case, &folder);
    prepare(cluster, case, &run_dir);
    let mut command = job(cluster, case, &folder);
    let (story, out) = std::thread::scope(|scope| {
        let job = scope.spawn(|| run_within(&mut command, LIMIT));
        let story = happen(cluster, case, &folder);
        (story, job.join().unwrap())
    });
    let out = out.map_err(|e| format!("{story:?}: {e}"))?;
    let checked = story.and_then(|()| check(cluster, case, &run_dir, &out));
    if checked.is_ok() {
        clean_up(cluster, case, &folder);
    }
    checked.map_err(|why| format!("{why}\n{}", told(&out, &run_dir)))
}

fn told(out: &Output, run_dir: &Path) -> String {
    let events = std::fs::read_to_string(run_dir.join("events.jsonl")).unwrap_or_default();
    format!("{:?}\nstderr: {}\nevents: {events}", out.status, out.stderr)
}

fn prepare(cluster: &Cluster, case: &Case, run_dir: &Path) {
    for special in &case.traits {
        match *special {
            Trait::FullLog { rank } => {
                let log = run_dir.join(format!("log/rank-{rank}.out"));
                std::os::unix::fs::symlink("/dev/full", log).unwrap();
            }
            Trait::SmallDisk { kib } => {
                cluster.small_disk("login", run_dir, u64::from(kib) << 10).unwrap();
            }
            _ => {}
        }
    }
}

fn clean_up(cluster: &Cluster, case: &Case, folder: &Path) {
    if case.has(|t| matches!(t, Trait::SmallDisk { .. })) {
        run(&mut cluster.login("umount", [folder.join("run")])).unwrap();
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// The command that a user would give.
fn job(cluster: &Cluster, case: &Case, folder: &Path) -> Command {
    let mut words: Vec<String> = Vec::new();
    if case.by == By::Srun {
        let nodes = format!("--nodelist=node[1-{}]", case.nodes);
        words.extend(["salloc", "--quiet", "--exclusive", &nodes].map(str::to_owned));
        // It takes a command that was killed for a good one; a shell does not.
        words.extend(["sh", "-c", "\"$@\"; exit $?", "sh"].map(str::to_owned));
    }
    match case.by {
        By::Srun => words.extend(launch::words(folder)),
        By::Ssh => words.extend(launch::words_by_ssh(cluster, case.nodes as usize, folder)),
    }
    let grace = if case.when == When::Ending { 4 } else { 1 };
    // Only where nobody tells of a loss it takes time to see it; a busy machine must not be taken
    // for a dead one.
    let lost_after = if case.spoils() { LOST_AFTER } else { 30 };
    // Those below an agent that never comes look for another after ten seconds.
    let within = if case.when == When::Starting { 13 } else { 60 };
    for (option, value) in [
        ("--ranks-per-node", case.each),
        ("--fan-out", case.fan_out),
        ("--lost-after", lost_after),
        ("--grace", grace),
        ("--start-within", within),
    ] {
        words.extend([option.to_owned(), value.to_string()]);
    }
    // So much need not be kept of what is shown: that it is shown, smaller floods see.
    let pours = |t: &Trait| match *t {
        Trait::Pours { rank, mib: 65.. } => Some(rank),
        _ => None,
    };
    if let Some(rank) = case.traits.iter().find_map(pours) {
        let other = u32::from(rank == 0);
        words.extend(["--rank".to_owned(), other.to_string()]);
    }
    words.push("--".to_owned());
    words.extend(script::COMMAND.map(str::to_owned));
    words.push(launch::text(folder));
    cluster.login(&words[0], &words[1..])
}

/// What happens to the job, until its end is certain.
fn happen(cluster: &Cluster, case: &Case, folder: &Path) -> Result<(), String> {
    if case.when != When::Starting {
        begun(case, folder)?;
    }
    std::thread::sleep(Duration::from_millis(case.pause.into()));
    let now = if case.when == When::Ending { 1 } else { case.faults.len() };
    for fault in &case.faults[..now] {
        harm(cluster, case, *fault, folder)?;
    }
    if case.ends_well() {
        std::fs::write(folder.join("go"), "").unwrap();
    }
    for fault in &case.faults[now..] {
        resisted(case, folder)?;
        harm(cluster, case, *fault, folder)?;
    }
    Ok(())
}

/// Every rank is where a fault may hit it, and its log has what it wrote so far.
fn begun(case: &Case, folder: &Path) -> Result<(), String> {
    for rank in 0..case.ranks() {
        let at = folder.join(format!("at-{rank}"));
        until(&format!("rank {rank} to begin"), || at.exists().then_some(()))?;
        let kept = case.has(|t| matches!(t, Trait::SmallDisk { .. } | Trait::FullLog { .. }));
        let log = |stream| folder.join(format!("run/log/rank-{rank}.{stream}"));
        let holds = |path: PathBuf, text: String| {
            std::fs::read(path).is_ok_and(|found| found.starts_with(text.as_bytes()))
        };
        let (out, err) = greeting(rank);
        until(&format!("the log of rank {rank}"), || {
            let whole = kept || (holds(log("out"), out.clone()) && holds(log("err"), err.clone()));
            whole.then_some(())
        })?;
    }
    Ok(())
}

/// The stubborn ranks have been told to end, and have not.
fn resisted(case: &Case, folder: &Path) -> Result<(), String> {
    for special in &case.traits {
        if let Trait::Stubborn { rank } = special {
            let told = folder.join(format!("told-{rank}"));
            until(&format!("rank {rank} to be told"), || told.exists().then_some(()))?;
        }
    }
    Ok(())
}

/// The kinds of faults are all among the few cases of a plain test.
#[test]
fn a_few_dozen_cases_have_every_fault() {
    const { assert!(KIND_COUNT <= DOZENS) };
    let cases: Vec<Case> = (1..=DOZENS).map(Case::of).collect();
    let some = |wanted: fn(&Fault) -> bool| cases.iter().any(|c| c.faults.iter().any(wanted));
    assert!(
        some(|f| matches!(f, Fault::Killed { .. })) && some(|f| matches!(f, Fault::Cut { .. }))
    );
    assert!(some(|f| matches!(f, Fault::Crash { .. })) && some(|f| *f == Fault::Term));
    assert!(cases.iter().any(|c| c.by == By::Ssh) && cases.iter().any(|c| c.by == By::Srun));
}
