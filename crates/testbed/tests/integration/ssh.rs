//! OpenSSH logins from the login host to the nodes.

use regatta_testbed::{Cluster, CommandOutput, assert_contains, cluster_or_skip, run, wait_until};
use std::process::Command;

fn ssh_command(cluster: &Cluster, words: &[&str]) -> Command {
    let ssh = cluster.ssh_command();
    let mut command = cluster.login(&ssh[0], &ssh[1..]);
    command.args(words).env("OUTER_VARIABLE", "1");
    command
}

fn ssh(cluster: &Cluster, words: &[&str]) -> CommandOutput {
    run(&mut ssh_command(cluster, words)).unwrap()
}

#[test]
fn login_runs_a_command_in_a_new_environment() {
    let builder = Cluster::builder().nodes(2).slurm(false).ssh(true);
    let Some(cluster) = cluster_or_skip(&builder) else { return };
    let output = ssh(&cluster, &["node2", "hostname; echo ${OUTER_VARIABLE-none}; exit 3"]);
    assert_eq!((output.stdout.as_str(), output.stderr.as_str()), ("node2\nnone\n", ""));
    assert_eq!(output.status.code(), Some(3));
    let output = ssh(&cluster, &["10.77.0.1", "hostname"]);
    assert_eq!(output.stdout, "node1\n", "{}", output.stderr);
    let output = ssh(&cluster, &["node9", "hostname"]);
    assert_eq!(output.status.code(), Some(255));
}

#[test]
fn login_without_the_key_is_rejected() {
    let builder = Cluster::builder().nodes(1).slurm(false).ssh(true);
    let Some(cluster) = cluster_or_skip(&builder) else { return };
    let options = ["-F", "none", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no"];
    let rest = ["-o", "UserKnownHostsFile=/dev/null", "-i", "/dev/null", "node1", "true"];
    let output = run(&mut cluster.login("ssh", [&options[..], &rest].concat())).unwrap();
    assert_eq!(output.status.code(), Some(255));
    assert_contains(output.stderr, "Permission denied");
}

#[test]
fn login_sees_emulated_cpus_and_slurm() {
    let builder = Cluster::builder().nodes(1).cpus(77).fake_affinity(true).ssh(true);
    let Some(cluster) = cluster_or_skip(&builder) else { return };
    let output = ssh(&cluster, &["node1", "nproc; sinfo -h -o %D"]);
    assert_eq!(output.stdout, "77\n1\n", "{}", output.stderr);
}

/// Command lines of this machine's processes that contain `text`.
fn processes_mentioning(text: &str) -> Vec<String> {
    let lines = std::fs::read_dir("/proc").unwrap().flatten().map(|entry| {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).replace('\0', " ")
    });
    lines.filter(|line| line.contains(text)).collect()
}

#[test]
fn sixteen_nodes_are_reachable_and_no_daemon_is_left() {
    let builder = Cluster::builder().nodes(16).ssh(true);
    let Some(cluster) = cluster_or_skip(&builder) else { return };
    let output = run(&mut cluster.login("srun", ["-N16", "hostname"])).unwrap();
    assert_eq!(output.stdout.lines().count(), 16, "{}", output.stderr);
    std::thread::scope(|scope| {
        for node in cluster.nodes() {
            let cluster = &cluster;
            scope.spawn(move || {
                let output = ssh(cluster, &[node, "hostname"]);
                assert_eq!(output.stdout.trim(), node, "{}", output.stderr);
            });
        }
    });
    let config = cluster.shared().join("sshd").display().to_string();
    assert_eq!(processes_mentioning(&config).len(), 16, "one daemon per node");
    let mut login = ssh_command(&cluster, &["node1", "sleep 4242"]).spawn().unwrap();
    wait_until("sleep on node1", || !cluster.processes("node1").unwrap().is_empty());
    drop(cluster);
    login.wait().unwrap();
    assert_eq!(processes_mentioning(&config), [""; 0]);
}
