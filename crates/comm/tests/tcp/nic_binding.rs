//! Binding of connections to NICs, on nodes with two networks.

use regatta_testbed::{Cluster, cluster_or_skip, run};

use crate::rank_process::{ARGUMENTS, RankScript, as_rank, environment, error_of, secret_file};

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
    let secret = secret_file(cluster.shared(), "bound");
    let program = std::env::current_exe().unwrap();
    let before = sent(cluster, "node2");
    let rank = |(rank, node): (usize, &String)| {
        let mut command = cluster.on(node, &program, ARGUMENTS).unwrap();
        as_rank(&mut command, script, &environment(rank as u32, 2, "node1", &secret.0));
        command.env("REGATTA_BIND", bind(rank + 1));
        command.spawn().unwrap()
    };
    let children: Vec<_> = cluster.nodes().iter().enumerate().map(rank).collect();
    let errors: Vec<_> = children.into_iter().map(error_of).collect();
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
    let [first, second] = traffic(&cluster, &|node| format!("10.78.0.{node}"));
    assert!(second > 2 * SHARE && first < SHARE / 10, "{first} and {second} bytes");
    let [first, second] = traffic(&cluster, &|node| format!("10.77.0.{node}"));
    assert!(first > 2 * SHARE && second < SHARE / 10, "{first} and {second} bytes");
    let both = |node| format!("10.77.0.{node},10.78.0.{node}");
    let [first, second] = traffic(&cluster, &both);
    assert!(first > SHARE && second > SHARE, "{first} and {second} bytes");
}
