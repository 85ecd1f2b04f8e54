//! Whether a job ended as it must: the report, the exit code, what is left of it, the logs.

use std::fs::File;
use std::io::{BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use regatta_model::result::{Ending, RunResult};
use regatta_model::{document, hostlist};
use regatta_testbed::{Cluster, Output, run};

use crate::case::{Blame, Case, Fault, Trait, Verdict, When};
use crate::harm::until;
use crate::script::{LINE, greeting, last_words, lines};

/// All of it; the first thing that is wrong.
pub fn check(cluster: &Cluster, case: &Case, run_dir: &Path, out: &Output) -> Result<(), String> {
    nothing_left(cluster)?;
    report(cluster, case, run_dir, out)?;
    logs(case, run_dir)
}

/// No process on any host, and no port held.
pub fn nothing_left(cluster: &Cluster) -> Result<(), String> {
    let mut left = Vec::new();
    let gone = until("the end of all processes", || {
        left.clear();
        for host in cluster.nodes().iter().map(String::as_str).chain(["login"]) {
            let processes = cluster.processes(host).unwrap();
            left.extend(processes.into_iter().map(|p| format!("{host}: {}", p.command)));
            let ports = cluster.listening(host).unwrap();
            left.extend(ports.into_iter().map(|p| format!("{host}: port {p}")));
        }
        left.is_empty().then_some(()).or_else(|| {
            std::thread::sleep(Duration::from_millis(50));
            None
        })
    });
    gone.map_err(|why| format!("{why}: {left:?}"))
}

fn report(cluster: &Cluster, case: &Case, run_dir: &Path, out: &Output) -> Result<(), String> {
    let code = out.status.code();
    let killed = code.or_else(|| out.status.signal().map(|s| 128 + s)) == Some(128 + libc::SIGKILL);
    let text = read(cluster, case, &run_dir.join("result.json"));
    let result: Option<RunResult> = text.and_then(|text| document::from_json(&text).ok());
    let names = |node: u32| names(&out.stderr, &cluster.nodes()[node as usize]);
    match (case.verdict(), &result) {
        (Verdict::Silent, None) if killed => Ok(()),
        // Slurm ends the step when its command is killed: what is left of us may hear of that first.
        (Verdict::Silent, Some(result)) if killed && result.reason.contains("TERM") => Ok(()),
        (Verdict::NotStarted(blame), None) if code == Some(1) && names(blame.node) => Ok(()),
        (Verdict::NotStarted(blame), Some(result)) => failed(cluster, case, &[blame], result, out),
        (Verdict::Failed(blames), Some(result)) => failed(cluster, case, &blames, result, out),
        (Verdict::Good, result) if code == Some(0) => good(case, result.as_ref(), out),
        (Verdict::Cancelled, Some(result)) if result.failure.is_none() => Ok(()),
        (Verdict::Signalled, Some(result)) => {
            let wanted = Ending::Signal(libc::SIGTERM).code();
            let right = result.code == wanted && code == Some(wanted.into());
            let right = right && result.failure.is_none() && result.reason.contains("TERM");
            right.then_some(()).ok_or_else(|| format!("code {code:?}, {result:?}"))
        }
        (verdict, _) => Err(format!("code {code:?} where {verdict:?}; result {result:?}")),
    }
}

/// Whether a text names a host, perhaps in a list such as `node[2,5]`.
fn names(text: &str, host: &str) -> bool {
    let words = text.split_whitespace().map(|word| word.trim_end_matches([';', ':', ',']));
    words
        .filter_map(|word| hostlist::expand(word).ok())
        .any(|hosts| hosts.iter().any(|h| h == host))
}

/// A file as the login host sees it.
fn read(cluster: &Cluster, case: &Case, path: &Path) -> Option<String> {
    match case.has(|t| matches!(t, Trait::SmallDisk { .. })) {
        false => std::fs::read_to_string(path).ok(),
        true => Some(run(&mut cluster.login("cat", [path])).unwrap().stdout),
    }
}

/// The right first failure, in the result, on the terminal and as exit code.
fn failed(
    cluster: &Cluster,
    case: &Case,
    blames: &[Blame],
    result: &RunResult,
    out: &Output,
) -> Result<(), String> {
    let wrong = |what: &str| Err(format!("{what}; result {result:?}"));
    let Some(failure) = &result.failure else { return wrong("no failure is told") };
    let host = |node: u32| cluster.nodes()[node as usize].as_str();
    let right = |b: &&Blame| {
        let ranks = b.rank.map_or(b.node * case.each..(b.node + 1) * case.each, |r| r..r + 1);
        failure.host == host(b.node) && ranks.contains(&failure.rank) && failure.ending == b.ending
    };
    let Some(blame) = blames.iter().find(right) else {
        return wrong(&format!("not one of {blames:?} is told"));
    };
    let code = blame.ending.code();
    if result.code != code || out.status.code() != Some(code.into()) {
        return wrong(&format!("code {:?}, and not {code}", out.status.code()));
    }
    if !out.stderr.contains(&result.reason) || !result.reason.contains(host(blame.node)) {
        return wrong("the reason does not name the node, or is not told on standard error");
    }
    if result.endings.len() != case.ranks() as usize {
        return wrong("not every rank's end is told");
    }
    let unharmed = |rank: &u32| !case.is_lost(case.node_of(*rank));
    match result.endings.iter().find(|(r, e)| unharmed(r) && **e == Ending::Lost) {
        Some((rank, _)) => wrong(&format!("rank {rank} is said to be lost, and is on a good node")),
        None => Ok(()),
    }
}

/// All ended well, and it is said what could not be kept.
fn good(case: &Case, result: Option<&RunResult>, out: &Output) -> Result<(), String> {
    let small = case.has(|t| matches!(t, Trait::SmallDisk { .. }));
    for special in &case.traits {
        let said = match special {
            Trait::FullLog { rank } => format!("rank-{rank}.out misses"),
            Trait::SmallDisk { .. } => ".out misses".to_owned(),
            _ => continue,
        };
        if !out.stderr.contains(&said) {
            return Err(format!("it is not said that {said}"));
        }
    }
    match result {
        Some(r)
            if r.code == 0 && r.failure.is_none() && r.endings.values().all(|e| e.is_good()) =>
        {
            Ok(())
        }
        // It did not fit, which is said, too.
        None if small && out.stderr.contains("result.json") => Ok(()),
        other => Err(format!("no good end: {other:?}")),
    }
}

/// What every rank wrote is in its log.
fn logs(case: &Case, run_dir: &Path) -> Result<(), String> {
    if case.when == When::Starting || case.has(|t| matches!(t, Trait::SmallDisk { .. })) {
        return Ok(());
    }
    for rank in (0..case.ranks()).filter(|&r| !case.has(|t| *t == Trait::FullLog { rank: r })) {
        let log = |stream| run_dir.join(format!("log/rank-{rank}.{stream}"));
        let (_, complaint) = greeting(rank);
        let out = wrote(case, rank);
        let whole = out.iter().any(|parts| holds(&log("out"), parts));
        if !whole || !holds(&log("err"), &[(complaint, 1)]) {
            let length = std::fs::metadata(log("out")).map_or(0, |m| m.len());
            let found = run(Command::new("head").args(["-c", "300"]).arg(log("out"))).unwrap();
            return Err(format!("the log of rank {rank} has {length} bytes: {}", found.stdout));
        }
    }
    Ok(())
}

/// Texts, each so many times.
type Parts = Vec<(String, usize)>;

/// Whether a file holds this and nothing else.
fn holds(path: &Path, parts: &[(String, usize)]) -> bool {
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

/// What a rank's log may hold at the end.
fn wrote(case: &Case, rank: u32) -> Vec<Parts> {
    let mut out = vec![(greeting(rank).0, 1)];
    for special in &case.traits {
        match *special {
            Trait::Writes { mib } => out.push((format!("{LINE}\n"), lines(mib))),
            Trait::Pours { rank: r, mib } if r == rank => {
                out.push((format!("{LINE}\n"), lines(mib)));
            }
            _ => {}
        }
    }
    let ended = [out.clone(), vec![(last_words(rank), 1)]].concat();
    match () {
        () if case.ends_well() => vec![ended],
        () if may_end_untold(case, rank) => vec![out, ended],
        () if plain(case) => vec![out],
        () => vec![ended],
    }
}

/// Whether a rank may end without being told to: on a node that is gone, or when nobody is left to
/// tell it.
fn may_end_untold(case: &Case, rank: u32) -> bool {
    let own = |f: &Fault| match *f {
        Fault::Exits { rank: r, .. } | Fault::Killed { rank: r } => r == rank,
        Fault::Coordinator { .. } | Fault::Term => true,
        _ => false,
    };
    let stubborn = case.has(|t| matches!(t, Trait::Stubborn { .. }));
    case.faults.iter().any(own) || stubborn || case.is_lost(case.node_of(rank))
}

/// Whether ranks have nothing to say at their end.
fn plain(case: &Case) -> bool {
    use crate::case::Half::Both;
    case.faults
        .iter()
        .any(|f| matches!(f, Fault::Agent { half: Both, .. } | Fault::Coordinator { half: Both }))
}
