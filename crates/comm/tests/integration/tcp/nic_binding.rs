//! Binding of connections to NICs, on nodes with two networks.

use regatta_testbed::{Cluster, cluster_or_skip, run};

use super::network_faults::start_on_nodes;
use crate::rank_process::RankScript;

/// Bytes sent by a node on its first and second device.
fn sent(cluster: &Cluster, node: &str) -> [u64; 2] {
    ["eth0", "eth1"].map(|device| {
        let file = format!("/sys/class/net/{device}/statistics/tx_bytes");
        let output = run(&mut cluster.on(node, "cat", [file]).unwrap()).unwrap();
        output.stdout.trim().parse().unwrap()
    })
}

/// Bytes that node2 sends on each device during 20 all-reduces of 4 MB, with these bind addresses.
fn traffic(cluster: &Cluster, bind: &dyn Fn(usize) -> String) -> [u64; 2] {
    let script = RankScript { victim: 1, call: 21, ..RankScript::all_reduce(1_000_000) };
    let before = sent(cluster, "node2");
    let errors = start_on_nodes(cluster, script, |rank| Some(bind(rank + 1))).outcomes();
    let first = errors[0].as_deref().unwrap_or_default();
    assert!(first.contains("rank 1 on node2 was lost"), "{errors:?}");
    let after = sent(cluster, "node2");
    [after[0] - before[0], after[1] - before[1]]
}

#[test]
fn messages_use_the_bound_nics() {
    const SHARE: u64 = 20_000_000;
    let builder = Cluster::builder().nodes(2).cpus(2).slurm(false).second_network(true);
    let Some(cluster) = cluster_or_skip(&builder) else { return };
    let traffic = |bind: &dyn Fn(usize) -> String| traffic(&cluster, bind);
    let [first, second] = traffic(&|node| format!("10.78.0.{node}"));
    assert!(second > 2 * SHARE && first < SHARE / 10, "{first} and {second} bytes");
    let [first, second] = traffic(&|node| format!("10.77.0.{node}"));
    assert!(first > 2 * SHARE && second < SHARE / 10, "{first} and {second} bytes");
    let [first, second] = traffic(&|node| format!("10.77.0.{node},10.78.0.{node}"));
    assert!(first > SHARE && second > SHARE, "{first} and {second} bytes");
}
