//! `regatta train` with parallel layouts on several nodes: losses match a single rank, and a killed
//! rank is reported with its node.

use libc::SIGKILL;
use regatta_testbed::{Cluster, assert_contains, sample_cases};

use crate::support::metrics::{assert_close, assert_identical};
use crate::support::parallel_cases::{GPT2, LLAMA, MODEL, ParallelCase, run_name};
use crate::support::process::{pid_of_rank, signal_if_alive};
use crate::test_cluster::TestCluster;
use crate::train::{
    metrics, run_successfully, train_on_nodes, train_single_rank, train_with_fault,
};

/// Number of nodes, and parallel layouts; a third of them unless in `cargo xtask accept parallel-layouts`.
const CASES: [(usize, ParallelCase); 18] = [
    (2, (2, GPT2, "tp=2")),
    (2, (2, GPT2, "pp=2 parallel.schedule=zero-bubble micro_batch=2")),
    (2, (2, GPT2, "zero=1")),
    (2, (2, GPT2, "zero=3 recompute=true")),
    (2, (2, GPT2, "zero=3 tiles=3 micro_batch=4 offload.optimizer=disk")),
    (2, (2, LLAMA, "zero=3 tiles=2 recompute=true offload.parameters=disk")),
    (2, (2, LLAMA, "cp=2")),
    (2, (2, LLAMA, "pp=2 recompute=true")),
    (2, (2, LLAMA, "zero=2 micro_batch=4")),
    (2, (4, GPT2, "tp=2 cp=2")),
    (2, (4, LLAMA, "tp=2 pp=2 recompute=true")),
    (4, (4, GPT2, "dp=2 pp=2 parallel.schedule=interleaved virtual_stages=2 zero=1")),
    (4, (4, LLAMA, "dp=2 cp=2 zero=3")),
    (4, (4, GPT2, "dp=2 pp=2 offload.parameters=disk offload.optimizer=disk micro_batch=2")),
    (4, (4, LLAMA, "dp=2 tp=2 zero=3 tiles=2 offload.parameters=disk offload.optimizer=disk")),
    (4, (8, GPT2, "dp=2 tp=2 pp=2 zero=1")),
    (4, (8, GPT2, "dp=2 cp=2 tp=2 zero=3 micro_batch=4")),
    (4, (8, LLAMA, "tp=2 cp=2 pp=2 micro_batch=2 recompute=true")),
];

#[test]
fn layouts_across_nodes_match_a_single_rank_and_a_killed_rank_is_reported() {
    let builder = Cluster::builder().nodes(4).cpus(2).ssh(true).slurm(false);
    let Some(bed) = TestCluster::or_skip(&builder) else { return };
    for model in [GPT2, LLAMA] {
        let one = train_single_rank(&bed, &format!("{MODEL} {model}"), &run_name((1, model, "")));
        for (nodes, case) in sample_cases(CASES, 3).filter(|(_, case)| case.1 == model) {
            println!("{nodes} nodes, {case:?}");
            let run = run_name(case);
            let args = format!("{} train.steps=20 --run-dir {run}", train_args(nodes, case));
            run_successfully(&bed, &mut train_on_nodes(&bed, nodes, &args, ""));
            assert_close(&metrics(&bed, &run), &one);
        }
    }
    assert_reports_killed_rank(&bed, "node3", 2, (4, GPT2, "dp=2 pp=2 zero=1"));
}

fn train_args(nodes: usize, (ranks, model, layout): ParallelCase) -> String {
    format!("{MODEL} {model} {layout} --ranks-per-node {}", ranks as usize / nodes)
}

/// Kills a rank on another node: the job fails with an error that names it, and repeating the command
/// resumes the run, bitwise identical to an undisturbed one.
fn assert_reports_killed_rank(bed: &TestCluster, node: &str, victim: u32, case: ParallelCase) {
    const STEPS: u64 = 200;
    let args = format!("{} train.steps={STEPS} checkpoint.interval=10", train_args(4, case));
    let train = |run: &str| train_on_nodes(bed, 4, &format!("{args} --run-dir {run}"), "");
    run_successfully(bed, &mut train("full"));
    // All nodes share this machine's PIDs.
    let kill = || signal_if_alive(pid_of_rank(bed.hosts.shared(), victim).unwrap(), SIGKILL);
    let out = train_with_fault(bed, &mut train("faulty"), 15, kill);
    assert!(!out.status.success(), "{out:?}");
    assert_contains(out.stderr, &format!("rank {victim} on {node} failed first: signal 9 (KILL)"));
    let out = run_successfully(bed, &mut train("faulty"));
    assert_contains(out.stdout + &out.stderr, "resumed after step ");
    assert_identical(&metrics(bed, "faulty"), &metrics(bed, "full"), STEPS);
}
