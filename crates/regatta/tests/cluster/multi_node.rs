//! The same job on many nodes, whoever starts it: one command, the right ranks, environment and
//! binding.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use regatta_model::result::RunResult;
use regatta_model::{Placement, document};
use regatta_testbed::{Cluster, cluster_or_skip, run, run_within};

use crate::support::{HYDRA, OPEN_MPI, REGATTA, programs_or_skip};

const NODES: usize = 16;
/// Ranks on each node.
const EACH: usize = 2;

/// What each rank tells: who it is, where it is, what it is bound to, where the others are met; and
/// no rank of the job is a rank of what started the agents.
const TELL: &str = "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK $(hostname) \
                    $MASTER_ADDR $MASTER_PORT $(grep Cpus_allowed_list /proc/self/status | cut -f2) \
                    \"$CARRIED\" [$PMI_RANK$PMIX_RANK$OMPI_COMM_WORLD_RANK$FLUX_TASK_RANK]";

/// A PyTorch program as anybody writes it.
const DDP: &str = include_str!("ddp.py");

/// A cluster, and the words that start jobs on it.
struct Bed {
    cluster: Cluster,
    /// Programs that stand before others in PATH.
    bin: PathBuf,
}

impl Bed {
    fn new(cluster: Cluster) -> Self {
        let bin = cluster.shared().join("bin");
        std::fs::create_dir(&bin).unwrap();
        let bed = Self { cluster, bin };
        let ssh = bed.cluster.ssh_command();
        bed.script("ssh-here", &format!("exec {} \"$@\"", ssh.join(" ")));
        bed.file("nodes", &(bed.cluster.nodes().join("\n") + "\n"));
        bed.script("flux", FLUX);
        bed
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.cluster.shared().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn script(&self, name: &str, text: &str) -> PathBuf {
        let path = self.bin.join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// Has `mpiexec` be this one.
    fn mpiexec(&self, program: &str) {
        self.script("mpiexec", &format!("exec {program} \"$@\""));
    }

    /// A command on the login host, with what MPI's launchers need there.
    fn login(&self, words: &[&str]) -> Command {
        let path = std::env::var("PATH").unwrap_or_default();
        let ssh = self.bin.join("ssh-here");
        let mut command = self.cluster.login("env", Vec::<&str>::new());
        command.arg(format!("PATH={}:{path}", self.bin.display()));
        command.arg(format!("HYDRA_LAUNCHER_EXEC={}", ssh.display()));
        command.arg(format!("OMPI_MCA_plm_rsh_agent={}", ssh.display()));
        command.args(["HYDRA_LAUNCHER=ssh", "CARRIED=over the wire"]);
        command.args(["OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"]);
        command.args(words).current_dir(self.cluster.shared());
        command
    }

    /// The words before `regatta` that make it find nodes, and its options.
    fn ways(&self) -> Vec<(&'static str, Vec<String>, Vec<String>)> {
        let nodes = format!("{}/nodes", self.cluster.shared().display());
        let ssh = self.cluster.ssh_command().join(" ");
        let own = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
        let pbs = own(&["env", "PBS_JOBID=7.server", &format!("PBS_NODEFILE={nodes}")]);
        let flux = own(&["env", "FLUX_JOB_ID=f1"]);
        vec![
            ("srun", own(&["salloc", "-N16", "--exclusive", "--quiet"]), Vec::new()),
            ("ssh", Vec::new(), own(&["--hostfile", &nodes, "--ssh", &ssh])),
            ("hydra", pbs.clone(), Vec::new()),
            ("openmpi", pbs, Vec::new()),
            ("flux", flux, Vec::new()),
        ]
    }

    fn launch(&self, way: &str, name: &str, options: &[&str], command: &[&str]) -> PathBuf {
        let folder = self.cluster.shared().join(name);
        let ways = self.ways();
        let (_, before, own) = ways.iter().find(|(n, ..)| *n == way).unwrap();
        match way {
            "hydra" => self.mpiexec(HYDRA.0),
            _ => self.mpiexec("mpiexec.openmpi"),
        }
        let mut words: Vec<&str> = before.iter().map(String::as_str).collect();
        words.extend([REGATTA, "launch", "--run-dir", folder.to_str().unwrap()]);
        words.extend(own.iter().map(String::as_str));
        words.extend(options.iter().chain(&["--"]).chain(command));
        let out = run_within(&mut self.login(&words), Duration::from_secs(180)).unwrap();
        assert!(out.status.success(), "{way}: {}\n{}", out.stdout, out.stderr);
        folder
    }
}

/// Stands for Flux, which is not packaged: it starts one process on each of the hosts by ssh, with
/// the variables that Flux sets, and without our standard input.
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

/// Every rank is what the placement says, and all agree where to meet.
fn assert_right(way: &str, run: &Path, nodes: usize, each: usize) {
    let placement: Placement = read(run, "placement.json");
    assert_eq!((placement.nodes.len(), placement.ranks as usize), (nodes, nodes * each));
    let mut meeting = std::collections::HashSet::new();
    for rank in 0..placement.ranks {
        let (node, placed, own) = placement.find(rank).unwrap();
        let text = std::fs::read_to_string(run.join(format!("log/rank-{rank}.out"))).unwrap();
        assert!(text.ends_with("over the wire []\n"), "{way}: {text}");
        let words: Vec<&str> = text.split_whitespace().collect();
        let expected = [rank as usize, nodes * each, own.local_rank as usize, each, node];
        assert_eq!(words[..5], expected.map(|n| n.to_string()), "{text}");
        assert_eq!((words[5], words[8]), (placed.host.as_str(), own.cpus.to_string().as_str()));
        meeting.insert((words[6].to_owned(), words[7].to_owned()));
    }
    assert_eq!(meeting.len(), 1, "{meeting:?}");
    let result: RunResult = read(run, "result.json");
    assert_eq!((result.code, result.endings.len()), (0, nodes * each));
    let left: Vec<_> = std::fs::read_dir(run.join("log")).unwrap().flatten().collect();
    assert_eq!(left.len(), 2 * nodes * each, "nothing but logs: {left:?}");
    assert!(!run.join("boot").exists() && !run.join("boot.hosts").exists());
}

/// A Python that has PyTorch: `REGATTA_TEST_PYTHON`, or the one in PATH.
fn torch() -> Option<String> {
    let python = std::env::var("REGATTA_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let found = Command::new(&python).args(["-c", "import torch"]).output();
    if found.is_ok_and(|out| out.status.success()) {
        return Some(python);
    }
    eprintln!(
        "skipped the PyTorch jobs: {python} has no torch; name one that has it by \
         REGATTA_TEST_PYTHON"
    );
    None
}

#[test]
fn the_same_job_whoever_starts_it() {
    let builder = Cluster::builder().nodes(NODES as u32).cpus(2).ssh(true);
    let Some(()) = programs_or_skip(&[HYDRA, OPEN_MPI]) else { return };
    let Some(cluster) = cluster_or_skip(&builder) else { return };
    let bed = Bed::new(cluster);
    let python = torch();
    let ddp = bed.file("ddp.py", DDP);
    for (way, ..) in bed.ways() {
        let options = ["--ranks-per-node", "2", "--oversubscribe", "--fan-out", "3"];
        let folder = bed.launch(way, &format!("run-{way}"), &options, &["sh", "-c", TELL]);
        assert_right(way, &folder, NODES, EACH);
        assert_nothing_left(way, &bed.cluster);
        if let Some(python) = &python {
            let options = ["-N", "3", "--ranks-per-node", "1", "--oversubscribe"];
            let folder = bed.launch(way, &format!("ddp-{way}"), &options, &[python, &ddp]);
            assert_trained(&folder, 3);
        }
    }
    adopted(&bed, python.as_deref(), &ddp);
}

/// When the launcher ends, its agents have, and soon what others started to start them.
fn assert_nothing_left(way: &str, cluster: &Cluster) {
    let on_all = || cluster.nodes().iter().flat_map(|host| cluster.processes(host).unwrap());
    let agents: Vec<_> = on_all().filter(|p| p.command.contains(" agent --boot ")).collect();
    assert!(agents.is_empty(), "{way} left {agents:?}");
    let start = Instant::now();
    while on_all().next().is_some() {
        let left: Vec<_> = on_all().collect();
        assert!(start.elapsed() < Duration::from_secs(30), "{way} left {left:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// All ranks saw all others' gradients.
fn assert_trained(run: &Path, ranks: u32) {
    for rank in 0..ranks {
        let text = std::fs::read_to_string(run.join(format!("log/rank-{rank}.out"))).unwrap();
        assert!(text.contains(&format!("rank {rank} of {ranks} agrees")), "{text}");
    }
}

/// Started once a rank by a launcher, it becomes that rank; and alone it starts local ones.
fn adopted(bed: &Bed, python: Option<&str>, ddp: &str) {
    let Some(python) = python else { return };
    let nodes = format!("{}/nodes", bed.cluster.shared().display());
    let ways: [(&str, &[&str]); 4] = [
        ("srun", &["srun", "-N3", "-n3", "--mem-bind=none"]),
        ("hydra", &[HYDRA.0, "-n", "3", "-ppn", "1", "-f", &nodes]),
        ("openmpi", &["mpirun.openmpi", "-n", "3", "--map-by", "ppr:1:node", "--hostfile", &nodes]),
        ("alone", &[]),
    ];
    for (way, launcher) in ways {
        let mut words = launcher.to_vec();
        words.extend([REGATTA, "launch", "--oversubscribe"]);
        match way {
            "hydra" => words.extend(["--hostfile", &nodes, "-N", "3", "--ranks-per-node", "1"]),
            "openmpi" => words.extend(["--hostfile", &nodes, "-N", "3", "--ranks-per-node", "1"]),
            "alone" => words.extend(["-n", "3"]),
            _ => {}
        }
        words.extend(["--", python, ddp]);
        let out = run_within(&mut bed.login(&words), Duration::from_secs(180)).unwrap();
        assert!(out.status.success(), "{way}: {}\n{}", out.stdout, out.stderr);
        for rank in 0..3 {
            assert!(out.stdout.contains(&format!("rank {rank} of 3 agrees")), "{way}: {out:?}");
        }
    }
}

#[test]
fn what_cannot_be_started_is_said_with_host_and_reason() {
    let builder = Cluster::builder().nodes(3).cpus(2).ssh(true).slurm(false);
    let Some(cluster) = cluster_or_skip(&builder) else { return };
    let bed = Bed::new(cluster);
    let hosts = bed.file("some", "node1\nnode2\nnowhere\n");
    let ssh = bed.cluster.ssh_command().join(" ");
    let launch = |hosts: &str, options: &[&str], command: &[&str]| {
        let mut words = vec![REGATTA, "launch", "--hostfile", hosts, "--ssh", &ssh];
        words.extend(options.iter().chain(&["--"]).chain(command));
        let out = run(&mut bed.login(&words)).unwrap();
        (out.status.code(), out.stderr)
    };
    let (code, said) = launch(&hosts, &[], &["true"]);
    assert_eq!(code, Some(1));
    assert!(said.contains("no agent connected from nowhere") && said.contains("ssh"), "{said}");
    let nodes = bed.file("two", "node1\nnode2\n");
    let (code, said) = launch(&nodes, &[], &["no-such-program"]);
    assert_eq!(code, Some(127), "{said}");
    assert!(said.contains("node") && said.contains("no-such-program"), "{said}");
    let (code, said) = launch(&nodes, &["--agent", "/no/regatta"], &["true"]);
    assert_eq!(code, Some(1));
    assert!(said.contains("/no/regatta"), "{said}");
    // A spare stands in for a host that is not there.
    let (code, said) = launch(&hosts, &["-N", "2", "--spares", "1"], &["true"]);
    assert_eq!(code, Some(0), "{said}");
    let away = bed.file("away", "nowhere\nnode1\nnode2\n");
    let (code, said) = launch(&away, &["--spares", "1"], &["hostname"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("nowhere is bad: node2 takes its place"), "{said}");
}

#[test]
fn a_terminal_that_takes_nothing_for_a_while_loses_no_node() {
    let builder = Cluster::builder().nodes(3).cpus(2).ssh(true).slurm(false);
    let Some(cluster) = cluster_or_skip(&builder) else { return };
    let bed = Bed::new(cluster);
    let (nodes, ssh) = (bed.file("all", "node1\nnode2\nnode3\n"), bed.cluster.ssh_command());
    let folder = bed.cluster.shared().join("run");
    // Longer than a node may be silent, and more than fits on the way.
    let slow = "set -o pipefail; \"$@\" | (sleep 5; cat > /dev/null)";
    let write = "i=0; while [ $i -lt 40000 ]; do echo $RANK $i; i=$((i+1)); done";
    let out = run_within(
        &mut bed.login(&[
            "bash",
            "-c",
            slow,
            "bash",
            REGATTA,
            "launch",
            "--hostfile",
            &nodes,
            "--ssh",
            &ssh.join(" "),
            "--ranks-per-node",
            "2",
            "--oversubscribe",
            "--fan-out",
            "1",
            "--lost-after",
            "2",
            "--run-dir",
            folder.to_str().unwrap(),
            "--",
            "sh",
            "-c",
            write,
        ]),
        Duration::from_secs(120),
    );
    let out = out.unwrap();
    assert!(out.status.success(), "{out:?}");
    for rank in 0..6 {
        let text = std::fs::read_to_string(folder.join(format!("log/rank-{rank}.out"))).unwrap();
        assert_eq!(text.lines().count(), 40_000);
    }
}
