//! On nodes with a network between them, which is cut.

use std::time::{Duration, Instant};

use regatta_comm::Kind;
use regatta_testbed::{Cluster, cluster_or_skip};

use crate::process::{ARGUMENTS, Orders, as_rank, environment, said, secret_file};

#[test]
fn a_link_is_cut() {
    let builder = Cluster::builder().nodes(4).cpus(2).slurm(false);
    let Some(cluster) = cluster_or_skip(&builder) else { return };
    for victim in [2, 0] {
        cut(&cluster, victim, 7000 + victim as u16);
    }
}

fn cut(cluster: &Cluster, victim: usize, port: u16) {
    let orders = Orders {
        kind: Kind::AllReduce,
        count: 100_000,
        victim: u32::MAX,
        call: 0,
        after_us: 0,
        lost_after_s: 2,
        desync_after_s: 60,
    };
    let nodes = cluster.nodes();
    let secret = secret_file(cluster.shared(), &format!("cut-{victim}"));
    let program = std::env::current_exe().unwrap();
    let rank = |(rank, node): (usize, &String)| {
        let mut command = cluster.on(node, &program, ARGUMENTS).unwrap();
        let environment = environment(rank as u32, 4, &nodes[0], port, &secret.0);
        as_rank(&mut command, orders, &environment);
        command.spawn().unwrap()
    };
    let children: Vec<_> = nodes.iter().enumerate().map(rank).collect();
    std::thread::sleep(Duration::from_secs(2));
    cluster.cut(&nodes[victim]).unwrap();
    let start = Instant::now();
    for (rank, child) in children.into_iter().enumerate() {
        let said = said(child).unwrap_or_default();
        assert!(start.elapsed() < Duration::from_secs(10), "{said}");
        let named = format!("rank {victim} on {}", nodes[victim]);
        assert!(rank == victim || said.contains(&named), "rank {rank}: {said}");
    }
    cluster.mend(&nodes[victim]).unwrap();
}
