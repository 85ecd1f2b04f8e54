//! Slurm's signals are handled once per job; Slurm's variables describe the ranks' nodes only.

use std::path::Path;

use regatta_model::document;
use regatta_model::result::RunResult;
use regatta_testbed::{Cluster, cluster_or_skip, run, wait_until, write_with_mode};

use crate::support::REGATTA;

/// A rank that takes a second to save on TERM.
const RANK: &str = "#!/bin/bash
trap 'sleep 1; echo saved; exit 0' TERM
trap 'touch usr1-$RANK' USR1
touch up-$RANK
while :; do sleep 0.1; done
";

/// Submits a job on two nodes with `sbatch`; returns its ID once the ranks run.
fn submit(cluster: &Cluster, name: &str) -> String {
    let shared = cluster.shared();
    (0..2).for_each(|rank| drop(std::fs::remove_file(shared.join(format!("up-{rank}")))));
    let script = shared.join("job");
    // With `exec`, because Slurm kills everything at once if the signal kills the shell.
    let line = format!("exec {REGATTA} launch --ranks-per-node 1 --run-dir {name} -- ./rank");
    std::fs::write(&script, format!("#!/bin/sh\n{line}\n")).unwrap();
    let args = ["--parsable", "-N2", "--exclusive", "-o", "job.log"];
    let out = run(cluster.login("sbatch", args).arg(&script)).unwrap().expect_success();
    wait_until("ranks", || (0..2).all(|rank| shared.join(format!("up-{rank}")).exists()));
    out.stdout.trim().to_owned()
}

fn assert_saved(run: &Path) {
    wait_until("the result", || run.join("result.json").exists());
    let text = std::fs::read_to_string(run.join("result.json")).unwrap();
    let result: RunResult = document::from_json(&text).unwrap();
    assert_eq!((result.exit_code, result.rank_exits.len()), (0, 2), "{text}");
    for rank in 0..2 {
        let log = std::fs::read_to_string(run.join(format!("log/rank-{rank}.out"))).unwrap();
        assert_eq!(log, "saved\n");
    }
}

#[test]
fn cancelled_job_has_time_to_save() {
    let Some(cluster) = cluster_or_skip(&Cluster::builder().nodes(2).cpus(2)) else { return };
    let shared = cluster.shared().to_owned();
    write_with_mode(shared.join("rank"), 0o755, RANK);
    let job = submit(&cluster, "cancelled");
    run(&mut cluster.login("scancel", [&job])).unwrap();
    assert_saved(&shared.join("cancelled"));
    let job = submit(&cluster, "terminated");
    // Both signals go to the steps on the nodes only, not to the batch script.
    run(&mut cluster.login("scancel", ["-s", "USR1", &job])).unwrap();
    wait_until("USR1", || (0..2).all(|rank| shared.join(format!("usr1-{rank}")).exists()));
    run(&mut cluster.login("scancel", ["-s", "TERM", &job])).unwrap();
    assert_saved(&shared.join("terminated"));
}
