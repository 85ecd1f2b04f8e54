//! Slurm on this machine's CPUs: steps, batch scripts and allocations without a step.

use std::net::TcpListener;
use std::time::Duration;

use regatta_testbed::{Cluster, assert_contains, run};
use serde_json::Value;

use crate::support::{REGATTA, from_json};
use crate::test_cluster::{
    HYDRA, OMPI_AS_ROOT, OPEN_MPI, TestCluster, assert_allocation, assert_environment,
    programs_or_skip,
};

/// `node1` on the cluster's network.
const NODE1: &str = "10.77.0.1";
/// Named, because Slurm would pick others while these still clean up after the previous job.
const NODES: &str = "-wnode1,node2";
/// The port for [`listens_on_a_port`].
const PORT: &str = "REGATTA_TEST_PORT";

#[test]
fn allocation_and_environment_are_correct_under_slurm() {
    let Some(cluster) = TestCluster::or_skip(&Cluster::builder().nodes(3)) else { return };
    steps(&cluster);
    no_step(&cluster);
    launchers_inside(&cluster);
    same_port(&cluster);
    rendezvous(&cluster);
    port_in_use(&cluster);
    contradictory_variables(&cluster);
    launch_per_task(&cluster);
    variables_exclude_spares(&cluster);
    launcher_options(&cluster);
    smoke(&cluster);
}

/// `regatta train --smoke` on several nodes, with ranks started by `srun` or by agents in an
/// allocation.
fn smoke(cluster: &TestCluster) {
    let assert_passed = |text: &str| {
        let found: Value = from_json(text);
        assert_eq!(found["passed"], true, "{text}");
        let checks = found["checks"].as_array().unwrap();
        assert!(checks.iter().any(|check| check["check"] == "checkpoint"), "{text}");
        let world = checks.iter().find(|check| check["check"] == "join").unwrap().to_string();
        assert_contains(world, ["\"ranks\":4", "\"hosts\":2"]);
    };
    let run_dir = |name: &str| cluster.hosts.shared().join(name).display().to_string();
    let words = ["train", "--smoke", "train.steps=5", "train.threads=1", "--json", "--run-dir"];
    let export = format!("--export=ALL,REGATTA_SECRET_FILE={}", cluster.secret_file());
    let options = [NODES, "--ntasks-per-node=2", &export];
    let folder = run_dir("smoke-by-srun");
    let by_srun = [&words[..], &[&folder]].concat();
    let job = cluster.srun(&[], &options, &by_srun).assert_success();
    assert_eq!(job.hosts(), ["node1", "node1", "node2", "node2"]);
    assert_passed(&job.ranks[0].text);
    let mut inside = cluster.hosts.login("salloc", ["--quiet", NODES, "--exclusive", REGATTA]);
    inside.args(words).arg(run_dir("smoke-in-salloc")).args(["--ranks-per-node", "2"]);
    assert_passed(&run(&mut inside).unwrap().expect_success().stdout);
}

/// `regatta launch` as the task of `srun` becomes that rank, bound as planned.
fn launch_per_task(cluster: &TestCluster) {
    let script = "echo $RANK $WORLD_SIZE $LOCAL_RANK $MASTER_ADDR $MASTER_PORT; \
                  grep Cpus_allowed_list /proc/self/status";
    let options = [NODES, "--ntasks-per-node=2", "--cpu-bind=none"];
    let job = cluster.srun(&[], &options, &["launch", "--", "sh", "-c", script]).assert_success();
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let port = words(&job.ranks[0].text)[4].clone();
    for (rank, number) in job.ranks.iter().zip(0..) {
        let local: u32 = number % 2;
        let output = words(&rank.text);
        let expected = [&number.to_string(), "4", &local.to_string(), NODE1, &port];
        assert_eq!(output[..5], expected, "{}", rank.text);
        assert_eq!(output[6], local.to_string(), "one of the node's two CPUs: {}", rank.text);
    }
}

fn steps(cluster: &TestCluster) {
    let block = &["node1", "node1", "node2", "node2"][..];
    let cases: [(&[&str], &[&str], &[&str]); 5] = [
        (&[], &[NODES, "--ntasks-per-node=2"], block),
        (&[], &[NODES, "--ntasks-per-node=2", "--mpi=pmi2"], block),
        (&[], &[NODES, "-n3"], &["node1", "node1", "node2"]),
        (&[], &[NODES, "-n3", "-mcyclic"], &["node1", "node2", "node1"]),
        // A step on a subset of the job's nodes.
        (&["-N3"], &["-wnode2,node3", "-N2", "--ntasks-per-node=1"], &["node2", "node3"]),
    ];
    for (salloc, options, hosts) in cases {
        let job = cluster.srun(salloc, options, &["map", "--json"]).assert_success();
        assert_eq!(job.hosts(), hosts, "{options:?}");
        assert_allocation(&job, "srun");
    }
}

