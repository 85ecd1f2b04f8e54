//! `regatta train` with ranks on several nodes that share a model: over the network the losses are
//! those of one rank, and a rank that is killed is named with its node.

use std::path::Path;
use std::time::{Duration, Instant};

use regatta_testbed::{Cluster, cluster_or_skip, run_within};

use crate::metrics::{assert_near, assert_same, done_of};
use crate::split_words::{GPT2, LLAMA, MODEL, Split, name};
use crate::support::{REGATTA, TestCluster};
use crate::train::{LIMIT, ended, file, metrics, on_nodes};

/// Nodes, and what their ranks share.
const SPLITS: [(usize, Split); 18] = [
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
    (4, (4, GPT2, "dp=2 pp=2 parallel.schedule=interleaved chunks=2 zero=1")),
    (4, (4, LLAMA, "dp=2 cp=2 zero=3")),
    (4, (4, GPT2, "dp=2 pp=2 offload.parameters=disk offload.optimizer=disk micro_batch=2")),
    (4, (4, LLAMA, "dp=2 tp=2 zero=3 tiles=2 offload.parameters=disk offload.optimizer=disk")),
    (4, (8, GPT2, "dp=2 tp=2 pp=2 zero=1")),
    (4, (8, GPT2, "dp=2 cp=2 tp=2 zero=3 micro_batch=4")),
    (4, (8, LLAMA, "tp=2 cp=2 pp=2 micro_batch=2 recompute=true")),
];

#[test]
fn nodes_that_share_a_model_train_as_one_rank() {
    let builder = Cluster::builder().nodes(4).cpus(2).ssh(true).slurm(false);
    let Some(cluster) = cluster_or_skip(&builder) else { return };
    let bed = TestCluster::new(cluster);
    for model in [GPT2, LLAMA] {
        let one = name((1, model, ""));
        let alone = format!("{MODEL} {model} train.steps=20 -n 1 --run-dir {one}");
        ended(&bed, bed.hosts.login(REGATTA, ["train"]).args(alone.split_whitespace()));
        let one = metrics(&bed, &one);
        assert_eq!((one.steps.len(), one.validations.len()), (20, 2));
        for (nodes, split) in SPLITS.into_iter().filter(|(_, split)| split.1 == model) {
            println!("{nodes} nodes, {split:?}");
            let words = format!("{} train.steps=20 --run-dir {}", words(nodes, split), name(split));
            ended(&bed, &mut on_nodes(&bed, nodes, &words, ""));
            assert_near(&metrics(&bed, &name(split)), &one);
        }
    }
    a_killed_rank_is_named(&bed, "node3", 2, (4, GPT2, "dp=2 pp=2 zero=1"));
}

fn words(nodes: usize, (ranks, model, how): Split) -> String {
    format!("{MODEL} {model} {how} --ranks-per-node {}", ranks as usize / nodes)
}

/// A rank of another node is killed in the middle: all end, with a sentence that says who it was; the
/// same command goes on as if nothing had been.
fn a_killed_rank_is_named(bed: &TestCluster, node: &str, victim: u32, split: Split) {
    const STEPS: u64 = 200;
    let words = format!("{} train.steps={STEPS} checkpoint.every=10", words(4, split));
    let run = |run: &str| on_nodes(bed, 4, &format!("{words} --run-dir {run}"), "");
    ended(bed, &mut run("whole"));
    let mut command = run("harmed");
    let out = std::thread::scope(|scope| {
        let job = scope.spawn(|| run_within(&mut command, LIMIT).unwrap());
        let start = Instant::now();
        while done_of(&file(bed, "harmed")) < 15 {
            assert!(start.elapsed() < LIMIT, "no steps");
            std::thread::sleep(Duration::from_millis(5));
        }
        kill(bed.hosts.shared(), victim);
        job.join().unwrap()
    });
    assert!(!out.status.success(), "{out:?}");
    let sentence = format!("rank {victim} on {node} failed first: signal 9 (KILL)");
    assert!(out.stderr.contains(&sentence), "{sentence}: {out:?}");
    let said = ended(bed, &mut run("harmed"));
    assert!(said.contains("goes on after step "), "{said}");
    assert_same(&metrics(bed, "harmed"), &metrics(bed, "whole"), STEPS);
}

/// Kills a rank that works in a folder, on whichever node.
fn kill(folder: &Path, victim: u32) {
    let word = format!("RANK={victim}");
    let is_rank = |process: &Path| {
        let environment = std::fs::read(process.join("environ")).unwrap_or_default();
        let here = std::fs::read_link(process.join("cwd")).is_ok_and(|cwd| cwd == folder);
        here && environment.split(|byte| *byte == 0).any(|variable| variable == word.as_bytes())
    };
    let processes = std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let rank = processes.into_iter().find(|process| is_rank(process)).unwrap();
    let pid = rank.file_name().unwrap().to_str().unwrap().parse().unwrap();
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(pid).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
}
