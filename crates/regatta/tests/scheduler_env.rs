//! Plans and rank environments under scheduler variables, without a cluster.

#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

mod support;

use support::{CommandOutput, command};

/// A Slurm job on two other nodes.
const JOB: [(&str, &str); 5] = [
    ("SLURM_JOB_ID", "77"),
    ("SLURM_JOB_NODELIST", "remote[1-2]"),
    ("SLURM_JOB_NUM_NODES", "2"),
    ("SLURM_NTASKS", "2"),
    ("SLURM_TASKS_PER_NODE", "1(x2)"),
];

/// The second of its two tasks.
const SECOND: [(&str, &str); 8] = [
    ("SLURM_STEP_ID", "0"),
    ("SLURM_STEP_NODELIST", "remote[1-2]"),
    ("SLURM_STEP_NUM_NODES", "2"),
    ("SLURM_STEP_NUM_TASKS", "2"),
    ("SLURM_STEP_TASKS_PER_NODE", "1(x2)"),
    ("SLURM_PROCID", "1"),
    ("SLURM_LOCALID", "0"),
    ("SLURM_NODEID", "1"),
];

fn run(words: &str, variables: &[&[(&str, &str)]]) -> CommandOutput {
    let variables = variables.iter().copied().flatten().copied();
    command().args(words.split_whitespace()).envs(variables).output().unwrap().into()
}

fn exported(run: CommandOutput, variable: &str) -> String {
    let text = run.ok();
    let start = format!("export {variable}=");
    let line = text.lines().find_map(|l| l.strip_prefix(&start));
    line.unwrap().split(';').next().unwrap().to_owned()
}

#[test]
fn ranks_under_torchrun_use_its_store() {
    let torchrun = [
        ("TORCHELASTIC_RUN_ID", "none"),
        ("RANK", "1"),
        ("WORLD_SIZE", "2"),
        ("LOCAL_RANK", "0"),
        ("LOCAL_WORLD_SIZE", "1"),
        ("GROUP_RANK", "1"),
        ("MASTER_ADDR", "remote2-hsn0"),
    ];
    let port = [("MASTER_PORT", "34567")];
    let run = |words: &str, port: &[(&str, &str)]| run(words, &[&JOB, &torchrun, port]);
    assert_eq!(exported(run("env", &port), "MASTER_ADDR"), "remote2-hsn0");
    assert_eq!(exported(run("env", &port), "MASTER_PORT"), "34567");
    assert_eq!(exported(run("env --master-port 1234", &port), "MASTER_PORT"), "1234");
    let error = run("env", &[("MASTER_PORT", "http")]).error_line();
    assert!(error.contains("MASTER_PORT=http, set by torchrun, is not a port"), "{error}");
}

#[test]
fn ranks_of_mpirun_in_a_slurm_job_derive_the_same_port() {
    let port = |rank: &str, start: &str, step: &[(&str, &str)]| {
        let mpirun = [
            ("OMPI_COMM_WORLD_RANK", rank),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "0"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "1"),
            ("PMIX_NAMESPACE", start),
        ];
        exported(run("env --master-addr a", &[&JOB, &mpirun, step]), "MASTER_PORT")
    };
    // mpirun starts local ranks itself, remote ones by a daemon that srun started.
    let first = port("0", "4711", &[]);
    assert_eq!(first, port("1", "4711", &[("SLURM_STEP_ID", "0"), ("SLURM_PROCID", "0")]));
    assert_ne!(first, port("0", "4712", &[]), "the next mpirun in the same job");
}

#[test]
fn planning_on_a_login_node_warns() {
    let expected = "is not a node of the job: the plan assumes that the job's nodes (remote[1-2])";
    for words in ["map", "map --format srun", "env --master-addr a"] {
        let text = run(words, &[&JOB]).err;
        assert!(text.contains(expected), "{words}: {text}");
    }
    let quiet = |words: &str, more: &[(&str, &str)]| {
        let text = run(words, &[&JOB, more]).err;
        assert!(!text.contains("not a node of the job"), "{words}: {text}");
    };
    quiet("map --system lumi-g", &[]);
    let hypothetical = support::run_line("map -N 2").err;
    assert!(!hypothetical.contains("not a node of the job"), "hypothetical nodes: {hypothetical}");
    quiet("map", &[("SLURMD_NODENAME", "remote2")]);
    quiet("map", &SECOND);
}

#[test]
fn world_size_mismatch_with_the_launcher_is_rejected() {
    let unknown = ["SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE"];
    let known = SECOND.iter().copied().filter(|(name, _)| !unknown.contains(name));
    let second: Vec<(&str, &str)> = known.collect();
    let run = |words: &str| run(words, &[&JOB, &second]);
    let error = run("env --system dgx-h100 --master-addr a").error_line();
    assert!(error.contains("rank 1 of 2, but the plan has 16 ranks"), "{error}");
    let explicit = run("env --system dgx-h100 --master-addr a --ranks-per-node 1");
    assert_eq!(exported(explicit, "WORLD_SIZE"), "2");
}

#[test]
fn jax_coordinator_binds_the_address_family_of_the_master() {
    for (address, bind) in [("fd00::1", "'[::]:1234'"), ("10.0.0.1", "0.0.0.0:1234")] {
        let words = format!("env --framework jax --master-port 1234 --master-addr {address}");
        assert_eq!(exported(run(&words, &[]), "JAX_COORDINATOR_BIND_ADDRESS"), bind);
    }
}

#[test]
fn check_uses_the_machine_of_the_rank() {
    let folder = support::TempDir::new();
    let mut words = "map --check".to_owned();
    for (host, system) in [("remote1", "lumi-g"), ("remote2", "dgx-h100")] {
        let dump = support::run_line(&format!("map --system {system} --dump -")).ok();
        let mut machine: serde_json::Value = serde_json::from_str(&dump).unwrap();
        machine["host"] = host.into();
        let file = folder.write(&format!("{host}.json"), &machine.to_string());
        words.push_str(&format!(" --machine {file}"));
    }
    let out = run(&words, &[&JOB, &SECOND]).out;
    assert!(out.contains("rank 1: cpus: planned 1-55,"), "{out}");
    assert!(!out.contains("missing or down"), "the other machine's NIC: {out}");
}
