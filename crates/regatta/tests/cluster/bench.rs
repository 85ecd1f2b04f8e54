//! `regatta bench` on several nodes with rate-limited links, slow enough that busy CPUs do not
//! affect the results.

use std::process::Command;
use std::time::Duration;

use regatta_model::{BenchResult, document};
use regatta_testbed::{Cluster, CommandOutput, assert_contains, run_within};

use crate::support::REGATTA;
use crate::test_cluster::TestCluster;

/// Bandwidth of healthy and slow links.
const FULL: &str = "80mbit";
const QUARTER: &str = "20mbit";

/// Timeout of a command.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Repetitions of the baseline test, unless `REGATTA_TEST_CASES` is set.
const REPETITIONS: u32 = 2;

#[test]
fn slow_nodes_and_links_are_found_on_a_cluster() {
    let builder = Cluster::builder().nodes(6).cpus(2).ssh(true);
    let Some(bed) = TestCluster::or_skip(&builder) else { return };
    bed.hosts.nodes().iter().for_each(|node| bed.hosts.throttle(node, FULL).unwrap());
    in_slurm_allocation(&bed);
    started_by_srun_per_rank(&bed);
    scan(&bed);
    baseline(&bed);
    pairs(&bed);
}

/// `regatta bench` over ssh on the first `nodes` nodes, one rank each.
fn bench(bed: &TestCluster, nodes: usize, words: &str) -> CommandOutput {
    let hosts = bed.file("hosts", &(bed.hosts.nodes()[..nodes].join("\n") + "\n"));
    let ssh = format!("--ssh '{}'", bed.hosts.ssh_command().join(" "));
    let mut command = bed.hosts.login(REGATTA, ["bench"]);
    command.args(words.split_whitespace()).args(["--hostfile", &hosts, "--launch", &ssh]);
    ended(bed, command.args(["--ranks-per-node", "1"]))
}

fn ended(bed: &TestCluster, command: &mut Command) -> CommandOutput {
    run_within(command.current_dir(bed.hosts.shared()), TIMEOUT).unwrap()
}

fn load_result(bed: &TestCluster, file: &str) -> BenchResult {
    let text = std::fs::read_to_string(bed.hosts.shared().join(file)).unwrap();
    document::from_json(&text).unwrap()
}

/// Asserts that two ranks on two nodes have measured two sizes correctly.
fn assert_on_two_nodes(result: &BenchResult) {
    assert!(result.complete);
    assert_eq!(result.shape.hosts, ["node1", "node2"]);
    let rows = &result.tables[0].rows;
    assert_eq!(rows.iter().map(|row| row.size_bytes).collect::<Vec<_>>(), [1 << 10, 1 << 16]);
    for one in rows.iter().flat_map(|row| [&row.out_of_place, &row.in_place]).flatten() {
        assert_eq!((one.wrong, one.rank_times_us.len()), (Some(0), 2));
    }
}

/// Arguments for two sizes.
const TWO_SIZES: [&str; 9] =
    ["bench", "all-reduce", "-b1K", "-e64K", "-f64", "-n2", "-w1", "--output_file", "two.json"];

/// In an allocation, agents are started by `srun`.
fn in_slurm_allocation(bed: &TestCluster) {
    let mut salloc = bed.hosts.login("salloc", ["-wnode1,node2", "--quiet", REGATTA]);
    let out = ended(bed, salloc.args(TWO_SIZES).args(["--ranks-per-node", "1"]));
    let out = out.expect_success();
    assert_contains(out.stdout, "Collective test concluded: all_reduce_perf");
    assert_on_two_nodes(&load_result(bed, "two.json"));
}

/// Started by `srun` once per rank, with and without `regatta launch`, ranks need a secret file.
fn started_by_srun_per_rank(bed: &TestCluster) {
    let srun = |words: &[&str]| {
        let mut srun = bed.hosts.login("srun", ["-wnode1,node2", "-n2", "-N2", REGATTA]);
        srun.args(words).args(TWO_SIZES);
        srun
    };
    let as_ranks = ["launch", "--", REGATTA];
    let out = ended(bed, &mut srun(&as_ranks));
    assert!(!out.status.success());
    assert_contains(out.stderr, "REGATTA_SECRET_FILE");

    let secret = bed.secret_file();
    for words in [&as_ranks[..], &[]] {
        std::fs::remove_file(bed.hosts.shared().join("two.json")).unwrap_or_default();
        let out = ended(bed, srun(words).env("REGATTA_SECRET_FILE", &secret)).expect_success();
        let tables = out.stdout.matches("Collective test concluded: all_reduce_perf").count();
        assert_eq!(tables, 1, "only rank 0 prints: {out:?}");
        assert_on_two_nodes(&load_result(bed, "two.json"));
    }
}

