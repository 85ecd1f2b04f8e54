//! One job on many nodes under every agent launcher: ranks, environment and binding are the same.

use std::path::{Path, PathBuf};
use std::time::Duration;

use regatta_model::result::RunResult;
use regatta_model::{Placement, document};
use regatta_testbed::{
    Cluster, CommandOutput, assert_contains, cluster_or_skip, run_within, wait_until,
    write_with_mode,
};

use crate::support::REGATTA;
use crate::support::python::python_with;
use crate::test_cluster::{HYDRA, OMPI_AS_ROOT, OPEN_MPI, programs_or_skip};

/// Timeout of a job.
const LIMIT: Duration = Duration::from_secs(180);
const NODES: usize = 16;
/// Ranks per node.
const RANKS_PER_NODE: usize = 2;

/// Prints a rank's indices, host, master address, binding and forwarded environment. The variables of
/// the agent launcher's MPI job must be empty.
const PRINT: &str = "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK $(hostname) \
                    $MASTER_ADDR $MASTER_PORT $(grep Cpus_allowed_list /proc/self/status | cut -f2) \
                    \"$CARRIED\" [$PMI_RANK$PMIX_RANK$OMPI_COMM_WORLD_RANK$FLUX_TASK_RANK]";

/// A plain PyTorch DDP program.
const DDP: &str = include_str!("ddp.py");

/// A cluster with launch commands.
struct LaunchCluster {
    hosts: Cluster,
    /// A folder at the front of PATH.
    bin: PathBuf,
}

