//! Two hosts with a network between them, which fails.

use regatta_testbed::{Cluster, assert_contains, cluster_or_skip};

use crate::child::{Scenario, Task};
use crate::process::{ARGUMENTS, Folder, Rank, prepare, providers};
use crate::with_providers;

fn start(cluster: &Cluster, task: &Task, provider: &str) -> Rank {
    let node = &cluster.nodes()[task.rank as usize];
    let program = std::env::current_exe().unwrap();
    let mut command = cluster.on(node, program, ARGUMENTS).unwrap();
    command.env("REGATTA_FABRIC", provider).env("NCCL_SOCKET_IFNAME", "eth0");
    command.env("REGATTA_NET_TIMEOUT", "3");
    prepare(&mut command, task);
    Rank::start(task, command)
}

/// Runs the schedule of a task between two hosts, with every provider that has a network.
fn deliver(bytes: u64) {
    for provider in providers().filter(|provider| *provider != "shm") {
        let builder = Cluster::builder().nodes(2).slurm(false);
        let Some(cluster) = cluster_or_skip(&builder) else { return };
        let folder = Folder::within(cluster.shared().to_owned());
        let task = Task { bytes, ..super::task(Scenario::Schedule, 11, 40, &folder) };
        let ranks = [0, 1].map(|rank| start(&cluster, &Task { rank, ..task.clone() }, provider));
        ranks.into_iter().for_each(|rank| drop(rank.succeed()));
    }
}

#[test]
fn messages_between_hosts_are_delivered() {
    deliver(crate::BYTES);
}

#[test]
#[ignore = "transfers gigabytes"]
fn soak_between_hosts() {
    deliver(crate::soak_bytes() / 8);
}

#[test]
fn a_cut_link_is_an_error_at_both_ends() {
    with_providers(|provider| {
        if provider == "shm" {
            return;
        }
        let builder = Cluster::builder().nodes(2).slurm(false);
        let Some(cluster) = cluster_or_skip(&builder) else { return };
        let folder = Folder::within(cluster.shared().to_owned());
        let task = super::task(Scenario::CutOff, 11, 41, &folder);
        let tasks = [0, 1].map(|rank| Task { rank, ..task.clone() });
        let mut ranks = [0, 1].map(|rank| start(&cluster, &tasks[rank], provider));
        for (rank, task) in ranks.iter_mut().zip(&tasks) {
            rank.wait_for(&task.busy_path());
        }
        cluster.disconnect("node2").unwrap();
        for (text, peer) in ranks.map(Rank::succeed).iter().zip(["node2", "node1"]) {
            assert_contains(text, [&*format!("{peer} (process "), "the connection is lost: "]);
        }
        assert_eq!(cluster.leftovers().unwrap(), Vec::<String>::new());
    });
}