/// A batch script runs on the job's first node, the command of `salloc` on the login host; neither
/// is a rank.
fn no_step(cluster: &TestCluster) {
    let script = format!("scontrol show hostnames $SLURM_JOB_NODELIST; exec {REGATTA} map --json");
    let script = cluster.file("job.sh", &format!("#!/bin/sh\n{script}\n"));
    let out = cluster.hosts.shared().join("batch");
    let job = ["-w", "node1,node3", "-n3", "--ntasks-per-node=2", "-o", out.to_str().unwrap()];
    let output = run(cluster.hosts.login("sbatch", ["--wait"]).args(job).arg(&script)).unwrap();
    let batch = std::fs::read_to_string(&out).unwrap_or_default();
    assert!(output.status.success(), "{output:?} {batch}");
    assert_no_step(&batch, "node1", [2, 1]);
    // Unlike sbatch, salloc raises the number of tasks to fill the nodes.
    let mut salloc = cluster.hosts.login("salloc", &job[..4]);
    let output = run(salloc.args(["sh", &script])).unwrap().expect_success();
    assert_no_step(&output.stdout, "login", [2, 2]);
}

/// `text` holds what `scontrol show hostnames` printed, then the JSON.
fn assert_no_step(text: &str, host: &str, ranks: [u64; 2]) {
    let mut lines: Vec<&str> = text.lines().collect();
    let json: Value = serde_json::from_str(lines.pop().unwrap()).unwrap();
    let allocation = &json["allocation"];
    assert_eq!(json["machines"][0]["host"], host);
    assert_eq!((&allocation["this_rank"], &allocation["launcher"]), (&Value::Null, &Value::Null));
    assert_eq!(allocation["scheduler"], "slurm");
    let nodes = allocation["nodes"].as_array().unwrap();
    let named: Vec<&str> = nodes.iter().filter_map(|n| n["host"].as_str()).collect();
    assert_eq!(named, lines);
    assert_eq!(named, ["node1", "node3"]);
    let counts: Vec<u64> = nodes.iter().filter_map(|n| n["ranks"].as_u64()).collect();
    assert_eq!(counts, ranks);
    assert_eq!(json["placement"]["ranks"], ranks[0] + ranks[1]);
    let warnings = json["placement"]["warnings"].as_array().unwrap();
    let stand_in = warnings.iter().any(|w| w["code"] == "stand-in");
    assert_eq!(stand_in, host == "login", "warning only on the login host: {warnings:?}");
}

/// Other launchers in a Slurm job start their daemons by `srun`: Slurm's task variables are not the
/// rank's.
fn launchers_inside(cluster: &TestCluster) {
    let script = format!("{REGATTA} map --json > $0-${{PMI_RANK:-$OMPI_COMM_WORLD_RANK}}");
    for (launcher, program) in [("hydra", HYDRA), ("openmpi", OPEN_MPI)] {
        let Some(()) = programs_or_skip(&[program]) else { continue };
        let out = cluster.hosts.shared().join(launcher);
        let mut salloc = cluster.hosts.login("salloc", [NODES, "--ntasks-per-node=2", program.0]);
        salloc.args(["sh", "-c", &script]).arg(&out).envs(OMPI_AS_ROOT);
        run(&mut salloc).unwrap().expect_success();
        for (rank, host) in ["node1", "node1", "node2", "node2"].into_iter().enumerate() {
            let text = std::fs::read_to_string(format!("{}-{rank}", out.display())).unwrap();
            let json: Value = from_json(&text);
            let expected = serde_json::json!({
                "rank": rank, "size": 4, "local_rank": rank % 2, "local_size": 2, "node": rank / 2,
            });
            assert_eq!(json["allocation"]["this_rank"], expected, "{launcher}");
            assert_eq!(json["allocation"]["launcher"], launcher);
            assert_eq!(json["machines"][0]["host"], host, "{launcher}");
        }
    }
}

/// mpirun starts ranks on the batch node itself, those on the other node by a step; all derive the
/// same port.
fn same_port(cluster: &TestCluster) {
    for program in [HYDRA, OPEN_MPI] {
        let Some(()) = programs_or_skip(&[program]) else { continue };
        let out = cluster.hosts.shared().join(format!("{}-ports", program.0));
        let rank = format!("{REGATTA} env --master-addr node1 | grep MASTER_PORT= | cut -d';' -f1");
        let rank = cluster.file("rank.sh", &format!("#!/bin/sh\n{rank}\n"));
        let script = format!("#!/bin/sh\n{} -n 4 sh {rank}\n", program.0);
        let script = cluster.file("ports.sh", &script);
        let options = ["--wait", NODES, "--ntasks-per-node=2", "-o"];
        let mut sbatch = cluster.hosts.login("sbatch", options);
        let output = run(sbatch.arg(&out).arg(&script).envs(OMPI_AS_ROOT)).unwrap();
        let text = std::fs::read_to_string(&out).unwrap_or_default();
        assert!(output.status.success(), "{output:?} {text}");
        let ports: Vec<&str> =
            text.lines().filter(|l| l.starts_with("export MASTER_PORT=")).collect();
        assert_eq!(ports.len(), 4, "{text}");
        assert!(ports.iter().all(|port| *port == ports[0]), "{}: {ports:?}", program.0);
    }
}

