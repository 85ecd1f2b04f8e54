//! One job on many nodes, started by one command.

use std::path::{Path, PathBuf};

use regatta_launch::starter::Starter;
use regatta_model::result::RunResult;
use regatta_model::{Placement, document};
use regatta_testbed::{Cluster, Output, cluster_or_skip, run};

use crate::support::REGATTA;

/// What each rank tells: who it is, where it is, what it is bound to, where the others are met.
const TELL: &str = "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK \
                    $(hostname) $MASTER_ADDR $MASTER_PORT \
                    $(grep Cpus_allowed_list /proc/self/status | cut -f2)";

fn folder(cluster: &Cluster, name: &str) -> PathBuf {
    cluster.shared().join(name)
}

fn placement(run: &Path) -> Placement {
    document::from_json(&std::fs::read_to_string(run.join("placement.json")).unwrap()).unwrap()
}

fn result(run: &Path) -> RunResult {
    document::from_json(&std::fs::read_to_string(run.join("result.json")).unwrap()).unwrap()
}

/// Every rank is what the placement says, and all agree where to meet.
fn assert_right(run: &Path, nodes: usize, each: usize) {
    let placement = placement(run);
    assert_eq!((placement.nodes.len(), placement.ranks as usize), (nodes, nodes * each));
    let mut meeting = std::collections::HashSet::new();
    for rank in 0..placement.ranks {
        let (node, placed, own) = placement.find(rank).unwrap();
        let text = std::fs::read_to_string(run.join(format!("log/rank-{rank}.out"))).unwrap();
        let words: Vec<&str> = text.split_whitespace().collect();
        let expected = [rank as usize, nodes * each, own.local_rank as usize, each, node];
        assert_eq!(words[..5], expected.map(|n| n.to_string()), "{text}");
        assert_eq!((words[5], words[8]), (placed.host.as_str(), own.cpus.to_string().as_str()));
        meeting.insert((words[6].to_owned(), words[7].to_owned()));
    }
    assert_eq!(meeting.len(), 1, "{meeting:?}");
    assert_eq!(result(run).endings.len(), nodes * each);
}

#[test]
fn a_slurm_job_of_sixteen_nodes() {
    let Some(cluster) = cluster_or_skip(&Cluster::builder().nodes(16).cpus(2)) else { return };
    let run_dir = folder(&cluster, "run");
    let out = run(&mut cluster.login(
        "salloc",
        ["-N16", "--exclusive", "--quiet", REGATTA, "launch", "--ranks-per-node", "2"]
            .iter()
            .copied()
            .chain(["--oversubscribe", "--fan-out", "3", "--run-dir", run_dir.to_str().unwrap()])
            .chain(["--", "sh", "-c", TELL]),
    ))
    .unwrap();
    eprintln!("{}\n{}", out.stdout, out.stderr);
    assert!(out.status.success(), "{out:?}");
    assert_right(&run_dir, 16, 2);
}
