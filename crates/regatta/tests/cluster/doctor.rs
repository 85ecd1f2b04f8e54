//! `regatta doctor` under Slurm: planted faults are found, the right node is named, and healthy
//! nodes raise no alarm.

use std::path::Path;
use std::process::Command;

use regatta_doctor::{Check, CheckResult, Diagnosis, Finding, Verdict};
use regatta_model::document;
use regatta_testbed::{Cluster, cluster_or_skip, run, write_with_mode};

use crate::support::REGATTA;

/// Sets limits and the library path of the node, as a site's configuration would, and runs the agent.
/// `PLANTED/HOST` has commands for one host.
const AGENT: &str = r#"#!/bin/sh
export LD_LIBRARY_PATH=LOCAL/lib
if [ -e "PLANTED/$(hostname)" ]; then . "PLANTED/$(hostname)"; fi
exec REGATTA "$@"
"#;
/// A healthy node: a library of a known version, device files of a NIC.
const PREPARE: &str = "mkdir -p local/lib && touch local/lib/libnccl.so.2.27.3 && \
    ln -sf libnccl.so.2.27.3 local/lib/libnccl.so.2 && \
    mount -t tmpfs tmpfs /dev/infiniband && touch /dev/infiniband/uverbs0 /dev/infiniband/rdma_cm";
/// Directory in which device files are planted: a mount point that all hosts share.
const DEVICES: &str = "/dev/infiniband";
/// Variable with the number of runs on healthy nodes.
const RUNS: &str = "REGATTA_DOCTOR_RUNS";

struct Site {
    cluster: Cluster,
    agent: String,
    /// Whether the directory of device files is to be removed.
    owns_devices: bool,
}

impl Drop for Site {
    fn drop(&mut self) {
        if self.owns_devices {
            let _ = std::fs::remove_dir(DEVICES);
        }
    }
}

impl Site {
    /// A cluster of four nodes with a second network, all of them healthy.
    fn or_skip() -> Option<Self> {
        let builder = Cluster::builder().nodes(4).cpus(2).second_network(true).ssh(true);
        let cluster = cluster_or_skip(&builder)?;
        let owns_devices = std::fs::create_dir(DEVICES).is_ok();
        let shared = cluster.shared().to_str().unwrap().to_owned();
        std::fs::create_dir(cluster.shared().join("planted")).unwrap();
        let script = AGENT
            .replace("LOCAL", &format!("{shared}/local"))
            .replace("PLANTED", &format!("{shared}/planted"))
            .replace("REGATTA", REGATTA);
        let agent = cluster.shared().join("agent");
        write_with_mode(&agent, 0o755, script);
        let agent = agent.to_str().unwrap().to_owned();
        let site = Self { cluster, agent, owns_devices };
        for node in site.cluster.nodes() {
            site.on(node, PREPARE);
        }
        Some(site)
    }

    fn on(&self, node: &str, script: &str) {
        self.cluster.bash(node, script).unwrap().expect_success();
    }

    /// Commands that the agent of a node runs before it starts; none if empty.
    fn plant(&self, node: &str, script: &str) {
        let file = self.cluster.shared().join("planted").join(node);
        match script {
            "" => std::fs::remove_file(file).unwrap(),
            script => std::fs::write(file, script).unwrap(),
        }
    }

