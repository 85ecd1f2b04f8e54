//! On nodes with a network between them, which is cut.

use std::time::{Duration, Instant};

use regatta_comm::CallKind;
use regatta_testbed::{Cluster, cluster_or_skip};

use crate::process::{ARGUMENTS, Orders, as_rank, environment, said, secret_file};

#[test]
fn a_link_is_cut() {
    let builder = Cluster::builder().nodes(4).cpus(2).slurm(false);
    let Some(cluster) = cluster_or_skip(&builder) else { return };
    for victim in [2, 0] {
        let named = format!("rank {victim} on {} is gone", cluster.nodes()[victim]);
        let cut = || cluster.cut(&cluster.nodes()[victim]).unwrap();
        for (rank, said) in (0..).zip(told(&cluster, &format!("cut-{victim}"), &cut)) {
            assert!(rank == victim || said.contains(&named), "rank {rank}: {said}");
        }
    }
}

#[test]
fn a_path_between_two_is_cut() {
    let builder = Cluster::builder().nodes(4).cpus(2).slurm(false);
    let Some(cluster) = cluster_or_skip(&builder) else { return };
    let all = told(&cluster, "between", &|| cluster.cut_between("node2", "node3").unwrap());
    // Nothing goes either way; which one is told of is the same for all.
    let ways = [("rank 1 on node2", "rank 2 on node3"), ("rank 2 on node3", "rank 1 on node2")];
    let paths = ways.map(|(from, to)| format!("the path from {from} to {to} is broken"));
    let told = paths.iter().any(|path| all.iter().all(|said| said.contains(path)));
    assert!(told, "{all:#?}");
}

#[test]
fn a_link_is_slowed_to_a_crawl() {
    let builder = Cluster::builder().nodes(4).cpus(2).slurm(false);
    let Some(cluster) = cluster_or_skip(&builder) else { return };
    let all = told(&cluster, "slow", &|| cluster.slow("node3", "8kbit").unwrap());
    for (rank, said) in all.iter().enumerate() {
        assert!(rank == 2 || said.contains("rank 2 on node3"), "rank {rank}: {said}");
    }
}

/// What each of four ranks, one a node, says when something is done to their network.
fn told(cluster: &Cluster, name: &str, harm: &dyn Fn()) -> Vec<String> {
    let orders = Orders {
        kind: CallKind::AllReduce,
        count: 100_000,
        victim: u32::MAX,
        call: 0,
        after_us: 0,
        lost_after_s: 2,
        desync_after_s: 5,
    };
    let nodes = cluster.nodes();
    let secret = secret_file(cluster.shared(), name);
    let program = std::env::current_exe().unwrap();
    let rank = |(rank, node): (usize, &String)| {
        let mut command = cluster.on(node, &program, ARGUMENTS).unwrap();
        let environment = environment(rank as u32, 4, &nodes[0], &secret.0);
        as_rank(&mut command, orders, &environment);
        command.spawn().unwrap()
    };
    let children: Vec<_> = nodes.iter().enumerate().map(rank).collect();
    std::thread::sleep(Duration::from_secs(2));
    harm();
    let start = Instant::now();
    let said: Vec<String> = children.into_iter().map(|c| said(c).unwrap_or_default()).collect();
    assert!(start.elapsed() < Duration::from_secs(15), "{said:?}");
    nodes.iter().for_each(|node| cluster.mend(node).unwrap());
    said
}
