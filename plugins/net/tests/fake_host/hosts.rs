//! Two hosts with one or two networks between them, which fail.

use regatta_testbed::{Cluster, assert_contains, cluster_or_skip, run};

use crate::child::{Scenario, Task};
use crate::process::{ARGUMENTS, Folder, Rank, prepare, providers};
use crate::with_providers;

/// Interfaces of the first network, and of both.
const FIRST: &str = "=eth0";
const ALL: &str = "eth";

fn start(cluster: &Cluster, task: &Task, provider: &str, interfaces: &str) -> Rank {
    let node = &cluster.nodes()[task.rank as usize];
    let program = std::env::current_exe().unwrap();
    let mut command = cluster.on(node, program, ARGUMENTS).unwrap();
    command.env("REGATTA_FABRIC", provider).env("NCCL_SOCKET_IFNAME", interfaces);
    command.env("REGATTA_NET_TIMEOUT", "3");
    prepare(&mut command, task);
    Rank::start(task, command)
}

/// Runs the schedule of a task between two hosts.
fn deliver(cluster: &Cluster, bytes: u64, provider: &str, interfaces: &str) {
    let folder = Folder::within(cluster.shared().to_owned());
    let task = Task { bytes, ..super::task(Scenario::Schedule, 11, 40, &folder) };
    let start = |rank| start(cluster, &Task { rank, ..task.clone() }, provider, interfaces);
    [0, 1].map(start).into_iter().for_each(|rank| drop(rank.succeed()));
}

/// Delivers messages with every provider that has a network.
fn deliver_all(bytes: u64) {
    for provider in providers().filter(|provider| *provider != "shm") {
        let builder = Cluster::builder().nodes(2).slurm(false);
        let Some(cluster) = cluster_or_skip(&builder) else { return };
        deliver(&cluster, bytes, provider, FIRST);
    }
}

/// Bytes that the first host has sent on each network.
fn sent(cluster: &Cluster) -> [u64; 2] {
    ["eth0", "eth1"].map(|interface| {
        let file = format!("/sys/class/net/{interface}/statistics/tx_bytes");
        let output = run(&mut cluster.on(&cluster.nodes()[0], "cat", [file]).unwrap()).unwrap();
        output.stdout.trim().parse().unwrap()
    })
}

#[test]
fn every_nic_carries_the_messages_of_its_connections() {
    for provider in providers().filter(|provider| *provider != "shm") {
        let builder = Cluster::builder().nodes(2).slurm(false).second_network(true);
        let Some(cluster) = cluster_or_skip(&builder) else { return };
        let before = sent(&cluster);
        deliver(&cluster, crate::BYTES, provider, ALL);
        let after = sent(&cluster);
        // Two rounds of five connections, of which two are on the second NIC.
        for (before, after) in before.into_iter().zip(after) {
            assert!(after - before >= 4 * crate::BYTES, "{provider}: {before} to {after} bytes");
        }
    }
}

#[test]
fn messages_between_hosts_are_delivered() {
    deliver_all(crate::BYTES);
}

#[test]
#[ignore = "transfers gigabytes"]
fn soak_between_hosts() {
    deliver_all(crate::soak_bytes() / 8);
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
        let mut ranks = [0, 1].map(|rank| start(&cluster, &tasks[rank], provider, FIRST));
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
