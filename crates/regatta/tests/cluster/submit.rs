//! Jobs of `regatta submit` under Slurm: they run, are listed, wait for each other, and go back into
//! the queue.

use std::path::Path;

use regatta_testbed::{Cluster, CommandOutput, cluster_or_skip, run, wait_until};
use serde_json::Value;

use crate::support::metrics::last_step_in;
use crate::support::python::python_with;
use crate::support::train::ENDLESS;
use crate::support::{REGATTA, from_json};

/// A training of a tiny model on one rank per node.
const TRAIN: &str = "regatta train num_layers=1 num_heads=2 hidden_size=16 seq_len=16 batch=24 \
                     threads=1 eval_interval=0 --ranks-per-node 1";

struct User(Cluster);

impl User {
    fn regatta(&self, words: &[&str]) -> CommandOutput {
        let mut command = self.0.login(REGATTA, words);
        command.env("XDG_STATE_HOME", self.0.shared().join("state"));
        run(&mut command).unwrap()
    }

    /// Submits a job on two nodes and returns its ID.
    fn submit(&self, options: &str, command: &[&str]) -> String {
        let options: Vec<&str> = options.split_whitespace().collect();
        let words = [&["submit", "-N", "2", "-t", "10m"][..], &options, &["--"], command].concat();
        self.regatta(&words).expect_success().stdout.trim().to_owned()
    }

    fn job(&self, id: &str) -> Value {
        let text = self.regatta(&["jobs", "--json", id]).expect_success().stdout;
        from_json::<Value>(&text)["jobs"][0].clone()
    }

    fn wait_for(&self, id: &str, state: &str) {
        wait_until(&format!("job {id} to be {state}"), || self.job(id)["state"] == state);
    }
}

#[test]
fn submitted_jobs_run_and_are_listed() {
    let Some(cluster) = cluster_or_skip(&Cluster::builder().nodes(2).cpus(2)) else { return };
    let user = User(cluster);
    let script = "echo \"$RANK of $WORLD_SIZE, $1\"";
    let first = user.submit("--ranks-per-node 1", &["sh", "-c", script, "sh", "it's $HOME\n\"2\""]);
    let train: Vec<&str> = TRAIN.split(' ').filter(|word| !word.is_empty()).collect();
    let train = [&train[..], &["train.steps=5"]].concat();
    let second = user.submit(&format!("--after {first} --requeue"), &train);
    user.wait_for(&first, "completed");
    for rank in 0..2 {
        let log = user.0.shared().join(format!("jobs/sh/run-0/log/rank-{rank}.out"));
        let expected = format!("{rank} of 2, it's $HOME\n\"2\"\n");
        assert_eq!(std::fs::read_to_string(log).unwrap(), expected);
    }
    let job = user.job(&first);
    assert!(job["run_folder"].as_str().unwrap().ends_with("jobs/sh/run-0"), "{job}");
    user.wait_for(&second, "completed");
    let job = user.job(&second);
    assert_eq!((&job["progress"]["step"], &job["limit"]), (&5.into(), &600.into()), "{job}");
    let table = user.regatta(&["jobs"]).expect_success().stdout;
    assert!(table.contains("step 5/5"), "{table}");
    array(&user);
    torchrun(&user);
    time_limit(&user);
}

/// torchrun on each node, as on the pages of `docs/sites`, if there is a Python with PyTorch.
fn torchrun(user: &User) {
    let Some(python) = python_with("torch") else { return };
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/examples");
    let script = format!("{examples}/torchrun.sh");
    let program = format!("{examples}/ddp.py");
    let path = format!("export PATH={}:$PATH;", Path::new(&python).parent().unwrap().display());
    let script = format!("{path} exec sh {script} 1 {program} --steps 10 --hidden-size 16");
    let id = user.submit("--ranks-per-node 1 --name torchrun", &["sh", "-c", &script]);
    let is_open = |job: &Value| job["state"] == "pending" || job["state"] == "running";
    wait_until("torchrun to end", || !is_open(&user.job(&id)));
    let out = std::fs::read_to_string(user.0.shared().join("jobs/torchrun/job.out")).unwrap();
    assert!(out.contains("done: the weights of 2 ranks agree"), "{out}");
}

/// Each task of an array has its own folder, is listed, and goes back into the queue by itself: also
/// the last one, which has the ID of the array.
fn array(user: &User) {
    let script = "trap 'exit 75' TERM; echo started; while :; do sleep 0.1; done";
    let options = "--array 0-1%1 --requeue --ranks-per-node 1 --name tasks";
    let id = user.submit(options, &["sh", "-c", script]);
    for task in 0..2 {
        let log = user.0.shared().join(format!("jobs/tasks/task-{task}/run-0/log/rank-1.out"));
        wait_until("a task to start", || {
            std::fs::read_to_string(&log).is_ok_and(|text| text.contains("started"))
        });
        let job = user.job(&id);
        let name = format!("{id}_{task}");
        assert_eq!(
            (&job["state"], &job["tasks"][task]["id"]),
            (&"running".into(), &(*name).into())
        );
        run_ok(&mut user.0.login("scancel", ["--batch", "--signal=USR1", &name]));
        let state = |task: usize| user.job(&id)["tasks"][task]["state"].clone();
        wait_until("a task to be requeued", || state(task) == "pending");
        // With the ID of the array, all tasks would be requeued.
        assert!(task == 0 || state(0) == "cancelled", "only task {task} is requeued");
        run_ok(&mut user.0.login("scancel", [&name]));
        wait_until("a task to be cancelled", || state(task) == "cancelled");
    }
    user.wait_for(&id, "cancelled");
    let out = std::fs::read_to_string(user.0.shared().join("jobs/tasks/job-1.out")).unwrap();
    assert!(out.contains("started"), "{out}");
}

fn run_ok(command: &mut std::process::Command) {
    run(command).unwrap().expect_success();
}

/// The signal before the time limit: the training saves, and the job goes back into the queue.
fn time_limit(user: &User) {
    let train: Vec<&str> = TRAIN.split(' ').filter(|word| !word.is_empty()).collect();
    let endless: Vec<&str> = ENDLESS.split(' ').collect();
    let train = [&train[..], &endless, &["checkpoint.interval=1000000"]].concat();
    let id = user.submit("--requeue --name limited", &train);
    let run_dir = user.0.shared().join("jobs/limited/run");
    wait_until("steps", || last_step_in(&run_dir.join("metrics.jsonl")) > 0);
    let job = user.job(&id);
    assert_eq!(job["state"], "running", "{job}");
    assert!(job["progress"]["step"].as_u64().unwrap() > 0, "{job}");
    run(&mut user.0.login("scancel", ["--batch", "--signal=USR1", &id])).unwrap().expect_success();
    user.wait_for(&id, "pending");
    let step = last_step_in(&run_dir.join("metrics.jsonl"));
    assert!(run_dir.join(format!("checkpoints/step-{step:08}/checkpoint.json")).exists());
    run(&mut user.0.login("scancel", [&id])).unwrap().expect_success();
    user.wait_for(&id, "cancelled");
}
