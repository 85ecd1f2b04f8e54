//! Injects faults into a cluster.

use std::path::Path;
use std::time::{Duration, Instant};

use regatta_testbed::{Cluster, HostProcess, run};
use rustix::process::{Pid, Signal, getpgid, kill_process, kill_process_group};

use crate::chaos::case::{Case, JobFault, PAUSE, ProcessRole};
use crate::support::REGATTA;

/// Limit on every wait. On a loaded machine the ranks of a job may take a minute to write their output.
pub const TIMEOUT: Duration = Duration::from_secs(200);

/// Polls until a value is available.
pub fn wait_for<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> Result<T, String> {
    let start = Instant::now();
    loop {
        if let Some(found) = poll() {
            return Ok(found);
        }
        if start.elapsed() > TIMEOUT {
            return Err(format!("timed out waiting for {what}"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Injects a fault without waiting for its effects.
pub fn inject(cluster: &Cluster, case: &Case, fault: JobFault, dir: &Path) -> Result<(), String> {
    let host = |node: u32| cluster.nodes()[node as usize].clone();
    let launcher = case.launcher_host(cluster);
    match fault {
        JobFault::Killed { rank } => signal_rank(cluster, case, rank, "-9", dir),
        JobFault::RankHangs { rank } => signal_rank(cluster, case, rank, "-STOP", dir),
        JobFault::Exits { .. } => std::fs::write(dir.join("go"), "").unwrap(),
        JobFault::Agent { node, role } => kill(cluster, &host(node), "agent", role, Signal::KILL)?,
        JobFault::AgentHangs { node, role } => {
            kill(cluster, &host(node), "agent", role, Signal::STOP)?;
        }
        JobFault::Launcher { role } => kill(cluster, launcher, "launch", role, Signal::KILL)?,
        JobFault::LauncherHangs { role } => kill(cluster, launcher, "launch", role, Signal::STOP)?,
        JobFault::Term => term_launcher(cluster, launcher)?,
        JobFault::TermTwice { us } => {
            term_launcher(cluster, launcher)?;
            std::thread::sleep(Duration::from_micros(us.into()));
            term_launcher(cluster, launcher)?;
        }
        JobFault::TimeoutTerm => {
            let timeout = wait_for("timeout", || {
                let all = cluster.processes(launcher).unwrap();
                all.iter().find(|p| p.command.starts_with("timeout ")).map(|p| p.pid)
            })?;
            signal(&[timeout], Signal::TERM);
        }
        JobFault::Pause => pause(cluster, case, launcher, dir)?,
        JobFault::Suspend => suspend(cluster, case, dir)?,
        JobFault::Cancel => drop(run(&mut cluster.login("scancel", ["--user=root"])).unwrap()),
        JobFault::Cut { node } => cluster.disconnect(&host(node)).unwrap(),
        JobFault::Flap { node, ms } => {
            cluster.disconnect(&host(node)).unwrap();
            std::thread::sleep(Duration::from_millis(ms.into()));
            cluster.heal(&host(node)).unwrap();
        }
        JobFault::Crash { node } => cluster.crash(&host(node)).unwrap(),
    }
    Ok(())
}

fn signal_rank(cluster: &Cluster, case: &Case, rank: u32, signal: &str, dir: &Path) {
    let (host, pid) = rank_process(cluster, case, rank, dir);
    run(&mut cluster.on(host, "kill", [signal, &pid]).unwrap()).unwrap();
}

/// Host of a rank, and its process ID there.
fn rank_process<'a>(cluster: &'a Cluster, case: &Case, rank: u32, dir: &Path) -> (&'a str, String) {
    let pid = std::fs::read_to_string(dir.join(format!("pid-{rank}"))).unwrap();
    (&cluster.nodes()[case.node_of(rank) as usize], pid.trim().to_owned())
}

/// Waits until the first and the last rank are stopped.
fn wait_until_stopped(cluster: &Cluster, case: &Case, dir: &Path) -> Result<(), String> {
    for rank in [0, case.ranks() - 1] {
        let (host, pid) = rank_process(cluster, case, rank, dir);
        wait_for(&format!("rank {rank} to stop"), || {
            let ps = run(&mut cluster.on(host, "ps", ["-o", "stat=", "-p", &pid]).unwrap());
            // A shell is in state D if its child was stopped between vfork and exec.
            ps.unwrap().stdout.starts_with(['T', 'D']).then_some(())
        })?;
    }
    Ok(())
}

/// Ctrl-Z, and `fg` after a while.
fn pause(cluster: &Cluster, case: &Case, launcher: &str, dir: &Path) -> Result<(), String> {
    let original = find(cluster, launcher, "launch", ProcessRole::Original)?[0];
    let group = getpgid(pid(original)).map_err(text)?;
    kill_process_group(group, Signal::TSTP).map_err(text)?;
    let stopped = wait_until_stopped(cluster, case, dir);
    std::thread::sleep(Duration::from_millis(PAUSE.into()));
    // Twice: nsenter stops again if it continues before its child.
    for wait in [100, 0] {
        kill_process_group(group, Signal::CONT).map_err(text)?;
        std::thread::sleep(Duration::from_millis(wait));
    }
    stopped
}

/// Suspends the only job of the cluster, and resumes it after a while.
fn suspend(cluster: &Cluster, case: &Case, dir: &Path) -> Result<(), String> {
    let job = run(&mut cluster.login("squeue", ["--noheader", "--format=%i"])).unwrap().stdout;
    let scontrol = |verb: &str| run(&mut cluster.login("scontrol", [verb, job.trim()])).unwrap();
    scontrol("suspend").expect_success();
    let stopped = wait_until_stopped(cluster, case, dir);
    std::thread::sleep(Duration::from_millis(PAUSE.into()));
    scontrol("resume").expect_success();
    stopped
}

fn term_launcher(cluster: &Cluster, host: &str) -> Result<(), String> {
    kill(cluster, host, "launch", ProcessRole::Original, Signal::TERM)
}

fn pid(raw: u32) -> Option<Pid> {
    Pid::from_raw(raw as i32)
}

fn signal(pids: &[u32], signal: Signal) {
    for pid in pids.iter().filter_map(|raw| pid(*raw)) {
        // One that is gone by now was ended by the other.
        let _ = kill_process(pid, signal);
    }
}

/// Signals processes of a regatta command as soon as they exist.
pub fn kill(
    cluster: &Cluster,
    host: &str,
    command: &str,
    role: ProcessRole,
    signal: Signal,
) -> Result<(), String> {
    let pids = find(cluster, host, command, role)?;
    if role == ProcessRole::All {
        // As a user would do it.
        let pkill = [format!("-{}", signal.as_raw()), "regatta".to_owned()];
        return run(&mut cluster.on(host, "pkill", pkill).unwrap()).map(drop).map_err(text);
    }
    self::signal(&pids, signal);
    Ok(())
}

fn text(error: impl ToString) -> String {
    error.to_string()
}

/// Waits for processes of a regatta command; returns their PIDs.
fn find(
    cluster: &Cluster,
    host: &str,
    command: &str,
    role: ProcessRole,
) -> Result<Vec<u32>, String> {
    wait_for(&format!("{role:?} of regatta {command} on {host}"), || {
        pids(&cluster.processes(host).unwrap(), command, role)
    })
}

/// PIDs of a command: the worker is a child of the reaper, which is a child of the original process.
fn pids(processes: &[HostProcess], command: &str, role: ProcessRole) -> Option<Vec<u32>> {
    let start = format!("{REGATTA} {command} ");
    let ours: Vec<&HostProcess> =
        processes.iter().filter(|p| p.command.starts_with(&start)).collect();
    let child = |pid: u32| ours.iter().find(|p| p.parent == pid).map(|p| p.pid);
    let original = ours.iter().find(|p| !ours.iter().any(|q| q.pid == p.parent))?.pid;
    let worker = || child(child(original)?);
    Some(match role {
        ProcessRole::Original => vec![original],
        ProcessRole::Reaper => vec![child(original)?],
        ProcessRole::Worker => vec![worker()?],
        ProcessRole::All => vec![original, worker()?],
    })
}
