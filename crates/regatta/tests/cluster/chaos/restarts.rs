//! Restarts on the same nodes, with spares and on fewer nodes; and hangs.

use std::path::{Path, PathBuf};
use std::time::Duration;

use regatta_testbed::{Cluster, assert_contains, cluster_or_skip, run_meanwhile};
use rustix::process::Signal;

use crate::chaos::case::ProcessRole;
use crate::chaos::check::assert_no_leftovers;
use crate::chaos::inject::{kill, wait_for};
use crate::chaos::job::{self, folder, login, run_result, shell_job, wait_for_ranks};

/// Prints attempt, rank, world size and host.
const PRINT: &str = "echo $TORCHELASTIC_RESTART_COUNT $RANK $WORLD_SIZE $(hostname);";
/// Also prints, and waits for a fault in the first attempt.
const FIRST_WAITS: &str = "echo $TORCHELASTIC_RESTART_COUNT $RANK $WORLD_SIZE $(hostname); \
                           if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then : > at-$RANK; sleep 600; fi";

fn cluster(nodes: u32) -> Option<Cluster> {
    cluster_or_skip(&Cluster::builder().nodes(nodes).cpus(2).slurm(false).ssh(true))
}

/// Runs a job on all nodes, by default with a grace period of a second, and calls `inject` meanwhile.
/// Asserts its exit code and that no process is left; returns standard error and the job's folder.
fn run_job(
    cluster: &Cluster,
    options: &str,
    script: &str,
    code: i32,
    inject: impl FnOnce(&Path),
) -> (String, PathBuf) {
    let folder = folder(cluster, "job");
    let grace = if options.contains("--grace") { "" } else { "--grace 1" };
    let options = format!("--fan-out 2 --heartbeat-timeout 2 {grace} {options}");
    let mut command = shell_job(cluster, cluster.nodes().len(), &folder, &options, script);
    let limit = Duration::from_secs(90);
    let out = run_meanwhile(&mut command, limit, || inject(&folder)).0.unwrap();
    assert_eq!(out.status.code(), Some(code), "{}", out.stderr);
    assert_no_leftovers(cluster).unwrap();
    (out.stderr, folder)
}

/// The output of all ranks in an attempt.
fn outputs(folder: &Path, attempt: u32, ranks: u32) -> Vec<String> {
    let attempt = if attempt == 0 { String::new() } else { format!("restart-{attempt}/") };
    let log = |rank| {
        let file = folder.join(format!("run/log/{attempt}rank-{rank}.out"));
        let text = std::fs::read_to_string(&file);
        text.unwrap_or_else(|e| panic!("{}: {e}", file.display())).trim().to_owned()
    };
    (0..ranks).map(log).collect()
}

/// Asserts that the ranks of the second attempt ran on these hosts.
fn assert_restarted_on(folder: &Path, hosts: &[&str]) {
    let size = hosts.len();
    let expected = hosts.iter().enumerate().map(|(rank, host)| format!("1 {rank} {size} {host}"));
    assert_eq!(outputs(folder, 1, size as u32), expected.collect::<Vec<_>>());
    let result = run_result(folder).unwrap();
    assert_eq!((result.restarts, result.ranks as usize), (1, size));
}

#[test]
fn all_ranks_are_restarted_on_the_same_nodes() {
    let Some(cluster) = cluster(2) else { return };
    // The failing rank waits until the other has printed.
    let script = format!(
        "{PRINT} : > printed-$TORCHELASTIC_RESTART_COUNT-$RANK; [ $RANK = 1 ] || exit 0; \
         until [ -e printed-$TORCHELASTIC_RESTART_COUNT-0 ]; do sleep 0.1; done; \
         [ $TORCHELASTIC_RESTART_COUNT = 2 ]"
    );
    let options = "--max-restarts 3 --ranks-per-node 1";
    let (_, folder) = run_job(&cluster, options, &script, 0, |_| {});
    for attempt in 0..3 {
        let expected = [format!("{attempt} 0 2 node1"), format!("{attempt} 1 2 node2")];
        assert_eq!(outputs(&folder, attempt, 2), expected);
    }
    let result = run_result(&folder).unwrap();
    assert_eq!((result.restarts, result.exit_code, result.failure), (2, 0, None));
}

#[test]
fn spare_replaces_a_crashed_node() {
    let Some(cluster) = cluster(4) else { return };
    let options = "--spares 1 --ranks-per-node 2";
    let (stderr, folder) = run_job(&cluster, options, FIRST_WAITS, 0, |folder| {
        wait_for_ranks(folder, 6).unwrap();
        cluster.crash("node2").unwrap();
    });
    assert_contains(stderr, "node2 failed: replaced by spare node4");
    assert_restarted_on(&folder, &["node1", "node1", "node4", "node4", "node3", "node3"]);
}

