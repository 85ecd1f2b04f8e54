//! Harm that is done to ranks from outside.

use std::process::Child;
use std::time::Duration;

use regatta_testbed::Cluster;
use rustix::process::{Pid, Signal, kill_process};

use crate::case::{Case, Fault};

/// How long a rank is stopped for a moment.
const MOMENT: Duration = Duration::from_millis(300);

/// Does to a case what is to be done to it.
pub fn harm(case: &Case, cluster: Option<&Cluster>, victim: &Child) {
    let host = case.host(case.victim);
    match (case.fault, cluster) {
        (Fault::Paused, _) => {
            let id = Pid::from_child(victim);
            std::thread::spawn(move || {
                std::thread::sleep(MOMENT);
                let _ = kill_process(id, Signal::CONT);
            });
        }
        (Fault::Cut, Some(cluster)) => cluster.cut(&host).unwrap(),
        (Fault::CutBetween { other }, Some(cluster)) => {
            cluster.cut_between(&host, &format!("node{}", other + 1)).unwrap();
        }
        (Fault::Slow, Some(cluster)) => cluster.slow(&host, "8kbit").unwrap(),
        _ => {}
    }
}

/// Everything is as before.
pub fn mend(cluster: &Cluster) {
    for host in cluster.nodes() {
        cluster.mend(host).unwrap();
    }
}

/// Ends a rank and, of one in a host, what runs there for it.
pub fn kill(child: &mut Child) -> std::io::Result<()> {
    child.kill()
}
