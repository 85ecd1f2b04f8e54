//! The commands that start agents, under real launchers, with a script as the agent: exactly one per
//! host, with all resources of the job and the boot document.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use regatta_launch::agent_launcher::command::{AgentLauncher, LaunchCommand, LaunchSpec};
use regatta_launch::agent_launcher::handle::{LOGIN_TIMEOUT, LauncherHandle};
use regatta_launch::agent_launcher::slurm_gres::full_node_gres;
use regatta_launch::subprocess::output_of;
use regatta_model::{CpuSet, hostlist};
use regatta_testbed::{Cluster, cluster_or_skip, run, wait_until, write_with_mode};

use crate::test_cluster::{HYDRA, OMPI_AS_ROOT, OPEN_MPI, programs_or_skip};

/// Inputs of [`starts_agents`].
const LAUNCHER: &str = "REGATTA_TEST_LAUNCHER";
const HOSTS: &str = "REGATTA_TEST_HOSTS";
const SSH: &str = "REGATTA_TEST_SSH";
/// Folder of the agent script and of the agents' files.
const FOLDER: &str = "REGATTA_TEST_FOLDER";
/// Content of the boot document.
const SECRET: &str = "a secret of many words";
/// Timeout of `scontrol`.
const LIMIT: Duration = Duration::from_secs(40);

