//! Harm that is done to ranks from outside.

use std::process::Child;
use std::time::Duration;

use regatta_testbed::Cluster;
use rustix::process::{Pid, Signal, kill_process};

use crate::case::{Case, Fault};

/// How long a rank is stopped for a moment.
const MOMENT: Duration = Duration::from_millis(300);

/// How long until the others have given a rank up.
const LONG_ENOUGH: Duration = Duration::from_secs(8);

/// Lets a rank that is stopped go on after some time.
fn wake(rank: &Child, after: Duration) {
    let id = Pid::from_child(rank);
    std::thread::spawn(move || {
        std::thread::sleep(after);
        let _ = kill_process(id, Signal::CONT);
    });
}

/// Does to a case what is to be done to it.
pub fn harm(case: &Case, cluster: Option<&Cluster>, victim: &Child) {
    let host = case.host(case.victim);
    match (case.fault, cluster) {
        (Fault::Paused, _) => wake(victim, MOMENT),
        (Fault::Woken, _) => wake(victim, LONG_ENOUGH),
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
