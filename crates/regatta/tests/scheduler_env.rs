//! What the environment of a job makes of plan and environment, where no cluster is needed.

#![allow(clippy::unwrap_used, reason = "a test's own functions may panic as it may")]

mod support;

use support::{Run, command};

/// Two nodes that are not this one.
const JOB: [(&str, &str); 5] = [
    ("SLURM_JOB_ID", "77"),
    ("SLURM_JOB_NODELIST", "elsewhere[1-2]"),
    ("SLURM_JOB_NUM_NODES", "2"),
    ("SLURM_NTASKS", "2"),
    ("SLURM_TASKS_PER_NODE", "1(x2)"),
];

/// The second of its two ranks.
const SECOND: [(&str, &str); 8] = [
    ("SLURM_STEP_ID", "0"),
    ("SLURM_STEP_NODELIST", "elsewhere[1-2]"),
    ("SLURM_STEP_NUM_NODES", "2"),
    ("SLURM_STEP_NUM_TASKS", "2"),
    ("SLURM_STEP_TASKS_PER_NODE", "1(x2)"),
    ("SLURM_PROCID", "1"),
    ("SLURM_LOCALID", "0"),
    ("SLURM_NODEID", "1"),
];

fn run(words: &str, variables: &[&[(&str, &str)]]) -> Run {
    let variables = variables.iter().copied().flatten().copied();
    command().args(words.split_whitespace()).envs(variables).output().unwrap().into()
}

fn exported(run: Run, variable: &str) -> String {
    let text = run.ok();
    let start = format!("export {variable}=");
    let line = text.lines().find_map(|l| l.strip_prefix(&start));
    line.unwrap().split(';').next().unwrap().to_owned()
}

#[test]
fn ranks_of_torchrun_meet_at_its_store() {
    let torchrun = [
        ("TORCHELASTIC_RUN_ID", "none"),
        ("RANK", "1"),
        ("WORLD_SIZE", "2"),
        ("LOCAL_RANK", "0"),
        ("LOCAL_WORLD_SIZE", "1"),
        ("GROUP_RANK", "1"),
        ("MASTER_ADDR", "elsewhere2-hsn0"),
    ];
    let port = [("MASTER_PORT", "34567")];
    let run = |words: &str, port: &[(&str, &str)]| run(words, &[&JOB, &torchrun, port]);
    assert_eq!(exported(run("env", &port), "MASTER_ADDR"), "elsewhere2-hsn0");
    assert_eq!(exported(run("env", &port), "MASTER_PORT"), "34567");
    assert_eq!(exported(run("env --master-port 1234", &port), "MASTER_PORT"), "1234");
    let sentence = run("env", &[("MASTER_PORT", "http")]).sentence();
    assert!(sentence.contains("MASTER_PORT=http, set by torchrun, is no port"), "{sentence}");
}

#[test]
fn all_ranks_of_mpirun_in_a_slurm_job_find_one_port() {
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
    // On its own node mpirun starts ranks itself, on others by a daemon that srun started.
    let first = port("0", "4711", &[]);
    assert_eq!(first, port("1", "4711", &[("SLURM_STEP_ID", "0"), ("SLURM_PROCID", "0")]));
    assert_ne!(first, port("0", "4712", &[]), "the next mpirun of the job");
}

#[test]
fn a_login_node_does_not_pass_for_a_compute_node_unnoticed() {
    let wanted = "is no node of the job: the plan takes elsewhere[1-2] to be like it";
    for words in ["map", "map --format srun", "env --master-addr a"] {
        let text = run(words, &[&JOB]).err;
        assert!(text.contains(wanted), "{words}: {text}");
    }
    let quiet = |words: &str, more: &[(&str, &str)]| {
        let text = run(words, &[&JOB, more]).err;
        assert!(!text.contains("no node of the job"), "{words}: {text}");
    };
    quiet("map --system lumi-g", &[]);
    let made_up = support::line("map -N 2").err;
    assert!(!made_up.contains("no node of the job"), "nodes that only the plan has: {made_up}");
    quiet("map", &[("SLURMD_NODENAME", "elsewhere2")]);
    quiet("map", &SECOND);
}

#[test]
fn a_world_of_another_size_than_was_started_is_refused() {
    let unknown = ["SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE"];
    let known = SECOND.iter().copied().filter(|(name, _)| !unknown.contains(name));
    let second: Vec<(&str, &str)> = known.collect();
    let run = |words: &str| run(words, &[&JOB, &second]);
    let sentence = run("env --system dgx-h100 --master-addr a").sentence();
    assert!(sentence.contains("rank 1 of 2, but the nodes of the job would have 16"), "{sentence}");
    let told = run("env --system dgx-h100 --master-addr a --ranks-per-node 1");
    assert_eq!(exported(told, "WORLD_SIZE"), "2");
}

#[test]
fn the_coordinator_of_jax_hears_where_it_is_called() {
    for (address, bind) in [("fd00::1", "'[::]:1234'"), ("10.0.0.1", "0.0.0.0:1234")] {
        let words = format!("env --framework jax --master-port 1234 --master-addr {address}");
        assert_eq!(exported(run(&words, &[]), "JAX_COORDINATOR_BIND_ADDRESS"), bind);
    }
}

#[test]
fn a_rank_is_checked_against_its_own_kind_of_node() {
    let folder = support::Folder::new();
    let mut words = "map --check".to_owned();
    for (host, system) in [("elsewhere1", "lumi-g"), ("elsewhere2", "dgx-h100")] {
        let dump = support::line(&format!("map --system {system} --dump -")).ok();
        let mut machine: serde_json::Value = serde_json::from_str(&dump).unwrap();
        machine["host"] = host.into();
        let file = folder.write(&format!("{host}.json"), &machine.to_string());
        words.push_str(&format!(" --machine {file}"));
    }
    let out = run(&words, &[&JOB, &SECOND]).out;
    assert!(out.contains("rank 1: cpus: planned 1-55,"), "{out}");
    assert!(!out.contains("missing or down"), "the interface of the other kind: {out}");
}
