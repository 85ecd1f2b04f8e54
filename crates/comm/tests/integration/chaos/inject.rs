//! Faults injected from outside the rank processes.

use std::path::Path;
use std::process::Child;
use std::time::Duration;

use regatta_testbed::Cluster;
use rustix::process::{Pid, Signal, kill_process};

use super::case::{ChaosCase, Fault};
use super::failed_ranks;

/// The duration of a short pause.
const PAUSE: Duration = Duration::from_millis(300);

/// A pause of all ranks: longer than their timeouts.
const LONG_PAUSE: Duration = Duration::from_secs(5);

fn signal(ids: &[Pid], signal: Signal) {
    for id in ids {
        // A rank may have exited.
        let _ = kill_process(*id, signal);
    }
}

/// Resumes stopped ranks after a wait.
fn resume(ranks: Vec<Pid>, wait: impl FnOnce() + Send + 'static) {
    std::thread::spawn(move || {
        wait();
        signal(&ranks, Signal::CONT);
    });
}

/// Injects the fault of a case.
pub fn inject(case: &ChaosCase, cluster: Option<&Cluster>, ranks: &[Child], dir: &Path) {
    let all: Vec<Pid> = ranks.iter().map(Pid::from_child).collect();
    let victim = vec![all[case.victim]];
    let host = case.host(case.victim);
    match (case.fault, cluster) {
        (Fault::Paused, _) => resume(victim, || std::thread::sleep(PAUSE)),
        (Fault::Resumed, _) => {
            let (case, dir) = (case.clone(), dir.to_owned());
            resume(victim, move || failed_ranks::wait_for_others(&case, &dir));
        }
        (Fault::AllPaused, _) => {
            signal(&all, Signal::STOP);
            resume(all, || std::thread::sleep(LONG_PAUSE));
        }
        (Fault::NodeCut, Some(cluster)) => cluster.disconnect(&host).unwrap(),
        (Fault::LinkCut { other }, Some(cluster)) => {
            cluster.disconnect_pair(&host, &format!("node{}", other + 1)).unwrap();
        }
        (Fault::SlowNode, Some(cluster)) => cluster.throttle(&host, "8kbit").unwrap(),
        _ => {}
    }
}

/// Restores the network.
pub fn repair(cluster: &Cluster) {
    for host in cluster.nodes() {
        cluster.heal(host).unwrap();
    }
}
