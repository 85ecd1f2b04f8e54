//! `regatta bench` on several nodes, of which cables and links carry as much as they are told: so
//! little that processors with other work to do cannot be what is slow.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use regatta_model::{BenchResult, document};
use regatta_testbed::{Cluster, Output, cluster_or_skip, run_within};

use crate::support::{Bed, REGATTA};

/// What every cable carries, and half of it, and a quarter.
const USUAL: &str = "80mbit";
const HALF: &str = "40mbit";
const QUARTER: &str = "20mbit";

/// Nothing takes so long, unless it hangs.
const LIMIT: Duration = Duration::from_secs(120);

/// How often a baseline is tried; `REGATTA_TEST_CASES` says another number.
const TIMES: u32 = 2;

#[test]
fn what_is_slow_on_several_nodes_is_named() {
    let Some(cluster) = cluster_or_skip(&Cluster::builder().nodes(6).cpus(2).ssh(true)) else {
        return;
    };
    let bed = Bed::new(cluster);
    bed.cluster.nodes().iter().for_each(|node| bed.cluster.slow(node, USUAL).unwrap());
    by_slurm(&bed);
    once_a_rank(&bed);
    more_and_more_nodes(&bed);
    baseline(&bed);
    pairs(&bed);
}

/// `regatta bench` with the words of a line, by ssh on the first so many nodes, a rank each; and
/// its result.
fn bench(bed: &Bed, nodes: usize, words: &str) -> Output {
    let hosts = bed.file("hosts", &(bed.cluster.nodes()[..nodes].join("\n") + "\n"));
    let ssh = format!("--ssh '{}'", bed.cluster.ssh_command().join(" "));
    let mut command = bed.cluster.login(REGATTA, ["bench"]);
    command.args(words.split_whitespace()).args(["--hostfile", &hosts, "--launch", &ssh]);
    ended(bed, command.args(["--ranks-per-node", "1"]))
}

fn ended(bed: &Bed, command: &mut Command) -> Output {
    run_within(command.current_dir(bed.cluster.shared()), LIMIT).unwrap()
}

fn kept(bed: &Bed, file: &str) -> BenchResult {
    let text = std::fs::read_to_string(bed.cluster.shared().join(file)).unwrap();
    document::from_json(&text).unwrap()
}

/// Asserts that two ranks on two nodes have measured two sizes, and right.
fn assert_on_two_nodes(result: &BenchResult) {
    assert!(result.complete);
    assert_eq!(result.shape.hosts, ["node1", "node2"]);
    let rows = &result.tables[0].rows;
    assert_eq!(rows.iter().map(|row| row.size_bytes).collect::<Vec<_>>(), [1 << 10, 1 << 16]);
    for one in rows.iter().flat_map(|row| [&row.out_of_place, &row.in_place]).flatten() {
        assert_eq!((one.wrong, one.rank_times_us.len()), (Some(0), 2));
    }
}

/// Two sizes, which go over the network between two nodes.
const TWO_SIZES: [&str; 9] =
    ["bench", "all-reduce", "-b1K", "-e64K", "-f64", "-n2", "-w1", "--output_file", "two.json"];

/// In an allocation, agents are started by `srun`.
fn by_slurm(bed: &Bed) {
    let mut salloc = bed.cluster.login("salloc", ["-wnode1,node2", "--quiet", REGATTA]);
    let out = ended(bed, salloc.args(TWO_SIZES).args(["--ranks-per-node", "1"]));
    assert!(out.status.success(), "{out:?}");
    assert!(out.stdout.contains("Collective test concluded: all_reduce_perf"), "{out:?}");
    assert_on_two_nodes(&kept(bed, "two.json"));
}

/// Started by `srun` once a rank, with `regatta launch` and without, ranks know each other by a
/// file; without one it is said what is missing.
fn once_a_rank(bed: &Bed) {
    let srun = |words: &[&str]| {
        let mut srun = bed.cluster.login("srun", ["-wnode1,node2", "-n2", "-N2", REGATTA]);
        srun.args(words).args(TWO_SIZES);
        srun
    };
    let as_ranks = ["launch", "--", REGATTA];
    let out = ended(bed, &mut srun(&as_ranks));
    assert!(!out.status.success());
    assert!(out.stderr.contains("REGATTA_SECRET_FILE"), "{out:?}");

    let secret = bed.file("secret", &"a7".repeat(32));
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
    for words in [&as_ranks[..], &[]] {
        std::fs::remove_file(bed.cluster.shared().join("two.json")).unwrap_or_default();
        let out = ended(bed, srun(words).env("REGATTA_SECRET_FILE", &secret));
        assert!(out.status.success(), "{out:?}");
        let tables = out.stdout.matches("Collective test concluded: all_reduce_perf").count();
        assert_eq!(tables, 1, "rank 0 tells, for people: {out:?}");
        assert_on_two_nodes(&kept(bed, "two.json"));
    }
}

