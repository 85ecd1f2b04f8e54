//! Unauthenticated connections to the launcher's port: rejected, reported once, without effect.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use regatta_launch::agents::bootstrap_document::{BootstrapDocument, JobTimeouts, VERSION};
use regatta_testbed::{Cluster, cluster_or_skip, run, run_meanwhile, run_within};
use regatta_wire::secret::Secret;

use crate::chaos::check::assert_no_leftovers;
use crate::chaos::inject::wait_for;
use crate::chaos::job::{folder, run_result, shell_job, wait_for_ranks};
use crate::support::REGATTA;

/// Sends bytes to the launcher and waits until it closes the connection.
const SEND: &str = "exec 3<>/dev/tcp/login/$0; printf \"$1\" >&3; cat <&3 >/dev/null";
/// Opens more unauthenticated connections than the launcher accepts.
const MANY_OPEN: &str = "\
for i in 1 2 3 4 5; do
  ( for n in $(seq 300); do exec {fd}<>/dev/tcp/login/$0 || exit 0; done; sleep 1 ) &
done; wait";
/// Connects and disconnects as fast as possible.
const FLOOD: &str = "for i in $(seq 2000); do exec 3<>/dev/tcp/login/$0; printf x >&3; done";
/// Ranks that run until the file `go` exists.
const RANKS: &str = "echo hello $RANK; : > at-$RANK; until [ -e go ]; do sleep 0.1; done; echo bye";

#[test]
fn unauthenticated_peers_are_rejected_and_reported_once() {
    let builder = Cluster::builder().nodes(4).cpus(2).slurm(false).ssh(true);
    let Some(cluster) = cluster_or_skip(&builder) else { return };
    let folder = folder(&cluster, "junk");
    let mut command = shell_job(&cluster, 3, &folder, "--fan-out 2 --heartbeat-timeout 15", RANKS);
    let (out, ()) = run_meanwhile(&mut command, Duration::from_secs(90), || {
        wait_for_ranks(&folder, 3).unwrap();
        connect_unauthenticated(&cluster, &folder);
        std::fs::write(folder.join("go"), "").unwrap();
    });
    let out = out.unwrap().expect_success();
    let notes = run_result(&folder).unwrap().notes;
    for why in REASONS {
        let reports = notes.iter().filter(|n| n.contains("10.77.0.4") && n.contains(why)).count();
        assert_eq!(reports, 1, "{why}: {notes:#?}");
        assert!(out.stderr.matches(why).count() == 1, "{why}: {}", out.stderr);
    }
    assert!(notes.len() < 10, "{notes:#?}");
    for rank in 0..3 {
        let log = std::fs::read_to_string(folder.join(format!("run/log/rank-{rank}.out"))).unwrap();
        assert_eq!(log, format!("hello {rank}\nbye\n"));
    }
    assert_no_leftovers(&cluster).unwrap();
}

/// The reported reason of each kind.
const REASONS: [&str; 4] = [
    "the peer does not have this job's secret",
    "the peer uses version 77",
    "the peer is not a regatta process",
    "the peer did not authenticate in time",
];

/// Opens all kinds of invalid connections from a node outside the job.
fn connect_unauthenticated(cluster: &Cluster, folder: &Path) {
    let ports = cluster.listening_ports("login").unwrap();
    assert_eq!(ports.len(), 1, "{ports:?}");
    let port = ports[0].to_string();
    let from_node = |script: &str, bytes: &str| {
        let words = ["-c", script, &port, bytes];
        run_within(&mut cluster.on("node4", "bash", words).unwrap(), Duration::from_secs(60))
    };
    std::thread::scope(|scope| {
        // An incomplete handshake times out after ten seconds.
        scope.spawn(|| from_node(SEND, "REG").unwrap());
        std::thread::sleep(Duration::from_millis(300));
        from_node(SEND, "GET / HTTP/1.1\\r\\n\\r\\n").unwrap();
        from_node(SEND, "REGATTA\\n\\x00\\x4d").unwrap();
        foreign_agent(cluster, folder, ports[0]);
    });
    from_node(FLOOD, "").unwrap();
    from_node(MANY_OPEN, "").unwrap();
    wait_for("all rejections in the events", || {
        let events = std::fs::read_to_string(folder.join("run/events.jsonl")).unwrap();
        REASONS.iter().all(|why| events.contains(why)).then_some(())
    })
    .unwrap();
}

/// An agent of another job with this job's address.
fn foreign_agent(cluster: &Cluster, folder: &Path, port: u16) {
    let second = Duration::from_secs(1);
    let login: IpAddr = "10.77.0.254".parse().unwrap();
    let boot = BootstrapDocument {
        version: VERSION,
        run: "other".to_owned(),
        secret: Secret::generate().unwrap().to_hex(),
        hosts: "node4".to_owned(),
        fan_out: 2,
        timeouts: JobTimeouts { grace: second, join: second, lost_after: second },
        root: vec![SocketAddr::new(login, port)],
        ports: vec![],
        marker: "/nowhere".into(),
    };
    let file = folder.join("foreign");
    std::fs::write(&file, boot.to_text().unwrap()).unwrap();
    run(cluster.on("node4", REGATTA, ["agent", "--boot"]).unwrap().arg(&file)).unwrap();
}
