//! Does to a cluster what a case says.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use regatta_testbed::{Cluster, Process, run};

use crate::REGATTA;
use crate::case::{Case, Fault, Half};

/// More time than anything needs that happens at all.
pub const PATIENCE: Duration = Duration::from_secs(40);

/// Waits until something is there.
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> Result<T, String> {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return Ok(found);
        }
        if start.elapsed() > PATIENCE {
            return Err(format!("waited in vain for {what}"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Does it. Does not wait for what comes of it.
pub fn harm(cluster: &Cluster, case: &Case, fault: Fault, folder: &Path) -> Result<(), String> {
    let host = |node: u32| cluster.nodes()[node as usize].clone();
    match fault {
        Fault::Killed { rank } => {
            let pid = std::fs::read_to_string(folder.join(format!("pid-{rank}"))).unwrap();
            let host = host(case.node_of(rank));
            run(&mut cluster.on(&host, "kill", ["-9", pid.trim()]).unwrap()).unwrap();
        }
        Fault::Exits { .. } => std::fs::write(folder.join("go"), "").unwrap(),
        Fault::Agent { node, half } => kill(cluster, &host(node), "agent", half, 9)?,
        Fault::Coordinator { half } => kill(cluster, "login", "launch", half, 9)?,
        Fault::Term => kill(cluster, "login", "launch", Half::Warden, 15)?,
        Fault::Cancel => drop(run(&mut cluster.login("scancel", ["--user=root"])).unwrap()),
        Fault::Cut { node } => cluster.cut(&host(node)).unwrap(),
        Fault::Flap { node, ms } => {
            cluster.cut(&host(node)).unwrap();
            std::thread::sleep(Duration::from_millis(ms.into()));
            cluster.mend(&host(node)).unwrap();
        }
        Fault::Crash { node } => cluster.crash(&host(node)).unwrap(),
    }
    Ok(())
}

/// Sends a signal to one or both halves of a regatta, as soon as they are there.
fn kill(
    cluster: &Cluster,
    host: &str,
    command: &str,
    half: Half,
    signal: i32,
) -> Result<(), String> {
    let pids = until(&format!("{half:?} of regatta {command} on {host}"), || {
        halves(&cluster.processes(host).unwrap(), command, half)
    })?;
    let mut kill = Command::new("kill");
    kill.arg(format!("-{signal}")).args(pids.iter().map(u32::to_string));
    // One that is gone by now was ended by the other half.
    run(&mut kill).map(drop).map_err(|e| e.to_string())
}

/// The warden is the first of the two, and the worker its child.
fn halves(processes: &[Process], command: &str, half: Half) -> Option<Vec<u32>> {
    let start = format!("{REGATTA} {command} ");
    let ours: Vec<&Process> = processes.iter().filter(|p| p.command.starts_with(&start)).collect();
    let warden = ours.iter().find(|p| !ours.iter().any(|q| q.pid == p.parent))?.pid;
    let worker = ours.iter().find(|p| p.parent == warden).map(|p| p.pid);
    match half {
        Half::Warden => Some(vec![warden]),
        Half::Worker => Some(vec![worker?]),
        Half::Both => Some(vec![warden, worker?]),
    }
}
