//! `regatta train` on several nodes: losses match a single rank, a run survives the loss of a node, and
//! Ctrl-C leaves any time to save.

use std::process::Command;
use std::time::Duration;

use libc::SIGINT;
use regatta_testbed::{
    Cluster, CommandOutput, assert_contains, poll_until, run_meanwhile, run_within, wait_until,
};

use crate::support::metrics::{
    RunMetrics, assert_close, assert_identical, last_step_in, read_metrics,
};
use crate::support::process::{Process, signal_if_alive};
use crate::support::train::{ENDLESS, STOPPED_EARLY, long_step};
use crate::support::{REGATTA, TempDir};
use crate::test_cluster::TestCluster;

/// Timeout of a command.
pub const TIMEOUT: Duration = Duration::from_secs(90);

/// A tiny model.
const TINY: &str = "family=gpt2 bias=false tie_embeddings=auto precision=f32 num_layers=1 num_heads=2 hidden_size=16 seq_len=16 batch=24 threads=1 \
                    warmup_steps=5 eval_interval=10 eval_batches=1 checkpoint.interval=10";

#[test]
fn losses_on_several_nodes_match_a_single_rank_and_a_lost_node_is_replaced() {
    let builder = Cluster::builder().nodes(4).cpus(2).ssh(true).slurm(false);
    let Some(bed) = TestCluster::or_skip(&builder) else { return };
    let one = train_single_rank(&bed, TINY, "one");
    for (nodes, each) in [(2, 1), (3, 1), (2, 2), (4, 2)] {
        let run = format!("on-{nodes}-nodes-{each}");
        let options = format!("train.steps=20 --ranks-per-node {each} --run-dir {run}");
        run_successfully(&bed, &mut train_tiny(&bed, nodes, &options, ""));
        assert_close(&metrics(&bed, &run), &one);
    }
    assert_survives_a_lost_node(&bed);
}

/// Trains the tiny model over ssh on the first `nodes` nodes.
fn train_tiny(bed: &TestCluster, nodes: usize, words: &str, launch: &str) -> Command {
    train_on_nodes(bed, nodes, &format!("{TINY} {words}"), launch)
}

/// `regatta train` over ssh on the first `nodes` nodes.
pub fn train_on_nodes(bed: &TestCluster, nodes: usize, words: &str, launch: &str) -> Command {
    let hosts = bed.file("hosts", &(bed.hosts.nodes()[..nodes].join("\n") + "\n"));
    let launch = format!("--ssh '{}' {launch}", bed.hosts.ssh_command().join(" "));
    let mut command = bed.hosts.login(REGATTA, ["train"]);
    command.args(words.split_whitespace());
    command.args(["--hostfile", &hosts, "--launch", &launch]);
    command.current_dir(bed.hosts.shared());
    command
}

/// Runs a command that must succeed, and returns its output.
pub fn run_successfully(bed: &TestCluster, command: &mut Command) -> CommandOutput {
    let out = run_within(command.current_dir(bed.hosts.shared()), TIMEOUT).unwrap();
    out.expect_success()
}

/// Trains on the login host with a single rank; returns the metrics.
pub fn train_single_rank(bed: &TestCluster, words: &str, run: &str) -> RunMetrics {
    let words = format!("train {words} train.steps=20 -n 1 --run-dir {run}");
    run_successfully(bed, &mut bed.hosts.login(REGATTA, words.split_whitespace()));
    let metrics = metrics(bed, run);
    assert_eq!((metrics.steps.len(), metrics.val_losses.len()), (20, 2));
    metrics
}

/// Trains with the run folder `faulty` and injects a fault after a step.
pub fn train_with_fault(
    bed: &TestCluster,
    command: &mut Command,
    step: u64,
    inject: impl FnOnce(),
) -> CommandOutput {
    let metrics = bed.hosts.shared().join("faulty/metrics.jsonl");
    let inject_after_step = || {
        let interval = Duration::from_millis(5);
        poll_until(interval, "steps", || last_step_in(&metrics) >= step);
        inject();
    };
    run_meanwhile(command, TIMEOUT, inject_after_step).0.unwrap()
}

