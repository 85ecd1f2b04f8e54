//! Jobs that are started anew: on the same nodes, with a spare one, with fewer. And jobs that hang.

use std::path::Path;
use std::time::Duration;

use regatta_testbed::{Cluster, Output, cluster_or_skip, run_within};

use crate::check::nothing_left;
use crate::harm::until;
use crate::launch::{folder, job, result};

/// What the ranks of every start tell.
const TELL: &str = "echo $TORCHELASTIC_RESTART_COUNT $RANK $WORLD_SIZE $(hostname); ";
/// The first start waits for what befalls it.
const FIRST_WAITS: &str =
    "if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then : > at-$RANK; sleep 600; fi";

fn cluster(nodes: u32) -> Option<Cluster> {
    cluster_or_skip(&Cluster::builder().nodes(nodes).cpus(2).slurm(false).ssh(true))
}

/// Runs a job; `harm` is done when the ranks of the first start are there.
fn ended(
    cluster: &Cluster,
    (nodes, options): (usize, &[&str]),
    (folder, script): (&Path, &str),
    harm: impl FnOnce(),
) -> Output {
    let quick = ["--fan-out", "2", "--lost-after", "2", "--grace", "1"];
    let mut command = job(cluster, nodes, folder, &[&quick, options].concat(), script);
    std::thread::scope(|scope| {
        let job = scope.spawn(|| run_within(&mut command, Duration::from_secs(90)).unwrap());
        harm();
        job.join().unwrap()
    })
}

fn log(folder: &Path, start: u32, rank: u32) -> String {
    let start = if start == 0 { String::new() } else { format!("restart-{start}/") };
    let file = folder.join(format!("run/log/{start}rank-{rank}.out"));
    std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()))
}

/// What the ranks of a start told.
fn told(folder: &Path, start: u32, ranks: u32) -> Vec<String> {
    (0..ranks).map(|rank| log(folder, start, rank).trim().to_owned()).collect()
}

fn begun(folder: &Path, ranks: u32) {
    for rank in 0..ranks {
        let at = folder.join(format!("at-{rank}"));
        until("the ranks", || at.exists().then_some(())).unwrap();
    }
}

#[test]
fn all_ranks_start_anew_on_the_same_nodes() {
    let Some(cluster) = cluster(2) else { return };
    let folder = folder(&cluster, "same");
    // The one that fails waits until the other has told.
    let script = format!(
        "{TELL} : > told-$TORCHELASTIC_RESTART_COUNT-$RANK; [ $RANK = 1 ] || exit 0; \
         until [ -e told-$TORCHELASTIC_RESTART_COUNT-0 ]; do sleep 0.1; done; \
         [ $TORCHELASTIC_RESTART_COUNT = 2 ]"
    );
    let options: &[&str] = &["--max-restarts", "3", "--ranks-per-node", "1"];
    let out = ended(&cluster, (2, options), (&folder, &script), || {});
    assert_eq!(out.status.code(), Some(0), "{}", out.stderr);
    for start in 0..3 {
        let wanted = [format!("{start} 0 2 node1"), format!("{start} 1 2 node2")];
        assert_eq!(told(&folder, start, 2), wanted);
    }
    let result = result(&folder).unwrap();
    assert_eq!((result.restarts, result.code, result.failure), (2, 0, None));
    nothing_left(&cluster).unwrap();
}

#[test]
fn a_spare_takes_the_place_of_a_node_that_is_gone() {
    let Some(cluster) = cluster(4) else { return };
    let folder = folder(&cluster, "spare");
    let script = format!("{TELL} {FIRST_WAITS}");
    let options: &[&str] = &["--spares", "1", "--ranks-per-node", "2"];
    let out = ended(&cluster, (4, options), (&folder, &script), || {
        begun(&folder, 6);
        cluster.crash("node2").unwrap();
    });
    assert_eq!(out.status.code(), Some(0), "{}", out.stderr);
    assert!(out.stderr.contains("node2 is bad: node4 takes its place"), "{}", out.stderr);
    let hosts = ["node1", "node1", "node4", "node4", "node3", "node3"];
    let wanted = hosts.iter().enumerate().map(|(rank, host)| format!("1 {rank} 6 {host}"));
    assert_eq!(told(&folder, 1, 6), wanted.collect::<Vec<_>>());
    assert_eq!(result(&folder).unwrap().restarts, 1);
    nothing_left(&cluster).unwrap();
}

#[test]
fn a_job_goes_on_with_fewer_nodes() {
    let Some(cluster) = cluster(3) else { return };
    let folder = folder(&cluster, "fewer");
    let script = format!("{TELL} {FIRST_WAITS}");
    let options: &[&str] = &["--min-nodes", "2", "--ranks-per-node", "2"];
    let out = ended(&cluster, (3, options), (&folder, &script), || {
        begun(&folder, 6);
        cluster.crash("node1").unwrap();
    });
    assert_eq!(out.status.code(), Some(0), "{}", out.stderr);
    assert!(out.stderr.contains("node1 is bad: going on without"), "{}", out.stderr);
    let hosts = ["node2", "node2", "node3", "node3"];
    let wanted = hosts.iter().enumerate().map(|(rank, host)| format!("1 {rank} 4 {host}"));
    assert_eq!(told(&folder, 1, 4), wanted.collect::<Vec<_>>());
    let result = result(&folder).unwrap();
    assert_eq!((result.restarts, result.ranks), (1, 4));
    nothing_left(&cluster).unwrap();
}

#[test]
fn too_few_nodes_end_the_job() {
    let Some(cluster) = cluster(2) else { return };
    let folder = folder(&cluster, "too-few");
    let script = format!("{TELL} {FIRST_WAITS}");
    let options: &[&str] = &["--max-restarts", "5", "--ranks-per-node", "1"];
    let out = ended(&cluster, (2, options), (&folder, &script), || {
        begun(&folder, 2);
        cluster.cut("node2").unwrap();
    });
    assert_eq!(out.status.code(), Some(137), "{}", out.stderr);
    assert!(out.stderr.contains("not started anew"), "{}", out.stderr);
    assert_eq!(result(&folder).unwrap().failure.unwrap().host, "node2");
    nothing_left(&cluster).unwrap();
}

#[test]
fn a_hang_is_told_with_where_each_rank_waits() {
    let Some(cluster) = cluster(3) else { return };
    let folder = folder(&cluster, "hang");
    // The others end well; only one waits for ever.
    let script =
        "echo hello; [ $RANK != 4 ] || exec sleep 600; until [ -e go ]; do sleep 0.1; done";
    let options: &[&str] = &["--hang-after", "3", "--ranks-per-node", "2"];
    let out = ended(&cluster, (3, options), (&folder, script), || {
        until("rank 4", || {
            std::fs::read(folder.join("run/log/rank-4.out")).ok().filter(|log| !log.is_empty())
        })
        .unwrap();
        std::fs::write(folder.join("go"), "").unwrap();
    });
    assert_eq!(out.status.code(), Some(124), "{}", out.stderr);
    let result = result(&folder).unwrap();
    let hang = result.hang.unwrap();
    assert_eq!(hang.keys().copied().collect::<Vec<_>>(), [4], "{hang:?}");
    assert!(hang[&4].contains("sleep"), "{hang:?}");
    assert!(out.stderr.contains(&format!("rank 4 was {}", hang[&4])), "{}", out.stderr);
    nothing_left(&cluster).unwrap();
}