impl LaunchCluster {
    fn new(hosts: Cluster) -> Self {
        let bin = hosts.shared().join("bin");
        std::fs::create_dir(&bin).unwrap();
        let cluster = Self { hosts, bin };
        let ssh = cluster.hosts.ssh_command();
        cluster.script("ssh-here", &format!("exec {} \"$@\"", ssh.join(" ")));
        cluster.file("nodes", &(cluster.hosts.nodes().join("\n") + "\n"));
        cluster.script("flux", FLUX);
        cluster
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.hosts.shared().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn script(&self, name: &str, text: &str) {
        write_with_mode(self.bin.join(name), 0o755, format!("#!/bin/sh\n{text}\n"));
    }

    /// Runs a command line on the login host, with the environment for MPI launchers.
    fn run(&self, words: &str) -> CommandOutput {
        let path = std::env::var("PATH").unwrap_or_default();
        let ssh = self.bin.join("ssh-here");
        let mut command = self.hosts.login("env", [""; 0]);
        command.arg(format!("PATH={}:{path}", self.bin.display()));
        command.arg(format!("HYDRA_LAUNCHER_EXEC={}", ssh.display()));
        command.arg(format!("OMPI_MCA_plm_rsh_agent={}", ssh.display()));
        command.args(["HYDRA_LAUNCHER=ssh", "CARRIED=over the wire"]);
        command.args(OMPI_AS_ROOT.map(|(name, value)| format!("{name}={value}")));
        command.args(shlex::split(words).unwrap()).current_dir(self.hosts.shared());
        run_within(&mut command, LIMIT).unwrap()
    }

    /// Options to launch over ssh on the hosts of a file.
    fn ssh_options(&self, hostfile: &str) -> String {
        format!("--hostfile {hostfile} --ssh '{}'", self.hosts.ssh_command().join(" "))
    }

    /// Name of each agent launcher, the words before `regatta`, and its options.
    fn launchers(&self) -> [(&'static str, String, String); 5] {
        let nodes = format!("{}/nodes", self.hosts.shared().display());
        let pbs = format!("env PBS_JOBID=7.server PBS_NODEFILE={nodes}");
        let before = |words: &str| (words.to_owned(), String::new());
        [
            ("srun", before("salloc -N16 --exclusive --quiet")),
            ("ssh", (String::new(), self.ssh_options(&nodes))),
            ("hydra", before(&pbs)),
            ("openmpi", before(&pbs)),
            ("flux", before("env FLUX_JOB_ID=f1")),
        ]
        .map(|(name, (before, options))| (name, before, options))
    }

    /// Launches a job with a launcher of [`Self::launchers`]; returns its run folder.
    fn launch(
        &self,
        (launcher, before, own): &(&'static str, String, String),
        job: &str,
        words: &str,
    ) -> PathBuf {
        let folder = self.hosts.shared().join(format!("{job}-{launcher}"));
        let mpiexec = if *launcher == "hydra" { HYDRA.0 } else { "mpiexec.openmpi" };
        self.script("mpiexec", &format!("exec {mpiexec} \"$@\""));
        let run_dir = folder.display();
        let out = self.run(&format!("{before} {REGATTA} launch --run-dir {run_dir} {own} {words}"));
        assert!(out.status.success(), "{launcher}: {}\n{}", out.stdout, out.stderr);
        folder
    }
}

/// Emulates Flux, which is not packaged: starts one process per host by ssh, with Flux's variables and
/// without standard input.
const FLUX: &str = r#"
folder=${0%/*}
if [ "$1 $2" = "hostlist local" ]; then paste -sd, "$folder/../nodes"; exit; fi
while :; do case $1 in
    --nodes=*) nodes=${1#*=}; shift;;
    run|-*) [ "$1" = -o ] && shift; shift;;
    *) break;;
esac; done
n=0
head -n "$nodes" "$folder/../nodes" > "$folder/flux-nodes"
while read -r host; do
    "$folder/ssh-here" -n "$host" FLUX_JOB_ID=f1 FLUX_TASK_RANK=$n CARRIED="'$CARRIED'" "$*" &
    n=$((n + 1))
done < "$folder/flux-nodes"
wait
"#;

fn read<D: document::Document>(run: &Path, name: &str) -> D {
    document::from_json(&std::fs::read_to_string(run.join(name)).unwrap()).unwrap()
}

/// Asserts that every rank matches the placement and that all ranks share a rendezvous.
fn assert_ranks(launcher: &str, run: &Path, nodes: usize, ranks_per_node: usize) {
    let placement: Placement = read(run, "placement.json");
    assert_eq!((placement.nodes.len(), placement.ranks as usize), (nodes, nodes * ranks_per_node));
    let mut rendezvous = std::collections::HashSet::new();
    for rank in 0..placement.ranks {
        let (node, placed, own) = placement.find_rank(rank).unwrap();
        let text = std::fs::read_to_string(run.join(format!("log/rank-{rank}.out"))).unwrap();
        assert!(text.ends_with("over the wire []\n"), "{launcher}: {text}");
        let words: Vec<&str> = text.split_whitespace().collect();
        let expected =
            [rank as usize, nodes * ranks_per_node, own.local_rank as usize, ranks_per_node, node];
        assert_eq!(words[..5], expected.map(|n| n.to_string()), "{text}");
        assert_eq!((words[5], words[8]), (placed.host.as_str(), own.cpus.to_string().as_str()));
        rendezvous.insert((words[6].to_owned(), words[7].to_owned()));
    }
    assert_eq!(rendezvous.len(), 1, "{rendezvous:?}");
    let result: RunResult = read(run, "result.json");
    assert_eq!((result.exit_code, result.rank_exits.len()), (0, nodes * ranks_per_node));
    let left: Vec<_> = std::fs::read_dir(run.join("log")).unwrap().flatten().collect();
    assert_eq!(left.len(), 2 * nodes * ranks_per_node, "only logs: {left:?}");
    assert!(!run.join("boot").exists() && !run.join("boot.hosts").exists());
}

#[test]
fn job_is_identical_under_every_agent_launcher() {
    let builder = Cluster::builder().nodes(NODES as u32).cpus(2).ssh(true);
    let Some(()) = programs_or_skip(&[HYDRA, OPEN_MPI]) else { return };
    let Some(cluster) = cluster_or_skip(&builder) else { return };
    let cluster = LaunchCluster::new(cluster);
    let python = python_with("torch");
    let ddp = cluster.file("ddp.py", DDP);
    for launcher in cluster.launchers() {
        let options = "--ranks-per-node 2 --oversubscribe --fan-out 3";
        let folder = cluster.launch(&launcher, "run", &format!("{options} -- sh -c '{PRINT}'"));
        assert_ranks(launcher.0, &folder, NODES, RANKS_PER_NODE);
        assert_no_leftovers(launcher.0, &cluster.hosts);
        if let Some(python) = &python {
            let options = "-N 3 --ranks-per-node 1 --oversubscribe";
            let folder = cluster.launch(&launcher, "ddp", &format!("{options} -- {python} {ddp}"));
            assert_trained(&folder, 3);
        }
    }
    launch_per_task(&cluster, python.as_deref(), &ddp);
}

/// Agents exit before the launcher; the processes of their launchers soon after.
fn assert_no_leftovers(launcher: &str, cluster: &Cluster) {
    let on_all = || cluster.nodes().iter().flat_map(|host| cluster.processes(host).unwrap());
    let agents: Vec<_> = on_all().filter(|p| p.command.contains(" agent --boot ")).collect();
    assert!(agents.is_empty(), "{launcher} left {agents:?}");
    wait_until(&format!("the processes of {launcher}"), || on_all().next().is_none());
}

/// Asserts that all ranks have the same weights.
fn assert_trained(run: &Path, ranks: u32) {
    for rank in 0..ranks {
        let text = std::fs::read_to_string(run.join(format!("log/rank-{rank}.out"))).unwrap();
        assert!(text.contains(&format!("rank {rank} of {ranks} agrees")), "{text}");
    }
}

/// `regatta launch` becomes a rank under another launcher, and launches local ranks without one.
fn launch_per_task(cluster: &LaunchCluster, python: Option<&str>, ddp: &str) {
    let Some(python) = python else { return };
    let nodes = format!("{}/nodes", cluster.hosts.shared().display());
    let one_per_node = format!("--hostfile {nodes} -N 3 --ranks-per-node 1");
    for (before, options) in [
        ("srun -N3 -n3 --mem-bind=none".to_owned(), ""),
        (format!("{} -n 3 -ppn 1 -f {nodes}", HYDRA.0), one_per_node.as_str()),
        (format!("mpirun.openmpi -n 3 --map-by ppr:1:node --hostfile {nodes}"), &one_per_node),
        (String::new(), "-n 3"),
    ] {
        let launch = format!("{before} {REGATTA} launch --oversubscribe {options}");
        let out = cluster.run(&format!("{launch} -- {python} {ddp}"));
        assert!(out.status.success(), "{launch}: {}\n{}", out.stdout, out.stderr);
        for rank in 0..3 {
            let agrees = format!("rank {rank} of 3 agrees");
            assert!(out.stdout.contains(&agrees), "{launch}: {out:?}");
        }
    }
}

#[test]
fn launch_errors_name_host_and_cause() {
    let builder = Cluster::builder().nodes(3).cpus(2).ssh(true).slurm(false);
    let Some(cluster) = cluster_or_skip(&builder) else { return };
    let cluster = LaunchCluster::new(cluster);
    let some = cluster.file("some", "node1\nnode2\nnowhere\n");
    let two = cluster.file("two", "node1\nnode2\n");
    let unreachable = cluster.file("unreachable", "nowhere\nnode1\nnode2\n");
    let cases: [(&str, &str, i32, &[&str]); 5] = [
        (&some, "-- true", 1, &["cannot start agents on nowhere: ssh reported: "]),
        (&two, "-- no-such-program", 127, &["node", "no-such-program"]),
        (&two, "--agent /no/regatta -- true", 1, &["/no/regatta"]),
        // A spare replaces an unreachable host.
        (&some, "-N 2 --spares 1 -- true", 0, &[]),
        (&unreachable, "--spares 1 -- hostname", 0, &["nowhere failed: replaced by spare node2"]),
    ];
    for (hosts, words, code, parts) in cases {
        let ssh = cluster.ssh_options(hosts);
        let out = cluster.run(&format!("{REGATTA} launch {ssh} {words}"));
        assert_eq!(out.status.code(), Some(code), "{words}: {}", out.stderr);
        parts.iter().for_each(|part| assert_contains(&out.stderr, *part));
    }
}

#[test]
fn blocked_terminal_does_not_cause_heartbeat_timeouts() {
    let builder = Cluster::builder().nodes(3).cpus(2).ssh(true).slurm(false);
    let Some(cluster) = cluster_or_skip(&builder) else { return };
    let cluster = LaunchCluster::new(cluster);
    let ssh = cluster.ssh_options(&cluster.file("all", "node1\nnode2\nnode3\n"));
    let folder = cluster.hosts.shared().join("run");
    // Blocked for longer than the heartbeat timeout, with more output than buffers hold.
    let blocked = format!("until [ -s {}/log/rank-0.out ]; do sleep 0.1; done", folder.display());
    let slow = format!("set -o pipefail; \"$@\" | ({blocked}; sleep 3; cat > /dev/null)");
    let write = "i=0; while [ $i -lt 40000 ]; do echo $RANK $i; i=$((i+1)); done";
    let options = "--ranks-per-node 2 --oversubscribe --fan-out 1 --heartbeat-timeout 2";
    let launch = format!("{REGATTA} launch {ssh} {options} --run-dir {}", folder.display());
    cluster.run(&format!("bash -c '{slow}' bash {launch} -- sh -c '{write}'")).expect_success();
    for rank in 0..6 {
        let text = std::fs::read_to_string(folder.join(format!("log/rank-{rank}.out"))).unwrap();
        assert_eq!(text.lines().count(), 40_000);
    }
}