/// Scan over 1, 2 and 4 nodes.
fn scan(bed: &TestCluster) {
    let out = bench(bed, 4, "all-reduce -b 64K -e 64K -n 2 -w 1 --scan --run-dir scan");
    let out = out.expect_success();
    let table = out.stdout.rsplit_once("efficiency").unwrap().1;
    let nodes: Vec<&str> = table.lines().filter_map(|l| l.split_whitespace().next()).collect();
    assert_eq!(nodes, ["1", "2", "4"], "{table}");
    for count in [1, 2, 4] {
        let result = load_result(bed, &format!("scan/{count}-nodes/bench.json"));
        assert_eq!(result.shape.nodes, Some(count));
    }
}

/// Attempts of a measurement that the other load of the machine may disturb.
const ATTEMPTS: u32 = 10;

/// The baseline check passes, and fails if a link has a quarter of its bandwidth. The tolerance lies
/// far from both, because the other load of the machine changes the times, too; where that is not
/// enough, both are measured again.
fn baseline(bed: &TestCluster) {
    let times = std::env::var(regatta_testbed::TEST_CASES).ok().and_then(|text| text.parse().ok());
    for repetition in 0..times.unwrap_or(REPETITIONS) {
        println!("repetition {repetition}");
        let is_judged = (0..ATTEMPTS).any(|_| baseline_is_judged(bed));
        assert!(is_judged, "a healthy link is a regression, or a slow one is none");
    }
}

/// Whether a healthy link agrees with a baseline of the same link, and a slow one does not.
fn baseline_is_judged(bed: &TestCluster) -> bool {
    // On two nodes, because with three the slow link may be hidden by another.
    let words = "all-reduce -b 1M -e 1M -n 4 -w 1 -c 0";
    bench(bed, 2, &format!("{words} -J before.json")).expect_success();
    let checked = format!("{words} --baseline before.json --tolerance 100%");
    let healthy = bench(bed, 2, &checked);
    bed.hosts.throttle_pair("node1", "node2", QUARTER).unwrap();
    let slow = bench(bed, 2, &checked);
    ["node1", "node2"].iter().for_each(|node| bed.hosts.throttle(node, FULL).unwrap());
    println!("healthy link: {}\nslow link: {}", healthy.stderr, slow.stderr);
    let regression = ["baseline before.json", "all-reduce of 1 MiB (1048576 B)"];
    healthy.status.success()
        && healthy.stderr.contains("no regression against before.json: 2 values within 100%")
        && slow.status.code() == Some(1)
        && regression.iter().all(|text| slow.stderr.contains(text))
}

/// Exactly the throttled node and the slow link are found.
fn pairs(bed: &TestCluster) {
    // Bandwidth findings only: latencies are noisy on shared cores.
    let slow = |name: &str| -> Vec<String> {
        let words = format!("send-recv --pairs --plot {name}.svg -J {name}.json");
        let out = bench(bed, 6, &words);
        let pairs = load_result(bed, &format!("{name}.json")).pairs.unwrap();
        assert_eq!(pairs.endpoints.len(), 6);
        assert_eq!(out.status.code(), Some(i32::from(!pairs.findings.is_empty())), "{out:?}");
        assert!(pairs.findings.iter().all(|finding| out.stdout.contains(finding)), "{out:?}");
        let mut findings = pairs.findings;
        findings.retain(|finding| finding.contains(" % of the expected "));
        findings
    };
    assert_eq!(slow("healthy"), [""; 0]);
    bed.hosts.throttle("node5", QUARTER).unwrap();
    bed.hosts.throttle_pair("node2", "node3", QUARTER).unwrap();
    let found = slow("faulty");
    assert!(found.iter().all(|finding| !finding.contains("the cause may")), "{found:?}");
    let [node, link] = found.as_slice() else { panic!("{found:?}") };
    assert!(node.starts_with("node5 ") && node.contains(" is slow: "), "{node}");
    let percent = node.split_once(" % of the expected ").unwrap().0.rsplit(' ').next().unwrap();
    assert!((15..40).contains(&percent.parse::<u32>().unwrap()), "{node}");
    assert!(link.starts_with("the link between "), "{link}");
    assert_contains(link, ["node2", "node3", "is slow in both directions"]);
}
