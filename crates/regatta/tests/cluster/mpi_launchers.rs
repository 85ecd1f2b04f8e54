//! MPICH, Open MPI and a PBS-like environment, without Slurm.

use regatta_testbed::{Cluster, assert_contains};

use crate::test_cluster::{
    HYDRA, JobOutput, OPEN_MPI, TestCluster, assert_allocation, assert_environment,
    programs_or_skip,
};

/// `node1` on the cluster's network.
const NODE1: &str = "10.77.0.1";
const MAP: [&str; 2] = ["map", "--json"];
const ENV: [&str; 2] = ["env", "--json"];

#[test]
fn allocation_is_detected_under_mpi_launchers() {
    let Some(()) = programs_or_skip(&[HYDRA, OPEN_MPI]) else { return };
    let Some(cluster) = TestCluster::or_skip(&Cluster::builder().nodes(2).slurm(false)) else {
        return;
    };
    mpich(&cluster);
    no_host_list(&cluster);
    open_mpi(&cluster);
    pbs(&cluster);
}

fn check_map_and_env(
    start: impl Fn(&[&str]) -> JobOutput,
    hostfile: &str,
    launcher: &str,
    hosts: &[&str],
) {
    let with = |what: [&'static str; 2]| [what[0], what[1], "--hostfile", hostfile];
    let job = start(&with(MAP)).assert_success();
    assert_eq!(job.hosts(), hosts);
    assert_allocation(&job, launcher);
    assert_environment(&start(&with(ENV)).assert_success(), NODE1);
}

fn mpich(cluster: &TestCluster) {
    for (hosts, expected) in [
        ("node1:2\nnode2:2\n", &["node1", "node1", "node2", "node2"][..]),
        ("node1:2\nnode2:1\n", &["node1", "node1", "node2"]),
        // Hosts without slots get one rank each, round-robin.
        ("node1\nnode2\n", &["node1", "node2", "node1", "node2"]),
    ] {
        let file = cluster.file("mpich-hosts", hosts);
        let ranks = expected.len().to_string();
        let start = |args: &[&str]| cluster.hydra(&[], &["-f", &file, "-n", &ranks], args);
        check_map_and_env(start, &file, "hydra", expected);
    }
}

/// Hydra does not report the hosts of other ranks: counts are known, addresses are not.
fn no_host_list(cluster: &TestCluster) {
    let hosts = cluster.file("blocks", "node1:2\nnode2:2\n");
    let options = ["-f", &hosts, "-n", "4"];
    for rank in &cluster.hydra(&[], &options, &MAP).assert_success().ranks {
        let json = rank.json();
        let this_rank = &json["allocation"]["this_rank"];
        let found = ["rank", "size", "local_rank", "local_size"].map(|key| this_rank[key].as_u64());
        let number = rank.number.into();
        assert_eq!(found, [number, 4, number % 2, 2].map(Some));
        assert_eq!(json["placement"]["ranks"], 4);
    }
    let assert_rejected = |job: &JobOutput, rank: usize| {
        assert_eq!(job.ranks[rank].text, "", "{job:?}");
        assert!(!job.output.status.success());
        assert_contains(&job.output.stderr, ["--hostfile", "--master-addr"]);
    };
    let job = cluster.hydra(&[], &options, &ENV);
    assert_rejected(&job, 2);
    assert_rejected(&job, 3);
    let explicit = [&ENV[..], &["--master-addr", NODE1]].concat();
    assert_environment(&cluster.hydra(&[], &options, &explicit).assert_success(), NODE1);
    // Round-robin, rank 1 is on node2, which must not be taken for rank 0's node.
    let round = cluster.file("round", "node1\nnode2\n");
    let job = cluster.hydra(&[], &["-f", &round, "-n", "4"], &ENV);
    assert_rejected(&job, 1);
}

fn open_mpi(cluster: &TestCluster) {
    let hosts = cluster.file("slots", "node1 slots=2\nnode2 slots=2\n");
    let start = |args: &[&str]| cluster.open_mpi(&["--hostfile", &hosts, "-n", "4"], args);
    check_map_and_env(start, &hosts, "openmpi", &["node1", "node1", "node2", "node2"]);
    let start = |args: &[&str]| {
        cluster.open_mpi(&["--hostfile", &hosts, "-n", "3", "--map-by", "node"], args)
    };
    check_map_and_env(start, &hosts, "openmpi", &["node1", "node2", "node1"]);
}

fn pbs(cluster: &TestCluster) {
    let nodes = "node1\nnode1\nnode2\nnode2\n";
    let file = cluster.file("pbs-nodes", nodes);
    let job = |file: &str, args: &[&str]| {
        let variables = [("PBS_JOBID", "12.server"), ("PBS_NODEFILE", file)];
        cluster.hydra(&variables, &["-rmk", "pbs"], args)
    };
    let map = job(&file, &MAP).assert_success();
    assert_eq!(map.hosts(), ["node1", "node1", "node2", "node2"]);
    assert_allocation(&map, "hydra");
    let allocation = &map.ranks[3].json()["allocation"];
    assert_eq!(allocation["scheduler"], "pbs");
    assert_eq!(allocation["job_id"], "12.server");
    assert_environment(&job(&file, &ENV).assert_success(), NODE1);
    // As on real machines, only the first node has the file: every host has its own /tmp. Ranks know themselves
    // from the launcher's variables; those that are not on the node of rank 0 need its address.
    let name = format!("regatta-pbs-nodes-{}", std::process::id());
    let away = std::env::temp_dir().join(name);
    std::fs::write(&away, nodes).unwrap();
    let away_file = away.to_str().unwrap();
    let unseen = job(away_file, &ENV);
    let explicit = [&ENV[..], &["--master-addr", NODE1]].concat();
    let addressed = job(away_file, &explicit);
    std::fs::remove_file(&away).unwrap();
    assert!(!unseen.output.status.success());
    assert_contains(&unseen.output.stderr, ["the host of rank 0", "--master-addr"]);
    assert_eq!(unseen.output.stderr.matches("error: ").count(), 2, "{}", unseen.output.stderr);
    assert!(unseen.ranks[2..].iter().all(|r| r.text.is_empty()), "{unseen:?}");
    assert_environment(&addressed.assert_success(), NODE1);
}
