//! Every pair of nodes is measured on a network of namespaces of which a link is slowed and a node
//! throttled: both are named, and nothing else.

#![allow(clippy::unwrap_used, reason = "a test's own functions may panic as it may")]

use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use regatta_comm::join::{Settings, join, listen};
use regatta_measure::pairs::judge::{Place, Subject, Way};
use regatta_measure::pairs::{Bounds, Effort, Finding, Options, judge, measure, text};
use regatta_model::bench::Pairs;
use regatta_model::document::{from_json, to_json};
use regatta_model::{BenchResult, Document};
use regatta_testbed::{Cluster, cluster_or_skip};
use regatta_wire::secret::Secret;

/// What every cable carries: so little that processors with other work to do cannot be what is slow.
const USUAL: &str = "80mbit";
const THROTTLED: &str = "20mbit";

/// By bandwidths alone: cores that are shared make latencies chance.
const BOUNDS: Bounds = Bounds { bandwidth: 0.7, latency: f64::INFINITY };

/// Set for a process that is a rank: where ranks meet.
const FOLDER: &str = "REGATTA_TEST_PAIRS";

/// The arguments with which this program runs [`a_rank`] only.
const ARGUMENTS: [&str; 3] = ["--exact", "a_rank", "--nocapture"];

/// Nothing takes so long, unless it hangs.
const LIMIT: Duration = Duration::from_secs(120);

/// The rank itself: measures, and rank 0 writes down what all measured.
#[test]
fn a_rank() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let mut settings = Settings::from_environment().unwrap();
    let listener = (settings.rank == 0).then(|| listen("0.0.0.0:0".parse().unwrap()).unwrap());
    settings.port = match &listener {
        Some(listener) => listener.local_addr().unwrap().port(),
        None => awaited(&folder.join("port")).parse().unwrap(),
    };
    if listener.is_some() {
        written(&folder.join("port"), &settings.port.to_string());
    }
    settings.listener = listener;
    let comm = join(settings).unwrap();
    let limit = Duration::from_secs(2);
    let effort =
        Effort { bytes: 64 << 10, messages: 2, repetitions: 3, limit, ..Effort::default() };
    let options =
        Options { one_at_a_time: true, effort, again: 3, bounds: BOUNDS, ..Options::default() };
    if let Some(pairs) = measure(&comm, &options, &mut |_, _| {}).unwrap() {
        let result = BenchResult { pairs: Some(pairs), ..BenchResult::default() };
        written(&folder.join("pairs"), &to_json(&result).unwrap());
    }
}

/// Writes a file that is there only when it is whole.
fn written(file: &Path, text: &str) {
    let part = file.with_extension("part");
    std::fs::write(&part, text).unwrap();
    std::fs::rename(&part, file).unwrap();
}

fn awaited(file: &Path) -> String {
    let until = Instant::now() + LIMIT;
    loop {
        match std::fs::read_to_string(file) {
            Ok(text) => return text,
            Err(error) => assert!(Instant::now() < until, "{}: {error}", file.display()),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// What is measured on a cluster, one rank a node.
fn measured(cluster: &Cluster, name: &str) -> Pairs {
    let folder = cluster.shared().join(name);
    std::fs::create_dir(&folder).unwrap();
    let secret = folder.join("secret");
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.create_new(true).write(true).mode(0o600).open(&secret).unwrap();
    std::io::Write::write_all(&mut file, Secret::generate().unwrap().to_hex().as_bytes()).unwrap();
    let program = std::env::current_exe().unwrap();
    let rank = |(rank, node): (usize, &String)| {
        let mut command = cluster.on(node, &program, ARGUMENTS).unwrap();
        command.env(FOLDER, &folder).env("REGATTA_SECRET_FILE", &secret);
        command.env("RANK", rank.to_string()).env("MASTER_ADDR", &cluster.nodes()[0]);
        command.env("WORLD_SIZE", cluster.nodes().len().to_string()).env("MASTER_PORT", "0");
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let children: Vec<Child> = cluster.nodes().iter().enumerate().map(rank).collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let result: BenchResult = from_json(&awaited(&folder.join("pairs"))).unwrap();
    assert_eq!(result.fault(), None);
    result.pairs.unwrap()
}

/// A finding in few words, with the hosts of a link in order.
fn name(finding: &Finding) -> String {
    let mut hosts: Vec<&str> = match &finding.subject {
        Subject::Place(place) => vec![place.host()],
        Subject::Link { from, to } => vec![from.host(), to.host()],
        Subject::Network { .. } => vec!["network"],
    };
    hosts.sort_unstable();
    let way = if finding.way == Way::Both { "" } else { " one way" };
    format!("{}{way}", hosts.join("="))
}

#[test]
fn a_slowed_link_and_a_throttled_node_are_named() {
    let builder = Cluster::builder().nodes(6).cpus(2).slurm(false);
    let Some(cluster) = cluster_or_skip(&builder) else { return };
    for node in cluster.nodes() {
        cluster.slow(node, USUAL).unwrap();
    }
    let healthy = measured(&cluster, "healthy");
    assert_eq!(judge(&healthy, &BOUNDS), [], "{}", text::draw(&healthy, 100));

    cluster.slow("node5", THROTTLED).unwrap();
    cluster.slow_between("node2", "node3", THROTTLED).unwrap();
    let harmed = measured(&cluster, "harmed");
    let findings = judge(&harmed, &BOUNDS);
    let names: Vec<String> = findings.iter().map(name).collect();
    assert_eq!(names, ["node5", "node2=node3"], "{}", text::draw(&harmed, 100));
    let node = Place::Node { host: "node5".to_owned(), ranks: vec![4] };
    assert_eq!(findings[0].subject, Subject::Place(node));
    let figure = findings[0].bandwidth.unwrap();
    assert!((0.15..0.4).contains(&figure.ratio()), "{figure:?}");
    assert!(findings.iter().all(|finding| finding.told_apart), "{findings:?}");
}
