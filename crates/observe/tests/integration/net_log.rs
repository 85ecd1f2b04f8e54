//! Recorded logs are judged correctly; prefixes, interleaving, chunks and cuts do not change the verdict.

#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

use std::path::Path;

use proptest::prelude::*;
use proptest::sample::Index;
use regatta_observe::net_log::report::{Finding, Gdr, Level, NetReport, RankReport, report};
use regatta_observe::net_log::{NetLog, Requirement};

fn read(text: &[u8], chunk: usize) -> NetLog {
    let mut log = NetLog::default();
    let source = log.add_source("log", None);
    text.chunks(chunk.max(1)).for_each(|part| log.read(source, part));
    log.finish(source);
    log
}

fn judge(text: &str) -> NetReport {
    report(&read(text.as_bytes(), text.len()), None)
}

fn recorded(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/logs").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn judge_recorded(name: &str) -> NetReport {
    judge(&recorded(name))
}

fn finding<'a>(report: &'a NetReport, code: &str) -> &'a Finding {
    let found = report.findings.iter().find(|finding| finding.code == code);
    found.unwrap_or_else(|| panic!("no {code} in {:#?}", report.findings))
}

fn codes(report: &NetReport) -> Vec<&str> {
    report.findings.iter().map(|finding| finding.code.as_str()).collect()
}

fn is_satisfied(name: &str, requirement: &str) -> bool {
    let requirement: Requirement = requirement.parse().unwrap();
    let text = recorded(name);
    let report = report(&read(text.as_bytes(), 100), Some(&requirement));
    let result = report.requirement.unwrap();
    assert!(result.satisfied || result.reason.is_some() && result.fix.is_some(), "{result:?}");
    result.satisfied
}

/// Logs of two ranks that share an H200 (NCCL 2.28.9, one `NCCL_HOSTID` per rank), without a plug-in
/// and with aws-ofi-nccl over libfabric 1.17.
#[test]
fn logs_of_an_h200_are_judged_with_and_without_a_plugin() {
    let plain = judge_recorded("nccl-2.28-h200-socket.log");
    assert_eq!((plain.level, plain.ranks.len(), plain.nodes), (Level::Warning, 2, 2));
    assert_eq!(codes(&plain), ["tcp-network", "plugin-not-found"]);

    let missing = judge_recorded("nccl-2.28-h200-plugin-missing.log");
    assert_eq!(missing.level, Level::Failure, "a plug-in was requested");
    let fix = finding(&missing, "plugin-not-found").fix.as_deref().unwrap();
    assert!(fix.contains("NCCL_NET_PLUGIN"), "{fix}");

    let name = "nccl-2.28-h200-libfabric-tcp.log";
    let plugin = judge_recorded(name);
    assert_eq!(plugin.level, Level::Warning);
    assert!(
        plugin.verdict.ends_with("over TCP: libfabric's provider is tcp;ofi_rxm"),
        "{}",
        plugin.verdict
    );
    for rank in &plugin.ranks {
        assert_eq!(rank.networks_used().into_iter().collect::<Vec<_>>(), ["Libfabric"]);
        assert_eq!(rank.gdr, Gdr::Off);
    }
    assert!(is_satisfied(name, "ofi") && !is_satisfied(name, "ofi/GDRDMA"));
    assert!(!is_satisfied(name, "cxi") && !is_satisfied("nccl-2.28-h200-socket.log", "ofi"));
}

/// The reports on the pages of sites.
#[test]
fn good_networks_have_no_findings() {
    for (name, requirement) in [
        ("rccl-2.21-cxi.log", "cxi/GDRDMA"),
        ("nccl-2.24-cxi.log", "cxi/GDRDMA"),
        ("nccl-2.24-efa.log", "efa/GDRDMA"),
        ("nccl-2.31-ib.log", "ib/GDRDMA"),
    ] {
        let report = judge_recorded(name);
        assert_eq!((report.level, codes(&report)), (Level::Ok, Vec::new()), "{name}");
        assert!(is_satisfied(name, requirement), "{name}");
    }
}

