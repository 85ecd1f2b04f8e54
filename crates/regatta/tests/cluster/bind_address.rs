//! Ranks are told which of their node's addresses their collectives are to use.

use regatta_testbed::{Cluster, cluster_or_skip, run};

use crate::support::REGATTA;

/// What ranks on two nodes are told.
fn told(cluster: &Cluster) -> Vec<String> {
    let words = ["-Q", "-N2", REGATTA, "launch", "--ranks-per-node", "1", "--oversubscribe", "--"];
    let tell = ["sh", "-c", "echo told $RANK $REGATTA_BIND."];
    let output = run(&mut cluster.login("salloc", [&words[..], &tell].concat())).unwrap();
    assert!(output.status.success(), "{output:?}");
    let told =
        output.stdout.lines().filter_map(|line| Some(line.split_once("told ")?.1.to_owned()));
    let mut told: Vec<String> = told.collect();
    told.sort_unstable();
    told
}

#[test]
fn the_address_of_the_interface_or_one_of_each_network() {
    let Some(cluster) = cluster_or_skip(&Cluster::builder()) else { return };
    assert_eq!(told(&cluster), ["0 10.77.0.1.", "1 10.77.0.2."]);
    drop(cluster);
    let builder = Cluster::builder().second_network(true);
    let Some(cluster) = cluster_or_skip(&builder) else { return };
    assert_eq!(told(&cluster), ["0 10.77.0.1,10.78.0.1.", "1 10.77.0.2,10.78.0.2."]);
}