/// An agent that records its inputs. If the file `deadly` exists, the agent on node1 dies at once and
/// the others outlive it; if `stay` exists, all agents keep running.
const AGENT: &str = r#"#!/bin/sh
folder=${0%/*}
me=$folder/agent-$(hostname)-$$
case $3 in -) boot=$(cat);; *) boot=$(cat "$3");; esac
if [ -e "$folder/deadly" ]; then
    [ "$(hostname)" = node1 ] && { : > "$folder/dead"; kill -9 $$; }
    while [ ! -e "$folder/dead" ]; do sleep 0.05; done
    sleep 1
fi
{
    echo "boot $boot"
    echo "words $*"
    echo "cpus $(grep Cpus_allowed_list: /proc/self/status | cut -f2)"
    echo "gpus $CUDA_VISIBLE_DEVICES"
} > "$me.part"
mv "$me.part" "$me"
if [ -e "$folder/stay" ]; then exec sleep 600; fi
"#;

/// Not a test by itself: starts agents like the launcher and waits for their exit.
#[test]
#[ignore = "run by the tests of this file"]
fn starts_agents() {
    let Ok(folder) = std::env::var(FOLDER).map(PathBuf::from) else { return };
    let var = |name: &str| std::env::var(name).unwrap_or_default();
    let launcher = match var(LAUNCHER).as_str() {
        "srun" => AgentLauncher::Srun,
        "hydra" => AgentLauncher::Hydra,
        "openmpi" => AgentLauncher::OpenMpi,
        "ssh" => AgentLauncher::Ssh,
        other => panic!("no launcher {other}"),
    };
    let hosts = hostlist::expand(&var(HOSTS)).unwrap();
    let job = var("SLURM_JOB_ID");
    let scontrol = output_of("scontrol", &["show", "job", "-d", &job], LIMIT).unwrap_or_default();
    let boot_file = folder.join("boot");
    let agents = LaunchSpec {
        hosts: &hosts,
        program: &folder.join("agent"),
        bootstrap_file: (!launcher.bootstraps_via_stdin()).then_some(&boot_file),
        ssh: &[var(SSH)],
        options: &[],
        gres: &full_node_gres(&scontrol, &hosts),
    };
    let mut all = launcher.commands(&agents).unwrap();
    all.iter_mut().for_each(select_mpiexec);
    let count = all.len();
    let mut handle = LauncherHandle::spawn(all, SECRET, &hosts, LOGIN_TIMEOUT).unwrap();
    if folder.join("stay").exists() {
        wait_until("all agents", || agent_files(&folder).len() == hosts.len());
        handle.shutdown(&[], Duration::ZERO, Duration::from_secs(10));
        return;
    }
    let mut ended = Vec::new();
    wait_until("the exit of all agents", || {
        ended.extend(handle.take_exited());
        ended.len() == count
    });
    let output: Vec<_> = (0..hosts.len()).map(|host| handle.output_tail(host)).collect();
    std::fs::write(folder.join("output"), format!("{ended:?} {output:?}")).unwrap();
}

/// Selects one of several installed `mpiexec`.
fn select_mpiexec(invocation: &mut LaunchCommand) {
    let name = |(name, _): (&str, &str)| name.to_owned().into();
    if invocation.program == "mpiexec" {
        let hydra = invocation.args.iter().any(|a| a == "-ppn");
        invocation.program = name(if hydra { HYDRA } else { OPEN_MPI });
    }
}

/// The complete files of agents.
fn agent_files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path());
    let name = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
    let written = |path: &PathBuf| name(path).starts_with("agent-") && !name(path).contains('.');
    let mut files: Vec<PathBuf> = entries.filter(written).collect();
    files.sort();
    files
}

/// The record of one agent.
#[derive(Debug)]
struct AgentRecord {
    host: String,
    pid: String,
    text: String,
}

impl AgentRecord {
    fn read(file: &PathBuf) -> Self {
        let name = file.file_name().unwrap().to_str().unwrap();
        let [_, host, pid] = name.split('-').collect::<Vec<_>>()[..] else { panic!("{name}") };
        let text = std::fs::read_to_string(file).unwrap();
        Self { host: host.to_owned(), pid: pid.to_owned(), text }
    }

    fn line(&self, key: &str) -> &str {
        let found = self.text.lines().find_map(|line| line.strip_prefix(key));
        found.unwrap_or_else(|| panic!("no {key} in {self:?}")).trim()
    }

    fn cpus(&self) -> usize {
        self.line("cpus").parse::<CpuSet>().unwrap().iter().count()
    }

    fn gpus(&self) -> usize {
        self.line("gpus").split(',').filter(|gpu| !gpu.is_empty()).count()
    }
}

/// A folder for one run, with the agent script and these files.
fn folder(cluster: &Cluster, name: &str, files: &[&str]) -> PathBuf {
    let folder = cluster.shared().join(name);
    std::fs::create_dir(&folder).unwrap();
    write_with_mode(folder.join("agent"), 0o755, AGENT);
    std::fs::write(folder.join("boot"), SECRET).unwrap();
    files.iter().for_each(|file| std::fs::write(folder.join(file), "").unwrap());
    folder
}

/// Runs [`starts_agents`] by `command` and reads the records of the agents.
fn agents(command: &mut Command, launcher: &str, hosts: &str, folder: &Path) -> Vec<AgentRecord> {
    command.arg(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "agent_launchers::starts_agents"]);
    command.env(LAUNCHER, launcher).env(HOSTS, hosts).env(FOLDER, folder);
    let output = run(command).unwrap();
    let log = std::fs::read_to_string(folder.join("output")).unwrap_or_default();
    assert!(output.status.success(), "{output:?} {log}");
    let found: Vec<AgentRecord> = agent_files(folder).iter().map(AgentRecord::read).collect();
    for agent in &found {
        assert_eq!(agent.line("boot"), SECRET, "{launcher}: {log}");
    }
    found
}

fn hosts_of(agents: &[AgentRecord]) -> Vec<&str> {
    agents.iter().map(|a| a.host.as_str()).collect()
}

/// Variables of jobs and site profiles that would restrict or misdirect a step.
const HOSTILE: &str = "SRUN_CPUS_PER_TASK=1 SLURM_CPUS_PER_TASK=1 SLURM_EXACT=1 SLURM_HINT=nomultithread \
     SLURM_DISTRIBUTION=arbitrary SLURM_HOSTFILE=/nonexistent SLURM_CPU_BIND=map_cpu:0 \
     SLURM_GPU_BIND=single:1 SLURM_NTASKS_PER_GPU=1 SLURM_NTASKS_PER_NODE=2 \
     SLURM_KILL_BAD_EXIT=1 SLURM_EXPORT_ENV=NONE SLURM_STDINMODE=none \
     SLURM_STDOUTMODE=/nonexistent/file SLURM_MPI_TYPE=nonexistent";

#[test]
fn srun_starts_one_agent_per_node_with_all_resources() {
    let builder = Cluster::builder().nodes(2).gpus(4).constrain_devices(true).constrain_cores(true);
    let Some(cluster) = cluster_or_skip(&builder) else { return };
    let cpus = std::thread::available_parallelism().unwrap().get();
    let half = format!("--cpus-per-task={}", cpus.div_ceil(2));
    let pair = cpus.div_ceil(2) * (cpus.min(2));
    let two = if cpus < 2 { "--ntasks-per-node=1" } else { "--ntasks-per-node=2" };
    let each = if cpus < 2 { "--gpus-per-task=4" } else { "--gpus-per-task=2" };
    let all_cpus = format!("--cpus-per-task={cpus}");
    // Job options, and the expected CPUs and GPUs per node.
    let jobs: [(&[&str], usize, [usize; 2]); 7] = [
        (&[two, &half, "--gpus-per-node=4"], pair, [4, 4]),
        (&[two, &half, each], pair, [4, 4]),
        (&["--ntasks-per-node=1", &all_cpus, "--gpus=8"], cpus, [4, 4]),
        (&["--ntasks-per-node=1", &all_cpus, "--gpus=3"], cpus, [2, 1]),
        (&["--ntasks-per-node=1", &all_cpus, "--gres=gpu:3", "--mem-per-cpu=100"], cpus, [3, 3]),
        (&["--exclusive"], cpus, [4, 4]),
        (&["--ntasks-per-node=1", "--cpus-per-task=1"], 1, [0, 0]),
    ];
    for (number, (job, cpus, gpus)) in jobs.iter().enumerate() {
        for (how, variables) in [("plain", ""), ("hostile", HOSTILE)] {
            let folder = folder(&cluster, &format!("{how}-{number}"), &[]);
            let mut salloc = cluster.login("salloc", ["--quiet", "-wnode[1-2]", "-N2"]);
            salloc.args(*job).arg("env").args(variables.split_whitespace());
            let found = agents(&mut salloc, "srun", "node[1-2]", &folder);
            let log = std::fs::read_to_string(folder.join("output")).unwrap();
            assert_eq!(hosts_of(&found), ["node1", "node2"], "{job:?} {how} {log}");
            for (agent, gpus) in found.iter().zip(gpus) {
                assert_eq!(agent.line("words"), "agent --boot -");
                assert_eq!((agent.cpus(), agent.gpus()), (*cpus, *gpus), "{job:?} {how} {agent:?}");
            }
        }
    }
    assert_others_survive(&cluster, |name| {
        let mut salloc = cluster.login("salloc", ["--quiet", "-wnode[1-2]", "-N2", "--exclusive"]);
        agents(&mut salloc, "srun", "node[1-2]", &folder(&cluster, name, &["deadly"]))
    });
    assert_step_ends(&cluster);
}

/// Killing one agent does not end the others.
fn assert_others_survive(cluster: &Cluster, start: impl Fn(&str) -> Vec<AgentRecord>) {
    let name = format!("deadly-{}", std::fs::read_dir(cluster.shared()).unwrap().count());
    assert_eq!(hosts_of(&start(&name)), ["node2"]);
}

/// Ending the step leaves no agent.
fn assert_step_ends(cluster: &Cluster) {
    let folder = folder(cluster, "stay", &["stay"]);
    let mut salloc = cluster.login("salloc", ["--quiet", "-wnode[1-2]", "-N2", "--exclusive"]);
    let found = agents(&mut salloc, "srun", "node[1-2]", &folder);
    assert_eq!(hosts_of(&found), ["node1", "node2"]);
    for agent in &found {
        wait_until("the end of the step", || {
            let mut look = cluster.on(&agent.host, "kill", ["-0", &agent.pid]).unwrap();
            !run(&mut look).unwrap().status.success()
        });
    }
}

#[test]
fn other_launchers_start_one_unbound_agent_per_node() {
    let Some(()) = programs_or_skip(&[HYDRA, OPEN_MPI]) else { return };
    let Some(cluster) = cluster_or_skip(&Cluster::builder().nodes(3).slurm(false)) else { return };
    let cpus = std::thread::available_parallelism().unwrap().get();
    let start = |launcher: &str, hosts: &str, folder: &Path| {
        let ssh = cluster.ssh_shim();
        let mut command = cluster.launcher("env", [""; 0]);
        command.env("HYDRA_LAUNCHER", "ssh").env("HYDRA_LAUNCHER_EXEC", &ssh);
        command.env("OMPI_MCA_plm_rsh_agent", &ssh).env(SSH, &ssh).envs(OMPI_AS_ROOT);
        agents(&mut command, launcher, hosts, folder)
    };
    for launcher in ["hydra", "openmpi", "ssh"] {
        let plain = folder(&cluster, &format!("by-{launcher}"), &[]);
        let found = start(launcher, "node[3,1]", &plain);
        assert_eq!(hosts_of(&found), ["node1", "node3"], "{launcher}");
        for agent in &found {
            assert_eq!(agent.cpus(), cpus, "{launcher} {agent:?}");
        }
        if launcher == "ssh" {
            assert!(found[0].line("words").ends_with("--node 1"), "{found:?}");
        }
        assert_others_survive(&cluster, |name| {
            start(launcher, "node[1-2]", &folder(&cluster, name, &["deadly"]))
        });
    }
}