/// Written after the messages of our plug-in and of NCCL 2.28.
#[test]
fn our_plugin_is_proven_with_provider_and_nics() {
    let name = "nccl-2.28-regatta-cxi.log";
    let report = judge_recorded(name);
    assert_eq!((report.level, codes(&report)), (Level::Ok, Vec::new()));
    assert_eq!(report.verdict, "2 ranks on 2 nodes use NET/Regatta (cxi) with GPUDirect RDMA");
    for rank in &report.ranks {
        let described = "Regatta (libfabric 1.22, provider cxi, API v11)";
        assert_eq!(rank.plugin.describe().unwrap(), described);
        let nics: Vec<_> = rank.transports.iter().map(|t| t.nic.as_deref().unwrap()).collect();
        assert_eq!(nics, ["cxi0", "cxi0", "cxi1", "cxi1"]);
    }
    for met in ["cxi/GDRDMA", "cxi", "ofi", "Regatta", "regatta/GDRDMA"] {
        assert!(is_satisfied(name, met), "{met}");
    }
    for unmet in ["efa", "ib", "socket"] {
        assert!(!is_satisfied(name, unmet), "{unmet}");
    }
}

#[test]
fn our_plugin_over_tcp_is_named_with_its_provider_and_reason() {
    let name = "nccl-2.28-regatta-tcp.log";
    let report = judge_recorded(name);
    assert!(report.verdict.ends_with("libfabric's provider is tcp"), "{}", report.verdict);
    let fix = |code| finding(&report, code).fix.as_deref().unwrap();
    assert!(fix("tcp-provider").starts_with("set REGATTA_FABRIC to"));
    assert!(fix("gdr-off").contains("GPUDirect RDMA: no (tcp does not access memory of GPUs)"));
    assert!(is_satisfied(name, "regatta") && !is_satisfied(name, "cxi"));
    assert!(!is_satisfied(name, "ofi/GDRDMA"));
}

#[test]
fn our_plugin_says_why_it_is_not_used() {
    let name = "nccl-2.28-regatta-not-used.log";
    let report = judge_recorded(name);
    assert_eq!(report.level, Level::Failure);
    assert_eq!(codes(&report), ["tcp-network", "plugin-not-used"]);
    let unused = finding(&report, "plugin-not-used");
    assert_eq!(
        unused.message,
        "NET/Regatta is not used on both ranks: libfabric.so.1 is not found"
    );
    for code in ["tcp-network", "plugin-not-used"] {
        let fix = finding(&report, code).fix.as_deref().unwrap();
        assert!(fix.contains("REGATTA_LIBFABRIC") && fix.contains("REGATTA_NET=require"), "{fix}");
    }
    assert!(!is_satisfied(name, "cxi") && is_satisfied(name, "socket"));
    let off = recorded(name)
        .replace("NCCL WARN NET/Regatta: not used: ", "NCCL INFO NET/Regatta: not used: ");
    assert_eq!(codes(&judge(&off)), ["tcp-network", "plugin-not-used"], "disabled by the user");
    // With InfiniBand of NCCL itself the job is as fast as without the plug-in.
    let ib = recorded(name).replace("NET/Socket/0", "NET/IB/0/GDRDMA");
    let ib = ib.replace("Using network Socket", "Using network IB");
    let report = judge(&ib);
    assert_eq!(report.level, Level::Ok, "{:?}", report.findings);
    assert_eq!(codes(&report), ["plugin-not-used"]);
}

#[test]
fn wrapped_channel_over_tcp_is_found() {
    let report = judge_recorded("frontier-without-plugin.log");
    let [rank] = report.ranks.as_slice() else { panic!("{:?}", report.ranks) };
    assert_eq!((rank.rank, rank.host.as_str()), (Some(36), "frontier01466"));
    assert_eq!(rank.transports[0].transport.device, Some(4));
    assert_eq!(report.level, Level::Warning);
    assert_eq!(
        report.verdict,
        "the only rank uses TCP between nodes (NET/Socket), not an RDMA network"
    );
    assert!(!is_satisfied("frontier-without-plugin.log", "ofi"));
}

