//! Restarts on the same nodes, with spares and on fewer nodes; and hangs.

use std::path::Path;
use std::time::Duration;

use regatta_testbed::{Cluster, CommandOutput, cluster_or_skip, run_within};

use crate::check::assert_no_leftovers;
use crate::inject::wait_for;
use crate::job::{folder, run_result, shell_job};

/// Prints attempt, rank, world size and host.
const PRINT: &str = "echo $TORCHELASTIC_RESTART_COUNT $RANK $WORLD_SIZE $(hostname); ";
/// The first attempt waits for a fault.
const FIRST_WAITS: &str =
    "if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then : > at-$RANK; sleep 600; fi";

fn cluster(nodes: u32) -> Option<Cluster> {
    cluster_or_skip(&Cluster::builder().nodes(nodes).cpus(2).slurm(false).ssh(true))
}

/// Runs a job and calls `inject` meanwhile.
fn run_job(
    cluster: &Cluster,
    (nodes, options): (usize, &[&str]),
    (folder, script): (&Path, &str),
    inject: impl FnOnce(),
) -> CommandOutput {
    let quick = ["--fan-out", "2", "--heartbeat-timeout", "2", "--grace", "1"];
    let mut command = shell_job(cluster, nodes, folder, &[&quick, options].concat(), script);
    std::thread::scope(|scope| {
        let job = scope.spawn(|| run_within(&mut command, Duration::from_secs(90)).unwrap());
        inject();
        job.join().unwrap()
    })
}

fn rank_log(folder: &Path, attempt: u32, rank: u32) -> String {
    let attempt = if attempt == 0 { String::new() } else { format!("restart-{attempt}/") };
    let file = folder.join(format!("run/log/{attempt}rank-{rank}.out"));
    std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()))
}

/// The output of all ranks in an attempt.
fn outputs(folder: &Path, attempt: u32, ranks: u32) -> Vec<String> {
    (0..ranks).map(|rank| rank_log(folder, attempt, rank).trim().to_owned()).collect()
}

fn wait_for_ranks(folder: &Path, ranks: u32) {
    for rank in 0..ranks {
        let at = folder.join(format!("at-{rank}"));
        wait_for("the ranks to start", || at.exists().then_some(())).unwrap();
    }
}

#[test]
fn all_ranks_are_restarted_on_the_same_nodes() {
    let Some(cluster) = cluster(2) else { return };
    let folder = folder(&cluster, "same");
    // The failing rank waits until the other has printed.
    let script = format!(
        "{PRINT} : > printed-$TORCHELASTIC_RESTART_COUNT-$RANK; [ $RANK = 1 ] || exit 0; \
         until [ -e printed-$TORCHELASTIC_RESTART_COUNT-0 ]; do sleep 0.1; done; \
         [ $TORCHELASTIC_RESTART_COUNT = 2 ]"
    );
    let options: &[&str] = &["--max-restarts", "3", "--ranks-per-node", "1"];
    let out = run_job(&cluster, (2, options), (&folder, &script), || {});
    assert_eq!(out.status.code(), Some(0), "{}", out.stderr);
    for attempt in 0..3 {
        let expected = [format!("{attempt} 0 2 node1"), format!("{attempt} 1 2 node2")];
        assert_eq!(outputs(&folder, attempt, 2), expected);
    }
    let result = run_result(&folder).unwrap();
    assert_eq!((result.restarts, result.exit_code, result.failure), (2, 0, None));
    assert_no_leftovers(&cluster).unwrap();
}

