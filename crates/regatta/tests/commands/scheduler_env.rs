//! Plans and rank environments under scheduler variables, without a cluster.

use regatta_testbed::assert_contains;
use serde_json::Value;

use crate::support::{CommandOutput, TempDir, command, run_line};

/// A Slurm job on two other nodes.
const JOB: &str = "SLURM_JOB_ID=77 SLURM_JOB_NODELIST=remote[1-2] SLURM_JOB_NUM_NODES=2 \
                   SLURM_NTASKS=2 SLURM_TASKS_PER_NODE=1(x2)";

/// The second of its two tasks, without the numbers of tasks in the step.
const SECOND: &str = "SLURM_STEP_ID=0 SLURM_STEP_NODELIST=remote[1-2] SLURM_STEP_NUM_NODES=2 \
                      SLURM_PROCID=1 SLURM_LOCALID=0 SLURM_NODEID=1";

const STEP_TASKS: &str = "SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=1(x2)";

/// Runs the binary with these arguments and environment variables.
fn run(words: &str, variables: &str) -> CommandOutput {
    let variables = variables.split_whitespace().map(|word| word.split_once('=').unwrap());
    command().args(words.split_whitespace()).envs(variables).output().unwrap().into()
}

/// Runs the binary in the Slurm job.
fn run_in_job(words: &str, variables: &str) -> CommandOutput {
    run(words, &format!("{JOB} {variables}"))
}

fn exported(run: CommandOutput, variable: &str) -> String {
    let text = run.ok();
    let start = format!("export {variable}=");
    let line = text.lines().find_map(|l| l.strip_prefix(&start));
    line.unwrap().split(';').next().unwrap().to_owned()
}

#[test]
fn ranks_under_torchrun_use_its_store() {
    let torchrun = "TORCHELASTIC_RUN_ID=none RANK=1 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 \
                    GROUP_RANK=1 MASTER_ADDR=remote2-hsn0";
    let run =
        |words: &str, port: &str| run_in_job(words, &format!("{torchrun} MASTER_PORT={port}"));
    assert_eq!(exported(run("env", "34567"), "MASTER_ADDR"), "remote2-hsn0");
    assert_eq!(exported(run("env", "34567"), "MASTER_PORT"), "34567");
    assert_eq!(exported(run("env --master-port 1234", "34567"), "MASTER_PORT"), "1234");
    run("env", "http").assert_error("MASTER_PORT=http is not a port");
}

#[test]
fn ranks_of_mpirun_in_a_slurm_job_derive_the_same_port() {
    let port = |variables: &str| {
        let mpirun = "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0 \
                      OMPI_COMM_WORLD_LOCAL_SIZE=1";
        let run = run_in_job("env --master-addr a", &format!("{mpirun} {variables}"));
        exported(run, "MASTER_PORT")
    };
    // mpirun starts local ranks itself, remote ones by a daemon that srun started.
    let local = port("PMIX_NAMESPACE=4711 OMPI_COMM_WORLD_RANK=0");
    let step = "SLURM_STEP_ID=0 SLURM_PROCID=0";
    assert_eq!(local, port(&format!("PMIX_NAMESPACE=4711 OMPI_COMM_WORLD_RANK=1 {step}")));
    let next = port("PMIX_NAMESPACE=4712 OMPI_COMM_WORLD_RANK=0");
    assert_ne!(local, next, "the next mpirun in the same job");
}

#[test]
fn job_script_gets_no_rank() {
    let script = run_in_job("env --system dgx-h100 --ranks-per-node 8 --master-addr a", "");
    let script = script.assert_stderr("this process is not a rank of the job");
    let text = script.assert_ok(["export WORLD_SIZE=16;", "export MASTER_ADDR=a;"]);
    for name in ["RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"] {
        assert!(!text.contains(&format!("export {name}=")), "{name}: {text}");
    }
    let rank =
        run_in_job("env --system dgx-h100 --master-addr a", &format!("{SECOND} {STEP_TASKS}"));
    assert_eq!(exported(rank, "RANK"), "1");
    // The only rank of a job may be its script.
    let one = "SLURM_JOB_ID=7 SLURM_JOB_NODELIST=remote1 SLURM_NTASKS=1 SLURM_TASKS_PER_NODE=1";
    assert_eq!(exported(run("env --system dgx-h100", one), "RANK"), "0");
}