#[test]
fn plugin_without_gpudirect_rdma_is_a_warning() {
    let report = judge_recorded("frontier-with-plugin.log");
    assert_eq!(report.ranks[0].plugin.describe(), None);
    let loaded = report.ranks.iter().find(|rank| rank.host == "frontier03329").unwrap();
    assert_eq!(loaded.plugin.describe().unwrap(), "AWS Libfabric (API v5)");
    assert_eq!(finding(&report, "gdr-off").level, Level::Warning);
    let fix = finding(&report, "gdr-off").fix.clone().unwrap();
    assert!(fix.contains("NCCL_NET_GDR_LEVEL=PHB"), "{fix}");
}

#[test]
fn gpudirect_rdma_is_recognised_in_a_wrapped_line() {
    let report = judge_recorded("frontier-gdr.log");
    assert_eq!(report.level, Level::Ok, "{:?}", report.findings);
    assert_eq!(report.ranks[0].gdr, Gdr::On);
    assert_eq!(report.verdict, "1 rank uses NET/AWS Libfabric with GPUDirect RDMA");
    assert!(is_satisfied("frontier-gdr.log", "AWS Libfabric/GDRDMA"));
    assert!(!is_satisfied("frontier-gdr.log", "ib"));
    // The provider is not logged.
    assert!(!is_satisfied("frontier-gdr.log", "cxi"));
}

#[test]
fn management_network_in_the_list_is_the_mistake() {
    let report = judge_recorded("lumi-management-network.log");
    let found = finding(&report, "management-network");
    assert_eq!(found.level, Level::Failure);
    assert!(found.message.contains("(nmn0)"), "{}", found.message);
    assert_eq!(found.fix.as_deref(), Some("set NCCL_SOCKET_IFNAME to hsn"));
    assert_eq!(report.ranks[0].sockets.len(), 5, "the list continues in the next line");
}

#[test]
fn plugin_version_alone_does_not_prove_the_network() {
    let report = judge_recorded("lumi-plugin.log");
    assert_eq!(report.level, Level::Unknown);
    assert_eq!(report.ranks[0].plugin.describe().unwrap(), "aws-ofi-rccl 1.4.0");
    assert_eq!(codes(&report), ["no-channels"]);
}

#[test]
fn versions_from_2_18_to_2_31_are_judged() {
    let report = judge_recorded("nccl-2.18-roce.log");
    assert_eq!(report.level, Level::Ok, "{:?}", report.findings);
    assert_eq!(report.verdict, "2 ranks on 2 nodes use NET/IB with GPUDirect RDMA");
    assert_eq!(report.libraries, ["NCCL version 2.18.5+cuda12.0"]);
    assert_eq!(report.ranks[1].ib_devices[&0], "mlx5_4 (RoCE)");
    assert_eq!(report.ranks[1].transports[0].nic.as_deref(), Some("mlx5_4 (RoCE)"));
    assert!(report.ranks.iter().all(|rank| rank.connected));

    let report = judge_recorded("nccl-2.20-socket.log");
    assert_eq!(report.level, Level::Warning, "only Ethernet is known here");
    assert_eq!(codes(&report), ["tcp-network", "plugin-not-found"]);

    let report = judge_recorded("nccl-2.24-efa.log");
    assert_eq!(
        report.verdict,
        "2 ranks on 2 nodes use NET/AWS Libfabric (efa) with GPUDirect RDMA"
    );
    let plugin = "AWS Libfabric (aws-ofi-nccl 1.13.2-aws, libfabric 1.22, provider efa, API v8)";
    assert_eq!(report.ranks[0].plugin.describe().unwrap(), plugin);

    let report = judge_recorded("nccl-2.28-plugin-broken.log");
    assert_eq!(codes(&report), ["tcp-network", "plugin-failed"]);
    assert_eq!(finding(&report, "tcp-network").level, Level::Failure);
    let why = &finding(&report, "plugin-failed").message;
    assert!(why.contains("libfabric.so.1: cannot open"), "{why}");

    let report = judge_recorded("nccl-2.30-one-node.log");
    assert_eq!(report.level, Level::Ok, "{:?}", report.findings);
    let verdict = "4 ranks on one node communicate by P2P/CUMEM/read; no network is used";
    assert_eq!(report.verdict, verdict);

    let report = judge_recorded("nccl-2.31-pxn.log");
    assert_eq!(report.ranks[0].gdr, Gdr::ReceiveOnly);
    assert_eq!((report.level, codes(&report)), (Level::Ok, vec!["gdr-receive-only"]));
}

