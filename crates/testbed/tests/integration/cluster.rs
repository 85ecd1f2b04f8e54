//! A cluster starts, runs jobs, and leaves nothing behind.

use regatta_testbed::{
    Cluster, TestbedError, assert_contains, cluster_or_skip, run, run_within, wait_until,
};
use std::path::Path;
use std::time::Duration;

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

/// Command lines of processes, and control groups, that contain `text`.
fn traces(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(text) {
            found.push(line);
        }
    }
    for entry in std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten() {
        let group = entry.path().join(text);
        if group.exists() {
            found.push(group.display().to_string());
        }
    }
    found
}

#[test]
fn cluster_of_four_nodes_runs_a_job_and_leaves_nothing_behind() {
    let builder = Cluster::builder().nodes(4).gpus(4);
    let Some(cluster) = cluster_or_skip(&builder) else { return };
    let output = run(&mut cluster.login("srun", ["-N4", "hostname"])).unwrap().expect_success();
    assert_eq!(sorted(&output.stdout), ["node1", "node2", "node3", "node4"]);
    let folder = cluster.shared().to_owned();
    let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
    assert!(!traces(&name).is_empty(), "traces must be found while the cluster runs");
    let holders: Vec<u32> = cluster.nodes().iter().map(|n| cluster.host_pid(n).unwrap()).collect();
    drop(cluster);
    assert_eq!(traces(&name), [""; 0]);
    assert!(!folder.exists());
    assert!(holders.iter().all(|pid| !Path::new(&format!("/proc/{pid}")).exists()));
}

#[test]
fn panic_leaves_nothing_behind() {
    let builder = Cluster::builder().nodes(1).slurm(false);
    let Some(cluster) = cluster_or_skip(&builder) else { return };
    let folder = cluster.shared().to_owned();
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
        let _cluster = cluster;
        panic!("intended");
    }));
    assert!(outcome.is_err());
    assert!(!folder.exists());
    assert_eq!(traces(folder.file_name().unwrap().to_str().unwrap()), [""; 0]);
}

#[test]
fn hosts_are_connected_and_share_only_the_cluster_directory() {
    let builder = Cluster::builder().nodes(2).slurm(false);
    let (Some(one), Some(two)) = (cluster_or_skip(&builder), cluster_or_skip(&builder)) else {
        return;
    };
    for cluster in [&one, &two] {
        let script = "exec 3<>/dev/udp/node2/9 && getent hosts node2 && ls /sys/class/net && \
                      echo private > /tmp/note && echo shared > note";
        let output = cluster.bash("node1", script).unwrap().expect_success();
        assert_contains(output.stdout, ["10.77.0.2", "eth0"]);
        let output = cluster.bash("node2", "cat note; cat /tmp/note").unwrap();
        assert_eq!(output.stdout, "shared\n");
        assert!(!output.status.success());
    }
    let test = std::env::current_exe().unwrap();
    let output = run(&mut one.on("node1", test, ["--list"]).unwrap()).unwrap();
    assert!(output.stdout.contains("hosts_are_connected"), "{}", output.stderr);
    let error = one.on("node9", "true", [""; 0]).unwrap_err();
    assert_eq!(error.to_string(), "the cluster has no host \"node9\", only login, node1, node2");
}

#[test]
fn ssh_shim_runs_commands_in_a_new_environment() {
    let builder = Cluster::builder().nodes(2).slurm(false);
    let Some(cluster) = cluster_or_skip(&builder) else { return };
    let ssh = |words: &[&str]| {
        let mut command = cluster.launcher(cluster.ssh_shim(), words);
        run(command.env("OUTER_VARIABLE", "1")).unwrap()
    };
    let output = ssh(&["-x", "node2", "hostname; pwd;", "echo ${OUTER_VARIABLE-none}"]);
    let expected = format!("node2\n{}\nnone\n", cluster.shared().display());
    assert_eq!(output.stdout, expected, "{}", output.stderr);
    let output = ssh(&["node9", "hostname"]);
    assert_eq!((output.status.code(), output.stderr.as_str()), (Some(255), "ssh: no host node9\n"));
}

#[test]
fn timed_out_command_is_killed_on_its_host() {
    let builder = Cluster::builder().nodes(1).slurm(false);
    let Some(cluster) = cluster_or_skip(&builder) else { return };
    let mut sleep = cluster.on("node1", "sleep", ["4242"]).unwrap();
    let error = run_within(&mut sleep, Duration::from_millis(200)).unwrap_err();
    assert!(matches!(error, TestbedError::TimedOut { .. }), "{error}");
    let left = "cd /proc; for p in [0-9]*; do [ -e $p ] && echo $p; done; true";
    // Only the first process and the inspecting one are left, not even a zombie.
    wait_until("two processes", || {
        cluster.bash("node1", left).unwrap().stdout.lines().count() == 2
    });
}

#[test]
fn gpus_are_numbered_from_zero_when_constrained() {
    for (constrain, expected) in [(true, ["0", "0"]), (false, ["0", "1"])] {
        let builder = Cluster::builder().nodes(1).gpus(2).cpus(2).constrain_devices(constrain);
        let Some(cluster) = cluster_or_skip(&builder) else { return };
        let args = ["-n2", "--gpus-per-task=1", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES"];
        let output = run(&mut cluster.login("srun", args)).unwrap();
        assert_eq!(sorted(&output.stdout), expected, "{}", output.stderr);
    }
}

/// Not a test: the one below runs it as a child process in order to kill it.
#[test]
#[ignore = "run by killed_test_leaves_no_process"]
fn starts_a_cluster_and_waits() {
    let Some(cluster) = cluster_or_skip(&Cluster::builder().nodes(1)) else { return };
    println!("folder {}", cluster.shared().display());
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn killed_test_leaves_no_process() {
    use std::io::BufRead;
    let Some(()) = regatta_testbed::or_skip(&Cluster::missing()) else { return };
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "cluster::starts_a_cluster_and_waits", "--nocapture"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
    let folder = lines
        .map_while(Result::ok)
        .find_map(|line| line.split_once("folder ").map(|(_, f)| f.to_owned()))
        .unwrap();
    let folder = Path::new(&folder);
    let name = folder.file_name().unwrap().to_str().unwrap();
    let processes = || traces(name).into_iter().filter(|t| !t.starts_with("/sys")).count();
    assert!(processes() > 0 && folder.exists());
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until("all processes to exit", || processes() == 0);
    // The next cluster, of this or another test, removes the rest.
    drop(Cluster::builder().nodes(1).slurm(false).build().unwrap());
    assert!(!folder.exists());
    assert_eq!(traces(name), [""; 0]);
}
