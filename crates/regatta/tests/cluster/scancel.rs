//! Slurm's signals are handled once per job, and a suspended job continues when it is resumed.

use std::path::Path;
use std::time::Duration;

use regatta_model::document;
use regatta_model::result::RunResult;
use regatta_testbed::{Cluster, cluster_or_skip, run, wait_until, write_with_mode};

use crate::support::REGATTA;
use crate::support::metrics::last_step_in;

/// A rank that takes a second to save on TERM.
const RANK: &str = "#!/bin/bash
trap 'sleep 1; echo saved; exit 0' TERM
trap 'touch usr1-$RANK' USR1
touch up-$RANK
while :; do sleep 0.1; done
";

/// Submits a job on two nodes with `sbatch` that runs `regatta` with these words; returns its ID.
fn sbatch(cluster: &Cluster, words: &str) -> String {
    let script = cluster.shared().join("job");
    // With `exec`, because Slurm kills everything at once if the signal kills the shell.
    std::fs::write(
        &script,
        format!("#!/bin/sh\nexport REGATTA_LOST_AFTER=2\nexec {REGATTA} {words}\n"),
    )
    .unwrap();
    let args = ["--parsable", "-N2", "--exclusive", "-o", "job.log"];
    let out = run(cluster.login("sbatch", args).arg(&script)).unwrap().expect_success();
    out.stdout.trim().to_owned()
}

/// Submits a job of [`RANK`] and returns its ID once the ranks run.
fn submit(cluster: &Cluster, name: &str) -> String {
    let shared = cluster.shared();
    (0..2).for_each(|rank| drop(std::fs::remove_file(shared.join(format!("up-{rank}")))));
    let job = sbatch(cluster, &format!("launch --ranks-per-node 1 --run-dir {name} -- ./rank"));
    wait_until("ranks", || (0..2).all(|rank| shared.join(format!("up-{rank}")).exists()));
    job
}

/// Waits for the end of a run of two ranks that succeeds.
fn assert_success(run: &Path) {
    wait_until("the result", || run.join("result.json").exists());
    let text = std::fs::read_to_string(run.join("result.json")).unwrap();
    let result: RunResult = document::from_json(&text).unwrap();
    assert_eq!((result.exit_code, result.rank_exits.len()), (0, 2), "{text}");
}

fn assert_saved(run: &Path) {
    assert_success(run);
    for rank in 0..2 {
        let log = std::fs::read_to_string(run.join(format!("log/rank-{rank}.out"))).unwrap();
        assert_eq!(log, "saved\n");
    }
}

#[test]
fn cancelled_job_has_time_to_save_and_suspended_job_continues() {
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
    suspended_training_continues(&cluster);
}

/// Agents, launcher and ranks are all stopped for longer than every heartbeat timeout.
fn suspended_training_continues(cluster: &Cluster) {
    let train = "train num_layers=1 num_heads=2 hidden_size=16 seq_len=16 batch=24 threads=1 \
                 eval_interval=0 checkpoint.interval=0 train.steps=600 --ranks-per-node 1 \
                 --launch '--heartbeat-timeout 2' --run-dir suspended";
    let run_dir = cluster.shared().join("suspended");
    let job = sbatch(cluster, train);
    let last_step = || last_step_in(&run_dir.join("metrics.jsonl"));
    wait_until("the first step", || last_step() > 0);
    let scontrol = |what: &str| run(&mut cluster.login("scontrol", [what, &job])).unwrap();
    scontrol("suspend").expect_success();
    std::thread::sleep(Duration::from_secs(5));
    assert!(last_step() < 600, "the training ended before it was suspended");
    scontrol("resume").expect_success();
    assert_success(&run_dir);
    assert_eq!(last_step(), 600);
}