#[test]
fn rccl_is_judged() {
    let report = judge_recorded("rccl-2.21-cxi-gdr-off.log");
    assert_eq!(codes(&report), ["gdr-off"]);
    assert_eq!(report.libraries, ["RCCL version : 2.21.5-HEAD:9a0e6a1"]);
    assert_eq!(report.groups.len(), 2, "with and without a channel inside the node");
    assert_eq!(report.groups[0].hosts, "nid[001-002]");
    assert!(is_satisfied("rccl-2.21-cxi-gdr-off.log", "cxi"));
    assert!(!is_satisfied("rccl-2.21-cxi-gdr-off.log", "cxi/GDRDMA"));

    let report = judge_recorded("rccl-2.30-one-rank-differs.log");
    let found = finding(&report, "networks-differ");
    assert_eq!(found.level, Level::Failure);
    assert_eq!(found.ranks, "2");
    let message = "rank 2 on nid002 differs from the others: network NET/Socket, not NET/Libfabric";
    assert_eq!(found.message, message);
    assert!(!is_satisfied("rccl-2.30-one-rank-differs.log", "ofi"));
}

#[test]
fn reports_round_trip_as_json() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/logs");
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let text = std::fs::read(entry.path()).unwrap();
        let full = report(&read(&text, 7), None);
        let json = regatta_model::document::to_json(&full).unwrap();
        assert_eq!(regatta_model::document::from_json::<NetReport>(&json).unwrap(), full);
        assert!(json.contains("\"format\": \"regatta-net-log/1\""));
    }
}

#[test]
fn missing_ranks_are_named() {
    let text = "n0:1:1 [0] NCCL INFO comm 0x1 rank 0 nRanks 4 nNodes 2 localRanks 2 localRank 0\n\
                n1:1:1 [0] NCCL INFO comm 0x1 rank 2 nRanks 4 nNodes 2 localRanks 2 localRank 0\n";
    let report = judge(text);
    let message = "the log has no record of 2 ranks of 4: 1,3";
    assert_eq!(finding(&report, "missing-ranks").message, message);
}

#[test]
fn several_gpus_of_one_process_are_several_ranks() {
    let text = "n0:7:8 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/direct pointer\n\
                n0:7:9 [1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via P2P/direct pointer\n";
    let ranks = judge(text).ranks;
    assert_eq!(
        ranks.iter().map(|r| (r.rank, r.device)).collect::<Vec<_>>(),
        [(Some(0), 0), (Some(1), 1)]
    );
}

#[test]
fn ranks_of_small_communicators_are_taken_from_the_launcher() {
    // Two groups of two: each has a rank 0 and a rank 1.
    let line = |label: u32, rank: u32| {
        format!("{label}: n0:{label}0:1 [0] NCCL INFO comm 0x1 rank {rank} nRanks 2 nNodes 1\n")
    };
    let text: String = [(0, 0), (1, 1), (2, 0), (3, 1)].map(|(l, r)| line(l, r)).concat();
    let ranks: Vec<_> = judge(&text).ranks.iter().map(|rank| rank.rank).collect();
    assert_eq!(ranks, [0, 1, 2, 3].map(Some));
}

