//! Unmodified programs of training frameworks on two nodes of Slurm, where the frameworks are
//! installed: their own detection of Slurm must agree with the environment of the ranks.

use std::time::Duration;

use regatta_testbed::{Cluster, assert_contains, cluster_or_skip, run_within};

use crate::support::REGATTA;
use crate::support::python::{Installed, LAUNCHED, Program};

const NODES: u32 = 2;
const RANKS_PER_NODE: u32 = 2;
/// Timeout of a job, the first of which may compile an extension.
const LIMIT: Duration = Duration::from_secs(300);

#[test]
fn frameworks_run_in_an_allocation_and_under_srun() {
    let Some(cluster) = cluster_or_skip(&Cluster::builder().nodes(NODES).cpus(2)) else { return };
    for program in LAUNCHED {
        let Some(installed) = program.install(cluster.shared()) else { continue };
        launch_in_allocation(&cluster, program, &installed);
        env_in_tasks(&cluster, program, &installed);
    }
}

fn launch_in_allocation(cluster: &Cluster, program: Program, installed: &Installed) {
    let launch = format!(
        "salloc --quiet -N{NODES} --exclusive {REGATTA} launch --run-dir {}-run \
         --ranks-per-node {RANKS_PER_NODE} {}",
        program.name,
        installed.launch_words(NODES, RANKS_PER_NODE)
    );
    assert_runs(cluster, program, installed, &shlex::split(&launch).unwrap());
}

fn env_in_tasks(cluster: &Cluster, program: Program, installed: &Installed) {
    let script = installed.task_script(REGATTA, NODES, RANKS_PER_NODE);
    let tasks = format!("--ntasks-per-node={RANKS_PER_NODE}");
    let srun = ["srun", &format!("-N{NODES}"), &tasks, "sh", "-c", &script].map(str::to_owned);
    assert_runs(cluster, program, installed, &srun);
}

/// Asserts that every rank has printed its line.
fn assert_runs(cluster: &Cluster, program: Program, installed: &Installed, words: &[String]) {
    let mut command = cluster.login("env", [""; 0]);
    command.args(installed.variables().iter().map(|(name, value)| format!("{name}={value}")));
    let out = run_within(command.args(words), LIMIT).unwrap();
    assert!(out.status.success(), "{words:?}: {}\n{}", out.stdout, out.stderr);
    for line in program.lines(NODES * RANKS_PER_NODE) {
        assert_contains(&out.stdout, &*line);
    }
}