fn rendezvous(cluster: &TestCluster) {
    let port = |options: &[&str]| {
        let job = cluster.srun(&[], options, &["env", "--json"]).assert_success();
        assert_environment(&job, NODE1);
        job.ranks[0].variables()["MASTER_PORT"].clone()
    };
    let block = port(&[NODES, "--ntasks-per-node=2"]);
    assert_ne!(block, port(&[NODES, "-n3", "-mcyclic"]), "two jobs share a port");
}

/// Rank 0 listens on its port and runs `env` again in the same step, which derives the same port.
fn port_in_use(cluster: &TestCluster) {
    let test = std::env::current_exe().unwrap();
    let script = format!(
        "eval \"$({REGATTA} env)\"; echo port $MASTER_PORT
         {PORT}=$MASTER_PORT {} --ignored --exact slurm::listens_on_a_port >/dev/null & other=$!
         for i in $(seq 200); do [ -e listening ] && break; sleep 0.05; done
         {REGATTA} env > /dev/null; status=$?; kill $other; exit $status",
        test.display()
    );
    let output = run(&mut cluster.hosts.login("srun", ["-wnode1", "sh", "-c", &script])).unwrap();
    let port = output.stdout.split_once("port ").unwrap().1.lines().next().unwrap();
    assert!(!output.status.success(), "{output:?}");
    let expected = format!("MASTER_PORT {port}, a hash of the job ID, is in use on node1");
    assert_contains(output.stderr, [&*expected, "--master-port"]);
}

/// Not a test by itself: listens on a port until killed.
#[test]
#[ignore = "run by allocation_and_environment_are_correct_under_slurm"]
fn listens_on_a_port() {
    let Ok(port) = std::env::var(PORT) else { return };
    let _listener = TcpListener::bind(("0.0.0.0", port.parse().unwrap())).unwrap();
    std::fs::write("listening", "").unwrap();
    std::thread::sleep(Duration::from_secs(30));
}

fn contradictory_variables(cluster: &TestCluster) {
    for (environment, error) in [
        (
            "unset SLURM_JOB_NUM_NODES; export SLURM_NNODES=4",
            "SLURM_JOB_NODELIST=node[1-2] and SLURM_NNODES=4",
        ),
        (
            "export SLURM_JOB_NODELIST=node1 SLURM_NODELIST=node1",
            "SLURM_JOB_NODELIST=node1 and SLURM_JOB_NUM_NODES=2",
        ),
        (
            "export SLURM_NTASKS=16 SLURM_NPROCS=16",
            "SLURM_TASKS_PER_NODE=1(x2) and SLURM_NTASKS=16",
        ),
    ] {
        let script = format!("{environment}; {REGATTA} env");
        let args = ["--quiet", NODES, "-n2", "sh", "-c", &script];
        let output = run(&mut cluster.hosts.login("salloc", args)).unwrap();
        assert!(!output.status.success(), "{output:?}");
        assert_contains(output.stdout, "exit 1");
        assert_contains(output.stderr, error);
    }
}

/// Programs read the number of nodes and rank 0's host from these variables.
fn variables_exclude_spares(cluster: &TestCluster) {
    let print = "echo $SLURM_NNODES $SLURM_STEP_NUM_NODES $SLURM_STEP_NODELIST";
    let words = ["-Q", NODES, "--exclusive", REGATTA, "launch", "--spares", "1"];
    let command = ["--ranks-per-node", "1", "--run-dir", "spare", "--", "sh", "-c", print];
    let out = run(cluster.hosts.login("salloc", words).args(command)).unwrap();
    assert!(out.stdout.contains("1 1 node1\n"), "{out:?}");
}

/// Options of the agents' step: those of the site's settings, and the user's, which also a job on one
/// node needs.
fn launcher_options(cluster: &TestCluster) {
    let profile = cluster.hosts.shared().join("site.toml");
    let text = "name = \"site\"\n[[set]]\nvariable = \"A\"\nvalue = \"1\"\nwhy = \"Why.\"\n\
                when = { nodes = \">1\" }\nrequires = { srun = \"--network=disable_rdzv_get\" }\n";
    std::fs::write(&profile, text).unwrap();
    let file = profile.to_str().unwrap();
    let site = ["--site-file", file, "--site", "site", "--ranks-per-node", "1"];
    let launch = |nodes: &str, options: &[&str], command: &[&str]| {
        let words = ["-Q", nodes, "--exclusive", REGATTA, "launch"];
        let mut salloc = cluster.hosts.login("salloc", words);
        run(salloc.args(site).args(options).arg("--").args(command))
            .unwrap()
            .expect_success()
            .stdout
    };
    let dry_run = launch(NODES, &["--dry-run"], &["true"]);
    assert_contains(&dry_run, [" --network=disable_rdzv_get ", "Without it, A=1 has no effect."]);
    assert_contains(
        launch(NODES, &["--run-dir", "network"], &["sh", "-c", "echo ran $A"]),
        "ran 1",
    );
    let export = "--launcher-option=--export=ALL,MARK=by-srun";
    let one = launch("-wnode1", &[export, "--run-dir", "mark"], &["sh", "-c", "echo $MARK"]);
    assert_contains(one, "by-srun");
}