#[test]
fn a_log_without_records_says_how_to_get_one() {
    let report = judge("epoch 1 loss 2.5\n");
    assert_eq!(report.level, Level::Unknown);
    assert!(report.findings[0].fix.as_ref().unwrap().contains("NCCL_DEBUG=INFO"));
    let requirement: Requirement = "ib".parse().unwrap();
    assert!(!requirement.check(&report).satisfied);
}

#[test]
fn long_lines_are_skipped_and_the_next_line_is_read() {
    let mut text = vec![b'x'; 200_000];
    text.extend_from_slice(b"\nn0:1:1 [0] NCCL INFO Using network IB\n");
    let report = report(&read(&text, 4096), None);
    assert_eq!(report.ranks[0].network.as_deref(), Some("IB"));
    assert_eq!(report.counts.lines, 2);
}

/// A rank of a generated job.
#[derive(Debug, Clone)]
struct FakeRank {
    transports: Vec<usize>,
    network: usize,
}

const NETWORKS: [&str; 4] = ["IB", "AWS Libfabric", "Socket", "Libfabric"];

/// Text behind `via`, and whether it is a channel between nodes with GPUDirect RDMA.
fn via(network: usize, which: usize) -> (String, Option<bool>) {
    let network = NETWORKS[network];
    match which {
        0 => (format!("NET/{network}/0/GDRDMA"), Some(true)),
        1 => (format!("NET/{network}/1(3)/GDRDMA/Shared"), Some(true)),
        2 => (format!("NET/{network}/0"), Some(false)),
        3 => ("P2P/CUMEM/read".to_owned(), None),
        _ => ("SHM/direct/direct".to_owned(), None),
    }
}

fn prefix(style: usize, rank: usize) -> String {
    match style {
        0 => String::new(),
        1 => format!("{rank}: "),
        2 => format!("[1,{rank}]<stdout>:"),
        3 => format!("[{rank}] "),
        4 => "2026-11-17 22:39:22 ".to_owned(),
        5 => format!("[rank{rank}]: "),
        _ => format!("[node{rank} {rank}] "),
    }
}

fn lines(rank: usize, of: usize, fake: &FakeRank, style: usize) -> Vec<String> {
    let header = format!("{}node{rank}:{}:7 [0] NCCL INFO ", prefix(style, rank), 100 + rank);
    let peer = (rank + 1) % of;
    let mut lines = vec![
        format!("{header}Using network {}", NETWORKS[fake.network]),
        format!("{header}comm 0x7f rank {rank} nRanks {of} nNodes {of} localRanks 1 localRank 0"),
    ];
    for (at, which) in fake.transports.iter().enumerate() {
        let (via, net) = via(fake.network, *which);
        let send = if net.is_some() { "[send] " } else { "" };
        lines.push(format!("{header}Channel {at:02}/0 : {rank}[0] -> {peer}[0] {send}via {via}"));
    }
    lines.push(format!("{header}Connected all rings"));
    lines
}

/// Merges the lines of all ranks in a random order that keeps the order of each rank.
fn interleave(mut ranks: Vec<Vec<String>>, order: &[Index]) -> Vec<String> {
    ranks.iter_mut().for_each(|lines| lines.reverse());
    let mut merged = Vec::new();
    let mut order = order.iter().cycle();
    while ranks.iter().any(|lines| !lines.is_empty()) {
        let pending: Vec<usize> = (0..ranks.len()).filter(|&r| !ranks[r].is_empty()).collect();
        let next = order.next().map_or(0, |index| index.index(pending.len()));
        merged.extend(ranks[pending[next]].pop());
    }
    merged
}

fn job() -> impl Strategy<Value = Vec<FakeRank>> {
    let rank = (proptest::collection::vec(0..5usize, 0..6), 0..NETWORKS.len());
    let rank = rank.prop_map(|(transports, network)| FakeRank { transports, network });
    proptest::collection::vec(rank, 1..6)
}

