//! Network faults between the nodes of a cluster.

use std::time::{Duration, Instant};

use regatta_testbed::{Cluster, assert_within, cluster_or_skip};

use super::rank_failure::wait_until_working;
use crate::rank_process::{MAIN, RankProcesses, RankScript, arguments, start};

fn cluster() -> Option<Cluster> {
    cluster_or_skip(&Cluster::builder().nodes(4).cpus(2).slurm(false))
}

#[test]
fn ranks_on_a_disconnected_node_are_lost() {
    let Some(cluster) = cluster() else { return };
    for victim in [2, 0] {
        let named = format!("rank {victim} on {} was lost", cluster.nodes()[victim]);
        let cut = || cluster.disconnect(&cluster.nodes()[victim]).unwrap();
        for (rank, outcome) in (0..).zip(outcomes(&cluster, &cut)) {
            assert!(rank == victim || outcome.contains(&named), "rank {rank}: {outcome}");
        }
    }
}

#[test]
fn a_cut_link_between_two_nodes_is_reported() {
    let Some(cluster) = cluster() else { return };
    let all = outcomes(&cluster, &|| cluster.disconnect_pair("node2", "node3").unwrap());
    // Both directions are cut. All ranks must report the same one.
    let links = [("rank 1 on node2", "rank 2 on node3"), ("rank 2 on node3", "rank 1 on node2")];
    let links = links.map(|(from, to)| format!("the link from {from} to {to} failed"));
    let same = links.iter().any(|link| all.iter().all(|outcome| outcome.contains(link)));
    assert!(same, "{all:#?}");
}

#[test]
fn a_link_below_the_minimum_rate_is_reported() {
    let Some(cluster) = cluster() else { return };
    let all = outcomes(&cluster, &|| cluster.throttle("node3", "8kbit").unwrap());
    for (rank, outcome) in all.iter().enumerate() {
        assert!(rank == 2 || outcome.contains("rank 2 on node3"), "rank {rank}: {outcome}");
    }
}

/// Starts a rank per node, bound to the NIC addresses that `bind` returns.
pub fn start_on_nodes(
    cluster: &Cluster,
    script: RankScript,
    bind: impl Fn(usize) -> Option<String>,
) -> RankProcesses {
    let (nodes, program) = (cluster.nodes(), std::env::current_exe().unwrap());
    let command = |(rank, node): (usize, &String)| {
        let mut command = cluster.on(node, &program, arguments(MAIN)).unwrap();
        command.envs(bind(rank).map(|bind| ("REGATTA_BIND", bind)));
        command
    };
    start(nodes.iter().enumerate().map(command), &script, &nodes[0], cluster.shared())
}

/// The errors of four ranks, one per node, after a network fault.
fn outcomes(cluster: &Cluster, inject: &dyn Fn()) -> Vec<String> {
    let script =
        RankScript { lost_after_s: 4, desync_after_s: 8, ..RankScript::all_reduce(100_000) };
    let nodes = cluster.nodes();
    let mut ranks = start_on_nodes(cluster, script, |_| None);
    wait_until_working(&mut ranks.children[0]);
    inject();
    let start = Instant::now();
    let errors: Vec<String> = ranks.outcomes().into_iter().map(Option::unwrap_or_default).collect();
    assert_within(start, Duration::from_secs(30));
    nodes.iter().for_each(|node| cluster.heal(node).unwrap());
    errors
}
