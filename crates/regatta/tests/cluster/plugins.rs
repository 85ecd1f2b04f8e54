//! `regatta launch --tuner` and `--net-plugin` on several nodes: all ranks load the same files, or none
//! starts.

use std::collections::BTreeSet;

use regatta_testbed::{Cluster, CommandOutput, cluster_or_skip, run};

use crate::support::REGATTA;

const TABLE: &str = "regatta-nccl-tuning 1\nall-reduce ranks=4 nodes=2 bytes=1..4096 tree ll\n";
const OPTIONS: [&str; 4] = ["--tuner", "tuning.txt", "--net-plugin", "regatta"];

/// Runs a job of two ranks on each of two nodes.
fn launch(cluster: &Cluster, options: &[&str], script: &str) -> CommandOutput {
    let salloc = ["--quiet", "-N2", REGATTA, "launch", "--ranks-per-node", "2", "--oversubscribe"];
    let words = [&salloc[..], options, &["--", "sh", "-c", script]].concat();
    run(&mut cluster.login("salloc", words)).unwrap()
}

#[test]
fn all_nodes_load_the_same_plugins_and_table_also_without_the_run_folder() {
    let Some(cluster) = cluster_or_skip(&Cluster::builder().nodes(2)) else { return };
    std::fs::write(cluster.shared().join("tuning.txt"), TABLE).unwrap();
    let script = "set -- $(cat $NCCL_TUNER_PLUGIN $REGATTA_TUNER $NCCL_NET_PLUGIN | cksum); \
                  echo files=$1 at $REGATTA_TUNER";

    let shared = [&["--run-dir", "run"], &OPTIONS[..]].concat();
    let output = launch(&cluster, &shared, script).expect_success();
    let path = cluster.shared().join("run/plugins/tuning.txt");
    assert!(!output.stderr.contains("copies"), "{output:?}");
    let digest = digests(&output, |table| assert_eq!(table, path.to_str().unwrap()));
    assert_eq!(digest.len(), 1, "{output:?}");

    // Each host has its own /tmp; a file of an earlier job is not used.
    let stale = "mkdir -p /tmp/run/plugins && echo old > /tmp/run/plugins/tuning.txt";
    let mut earlier = cluster.login("srun", ["-N1", "-w", "node2", "sh", "-c", stale]);
    run(&mut earlier).unwrap().expect_success();
    let local = [&["--run-dir", "/tmp/run"], &OPTIONS[..]].concat();
    let output = launch(&cluster, &local, script).expect_success();
    let note = "nodes that do not see the run folder use copies in their TMPDIR: NCCL_TUNER_PLUGIN, \
                REGATTA_TUNER, NCCL_NET_PLUGIN";
    assert!(output.stderr.contains(note), "{output:?}");
    let mut copies = BTreeSet::new();
    let copied = digests(&output, |path| {
        copies.insert(path.to_owned());
    });
    assert_eq!(copied, digest, "the same files");
    assert!(copies.iter().any(|path| path.starts_with("/tmp/regatta-plugins-")), "{copies:?}");
    let list = ["-N1", "-w", "node2", "sh", "-c", "ls /tmp"];
    let left = run(&mut cluster.login("srun", list)).unwrap().expect_success();
    assert!(!left.stdout.contains("regatta-plugins-"), "the copies are removed: {left:?}");
}

/// The digests that ranks printed; their tables are passed to `table`.
fn digests(output: &CommandOutput, mut table: impl FnMut(&str)) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for line in output.stdout.lines() {
        let Some((digest, path)) = line.split_once("files=").and_then(|l| l.1.split_once(" at "))
        else {
            panic!("not a line of the script: {line}")
        };
        table(path);
        found.insert(digest.to_owned());
    }
    found
}

#[test]
fn node_without_the_library_ends_the_job_with_its_name() {
    let Some(cluster) = cluster_or_skip(&Cluster::builder().nodes(2)) else { return };
    // On the host of the launcher and on the first node only.
    let create = ["-N1", "-w", "node1", "sh", "-c", "echo > /tmp/libnccl-net-own.so"];
    run(&mut cluster.login("srun", create)).unwrap().expect_success();
    run(&mut cluster.login("sh", ["-c", "echo > /tmp/libnccl-net-own.so"]))
        .unwrap()
        .expect_success();
    let options = ["--run-dir", "run", "--net-plugin", "/tmp/libnccl-net-own.so"];
    let output = launch(&cluster, &options, "sleep 60");
    assert_eq!(output.status.code(), Some(127), "{output:?}");
    let error = "node2: NCCL_NET_PLUGIN=/tmp/libnccl-net-own.so: no such file on this node";
    assert!(output.stderr.contains(error), "{output:?}");
    assert!(cluster.leftovers().unwrap().is_empty(), "the ranks of node1 were ended");
}