#[test]
fn spare_replaces_a_crashed_node() {
    let Some(cluster) = cluster(4) else { return };
    let folder = folder(&cluster, "spare");
    let script = format!("{PRINT} {FIRST_WAITS}");
    let options: &[&str] = &["--spares", "1", "--ranks-per-node", "2"];
    let out = run_job(&cluster, (4, options), (&folder, &script), || {
        wait_for_ranks(&folder, 6);
        cluster.crash("node2").unwrap();
    });
    assert_eq!(out.status.code(), Some(0), "{}", out.stderr);
    assert!(out.stderr.contains("node2 failed: replaced by spare node4"), "{}", out.stderr);
    let hosts = ["node1", "node1", "node4", "node4", "node3", "node3"];
    let expected = hosts.iter().enumerate().map(|(rank, host)| format!("1 {rank} 6 {host}"));
    assert_eq!(outputs(&folder, 1, 6), expected.collect::<Vec<_>>());
    assert_eq!(run_result(&folder).unwrap().restarts, 1);
    assert_no_leftovers(&cluster).unwrap();
}

#[test]
fn job_continues_on_fewer_nodes() {
    let Some(cluster) = cluster(3) else { return };
    let folder = folder(&cluster, "fewer");
    let script = format!("{PRINT} {FIRST_WAITS}");
    let options: &[&str] = &["--min-nodes", "2", "--ranks-per-node", "2"];
    let out = run_job(&cluster, (3, options), (&folder, &script), || {
        wait_for_ranks(&folder, 6);
        cluster.crash("node1").unwrap();
    });
    assert_eq!(out.status.code(), Some(0), "{}", out.stderr);
    assert!(out.stderr.contains("node1 failed: continuing without it"), "{}", out.stderr);
    let hosts = ["node2", "node2", "node3", "node3"];
    let expected = hosts.iter().enumerate().map(|(rank, host)| format!("1 {rank} 4 {host}"));
    assert_eq!(outputs(&folder, 1, 4), expected.collect::<Vec<_>>());
    let result = run_result(&folder).unwrap();
    assert_eq!((result.restarts, result.ranks), (1, 4));
    assert_no_leftovers(&cluster).unwrap();
}

#[test]
fn job_ends_when_too_few_nodes_are_left() {
    let Some(cluster) = cluster(2) else { return };
    let folder = folder(&cluster, "too-few");
    let script = format!("{PRINT} {FIRST_WAITS}");
    let options: &[&str] = &["--max-restarts", "5", "--ranks-per-node", "1"];
    let out = run_job(&cluster, (2, options), (&folder, &script), || {
        wait_for_ranks(&folder, 2);
        cluster.disconnect("node2").unwrap();
    });
    assert_eq!(out.status.code(), Some(137), "{}", out.stderr);
    assert!(out.stderr.contains("not restarting"), "{}", out.stderr);
    assert_eq!(run_result(&folder).unwrap().failure.unwrap().host, "node2");
    assert_no_leftovers(&cluster).unwrap();
}

#[test]
fn hang_is_reported_with_the_state_of_each_rank() {
    let Some(cluster) = cluster(3) else { return };
    let folder = folder(&cluster, "hang");
    // The others exit; only one waits forever.
    let script =
        "echo hello; [ $RANK != 4 ] || exec sleep 600; until [ -e go ]; do sleep 0.1; done";
    let options: &[&str] = &["--hang-timeout", "3", "--ranks-per-node", "2"];
    let out = run_job(&cluster, (3, options), (&folder, script), || {
        wait_for("rank 4", || {
            std::fs::read(folder.join("run/log/rank-4.out")).ok().filter(|log| !log.is_empty())
        })
        .unwrap();
        std::fs::write(folder.join("go"), "").unwrap();
    });
    assert_eq!(out.status.code(), Some(124), "{}", out.stderr);
    let result = run_result(&folder).unwrap();
    let hang = result.hang.unwrap();
    assert_eq!(hang.keys().copied().collect::<Vec<_>>(), [4], "{hang:?}");
    assert!(hang[&4].contains("sleep"), "{hang:?}");
    assert!(out.stderr.contains(&format!("rank 4 was {}", hang[&4])), "{}", out.stderr);
    assert_no_leftovers(&cluster).unwrap();
}
