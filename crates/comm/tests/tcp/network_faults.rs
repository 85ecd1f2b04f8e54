//! Network faults between the nodes of a cluster.

use std::time::{Duration, Instant};

use regatta_testbed::{Cluster, cluster_or_skip};

use crate::rank_process::{ARGUMENTS, RankScript, as_rank, environment, error_of, secret_file};

fn cluster() -> Option<Cluster> {
    cluster_or_skip(&Cluster::builder().nodes(4).cpus(2).slurm(false))
}

#[test]
fn ranks_on_a_disconnected_node_are_lost() {
    let Some(cluster) = cluster() else { return };
    for victim in [2, 0] {
        let named = format!("rank {victim} on {} was lost", cluster.nodes()[victim]);
        let cut = || cluster.disconnect(&cluster.nodes()[victim]).unwrap();
        for (rank, outcome) in (0..).zip(outcomes(&cluster, &format!("cut-{victim}"), &cut)) {
            assert!(rank == victim || outcome.contains(&named), "rank {rank}: {outcome}");
        }
    }
}

#[test]
fn a_cut_link_between_two_nodes_is_reported() {
    let Some(cluster) = cluster() else { return };
    let all = outcomes(&cluster, "between", &|| cluster.disconnect_pair("node2", "node3").unwrap());
    // Both directions are cut. All ranks must report the same one.
    let links = [("rank 1 on node2", "rank 2 on node3"), ("rank 2 on node3", "rank 1 on node2")];
    let links = links.map(|(from, to)| format!("the link from {from} to {to} failed"));
    let same = links.iter().any(|link| all.iter().all(|outcome| outcome.contains(link)));
    assert!(same, "{all:#?}");
}

#[test]
fn a_link_below_the_minimum_rate_is_reported() {
    let Some(cluster) = cluster() else { return };
    let all = outcomes(&cluster, "slow", &|| cluster.throttle("node3", "8kbit").unwrap());
    for (rank, outcome) in all.iter().enumerate() {
        assert!(rank == 2 || outcome.contains("rank 2 on node3"), "rank {rank}: {outcome}");
    }
}

/// The errors of four ranks, one per node, after a network fault.
fn outcomes(cluster: &Cluster, name: &str, inject: &dyn Fn()) -> Vec<String> {
    let script =
        RankScript { lost_after_s: 2, desync_after_s: 5, ..RankScript::all_reduce(100_000) };
    let nodes = cluster.nodes();
    let secret = secret_file(cluster.shared(), name);
    let program = std::env::current_exe().unwrap();
    let rank = |(rank, node): (usize, &String)| {
        let mut command = cluster.on(node, &program, ARGUMENTS).unwrap();
        let environment = environment(rank as u32, 4, &nodes[0], &secret.0);
        as_rank(&mut command, script, &environment);
        command.spawn().unwrap()
    };
    let children: Vec<_> = nodes.iter().enumerate().map(rank).collect();
    std::thread::sleep(Duration::from_secs(2));
    inject();
    let start = Instant::now();
    let errors: Vec<String> =
        children.into_iter().map(|child| error_of(child).unwrap_or_default()).collect();
    assert!(start.elapsed() < Duration::from_secs(15), "{errors:?}");
    nodes.iter().for_each(|node| cluster.heal(node).unwrap());
    errors
}
