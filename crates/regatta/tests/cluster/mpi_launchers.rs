//! MPICH, Open MPI and a PBS-like environment, without Slurm.

use regatta_testbed::{Cluster, cluster_or_skip};

use crate::support::{
    Bed, HYDRA, Job, OPEN_MPI, assert_environment, assert_places, programs_or_skip,
};

/// `node1` on the cluster's network.
const NODE1: &str = "10.77.0.1";
const MAP: [&str; 2] = ["map", "--json"];
const ENV: [&str; 2] = ["env", "--json"];

#[test]
fn ranks_of_other_launchers_are_read_right() {
    let Some(()) = programs_or_skip(&[HYDRA, OPEN_MPI]) else { return };
    let Some(cluster) = cluster_or_skip(&Cluster::builder().nodes(2).slurm(false)) else { return };
    let bed = Bed::new(cluster);
    mpich(&bed);
    no_host_list(&bed);
    open_mpi(&bed);
    pbs(&bed);
}

fn both(start: impl Fn(&[&str]) -> Job, hostfile: &str, launcher: &str, hosts: &[&str]) {
    let with = |what: [&'static str; 2]| [what[0], what[1], "--hostfile", hostfile];
    let job = start(&with(MAP)).good();
    assert_eq!(job.hosts(), hosts);
    assert_places(&job, launcher);
    assert_environment(&start(&with(ENV)).good(), NODE1);
}

fn mpich(bed: &Bed) {
    let even = bed.file("even", "node1:2\nnode2:2\n");
    let start = |args: &[&str]| bed.hydra(&[], &["-f", &even, "-n", "4"], args);
    both(start, &even, "hydra", &["node1", "node1", "node2", "node2"]);
    let uneven = bed.file("uneven", "node1:2\nnode2:1\n");
    let start = |args: &[&str]| bed.hydra(&[], &["-f", &uneven, "-n", "3"], args);
    both(start, &uneven, "hydra", &["node1", "node1", "node2"]);
    // Hosts without a number get one rank each, round and round.
    let bare = bed.file("bare", "node1\nnode2\n");
    let start = |args: &[&str]| bed.hydra(&[], &["-f", &bare, "-n", "4"], args);
    both(start, &bare, "hydra", &["node1", "node2", "node1", "node2"]);
}

/// Hydra does not tell its ranks where the others are: counts are known, addresses are not.
fn no_host_list(bed: &Bed) {
    let hosts = bed.file("blocks", "node1:2\nnode2:2\n");
    let options = ["-f", &hosts, "-n", "4"];
    for rank in &bed.hydra(&[], &options, &MAP).good().ranks {
        let json = rank.json();
        let me = &json["allocation"]["me"];
        assert_eq!((&me["rank"], &me["size"]), (&rank.number.into(), &4.into()));
        assert_eq!((&me["local_rank"], &me["local_size"]), (&(rank.number % 2).into(), &2.into()));
        assert_eq!(json["placement"]["ranks"], 4);
    }
    let refused = |job: &Job, rank: usize| {
        assert_eq!(job.ranks[rank].text, "", "{job:?}");
        assert!(!job.output.status.success());
        assert!(job.output.stderr.contains("--hostfile"), "{}", job.output.stderr);
        assert!(job.output.stderr.contains("--master-addr"), "{}", job.output.stderr);
    };
    let job = bed.hydra(&[], &options, &ENV);
    refused(&job, 2);
    refused(&job, 3);
    let told = [&ENV[..], &["--master-addr", NODE1]].concat();
    assert_environment(&bed.hydra(&[], &options, &told).good(), NODE1);
    // Dealt round and round, rank 1 is on node2, which must not pass for rank 0's node.
    let round = bed.file("round", "node1\nnode2\n");
    let job = bed.hydra(&[], &["-f", &round, "-n", "4"], &ENV);
    refused(&job, 1);
}

fn open_mpi(bed: &Bed) {
    let hosts = bed.file("slots", "node1 slots=2\nnode2 slots=2\n");
    let start = |args: &[&str]| bed.open_mpi(&["--hostfile", &hosts, "-n", "4"], args);
    both(start, &hosts, "openmpi", &["node1", "node1", "node2", "node2"]);
    let start =
        |args: &[&str]| bed.open_mpi(&["--hostfile", &hosts, "-n", "3", "--map-by", "node"], args);
    both(start, &hosts, "openmpi", &["node1", "node2", "node1"]);
}

fn pbs(bed: &Bed) {
    let nodes = "node1\nnode1\nnode2\nnode2\n";
    let file = bed.file("pbs-nodes", nodes);
    let job = |file: &str, args: &[&str]| {
        let variables = [("PBS_JOBID", "12.server"), ("PBS_NODEFILE", file)];
        bed.hydra(&variables, &["-rmk", "pbs"], args)
    };
    let map = job(&file, &MAP).good();
    assert_eq!(map.hosts(), ["node1", "node1", "node2", "node2"]);
    assert_places(&map, "hydra");
    let allocation = &map.ranks[3].json()["allocation"];
    assert_eq!(
        (&allocation["scheduler"], &allocation["job_id"]),
        (&"pbs".into(), &"12.server".into())
    );
    assert_environment(&job(&file, &ENV).good(), NODE1);
    // As on real machines, only the first node may have the file: every host has a /tmp of its own.
    let name = format!("regatta-pbs-nodes-{}", std::process::id());
    let away = std::env::temp_dir().join(name);
    std::fs::write(&away, nodes).unwrap();
    let unseen = job(away.to_str().unwrap(), &ENV);
    std::fs::remove_file(&away).unwrap();
    assert!(!unseen.output.status.success());
    let wanted = format!("PBS_NODEFILE={}", away.display());
    assert!(unseen.output.stderr.contains(&wanted), "{}", unseen.output.stderr);
    let times = |what: &str| unseen.output.stderr.matches(what).count();
    assert_eq!((times("error: "), times("os error 2")), (4, 4), "{}", unseen.output.stderr);
    assert!(unseen.ranks.iter().all(|r| r.text.is_empty()), "{unseen:?}");
}
