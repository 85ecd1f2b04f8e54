//! Slurm's signals are handled once per job, a preempted training can be resumed, and a suspended job
//! continues.

use std::path::{Path, PathBuf};
use std::time::Duration;

use regatta_model::document;
use regatta_model::result::{RankExit, RunResult, STOPPED_EARLY};
use regatta_testbed::{Cluster, cluster_or_skip, run, wait_until, write_with_mode};

use crate::support::REGATTA;
use crate::support::metrics::{last_step_in, read_metrics};
use crate::support::train::ENDLESS;

/// A rank that takes a second to save on TERM.
const RANK: &str = "#!/bin/bash
trap 'sleep 1; echo saved; exit 0' TERM
trap 'touch usr1-$RANK' USR1
touch up-$RANK
while :; do sleep 0.1; done
";

/// Submits a job on two nodes with `sbatch` and these options that runs `regatta` with these words;
/// returns its ID.
fn sbatch(cluster: &Cluster, options: &str, words: &str) -> String {
    let script = cluster.shared().join("job");
    // With `exec`, because Slurm kills everything at once if the signal kills the shell.
    std::fs::write(
        &script,
        format!("#!/bin/sh\nexport REGATTA_LOST_AFTER=2\nexec {REGATTA} {words}\n"),
    )
    .unwrap();
    let args = ["--parsable", "-N2", "--exclusive", "-o", "job.log"];
    let mut command = cluster.login("sbatch", args);
    command.args(options.split_whitespace()).arg(&script);
    let out = run(&mut command).unwrap().expect_success();
    out.stdout.trim().to_owned()
}

/// Submits a job of [`RANK`] and returns its ID once the ranks run.
fn submit(cluster: &Cluster, name: &str) -> String {
    let shared = cluster.shared();
    (0..2).for_each(|rank| drop(std::fs::remove_file(shared.join(format!("up-{rank}")))));
    let words = format!("launch --ranks-per-node 1 --run-dir {name} -- ./rank");
    let job = sbatch(cluster, "", &words);
    wait_until("ranks", || (0..2).all(|rank| shared.join(format!("up-{rank}")).exists()));
    job
}

/// Waits for the end of a run of two ranks that succeeds.
fn assert_success(run: &Path) {
    wait_until("the result", || run.join("result.json").exists());
    let result = read_result(run);
    assert_eq!((result.exit_code, result.rank_exits.len()), (0, 2), "{result:?}");
}

fn read_result(run: &Path) -> RunResult {
    document::from_json(&std::fs::read_to_string(run.join("result.json")).unwrap()).unwrap()
}

fn assert_saved(run: &Path) {
    assert_success(run);
    for rank in 0..2 {
        let log = std::fs::read_to_string(run.join(format!("log/rank-{rank}.out"))).unwrap();
        assert_eq!(log, "saved\n");
    }
}

/// The launch folder of the last launch of a run.
fn last_launch(run: &Path) -> PathBuf {
    let relaunches = std::fs::read_dir(run.join("relaunch")).into_iter().flatten().flatten();
    relaunches.map(|entry| entry.path()).max().unwrap_or(run.to_owned())
}

/// Waits until a job has this state and exit code.
fn wait_for_end(cluster: &Cluster, job: &str, state: &str, code: u8) {
    wait_until(&format!("job {job} to be {state} with code {code}"), || {
        let shown = run(&mut cluster.login("scontrol", ["show", "job", job])).unwrap().stdout;
        let code = format!(" ExitCode={code}:0\n");
        shown.contains(&format!("JobState={state} ")) && shown.contains(&code)
    });
}

/// Asserts that a run of two ranks was stopped early, with a checkpoint of its last step.
fn assert_saved_at(run: &Path, step: u64) {
    let result = read_result(&last_launch(run));
    let stopped = RankExit::Exit(STOPPED_EARLY.into());
    assert!(result.rank_exits.values().eq(&[stopped; 2]), "{result:?}");
    assert_eq!((result.exit_code, result.failure), (STOPPED_EARLY, None));
    assert!(run.join(format!("checkpoints/step-{step:08}/checkpoint.json")).exists());
}

#[test]
fn cancelled_and_preempted_jobs_save_and_a_suspended_job_continues() {
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
    preempted_training_fails_with_code_75_and_resumes(&cluster);
}

/// A training of a tiny model.
const TRAIN: &str = "train num_layers=1 num_heads=2 hidden_size=16 seq_len=16 batch=24 threads=1 \
                     eval_interval=0 --ranks-per-node 1";

/// Agents, launcher and ranks are all stopped for longer than every heartbeat timeout.
fn suspended_training_continues(cluster: &Cluster) {
    let train = format!(
        "{TRAIN} checkpoint.interval=0 train.steps=600 --launch '--heartbeat-timeout 2' \
         --run-dir suspended"
    );
    let run_dir = cluster.shared().join("suspended");
    let job = sbatch(cluster, "", &train);
    let last_step = || last_step_in(&run_dir.join("metrics.jsonl"));
    wait_until("the first step", || last_step() > 0);
    let scontrol = |what: &str| run(&mut cluster.login("scontrol", [what, &job])).unwrap();
    scontrol("suspend").expect_success();
    std::thread::sleep(Duration::from_millis(2500));
    assert!(last_step() < 600, "the training ended before it was suspended");
    scontrol("resume").expect_success();
    assert_success(&run_dir);
    assert_eq!(last_step(), 600);
}

/// TERM, as of a preemption: the ranks of both nodes save, and the job fails with code 75, so that a
/// job that depends on its success does not start. Then it is resumed, twice.
fn preempted_training_fails_with_code_75_and_resumes(cluster: &Cluster) {
    let run_dir = cluster.shared().join("preempted");
    let last_step = || last_step_in(&run_dir.join("metrics.jsonl"));
    let mut words = format!("{TRAIN} checkpoint.interval=1000000 --run-dir preempted");
    // To the steps on the nodes only, and to the batch script as well.
    for scope in ["", "--full"] {
        let before = last_step();
        let job = sbatch(cluster, "", &format!("{words} {ENDLESS}"));
        let dependency = format!("--dependency=afterok:{job}");
        let dependent = sbatch(cluster, &dependency, "launch -- touch dependent");
        wait_until("steps", || last_step() > before);
        let scancel = format!("scancel {scope} --signal=TERM {job}");
        cluster.bash("login", &scancel).unwrap().expect_success();
        wait_for_end(cluster, &job, "FAILED", STOPPED_EARLY);
        assert_saved_at(&run_dir, last_step());
        run(&mut cluster.login("scancel", [&dependent])).unwrap().expect_success();
        assert!(!cluster.shared().join("dependent").exists());
        words = "train --resume preempted --ranks-per-node 1".to_owned();
    }
    let steps = last_step() + 5;
    let job = sbatch(cluster, "", &format!("{words} train.steps={steps}"));
    wait_for_end(cluster, &job, "COMPLETED", 0);
    let metrics = read_metrics(&run_dir.join("metrics.jsonl"));
    assert!(metrics.steps.keys().copied().eq(1..=steps), "{metrics:?}");
}
