//! GPUs that Slurm hands out: all of a node to each rank, or one to each by a control group.

use regatta_testbed::Cluster;

use crate::support::{Bed, Job, made_up_nodes};

/// A node with four cores and four NVIDIA GPUs.
const MACHINE: &str = include_str!("../fixtures/four-gpus.json");

fn gpu_nodes() -> Option<Bed> {
    let builder = Cluster::builder().nodes(2).gpus(4).constrain_devices(true);
    let slurm = "Sockets=1 CoresPerSocket=4 ThreadsPerCore=1";
    made_up_nodes("pack:1 core:4 pu:1", slurm, 4, builder).map(Bed::new)
}

/// Runs `map --check` in eight ranks, bound as the binary prints it, with the GPUs asked for.
fn check(bed: &Bed, gpus: &[&str]) -> Job {
    let machine = bed.file("machine.json", MACHINE);
    let source = ["map", "--machine", &machine];
    let printed = bed.regatta(&[&source[..], &["-N", "2", "--format", "srun"]].concat());
    // What is asked for here replaces the printed GPU options.
    let bound = printed.split_whitespace().filter(|word| !word.starts_with("--gpu"));
    let options: Vec<&str> = bound.chain(gpus.iter().copied()).collect();
    let job = bed.srun(&[], &options, &[&source[..], &["--check", "--json"]].concat());
    assert_eq!(job.ranks.len(), 8, "{job:?}");
    job
}

#[test]
fn all_gpus_of_the_node_are_as_planned() {
    let Some(bed) = gpu_nodes() else { return };
    for gpus in [&["--gpus-per-node=4", "--gpu-bind=none"][..], &["--gpus-per-node=4"]] {
        for rank in &check(&bed, gpus).good().ranks {
            assert_eq!(rank.json()["ok"], true, "{gpus:?}: {}", rank.text);
        }
    }
}

#[test]
fn a_per_task_gpu_cgroup_is_named() {
    let Some(bed) = gpu_nodes() else { return };
    for gpus in [&["--gpus-per-task=1"][..], &["--gpus-per-node=4", "--gpu-bind=single:1"]] {
        let job = check(&bed, gpus);
        assert!(!job.output.status.success());
        for rank in &job.ranks {
            let report = rank.json();
            let differences = report["differences"].as_array().unwrap();
            let named = |d: &&serde_json::Value| {
                d["why"].as_str().is_some_and(|why| why.contains("per-task GPU cgroup"))
            };
            assert!(differences.iter().any(|d| named(&d)), "{gpus:?}: {report}");
        }
    }
}