#[test]
fn pals_rank_without_node_file_uses_the_master_of_the_job_script() {
    let rank = "PBS_JOBID=1234567.aurora-pbs-0001.hostmgmt.cm.aurora.alcf.anl.gov PALS_RANKID=14 \
                PALS_NODEID=1 PALS_APID=d6c2 PMI_RANK=14 PMI_SIZE=24 PALS_LOCAL_RANKID=2 \
                PALS_LOCAL_SIZE=12";
    let env = |more: &str| run("env --system aurora", &format!("{rank} {more}"));
    env("").assert_error(["does not report the host of rank 0", "--master-addr"]);
    let script = "MASTER_ADDR=10.0.0.1 REGATTA_ENV=MASTER_ADDR,MASTER_PORT MASTER_PORT=1234";
    assert_eq!(exported(env(script), "MASTER_ADDR"), "10.0.0.1");
    assert_eq!(exported(env(script), "RANK"), "14");
    assert_ne!(exported(env(script), "MASTER_PORT"), "1234", "of this launch, not of the script");
    env("MASTER_ADDR=localhost").assert_error("MASTER_ADDR=localhost is a loopback address");
}

#[test]
fn node_of_lumi_is_recognised_by_what_it_prints() {
    let file =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../discover/tests/fixtures/hwloc/four-mi250x.xml");
    let job = "SLURM_JOB_ID=7 SLURM_JOB_NODELIST=nid[005020-005021] SLURM_CLUSTER_NAME=";
    for (cluster, site) in [("lumi", "LUMI-G"), ("frontier", "Frontier")] {
        let run = run(&format!("map --machine {file}"), &format!("{job}{cluster}"));
        run.assert_ok(&*format!("(the cluster name \"{cluster}\" identifies {site})"));
    }
}

#[test]
fn planning_on_a_login_node_warns() {
    let expected = "is not a node of the job: the plan assumes that the job's nodes (remote[1-2])";
    for words in ["map", "map --format srun", "env --master-addr a"] {
        run_in_job(words, "").assert_stderr(expected);
    }
    for (case, run) in [
        ("a described system", run_in_job("map --system lumi-g", "")),
        ("hypothetical nodes", run_line("map -N 2")),
        ("a node of the job", run_in_job("map", "SLURMD_NODENAME=remote2")),
        ("a task", run_in_job("map", &format!("{SECOND} {STEP_TASKS}"))),
    ] {
        assert!(!run.err.contains("not a node of the job"), "{case}: {}", run.err);
    }
}

#[test]
fn world_size_mismatch_with_the_launcher_is_rejected() {
    // The step has another number of tasks than the job, and its own list is missing.
    let step = format!("{SECOND} SLURM_NTASKS=2 SLURM_TASKS_PER_NODE=8(x2)");
    let run = |options: &str| {
        run_in_job(&format!("env --system dgx-h100 --master-addr a {options}"), &step)
    };
    run("").assert_error("rank 1 of 2, but the plan has 16 ranks");
    assert_eq!(exported(run("--ranks-per-node 1"), "WORLD_SIZE"), "2");
}

#[test]
fn jax_coordinator_binds_the_address_family_of_the_master_and_a_loopback_address_alone() {
    for (address, bind) in [
        ("--master-addr fd00::1", "'[::]:1234'"),
        ("--master-addr 10.0.0.1", "0.0.0.0:1234"),
        ("--master-addr ::1", "'[::1]:1234'"),
        // The job has one node.
        ("", "127.0.0.1:1234"),
    ] {
        let words = format!("env --framework jax --master-port 1234 {address}");
        assert_eq!(exported(run(&words, ""), "JAX_COORDINATOR_BIND_ADDRESS"), bind);
    }
}

#[test]
fn check_uses_the_machine_of_the_rank() {
    let folder = TempDir::new();
    let mut words = "map --check".to_owned();
    for (host, system) in [("remote1", "lumi-g"), ("remote2", "dgx-h100")] {
        let mut machine: Value = run_line(&format!("map --system {system} --dump -")).json();
        machine["host"] = host.into();
        let file = folder.write(&format!("{host}.json"), machine.to_string());
        words.push_str(&format!(" --machine {file}"));
    }
    let out = run_in_job(&words, &format!("{SECOND} {STEP_TASKS}")).out;
    assert_contains(&out, "rank 1: cpus: planned 1-55,");
    assert!(!out.contains("missing or down"), "the other machine's NIC: {out}");
}
