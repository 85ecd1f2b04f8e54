//! `regatta launch --require-net` on several nodes: the logs of all ranks are read, and the rank on the
//! wrong network is named.

use regatta_testbed::{Cluster, cluster_or_skip, run};

use crate::support::{REGATTA, from_json};

/// Logs as NCCL on two nodes would; node2 uses TCP if `WRONG` is set. `NCCL_DEBUG_FILE` is set by the
/// launcher.
const FAKE_NCCL: &str = r#"
network=IB/0/GDRDMA; test "$WRONG$(hostname)" = yesnode2 && network=Socket/0
h="$(hostname):$$:$$ [0] NCCL INFO "; p=$((1 - RANK)); exec 3> "$NCCL_DEBUG_FILE"
echo "${h}NCCL version 2.28.9+cuda13.0" >&3
echo "${h}Using network ${network%%/*}" >&3
echo "${h}comm 0x1 rank $RANK nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0" >&3
echo "${h}Channel 00/0 : $p[0] -> $RANK[0] [receive] via NET/$network" >&3
echo "${h}Channel 00/0 : $RANK[0] -> $p[0] [send] via NET/$network" >&3
echo "${h}Connected all rings, use ring PXN 0 GDR 1" >&3
test -z "$WRONG" || exec sleep 1000
"#;

#[test]
fn the_rank_on_the_wrong_network_is_named() {
    let Some(cluster) = cluster_or_skip(&Cluster::builder().nodes(2)) else { return };
    let launch = |folder: &str, wrong: &str| {
        let salloc = ["--quiet", "-N2", "env", wrong, REGATTA, "launch", "--ranks-per-node", "1"];
        let options = ["--run-dir", folder, "--require-net", "ib/GDRDMA"];
        let words = salloc.iter().chain(&options).chain(&["--", "sh", "-c", FAKE_NCCL]);
        run(&mut cluster.login("salloc", words)).unwrap()
    };
    let output = launch("good", "WRONG=").expect_success();
    let verdict = "GOOD: 2 ranks on 2 nodes use NET/IB with GPUDirect RDMA";
    assert!(output.stderr.contains(verdict), "{output:?}");

    let output = launch("wrong", "WRONG=yes");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(
        output.stderr.contains("--require-net ib/GDRDMA: rank 1 on node2: NET/Socket"),
        "{output:?}"
    );
    let report = std::fs::read_to_string(cluster.shared().join("wrong/net.json")).unwrap();
    let report: serde_json::Value = from_json(&report);
    assert_eq!(report["ranks"][1]["host"], "node2", "{report}");
    assert!(cluster.leftovers().unwrap().is_empty(), "the ranks were ended");
}
