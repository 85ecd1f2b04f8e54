//! GPUs under Slurm: all GPUs of the node visible to each rank, or one per task by a cgroup.

use regatta_testbed::Cluster;

use crate::test_cluster::{JobOutput, TestCluster, synthetic_nodes};

/// A node with four cores and four NVIDIA GPUs.
const MACHINE: &str = include_str!("../fixtures/four-gpus.json");

fn gpu_nodes() -> Option<TestCluster> {
    let builder = Cluster::builder().nodes(2).gpus(4).constrain_devices(true);
    let slurm = "Sockets=1 CoresPerSocket=4 ThreadsPerCore=1";
    synthetic_nodes("pack:1 core:4 pu:1", slurm, 4, builder).map(TestCluster::new)
}

/// Runs `map --check` in eight ranks with the printed binding and these GPU options.
fn check(cluster: &TestCluster, gpus: &[&str]) -> JobOutput {
    let machine = cluster.file("machine.json", MACHINE);
    let source = ["map", "--machine", &machine];
    let printed = cluster.regatta(&[&source[..], &["-N", "2", "--format", "srun"]].concat());
    // The given GPU options replace the printed ones.
    let bound = printed.split_whitespace().filter(|word| !word.starts_with("--gpu"));
    let options: Vec<&str> = bound.chain(gpus.iter().copied()).collect();
    let job = cluster.srun(&[], &options, &[&source[..], &["--check", "--json"]].concat());
    assert_eq!(job.ranks.len(), 8, "{job:?}");
    job
}

#[test]
fn all_gpus_of_the_node_match_the_plan() {
    let Some(cluster) = gpu_nodes() else { return };
    for gpus in [&["--gpus-per-node=4", "--gpu-bind=none"][..], &["--gpus-per-node=4"]] {
        for rank in &check(&cluster, gpus).assert_success().ranks {
            assert_eq!(rank.json()["ok"], true, "{gpus:?}: {}", rank.text);
        }
    }
}

#[test]
fn per_task_gpu_cgroup_is_reported() {
    let Some(cluster) = gpu_nodes() else { return };
    for gpus in [&["--gpus-per-task=1"][..], &["--gpus-per-node=4", "--gpu-bind=single:1"]] {
        let job = check(&cluster, gpus);
        assert!(!job.output.status.success());
        for rank in &job.ranks {
            let report = rank.json();
            let differences = report["differences"].as_array().unwrap();
            let mut reasons = differences.iter().filter_map(|d| d["why"].as_str());
            let is_named = reasons.any(|why| why.contains("per-task GPU cgroup"));
            assert!(is_named, "{gpus:?}: {report}");
        }
    }
}