    /// `regatta doctor` in an allocation of all nodes.
    fn doctor(&self, options: &[&str]) -> Diagnosis {
        let launch = format!("--agent {}", self.agent);
        let mut command = self.salloc(&["doctor", "--json", "--launch", &launch]);
        let output = run(command.args(options)).unwrap();
        let diagnosis: Diagnosis = document::from_json(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {output:?}"));
        let failed = diagnosis.verdict == Verdict::Fail;
        assert_eq!(output.status.code(), Some(i32::from(failed)), "{output:?}");
        diagnosis
    }

    fn salloc(&self, words: &[&str]) -> Command {
        let salloc = ["--quiet", "-N4", "--exclusive", REGATTA];
        self.cluster.login("salloc", salloc.iter().chain(words))
    }
}

/// Whether a warning is due to the load of this machine, which all nodes share: the doctor says so.
fn is_disturbed(check: &CheckResult, finding: &Finding) -> bool {
    check.check == Check::Speed
        && finding.verdict == Verdict::Warn
        && finding.fix.starts_with("other processes used ")
}

/// All other findings: the check and the node that it blames. Each has a reason and a fix.
fn blamed(diagnosis: &Diagnosis) -> Vec<(Check, &str)> {
    let mut blamed = Vec::new();
    for check in &diagnosis.checks {
        for finding in check.findings.iter().filter(|finding| !is_disturbed(check, finding)) {
            assert!(!finding.reason.is_empty() && !finding.fix.is_empty(), "{finding:?}");
            assert_eq!(finding.hosts.len(), 1, "{finding:?}");
            blamed.push((check.check, finding.hosts[0].as_str()));
        }
    }
    blamed
}

#[test]
fn planted_faults_are_found_on_the_right_node() {
    let Some(site) = Site::or_skip() else { return };
    healthy(&site);
    links(&site);
    local_resources(&site);
    slow_cpus(&site);
    preflight(&site);
    dead_node(&site);
}

/// Healthy nodes raise no alarm, however often they are checked.
fn healthy(site: &Site) {
    let runs = std::env::var(RUNS).ok().and_then(|runs| runs.parse().ok()).unwrap_or(1);
    for number in 0..runs {
        let diagnosis = site.doctor(&[]);
        assert_eq!(blamed(&diagnosis), [], "run {number}: {diagnosis:#?}");
        let has_warning = diagnosis.checks.iter().any(|check| !check.findings.is_empty());
        let verdict = if has_warning { Verdict::Warn } else { Verdict::Pass };
        assert_eq!((diagnosis.nodes, diagnosis.verdict), (4, verdict));
    }
}

/// One node whose link is down, and one whose link is slow.
fn links(site: &Site) {
    site.on("node2", "ip link set eth1 down");
    site.on("node3", "tc qdisc add dev eth1 root tbf rate 20mbit burst 32kbit latency 400ms");
    let diagnosis = site.doctor(&["--skip", "speed,file-system-speed"]);
    assert_eq!(
        blamed(&diagnosis),
        [(Check::Nics, "node2"), (Check::Reachability, "node2"), (Check::Bandwidth, "node3")],
        "{diagnosis:#?}"
    );
    assert_eq!(diagnosis.exclude.as_deref(), Some("--exclude=node[2-3]"));
    site.on("node3", "tc qdisc del dev eth1 root");
    site.on("node2", "ip link set eth1 up");
}

/// A fault of another kind on each node.
fn local_resources(site: &Site) {
    let full = site.cluster.shared().join("local/full");
    for node in site.cluster.nodes() {
        site.on(node, "mkdir -p local/full");
    }
    site.cluster.limit_disk("node1", &full, 4096).unwrap();
    site.on("node1", "head -c 4096 /dev/zero > local/full/file || true");
    site.on("node1", "rm /dev/infiniband/uverbs0");
    site.plant("node2", "ulimit -l 64");
    let other = "cd local/lib && touch libnccl.so.2.26.2 && ln -sf libnccl.so.2.26.2 libnccl.so.2";
    site.on("node3", other);
    site.on("node4", "mount -o remount,size=64k /dev/shm");

    let path = full.to_str().unwrap();
    let diagnosis = site.doctor(&["--skip", "speed,bandwidth", "--path", path]);
    let expected = [
        (Check::FileSystems, "node1"),
        (Check::SharedMemory, "node4"),
        (Check::Limits, "node2"),
        (Check::DeviceFiles, "node1"),
        (Check::Versions, "node3"),
    ];
    assert_eq!(blamed(&diagnosis), expected, "{diagnosis:#?}");

    site.on("node4", "mount -o remount,size=50% /dev/shm");
    site.on("node3", "cd local/lib && ln -sf libnccl.so.2.27.3 libnccl.so.2");
    site.plant("node2", "");
    site.on("node1", "touch /dev/infiniband/uverbs0");
}

/// A node whose processes get little CPU time.
fn slow_cpus(site: &Site) {
    if !Path::new("/sys/fs/cgroup/cpu/cpu.cfs_period_us").parent().is_some_and(Path::exists) {
        eprintln!("no slow node: this machine has no control groups version 1");
        return;
    }
    site.cluster.limit_cpu("node2", 0.05).unwrap();
    let diagnosis = site.doctor(&["--skip", "bandwidth,file-system-speed"]);
    let blamed = blamed(&diagnosis);
    assert!(
        !blamed.is_empty() && blamed.iter().all(|b| *b == (Check::Speed, "node2")),
        "{diagnosis:#?}"
    );
    assert_eq!(diagnosis.bad_nodes, ["node2"]);
    site.cluster.limit_cpu("node2", 64.0).unwrap();
}

/// A bad node is replaced by a spare, and without enough good nodes nothing starts.
fn preflight(site: &Site) {
    site.on("node1", "rm /dev/infiniband/uverbs0");
    let words = |spares| {
        let options = ["launch", "--preflight", "--agent", &site.agent, "--ranks-per-node", "1"];
        [&options[..], &["--spares", spares, "--", "hostname"]].concat()
    };
    let output = run(&mut site.salloc(&words("1"))).unwrap().expect_success();
    let mut hosts: Vec<&str> =
        output.stdout.lines().filter_map(|line| line.split_whitespace().last()).collect();
    hosts.sort_unstable();
    assert_eq!(hosts, ["node2", "node3", "node4"], "{output:?}");
    assert!(output.stderr.contains("node1 failed: replaced by spare node4"), "{output:?}");
    let output = run(&mut site.salloc(&words("0"))).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty(), "{output:?}");
    assert!(output.stderr.contains("--preflight: node1: 3 usable nodes left"), "{output:?}");
}

/// A node that does not answer is named, and the others are checked without it.
fn dead_node(site: &Site) {
    site.cluster.disconnect("node3").unwrap();
    std::fs::write(site.cluster.shared().join("hosts"), "node2\nnode3\nnode4\n").unwrap();
    let ssh = site.cluster.ssh_command().join(" ");
    let launch = format!("--agent {} --ssh '{ssh}'", site.agent);
    let options = ["--json", "--hostfile", "hosts", "--start-timeout", "5", "--launch", &launch];
    let words = ["doctor"].iter().chain(&options).chain(&["--skip", "speed,bandwidth"]);
    let output = run(&mut site.cluster.login(REGATTA, words)).unwrap();
    let diagnosis: Diagnosis =
        document::from_json(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    assert_eq!(blamed(&diagnosis), [(Check::Nodes, "node3")], "{diagnosis:#?}");
    assert_eq!((diagnosis.nodes, diagnosis.bad_nodes.as_slice()), (3, &["node3".to_owned()][..]));
}