/// The metrics of a run.
pub fn metrics(bed: &TestCluster, run: &str) -> RunMetrics {
    read_metrics(&bed.hosts.shared().join(run).join("metrics.jsonl"))
}

/// Crashes the node of rank 0 during the run: a spare replaces it, and the resumed run is bitwise
/// identical to an undisturbed one.
fn assert_survives_a_lost_node(bed: &TestCluster) {
    const STEPS: u64 = 400;
    let words = format!("train.steps={STEPS} --ranks-per-node 1");
    run_successfully(bed, &mut train_tiny(bed, 3, &format!("{words} --run-dir full"), ""));
    let launch = "--spares 1 --max-restarts 3 --heartbeat-timeout 2 --grace 1";
    let mut command = train_tiny(bed, 4, &format!("{words} --run-dir faulty"), launch);
    let crash = || bed.hosts.crash("node1").unwrap();
    let out = train_with_fault(bed, &mut command, 25, crash).expect_success();
    let replaced = "node1 failed: replaced by spare node4";
    assert_contains(out.stdout + &out.stderr, [replaced, "note: resumed after step "]);
    assert_identical(&metrics(bed, "faulty"), &metrics(bed, "full"), STEPS);
}

/// On two nodes, and at the same time on one. That no grace period ends the save is tested in virtual time, by
/// the simulation of agents in `launch`.
#[test]
fn ctrl_c_saves_after_a_step_that_takes_long() {
    let builder = Cluster::builder().nodes(2).cpus(2).ssh(true).slurm(false);
    let Some(bed) = TestCluster::or_skip(&builder) else { return };
    let (shared, runs) = (bed.hosts.shared(), ["one", "two"]);
    let launch = long_step(shared);
    let [one, two] = runs.map(|run| format!("{ENDLESS} --ranks-per-node 1 --run-dir {run}"));
    let one = format!("train {TINY} {one}");
    let mut one = bed.hosts.login(REGATTA, one.split_whitespace());
    one.args(["--launch", &launch]);
    let mut two = train_tiny(&bed, 2, &two, &launch);
    let outputs = TempDir::new();
    let trainings = [&mut one, &mut two].map(|command| Process::spawn(&outputs, command));
    let last_step = |run: &str| last_step_in(&shared.join(run).join("metrics.jsonl"));
    wait_until("steps", || runs.iter().all(|run| last_step(run) >= 3));

    let processes = bed.hosts.processes("login").unwrap();
    let train = format!("{REGATTA} train ");
    let ours: Vec<_> = processes.iter().filter(|p| p.command.starts_with(&train)).collect();
    let originals = ours.iter().filter(|p| ours.iter().all(|other| other.pid != p.parent));
    assert_eq!(originals.map(|p| signal_if_alive(p.pid, SIGINT)).count(), 2, "{processes:?}");
    let notes = ["SIGINT: finishing step ", ", then saving a checkpoint; Ctrl-C again to kill\n"];
    for training in &trainings {
        wait_until("the note", || notes.iter().all(|note| training.stdout().contains(note)));
    }
    // A rank that is killed is killed by now.
    std::thread::sleep(Duration::from_secs(1));
    bed.file("go", "");
    for (training, run) in trainings.into_iter().zip(runs) {
        let ended = training.wait().assert_code(STOPPED_EARLY);
        let steps = last_step(run);
        assert_contains(&ended.out, &format!("interrupted; checkpoint saved: {steps} steps"));
        let words = format!("train --resume {run} -n 1 train.steps={}", steps + 1);
        let mut resume = bed.hosts.login(REGATTA, words.split_whitespace());
        let out = run_successfully(&bed, &mut resume).stdout;
        assert_contains(out, &format!("resumed after step {steps} from "));
        assert_eq!(last_step(run), steps + 1);
    }
}
