//! What befalls a cluster, and what is left in it afterwards.

#![allow(clippy::unwrap_used, reason = "a test's own functions may panic as it may")]

use regatta_testbed::{Cluster, Output, cluster_or_skip, run};
use std::ffi::OsStr;
use std::io::Write;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Waits for what will come to pass, but not for ever.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn bash(cluster: &Cluster, host: &str, script: &str) -> Output {
    run(&mut cluster.on(host, "bash", ["-c", script]).unwrap()).unwrap()
}

/// Starts what goes on by itself.
fn background(cluster: &Cluster, host: &str, program: impl AsRef<OsStr>, args: &[&str]) -> Child {
    let mut command = cluster.on(host, program, args).unwrap();
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Whether node1 reaches node2's port 7000, where a program answers.
fn reaches(cluster: &Cluster) -> bool {
    let script = "exec 3<>/dev/tcp/node2/7000 && read -r -t 5 answer <&3 && [ $answer = hello ]";
    let words = ["2", "bash", "-c", script];
    run(&mut cluster.on("node1", "timeout", words).unwrap()).unwrap().status.success()
}

/// Not a test by itself: others run it on a host, as a program that answers on port 7000.
#[test]
#[ignore = "run by other tests"]
fn answers_connections() {
    let listener = std::net::TcpListener::bind("0.0.0.0:7000").unwrap();
    for connection in listener.incoming() {
        let _ = connection.unwrap().write_all(b"hello\n");
    }
}

fn serve(cluster: &Cluster, host: &str) -> Child {
    let test = std::env::current_exe().unwrap();
    background(cluster, host, test, &["--ignored", "--exact", "answers_connections"])
}

#[test]
fn a_cut_link_carries_nothing_until_it_is_mended() {
    let Some(cluster) = cluster_or_skip(&Cluster::builder().nodes(2).slurm(false)) else { return };
    let mut server = serve(&cluster, "node2");
    until("the server answers", || reaches(&cluster));
    cluster.cut("node2").unwrap();
    assert!(!reaches(&cluster));
    let alive = cluster.processes("node2").unwrap();
    assert_eq!(alive.len(), 1, "a cut host goes on: {alive:?}");
    cluster.mend("node2").unwrap();
    until("the server answers again", || reaches(&cluster));
    assert!(cluster.cut("node9").is_err());
    drop(cluster);
    server.wait().unwrap();
}

#[test]
fn a_path_can_be_cut_alone_and_a_link_be_slow() {
    let Some(cluster) = cluster_or_skip(&Cluster::builder().nodes(3).slurm(false)) else { return };
    let mut server = serve(&cluster, "node2");
    until("the server answers", || reaches(&cluster));
    cluster.cut_between("node1", "node2").unwrap();
    assert!(!reaches(&cluster));
    let script = "exec 3<>/dev/tcp/node2/7000 && read -r -t 5 answer <&3 && [ $answer = hello ]";
    assert!(bash(&cluster, "node3", script).status.success());
    cluster.mend("node1").unwrap();
    cluster.mend("node2").unwrap();
    until("the server answers again", || reaches(&cluster));
    cluster.slow("node2", "8kbit").unwrap();
    let show = bash(&cluster, "node2", "tc qdisc show dev eth0").stdout;
    assert!(show.contains("tbf") && show.contains("8Kbit"), "{show}");
    cluster.mend("node2").unwrap();
    assert!(!bash(&cluster, "node2", "tc qdisc show dev eth0").stdout.contains("tbf"));
    cluster.slow_between("node2", "node3", "8kbit").unwrap();
    let show = bash(&cluster, "node3", "tc class show dev eth0; tc filter show dev eth0").stdout;
    assert!(show.contains("8Kbit") && show.contains("0a4d0002/ffffffff"), "{show}");
    assert!(!bash(&cluster, "node1", "tc qdisc show dev eth0").stdout.contains("htb"));
    cluster.mend("node3").unwrap();
    assert!(!bash(&cluster, "node3", "tc qdisc show dev eth0").stdout.contains("htb"));
    assert!(cluster.cut_between("node1", "node9").is_err());
    drop(cluster);
    server.wait().unwrap();
}

#[test]
fn a_crashed_host_has_no_process_and_no_port() {
    let Some(cluster) = cluster_or_skip(&Cluster::builder().nodes(2).slurm(false)) else { return };
    let mut server = serve(&cluster, "node2");
    until("the server answers", || reaches(&cluster));
    cluster.crash("node2").unwrap();
    assert_eq!(cluster.processes("node2").unwrap(), []);
    assert_eq!(cluster.listening("node2").unwrap(), [0; 0]);
    assert!(!server.wait().unwrap().success());
    assert!(!reaches(&cluster));
    assert!(!bash(&cluster, "node2", "true").status.success());
    assert!(bash(&cluster, "node1", "true").status.success());
}

#[test]
fn only_what_a_job_left_is_counted() {
    let Some(cluster) = cluster_or_skip(&Cluster::builder().nodes(2).ssh(true)) else { return };
    for host in ["login", "node1", "node2"] {
        until("daemons have settled", || cluster.processes(host).unwrap().is_empty());
        assert_eq!(cluster.listening(host).unwrap(), [0; 0], "{host}");
    }
    let script = "setsid sleep 4242 & exec sleep 4243";
    let mut job = background(&cluster, "node2", "bash", &["-c", script]);
    let sleeps = |host: &str| {
        let all = cluster.processes(host).unwrap();
        let mut commands: Vec<String> = all.into_iter().map(|p| p.command).collect();
        commands.sort_unstable();
        commands
    };
    until("both run", || sleeps("node2") == ["sleep 4242", "sleep 4243"]);
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
    until("the port is taken", || cluster.listening("node1").unwrap() == [7000]);
    assert_eq!(cluster.listening("node2").unwrap(), [0; 0]);
    drop(cluster);
    server.wait().unwrap();
}

#[test]
fn a_small_disk_is_full_on_one_host_alone() {
    let Some(cluster) = cluster_or_skip(&Cluster::builder().nodes(2).slurm(false)) else { return };
    let folder = cluster.shared().join("runs");
    std::fs::create_dir(&folder).unwrap();
    cluster.small_disk("node1", &folder, 64 * 1024).unwrap();
    let fill = "head -c 1000000 /dev/zero > runs/data; stat -c %s runs/data";
    let output = bash(&cluster, "node1", fill);
    assert_eq!(output.stdout, "65536\n");
    assert!(output.stderr.contains("No space left"), "{}", output.stderr);
    assert_eq!(bash(&cluster, "node2", fill).stdout, "1000000\n");
    assert!(cluster.small_disk("node1", &folder.join("absent"), 1).is_err());
}
