//! `regatta launch --profile` on several nodes: the rank that hangs is named with its node.

use regatta_testbed::{Cluster, cluster_or_skip, run};

use crate::support::{REGATTA, fake_rank, from_json};

#[test]
#[ignore = "a rank of the other test"]
fn rank_of_a_job() {
    fake_rank::run();
}

#[test]
fn rank_that_hangs_is_named_and_nodes_without_the_run_folder_record_locally() {
    let Some(cluster) = cluster_or_skip(&Cluster::builder().nodes(2)) else { return };
    let salloc = ["--quiet", "-N2", REGATTA, "launch", "--ranks-per-node", "2", "--oversubscribe"];
    let options = ["--run-dir", "run", "--profile", "--hang-timeout", "2", "--"];
    let command = fake_rank::command("profile::rank_of_a_job", Some((3, 4)));
    let words = salloc.iter().chain(&options).copied().chain(command.iter().map(String::as_str));
    let output = run(&mut cluster.login("salloc", words)).unwrap();
    assert_eq!(output.status.code(), Some(124), "{output:?}");
    let named = "rank 3 on node2 did not arrive at all-reduce 4 (4 MiB of bf16, communicator default_pg, \
                 4 ranks), which ranks 0-2 entered ";
    assert!(output.stderr.contains(named), "{output:?}");
    let result = std::fs::read_to_string(cluster.shared().join("run/result.json")).unwrap();
    let result: serde_json::Value = from_json(&result);
    assert_eq!(result["collectives"][0]["ranks"], serde_json::json!([3]), "{result}");
    assert!(cluster.leftovers().unwrap().is_empty(), "the ranks were ended");

    // Each host has its own /tmp.
    let script = "test -x \"$NCCL_PROFILER_PLUGIN\" && echo recorded in $REGATTA_PROFILE";
    let options = ["--run-dir", "/tmp/run", "--profile", "--", "sh", "-c", script];
    let words = salloc.iter().chain(&options);
    let output = run(&mut cluster.login("salloc", words)).unwrap().expect_success();
    assert!(output.stdout.contains("recorded in /tmp/regatta-comms-"), "{output:?}");
    let warning = "node2: this node does not see the run folder: the collectives of its ranks are \
                   recorded in /tmp/regatta-comms-";
    assert!(output.stderr.contains(warning), "{output:?}");
    assert!(!output.stderr.contains("recorded nothing"), "{output:?}");
}