/// 1, 2 and 4 nodes.
fn more_and_more_nodes(bed: &Bed) {
    let out = bench(bed, 4, "all-reduce -b 64K -e 64K -n 2 -w 1 --scan --run-dir scan");
    assert!(out.status.success(), "{out:?}");
    let table = out.stdout.rsplit_once("efficiency").unwrap().1;
    let nodes: Vec<&str> = table.lines().filter_map(|l| l.split_whitespace().next()).collect();
    assert_eq!(nodes, ["1", "2", "4"], "{table}");
    for count in [1, 2, 4] {
        let result = kept(bed, &format!("scan/{count}-nodes/bench.json"));
        assert_eq!(result.shape.nodes, Some(count));
    }
}

/// A run is as good as the one before, unless a link carries half.
fn baseline(bed: &Bed) {
    let times = std::env::var("REGATTA_TEST_CASES").ok().and_then(|text| text.parse().ok());
    // Of two nodes: between three, what one link carries less may be hidden by the other.
    let words = "all-reduce -b 1M -e 1M -n 4 -w 1 -c 0";
    let out = bench(bed, 2, &format!("{words} -J before.json"));
    assert!(out.status.success(), "{out:?}");
    for turn in 0..times.unwrap_or(TIMES) {
        let judged = format!("{words} --baseline before.json --tolerance 25%");
        let out = bench(bed, 2, &judged);
        assert!(out.status.success(), "turn {turn}: {out:?}");
        assert!(out.stderr.contains("as good as before.json: 2 figures within 25%"), "{out:?}");

        bed.cluster.slow_between("node1", "node2", HALF).unwrap();
        let out = bench(bed, 2, &judged);
        assert_eq!(out.status.code(), Some(1), "turn {turn}: {out:?}");
        assert!(out.stderr.contains("worse than before.json"), "turn {turn}: {out:?}");
        assert!(out.stderr.contains("all-reduce of 1 MiB (1048576 B)"), "turn {turn}: {out:?}");
        ["node1", "node2"].iter().for_each(|node| bed.cluster.slow(node, USUAL).unwrap());
    }
}

/// A throttled node and a slow link stand out by name, and nothing else.
fn pairs(bed: &Bed) {
    // By bandwidths alone: cores that are shared make latencies chance.
    let slow = |name: &str| -> Vec<String> {
        let words = format!("send-recv --pairs --plot {name}.svg -J {name}.json");
        let out = bench(bed, 6, &words);
        let pairs = kept(bed, &format!("{name}.json")).pairs.unwrap();
        assert_eq!(pairs.ends.len(), 6);
        assert_eq!(out.status.code(), Some(i32::from(!pairs.findings.is_empty())), "{out:?}");
        assert!(pairs.findings.iter().all(|finding| out.stdout.contains(finding)), "{out:?}");
        pairs.findings.into_iter().filter(|finding| finding.contains(" % of the ")).collect()
    };
    assert_eq!(slow("healthy"), [""; 0]);
    bed.cluster.slow("node5", QUARTER).unwrap();
    bed.cluster.slow_between("node2", "node3", QUARTER).unwrap();
    let found = slow("harmed");
    assert!(found.iter().all(|finding| !finding.contains("cannot be told")), "{found:?}");
    let [node, link] = found.as_slice() else { panic!("{found:?}") };
    assert!(node.starts_with("node5 ") && node.contains(" is slow: "), "{node}");
    let percent = node.split_once(" % of the ").unwrap().0.rsplit(' ').next().unwrap();
    assert!((15..40).contains(&percent.parse::<u32>().unwrap()), "{node}");
    assert!(link.contains("node2") && link.contains("node3"), "{link}");
    assert!(link.starts_with("between ") && link.contains("it is slow, both ways"), "{link}");
}
