//! `regatta train` on several nodes: over the network the losses are those of one rank, and a run
//! outlives a node.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use regatta_testbed::{Cluster, Output, cluster_or_skip, run_within};

use crate::metrics::{Metrics, assert_near, assert_same, done_of, metrics_of};
use crate::support::{REGATTA, TestCluster};

/// Nothing takes so long, unless it hangs.
pub const LIMIT: Duration = Duration::from_secs(90);

/// A model that is trained in no time.
const TINY: &str = "layers=1 heads=2 width=16 context=16 batch=24 threads=1 warmup=5 eval_every=10 \
                    eval_batches=1 checkpoint.every=10";

#[test]
fn a_training_on_several_nodes_is_that_of_one_rank() {
    let builder = Cluster::builder().nodes(4).cpus(2).ssh(true).slurm(false);
    let Some(cluster) = cluster_or_skip(&builder) else { return };
    let bed = TestCluster::new(cluster);
    let mut alone = bed.hosts.login(REGATTA, ["train"]);
    ended(&bed, alone.args("train.steps=20 -n 1 --run-dir one".split(' ')).args(words()));
    let one = metrics(&bed, "one");
    assert_eq!((one.steps.len(), one.validations.len()), (20, 2));
    for (nodes, each) in [(2, 1), (3, 1), (2, 2), (4, 2)] {
        let run = format!("on-{nodes}-nodes-{each}");
        let options = format!("train.steps=20 --ranks-per-node {each} --run-dir {run}");
        ended(&bed, &mut train(&bed, nodes, &options, ""));
        assert_near(&metrics(&bed, &run), &one);
    }
    outlives_a_node(&bed);
}

fn words() -> std::str::SplitWhitespace<'static> {
    TINY.split_whitespace()
}

/// The tiny model, by ssh on the first so many nodes.
fn train(bed: &TestCluster, nodes: usize, words: &str, launch: &str) -> Command {
    on_nodes(bed, nodes, &format!("{TINY} {words}"), launch)
}

/// `regatta train` by ssh on the first so many nodes.
pub fn on_nodes(bed: &TestCluster, nodes: usize, words: &str, launch: &str) -> Command {
    let hosts = bed.file("hosts", &(bed.hosts.nodes()[..nodes].join("\n") + "\n"));
    let launch = format!("--ssh '{}' {launch}", bed.hosts.ssh_command().join(" "));
    let mut command = bed.hosts.login(REGATTA, ["train"]);
    command.args(words.split_whitespace());
    command.args(["--hostfile", &hosts, "--launch", &launch]);
    command.current_dir(bed.hosts.shared());
    command
}

/// Runs it to its good end, and returns what it said.
pub fn ended(bed: &TestCluster, command: &mut Command) -> String {
    good(run_within(command.current_dir(bed.hosts.shared()), LIMIT).unwrap())
}

fn good(out: Output) -> String {
    assert!(out.status.success(), "{out:?}");
    out.stdout + &out.stderr
}

/// Where a run writes its metrics.
pub fn file(bed: &TestCluster, run: &str) -> PathBuf {
    bed.hosts.shared().join(run).join("metrics.jsonl")
}

/// The metrics of a run.
pub fn metrics(bed: &TestCluster, run: &str) -> Metrics {
    metrics_of(&file(bed, run))
}

/// The node of rank 0 loses its power in the middle; a spare one takes its place, and the run goes
/// on as if nothing had been.
fn outlives_a_node(bed: &TestCluster) {
    const STEPS: u64 = 400;
    let words = format!("train.steps={STEPS} --ranks-per-node 1");
    ended(bed, &mut train(bed, 3, &format!("{words} --run-dir whole"), ""));
    let launch = "--spares 1 --max-restarts 3 --lost-after 2 --grace 1";
    let mut command = train(bed, 4, &format!("{words} --run-dir harmed"), launch);
    let said = std::thread::scope(|scope| {
        let job = scope.spawn(|| run_within(&mut command, LIMIT).unwrap());
        let start = Instant::now();
        while done_of(&file(bed, "harmed")) < 25 {
            assert!(start.elapsed() < LIMIT, "no steps");
            std::thread::sleep(Duration::from_millis(10));
        }
        bed.hosts.crash("node1").unwrap();
        good(job.join().unwrap())
    });
    assert!(said.contains("node1 is bad: node4 takes its place"), "{said}");
    assert!(said.contains("note: goes on after step "), "{said}");
    assert_same(&metrics(bed, "harmed"), &metrics(bed, "whole"), STEPS);
}