/// Injects a fault into node2, whose rank ignores TERM, and asserts that no rank of the first attempt
/// ran when its replacement started.
fn assert_gone_before_replacements(grace: &str, inject: impl FnOnce(&Cluster)) {
    let Some(cluster) = cluster(3) else { return };
    let script = "echo $TORCHELASTIC_RESTART_COUNT $RANK $WORLD_SIZE $(hostname); \
                  [ $TORCHELASTIC_RESTART_COUNT = 0 ] || { date +%s%N > started-$RANK; exit 0; }; \
                  [ $RANK = 0 ] || trap '' TERM; : > at-$RANK; \
                  while :; do date +%s%N > part-$RANK; mv part-$RANK last-$RANK; sleep 0.02; done";
    let options = format!("--spares 1 --ranks-per-node 1 {grace}");
    let (stderr, folder) = run_job(&cluster, &options, script, 0, |folder| {
        wait_for_ranks(folder, 2).unwrap();
        inject(&cluster);
    });
    assert_contains(stderr, "node2 failed: replaced by spare node3");
    assert_restarted_on(&folder, &["node1", "node3"]);
    for rank in 0..2 {
        let time = |name: &str| -> u64 {
            let text = std::fs::read_to_string(folder.join(format!("{name}-{rank}"))).unwrap();
            text.trim().parse().unwrap()
        };
        assert!(time("last") < time("started"), "rank {rank} ran next to its replacement");
    }
}

#[test]
fn ranks_of_a_hung_agent_are_gone_before_their_replacements_start() {
    // The second as by `pkill -STOP regatta`, which spares the reaper.
    for role in [ProcessRole::Worker, ProcessRole::All] {
        assert_gone_before_replacements("", |cluster| {
            kill(cluster, "node2", "agent", role, Signal::STOP).unwrap();
        });
    }
}

#[test]
fn ranks_of_a_partitioned_node_are_gone_before_their_replacements_start() {
    // Its agent kills the ranks only after the node has been declared lost.
    let grace = "--grace 8";
    assert_gone_before_replacements(grace, |cluster| cluster.disconnect("node2").unwrap());
}

/// Under `srun`, which exits only after all agents, and with the default timeouts: without the report of
/// the reaper, the restart would wait for a minute.
#[test]
fn restart_does_not_wait_if_a_killed_agent_reports_its_end() {
    let builder = Cluster::builder().nodes(3).cpus(2);
    let Some(cluster) = cluster_or_skip(&builder) else { return };
    let folder = folder(&cluster, "job");
    let salloc = "salloc --quiet --exclusive --no-kill --nodes=3";
    let options = "--spares 1 --ranks-per-node 1 -- sh -c";
    let mut command =
        login(&cluster, &format!("{salloc} {} {options}", job::launch_words(&folder)));
    command.arg(format!("cd {} && {FIRST_WAITS}", folder.display()));
    let kill_agent = || {
        wait_for_ranks(&folder, 2).unwrap();
        kill(&cluster, "node2", "agent", ProcessRole::Worker, Signal::KILL).unwrap();
    };
    let out = run_meanwhile(&mut command, Duration::from_secs(90), kill_agent).0.unwrap();
    assert_contains(&out.stderr, "node2 failed: replaced by spare node3");
    assert!(!out.stderr.contains("until the agent of"), "{}", out.stderr);
    assert_restarted_on(&folder, &["node1", "node3"]);
}

#[test]
fn job_continues_on_fewer_nodes() {
    let Some(cluster) = cluster(3) else { return };
    let options = "--min-nodes 2 --ranks-per-node 2";
    let (stderr, folder) = run_job(&cluster, options, FIRST_WAITS, 0, |folder| {
        wait_for_ranks(folder, 6).unwrap();
        cluster.crash("node1").unwrap();
    });
    assert_contains(stderr, "node1 failed: continuing without it");
    assert_restarted_on(&folder, &["node2", "node2", "node3", "node3"]);
}

#[test]
fn job_ends_when_too_few_nodes_are_left() {
    let Some(cluster) = cluster(2) else { return };
    let options = "--max-restarts 5 --ranks-per-node 1";
    let (stderr, folder) = run_job(&cluster, options, FIRST_WAITS, 137, |folder| {
        wait_for_ranks(folder, 2).unwrap();
        cluster.disconnect("node2").unwrap();
    });
    assert_contains(stderr, "not restarting");
    assert_eq!(run_result(&folder).unwrap().failure.unwrap().host, "node2");
}

#[test]
fn hang_is_reported_with_the_state_of_each_rank() {
    let Some(cluster) = cluster(3) else { return };
    // The others exit; only one waits forever.
    let script =
        "echo hello; [ $RANK != 4 ] || exec sleep 600; until [ -e go ]; do sleep 0.1; done";
    let options = "--hang-timeout 3 --ranks-per-node 2";
    let (stderr, folder) = run_job(&cluster, options, script, 124, |folder| {
        let log = || std::fs::read(folder.join("run/log/rank-4.out")).ok();
        wait_for("rank 4", || log().filter(|log| !log.is_empty())).unwrap();
        std::fs::write(folder.join("go"), "").unwrap();
    });
    let hang = run_result(&folder).unwrap().hang.unwrap();
    assert_eq!(hang.keys().copied().collect::<Vec<_>>(), [4], "{hang:?}");
    assert_contains(&hang[&4], "sleep");
    assert_contains(stderr, &format!("rank 4 was {}", hang[&4]));
}
