//! Jobs on more nodes than the fan-out of the agent tree.

use std::collections::HashSet;
use std::time::Duration;

use regatta_testbed::{Cluster, cluster_or_skip, run_within};

use crate::support::REGATTA;

const NODES: usize = 40;
const LINES: usize = 2000;

#[test]
fn every_line_of_forty_nodes_is_shown() {
    let builder = Cluster::builder().nodes(NODES as u32);
    let Some(cluster) = cluster_or_skip(&builder) else { return };
    let script = format!("for i in $(seq {LINES}); do echo line $i of $RANK; done");
    for (command, lines) in [(vec!["hostname"], 1), (vec!["sh", "-c", &script], LINES)] {
        let launch = ["--quiet", "-N40", "--exclusive", REGATTA, "launch", "--ranks-per-node", "1"];
        let mut salloc = cluster.login("salloc", launch);
        salloc.args(command).current_dir(cluster.shared());
        let run = run_within(&mut salloc, Duration::from_secs(180)).unwrap().expect_success();
        assert_eq!(run.stdout.lines().count(), NODES * lines, "{}", run.stderr);
        let distinct: HashSet<&str> = run.stdout.lines().collect();
        assert_eq!(distinct.len(), NODES * lines, "no line is shown twice");
    }
}
