//! REGATTA_BIND: the addresses that the collectives of each rank bind to.

use regatta_testbed::{Cluster, cluster_or_skip, run};

use crate::support::REGATTA;

/// REGATTA_BIND of the ranks on two nodes.
fn bind_addresses(cluster: &Cluster) -> Vec<String> {
    let words = ["-Q", "-N2", REGATTA, "launch", "--ranks-per-node", "1", "--oversubscribe", "--"];
    let print = ["sh", "-c", "echo bind $RANK $REGATTA_BIND."];
    let output = run(cluster.login("salloc", words).args(print)).unwrap().expect_success();
    let lines = output.stdout.lines();
    let mut lines: Vec<String> =
        lines.filter_map(|line| Some(line.split_once("bind ")?.1.to_owned())).collect();
    lines.sort_unstable();
    lines
}

#[test]
fn one_address_per_network() {
    let Some(cluster) = cluster_or_skip(&Cluster::builder()) else { return };
    assert_eq!(bind_addresses(&cluster), ["0 10.77.0.1.", "1 10.77.0.2."]);
    drop(cluster);
    let builder = Cluster::builder().second_network(true);
    let Some(cluster) = cluster_or_skip(&builder) else { return };
    assert_eq!(bind_addresses(&cluster), ["0 10.77.0.1,10.78.0.1.", "1 10.77.0.2,10.78.0.2."]);
}
