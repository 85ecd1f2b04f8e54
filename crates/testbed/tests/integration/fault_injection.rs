//! Injected faults, and what is left on hosts afterwards.

use regatta_testbed::{Cluster, CommandOutput, assert_contains, cluster_or_skip, run, wait_until};
use std::ffi::OsStr;
use std::io::Write;
use std::process::{Child, Stdio};

fn bash(cluster: &Cluster, host: &str, script: &str) -> CommandOutput {
    cluster.bash(host, script).unwrap()
}

/// Connects to node2's port 7000, where a server responds.
const CONNECT: &str =
    "exec 3<>/dev/tcp/node2/7000 && read -r -t 5 answer <&3 && [ $answer = hello ]";

/// Starts a background process.
fn background(cluster: &Cluster, host: &str, program: impl AsRef<OsStr>, args: &[&str]) -> Child {
    let mut command = cluster.on(host, program, args).unwrap();
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Whether node1 can connect to the server.
fn reaches(cluster: &Cluster) -> bool {
    let words = ["2", "bash", "-c", CONNECT];
    run(&mut cluster.on("node1", "timeout", words).unwrap()).unwrap().status.success()
}

/// Not a test: a server on port 7000 that tests run on a host.
#[test]
#[ignore = "run by other tests"]
fn serves_port_7000() {
    let listener = std::net::TcpListener::bind("0.0.0.0:7000").unwrap();
    for connection in listener.incoming() {
        let _ = connection.unwrap().write_all(b"hello\n");
    }
}

fn serve(cluster: &Cluster, host: &str) -> Child {
    let test = std::env::current_exe().unwrap();
    background(cluster, host, test, &["--ignored", "--exact", "fault_injection::serves_port_7000"])
}

#[test]
fn disconnected_host_is_unreachable_until_healed() {
    let Some(cluster) = cluster_or_skip(&Cluster::builder().nodes(2).slurm(false)) else { return };
    let mut server = serve(&cluster, "node2");
    wait_until("the server", || reaches(&cluster));
    cluster.disconnect("node2").unwrap();
    assert!(!reaches(&cluster));
    let alive = cluster.processes("node2").unwrap();
    assert_eq!(alive.len(), 1, "processes of a disconnected host keep running: {alive:?}");
    cluster.heal("node2").unwrap();
    wait_until("the server again", || reaches(&cluster));
    assert!(cluster.disconnect("node9").is_err());
    drop(cluster);
    server.wait().unwrap();
}

#[test]
fn pair_can_be_disconnected_and_links_throttled() {
    let Some(cluster) = cluster_or_skip(&Cluster::builder().nodes(3).slurm(false)) else { return };
    let mut server = serve(&cluster, "node2");
    wait_until("the server", || reaches(&cluster));
    cluster.disconnect_pair("node1", "node2").unwrap();
    assert!(!reaches(&cluster));
    assert!(bash(&cluster, "node3", CONNECT).status.success());
    cluster.heal("node1").unwrap();
    cluster.heal("node2").unwrap();
    wait_until("the server again", || reaches(&cluster));
    cluster.throttle("node2", "8kbit").unwrap();
    let qdiscs = |host: &str| bash(&cluster, host, "tc qdisc show dev eth0").stdout;
    assert_contains(qdiscs("node2"), ["tbf", "8Kbit"]);
    cluster.heal("node2").unwrap();
    assert!(!qdiscs("node2").contains("tbf"));
    cluster.throttle_pair("node2", "node3", "8kbit").unwrap();
    let show = bash(&cluster, "node3", "tc class show dev eth0; tc filter show dev eth0");
    assert_contains(show.stdout, ["8Kbit", "0a4d0002/ffffffff"]);
    assert!(!qdiscs("node1").contains("htb"));
    cluster.heal("node3").unwrap();
    assert!(!qdiscs("node3").contains("htb"));
    assert!(cluster.disconnect_pair("node1", "node9").is_err());
    drop(cluster);
    server.wait().unwrap();
}

#[test]
fn crashed_host_has_no_process_and_no_port() {
    let Some(cluster) = cluster_or_skip(&Cluster::builder().nodes(2).slurm(false)) else { return };
    let mut server = serve(&cluster, "node2");
    wait_until("the server", || reaches(&cluster));
    cluster.crash("node2").unwrap();
    assert_eq!(cluster.processes("node2").unwrap(), []);
    assert_eq!(cluster.listening_ports("node2").unwrap(), [0; 0]);
    assert!(!server.wait().unwrap().success());
    assert!(!reaches(&cluster));
    assert!(!bash(&cluster, "node2", "true").status.success());
    assert!(bash(&cluster, "node1", "true").status.success());
}

#[test]
fn daemons_are_not_reported_as_leftovers() {
    let Some(cluster) = cluster_or_skip(&Cluster::builder().nodes(2).ssh(true)) else { return };
    for host in ["login", "node1", "node2"] {
        wait_until("idle daemons", || cluster.processes(host).unwrap().is_empty());
        assert_eq!(cluster.listening_ports(host).unwrap(), [0; 0], "{host}");
    }
    let script = "setsid sleep 4242 & exec sleep 4243";
    let mut job = background(&cluster, "node2", "bash", &["-c", script]);
    let sleeps = |host: &str| {
        let all = cluster.processes(host).unwrap();
        let mut commands: Vec<String> = all.into_iter().map(|p| p.command).collect();
        commands.sort_unstable();
        commands
    };
    wait_until("both processes", || sleeps("node2") == ["sleep 4242", "sleep 4243"]);
    let all = cluster.processes("node2").unwrap();
    let (child, parent) = match all.as_slice() {
        [a, b] if a.parent == b.pid => (a, b),
        [a, b] => (b, a),
        _ => panic!("{all:?}"),
    };
    assert_eq!((child.parent, child.command.as_str()), (parent.pid, "sleep 4242"));
    assert_eq!(sleeps("node1"), [""; 0]);
    job.kill().unwrap();
    job.wait().unwrap();
    let mut server = serve(&cluster, "node1");
    wait_until("the port", || cluster.listening_ports("node1").unwrap() == [7000]);
    assert_eq!(cluster.listening_ports("node2").unwrap(), [0; 0]);
    let left = cluster.leftovers().unwrap().join("\n");
    assert_contains(left, ["serves_port_7000", "node1: port 7000", "node2: sleep 4242"]);
    drop(cluster);
    server.wait().unwrap();
}

#[test]
fn limited_disk_is_full_on_one_host_only() {
    let Some(cluster) = cluster_or_skip(&Cluster::builder().nodes(2).slurm(false)) else { return };
    let folder = cluster.shared().join("runs");
    std::fs::create_dir(&folder).unwrap();
    cluster.limit_disk("node1", &folder, 64 * 1024).unwrap();
    let fill = "head -c 1000000 /dev/zero > runs/data; stat -c %s runs/data";
    let output = bash(&cluster, "node1", fill);
    assert_eq!(output.stdout, "65536\n");
    assert_contains(output.stderr, "No space left");
    assert_eq!(bash(&cluster, "node2", fill).stdout, "1000000\n");
    assert!(cluster.limit_disk("node1", &folder.join("absent"), 1).is_err());
}