fn expected_gdr(fake: &FakeRank) -> Gdr {
    let nets: Vec<bool> =
        fake.transports.iter().filter_map(|which| via(fake.network, *which).1).collect();
    match (nets.contains(&true), nets.contains(&false)) {
        (true, false) => Gdr::On,
        (false, true) => Gdr::Off,
        (true, true) => Gdr::Partial,
        (false, false) => Gdr::Unknown,
    }
}

fn rank_of(report: &NetReport, rank: usize) -> Option<&RankReport> {
    report.ranks.iter().find(|found| found.host == format!("node{rank}"))
}

proptest! {
    #[test]
    fn prefixes_interleaving_and_chunks_do_not_matter(
        job in job(),
        style in 0..7usize,
        order in proptest::collection::vec(any::<Index>(), 1..20),
        noise in proptest::collection::vec("[ -~]{0,40}", 1..4),
        chunk in 1..200usize,
    ) {
        let of = job.len();
        let ranks = job.iter().enumerate().map(|(rank, fake)| lines(rank, of, fake, style)).collect();
        let mut text = String::new();
        for (at, line) in interleave(ranks, &order).into_iter().enumerate() {
            text.push_str(&line);
            text.push('\n');
            let other = &noise[at % noise.len()];
            if !other.contains("NCCL ") {
                text.push_str(other);
                text.push('\n');
            }
        }
        let report = report(&read(text.as_bytes(), chunk), None);
        prop_assert_eq!(report.ranks.len(), of);
        for (rank, fake) in job.iter().enumerate() {
            let found = rank_of(&report, rank).unwrap();
            prop_assert_eq!(found.rank, Some(rank as u32));
            prop_assert_eq!(found.network.as_deref(), Some(NETWORKS[fake.network]));
            let channels: u64 = found.transports.iter().map(|t| t.channels).sum();
            prop_assert_eq!(channels, fake.transports.len() as u64);
            prop_assert_eq!(found.gdr, expected_gdr(fake));
            prop_assert!(found.connected);
        }
    }

    #[test]
    fn cuts_never_change_a_fact(
        job in job(),
        order in proptest::collection::vec(any::<Index>(), 1..20),
        cuts in proptest::collection::vec((any::<Index>(), any::<Index>()), 0..6),
    ) {
        let of = job.len();
        let ranks = job.iter().enumerate().map(|(rank, fake)| lines(rank, of, fake, 0)).collect();
        let mut merged = interleave(ranks, &order);
        // The rest of a line is lost, with its line break: the next record follows directly.
        let mut ends = vec!["\n"; merged.len()];
        for (line, at) in &cuts {
            let line = line.index(merged.len());
            let length = at.index(merged[line].len() + 1);
            merged[line].truncate(length);
            ends[line] = "";
        }
        let text: String = merged.iter().zip(&ends).flat_map(|(line, end)| [line, *end]).collect();
        let report = report(&read(text.as_bytes(), 50), None);
        for (rank, fake) in job.iter().enumerate() {
            let Some(found) = rank_of(&report, rank) else { continue };
            let network = NETWORKS[fake.network];
            prop_assert!(found.network.is_none() || found.network.as_deref() == Some(network));
            prop_assert!(found.networks_used().iter().all(|used| *used == network));
            let channels: u64 = found.transports.iter().map(|t| t.channels).sum();
            prop_assert!(channels <= fake.transports.len() as u64);
            let expected = expected_gdr(fake);
            prop_assert!(
                found.gdr == expected || found.gdr == Gdr::Unknown || expected == Gdr::Partial,
                "{:?}, not {:?}", found.gdr, expected
            );
        }
    }

    #[test]
    fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..400), chunk in 1..50usize) {
        let whole = report(&read(&bytes, bytes.len()), None);
        prop_assert_eq!(whole, report(&read(&bytes, chunk), None));
    }
}
