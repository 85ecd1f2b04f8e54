//! Strangers on the coordinator's port while a job runs: refused, told once, the job unharmed.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use regatta_launch::fleet::boot::{Boot, Times};
use regatta_testbed::{Cluster, cluster_or_skip, run, run_within};
use regatta_wire::secret::Secret;

use crate::REGATTA;
use crate::check::nothing_left;
use crate::harm::until;
use crate::launch::{folder, job, result, text};

/// Says something to the coordinator and waits until that hangs up.
const SAY: &str = "exec 3<>/dev/tcp/login/$0; printf \"$1\" >&3; cat <&3 >/dev/null";
/// Holds more connections than are let in without proof, and goes.
const CROWD: &str = "\
for i in 1 2 3 4 5; do
  ( for n in $(seq 300); do exec {fd}<>/dev/tcp/login/$0 || exit 0; done; sleep 1 ) &
done; wait";
/// Comes and goes as fast as it can.
const FLOOD: &str = "for i in $(seq 2000); do exec 3<>/dev/tcp/login/$0; printf x >&3; done";
/// What the ranks do: they talk to each other through files, until they are told to end.
const RANKS: &str = "echo hello $RANK; : > at-$RANK; until [ -e go ]; do sleep 0.1; done; echo bye";

#[test]
fn strangers_are_refused_told_once_and_do_no_harm() {
    let builder = Cluster::builder().nodes(4).cpus(2).slurm(false).ssh(true);
    let Some(cluster) = cluster_or_skip(&builder) else { return };
    let folder = folder(&cluster, "junk");
    let mut command = job(&cluster, 3, &folder, &["--fan-out", "2", "--lost-after", "15"], RANKS);
    let out = std::thread::scope(|scope| {
        let job = scope.spawn(|| run_within(&mut command, Duration::from_secs(90)).unwrap());
        for rank in 0..3 {
            let at = folder.join(format!("at-{rank}"));
            until("the ranks", || at.exists().then_some(())).unwrap();
        }
        disturb(&cluster, &folder);
        std::fs::write(folder.join("go"), "").unwrap();
        job.join().unwrap()
    });
    assert_eq!(out.status.code(), Some(0), "{}", out.stderr);
    let notes = result(&folder).unwrap().notes;
    for why in REASONS {
        let told = notes.iter().filter(|n| n.contains("10.77.0.4") && n.contains(why)).count();
        assert_eq!(told, 1, "{why}: {notes:#?}");
        assert!(out.stderr.matches(why).count() == 1, "{why}: {}", out.stderr);
    }
    assert!(notes.len() < 10, "{notes:#?}");
    for rank in 0..3 {
        let log = std::fs::read_to_string(folder.join(format!("run/log/rank-{rank}.out"))).unwrap();
        assert_eq!(log, format!("hello {rank}\nbye\n"));
    }
    nothing_left(&cluster).unwrap();
}

/// What is said of each kind of stranger.
const REASONS: [&str; 4] =
    ["has not the secret", "speaks version 77", "is no regatta", "did not prove in time"];

/// All of it from a node that is none of the job's.
fn disturb(cluster: &Cluster, folder: &Path) {
    let ports = cluster.listening("login").unwrap();
    assert_eq!(ports.len(), 1, "{ports:?}");
    let port = ports[0].to_string();
    let from_node = |script: &str, says: &str| {
        let words = ["-c", script, &port, says];
        run_within(&mut cluster.on("node4", "bash", words).unwrap(), Duration::from_secs(60))
    };
    std::thread::scope(|scope| {
        // It has ten seconds to prove itself, and sends a byte of a good beginning.
        scope.spawn(|| from_node(SAY, "REG").unwrap());
        std::thread::sleep(Duration::from_millis(300));
        from_node(SAY, "GET / HTTP/1.1\\r\\n\\r\\n").unwrap();
        from_node(SAY, "REGATTA\\n\\x00\\x4d").unwrap();
        impostor(cluster, folder, ports[0]);
    });
    from_node(FLOOD, "").unwrap();
    from_node(CROWD, "").unwrap();
    until("all refusals in the events", || {
        let events = std::fs::read_to_string(folder.join("run/events.jsonl")).unwrap();
        REASONS.iter().all(|why| events.contains(why)).then_some(())
    })
    .unwrap();
}

/// An agent of another job that was given this one's address.
fn impostor(cluster: &Cluster, folder: &Path, port: u16) {
    let second = Duration::from_secs(1);
    let times = Times { grace: second, join: second, lost_after: second };
    let login: IpAddr = "10.77.0.254".parse().unwrap();
    let root = vec![SocketAddr::new(login, port)];
    let hosts = ["node4".to_owned()];
    let marker = PathBuf::from("/nowhere");
    let secret = Secret::generate().unwrap();
    let boot = Boot::new("other", &secret, &hosts, (2, times), (root, vec![]), marker);
    let file = folder.join("impostor");
    std::fs::write(&file, boot.to_text().unwrap()).unwrap();
    let words = ["agent", "--boot", &text(&file)];
    run(&mut cluster.on("node4", REGATTA, words).unwrap()).unwrap();
}
