//! Injects faults into a cluster.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use regatta_testbed::{Cluster, HostProcess, run};

use crate::REGATTA;
use crate::case::{Case, JobFault, ProcessRole};

/// Limit on every wait.
pub const TIMEOUT: Duration = Duration::from_secs(40);

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
    match fault {
        JobFault::Killed { rank } => {
            let pid = std::fs::read_to_string(dir.join(format!("pid-{rank}"))).unwrap();
            let host = host(case.node_of(rank));
            run(&mut cluster.on(&host, "kill", ["-9", pid.trim()]).unwrap()).unwrap();
        }
        JobFault::Exits { .. } => std::fs::write(dir.join("go"), "").unwrap(),
        JobFault::Agent { node, role } => kill(cluster, &host(node), "agent", role, 9)?,
        JobFault::Launcher { role } => kill(cluster, "login", "launch", role, 9)?,
        JobFault::HungAgent { node } => {
            kill(cluster, &host(node), "agent", ProcessRole::Worker, libc::SIGSTOP)?;
        }
        JobFault::HungLauncher => {
            kill(cluster, "login", "launch", ProcessRole::Worker, libc::SIGSTOP)?;
        }
        JobFault::Term => kill(cluster, "login", "launch", ProcessRole::Original, 15)?,
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

/// Signals the processes of a regatta command as soon as they exist.
pub fn kill(
    cluster: &Cluster,
    host: &str,
    command: &str,
    role: ProcessRole,
    signal: i32,
) -> Result<(), String> {
    let pids = wait_for(&format!("{role:?} of regatta {command} on {host}"), || {
        pids(&cluster.processes(host).unwrap(), command, role)
    })?;
    let mut kill = Command::new("kill");
    kill.arg(format!("-{signal}")).args(pids.iter().map(u32::to_string));
    // One that is gone by now was ended by the other.
    run(&mut kill).map(drop).map_err(|e| e.to_string())
}

/// PIDs of a command: the worker is a child of the reaper, which is a child of the original process.
fn pids(processes: &[HostProcess], command: &str, role: ProcessRole) -> Option<Vec<u32>> {
    let start = format!("{REGATTA} {command} ");
    let ours: Vec<&HostProcess> =
        processes.iter().filter(|p| p.command.starts_with(&start)).collect();
    let child = |pid: u32| ours.iter().find(|p| p.parent == pid).map(|p| p.pid);
    let original = ours.iter().find(|p| !ours.iter().any(|q| q.pid == p.parent))?.pid;
    Some(match role {
        ProcessRole::Original => vec![original],
        ProcessRole::Reaper => vec![child(original)?],
        ProcessRole::Worker => vec![child(child(original)?)?],
        ProcessRole::AllButReaper => vec![original, child(child(original)?)?],
    })
}
